"""Ranks: who does what, how they exchange, what becomes of lost ones; and the batch as W grows."""

from dataclasses import dataclass

from ddppo.config.fields import setting


@dataclass(slots=True)
class DistSettings:
    """What every topology has; those that have more derive from it (ddppo.topologies.settings)."""

    world_size: int = setting(1, "number of ranks W", low=1, high=1_000_000)
    topology: str = setting(
        "ddp",
        "which ranks step environments, act and learn: ddp, ddp_preempt, sync_actors, async_actors, "
        "multi_learner, env_workers, central_inference, device, or an import path of "
        "your own, my_pkg.topologies:Ring (docs/topologies.md); each may have settings of its own",
    )
    grad_sync: str = setting(
        "auto",
        "sum of gradients: ddp (DistributedDataParallel: buckets, overlapped with backward), flat (one "
        "sum), auto (ddp with dist.collective=gloo on CPUs from 1 M parameters, else flat)",
        choices=("auto", "ddp", "flat"),
    )
    reduction: str = setting(
        "fast",
        "order of floating-point sums: fast (results at different W agree to rounding), ordered (the same"
        " bits at every W that divides dist.shards; CPUs only, slower; docs/ordered.md)",
        choices=("fast", "ordered"),
    )
    shards: int | None = setting(
        None,
        "reduction=ordered: number of shards V of the environments; each is computed by itself, and V "
        "alone decides the order of sums. Divides env.num_envs. null is 8",
        low=1,
    )
    bucket_cap_mb: float | None = setting(
        None, "grad_sync=ddp: bucket size in MB; null is torch's default", above=0
    )
    collective: str = setting(
        "auto",
        "how ranks exchange numbers: shm (shared memory inside a machine, Gloo between machines), gloo or"
        " nccl (torch.distributed), auto (nccl if every rank has a GPU of its own, else shm)",
        choices=("auto", "shm", "gloo", "nccl"),
    )
    check_every: int = setting(
        10, "iterations between comparisons of the ranks' parameters by hash; 0 is never", low=0
    )
    timeout_s: float = setting(
        600.0, "seconds that a rank waits for another before it gives up", low=0.1, high=2_000_000
    )
    on_lost: str = setting(
        "stop",
        "if a process is killed or does not answer for timeout_s, an environment raises, or a rank runs "
        "out of memory: stop (all ranks end), or restart (a process of environments, a session with a "
        "server and a killed actor of async_actors alone; for any other rank all ranks, from the last "
        "checkpoint). Any other exception stops",
        choices=("stop", "restart"),
    )
    max_restarts: int = setting(
        3,
        "on_lost=restart: how often ranks, the processes of one rank, or the session of one environment "
        "are started again",
        low=1,
    )
    min_workers: int | None = setting(
        None,
        "on_lost=restart: if ranks are lost, or cannot be started, twice without a checkpoint in between,"
        " go on with the most ranks below world_size that divide the batch, but at least this many; null:"
        " never fewer ranks",
        low=1,
    )
    oversubscribe: str = setting(
        "warn",
        "more ranks on this machine than cores (or GPUs): warn and go on, or refuse",
        choices=("warn", "refuse"),
    )
    threads_per_rank: int | None = setting(
        None,
        "CPU threads of one rank. null: cores / W if a minibatch is large enough, else 1; always 1 with "
        "reduction=ordered, where another number gives other bits",
        low=1,
        high=1024,
    )

    @property
    def allowed_restarts(self) -> int:
        """How often what steps environments may be lost and started again."""
        return self.max_restarts if self.on_lost == "restart" else 0


@dataclass(slots=True)
class ScalingConfig:
    rule: str = setting(
        "strong",
        "as W grows: strong keeps the global batch, weak keeps the batch of one rank",
        choices=("strong", "weak"),
    )
    learning_rate_rule: str = setting(
        "none", "rule=weak: how the learning rate grows with W", choices=("none", "linear", "sqrt")
    )
