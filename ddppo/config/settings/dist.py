"""Ranks: who does what, how they exchange, what becomes of lost ones; and the batch as W grows."""

from dataclasses import dataclass

from ddppo.config.fields import setting


@dataclass(slots=True)
class DistConfig:
    world_size: int = setting(1, "ranks W", low=1, high=1_000_000)
    topology: str = setting(
        "ddp",
        "who steps environments, acts and learns: ddp, ddp_preempt, sync_actors, async_actors, multi_learner, "
        "env_workers, env_workers_hetero, central_inference, device, or the import path of your own, "
        "my_pkg.topologies:Ring (docs/topologies.md)",
    )
    num_learners: int | None = setting(
        None,
        "topology=multi_learner: learners L in data parallel, each fed by W / L - 1 actors; null is as many as W "
        "allows, W / 2 with one actor each if it is even",
        low=1,
    )
    env_shares: list[int] = setting(
        meaning="topology=env_workers_hetero: environments of rank 1, 2, ..., env.num_envs in all; [] deals them as "
        "evenly as goes",
        factory=list,
    )
    observers: int | None = setting(
        None,
        "topology=central_inference: processes that step an agent's environments, each as many; null as many as "
        "env.num_workers says",
        low=1,
    )
    max_wait_ms: float | None = setting(
        None,
        "topology=central_inference: how long a forward waits for further observers once one is there; null for all",
        low=0,
        high=60_000,
    )
    max_lag: int | None = setting(
        None,
        "topology=async_actors: updates between the parameters that acted and those that learn, at most; what is older "
        "is refused. 0 is in step; null the least with which no actor waits for an update to end",
        low=0,
    )
    correction: str = setting(
        "clip",
        "topology=async_actors: of what other parameters acted: clip (advantages by truncated importance ratios), "
        "vtrace (also the values' targets), none (what PPO's own clipping does)",
        choices=("clip", "vtrace", "none"),
    )
    preempt_rule: str = setting(
        "fraction",
        "topology=ddp_preempt: for how many ranks' rollouts to wait before others end theirs early: fraction "
        "(sync_frac of them), throughput (so many that steps / (rollout + learn time) is highest by the speeds of the "
        "last iterations)",
        choices=("fraction", "throughput"),
    )
    sync_frac: float = setting(
        0.6,
        "topology=ddp_preempt: once this share of the ranks have ended their rollouts the others end theirs",
        above=0,
        high=1,
    )
    min_frac: float = setting(
        0.25,
        "topology=ddp_preempt: share of its steps that a rank does in any case before it ends a rollout early",
        low=0,
        high=1,
    )
    rollout_time_cap_s: float | None = setting(
        None,
        "topology=ddp_preempt: seconds after which a rank that has min_frac of its steps ends its rollout, whatever "
        "others do; null is no limit",
        above=0,
        high=2_000_000,
    )
    max_world_size: int | None = setting(None, "largest world_size this option allows", low=1)
    grad_sync: str = setting(
        "auto",
        "ddp (DistributedDataParallel: buckets, overlapped), flat (one sum), auto (ddp with dist.collective=gloo "
        "on CPUs from 1 M parameters, else flat)",
        choices=("auto", "ddp", "flat"),
    )
    reduction: str = setting(
        "fast",
        "fast (results depend on W by the order of floating-point sums), or ordered (the same bits at any W that "
        "divides dist.shards, on CPUs; slower, docs/ordered.md)",
        choices=("fast", "ordered"),
    )
    shards: int | None = setting(
        None,
        "reduction=ordered: shards V of the environments, each computed by itself and summed in an order that follows "
        "from V; divides env.num_envs. null is 8",
        low=1,
    )
    bucket_cap_mb: float | None = setting(
        None, "bucket size of grad_sync=ddp in MB (torch's default if null)", above=0
    )
    collective: str = setting(
        "auto",
        "how ranks exchange: shm (shared memory inside a machine, Gloo between machines), gloo or nccl "
        "(torch.distributed), auto (nccl where every rank has a GPU of its own, else shm)",
        choices=("auto", "shm", "gloo", "nccl"),
    )
    check_every: int = setting(
        10, "iterations between comparisons of the parameters' hash; 0 is never", low=0
    )
    timeout_s: float = setting(
        600.0, "seconds a rank waits for another before it gives up", above=0, high=2_000_000
    )
    on_lost: str = setting(
        "stop",
        "when a process is killed by a signal or does not answer for timeout_s: stop (all ranks end), or restart (a "
        "process of environments, a session with a server of them, and a killed rank that acts at its own pace, is "
        "started again; for any other rank all end and go on from the last checkpoint). So it is with a rank whose "
        "environment raised or that ran out of memory; any other exception always stops",
        choices=("stop", "restart"),
    )
    max_restarts: int = setting(
        3,
        "with on_lost=restart, how often ranks, one rank's processes, or one environment's session are started again",
        low=1,
    )
    min_workers: int | None = setting(
        None,
        "with on_lost=restart: where ranks were lost, or could not be started, twice without a checkpoint in between, "
        "fewer go on: the most below world_size, but no fewer than these, that the batch can be dealt to; null: never",
        low=1,
    )
    oversubscribe: str = setting(
        "warn",
        "more ranks on this machine than it has cores (or GPUs): warn and go on, or refuse",
        choices=("warn", "refuse"),
    )
    threads_per_rank: int | None = setting(
        None,
        "CPU threads of one rank; null takes cores / W where a minibatch is work enough, else 1, and 1 with "
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
        "strong", "strong keeps the global batch, weak keeps one rank's", choices=("strong", "weak")
    )
    learning_rate_rule: str = setting(
        "none", "learning rate against W under rule=weak", choices=("none", "linear", "sqrt")
    )
