"""The topologies that ddppo has, by name, and how another is found by its import path."""

import functools

from ddppo.errors import ConfigError, near
from ddppo.plugins import imported
from ddppo.topologies.actors import multi_learner, sync_actors
from ddppo.topologies.async_actors import ASYNC_ACTORS
from ddppo.topologies.declaration import Layout, Message, Role, Sizes, Topology
from ddppo.topologies.env_workers import env_workers
from ddppo.tracebacks import in_one_line

_OF_WORKERS = ("step environments and act", "learn from the own share, gradients summed over all")
_OF_PREEMPTED = (
    "step environments and act, until done or until enough others are",
    "learn from the own share, gradients summed over all, whatever its length",
)
_OF_DEVICES = (
    "step environments and act, T steps in one call of C++",
    "learn from the own share, an epoch in one call, gradients summed over all",
)


def _ddp(world_size: int, sizes: Sizes, does: tuple[str, ...] = _OF_WORKERS) -> Layout:
    ranks = tuple(range(world_size))
    worker = Role("worker", ranks, steps=True, acts=True, learns=True, does=does)
    if world_size == 1:
        return Layout((worker,), ())
    gradients = Message("gradients", "worker", "worker", "sum", sizes.num_gradients, sizes.parameter_bytes)
    return Layout((worker,), (gradients,))


def _central_inference(world_size: int, sizes: Sizes) -> Layout:
    agent = Role(
        "agent", tuple(range(world_size)), steps=True, acts=True, learns=True,
        does=("act for all observers that wait, in one forward", "learn, gradients summed over all agents"),
    )  # fmt: skip
    observer = Role(
        "observer", (), steps=False, acts=False, learns=False,
        does=("step environments by the actions that come, each at its own pace",),
    )  # fmt: skip
    steps, each = sizes.rollout_steps, sizes.num_envs // world_size
    messages = [
        Message("actions", "agent", "observer", "shared memory", steps, each * sizes.action_bytes),
        Message(
            "observations", "observer", "agent", "shared memory", steps, each * (sizes.raw_obs_bytes + 10)
        ),
    ]
    if world_size > 1:
        messages.append(
            Message("gradients", "agent", "agent", "sum", sizes.num_gradients, sizes.parameter_bytes)
        )
    return Layout((agent, observer), tuple(messages))


TOPOLOGIES = {
    topology.name: topology
    for topology in (
        Topology("ddp", "W equal workers, each acts and learns", _ddp, "ddppo.distributed.programs.ddp:Ddp"),
        Topology(
            "ddp_preempt",
            "W equal workers as of ddp, whose slow ones end their rollouts early",
            functools.partial(_ddp, does=_OF_PREEMPTED),
            "ddppo.distributed.programs.preempt:PreemptiveWorker",
            settings="ddppo.topologies.settings:PreemptSettings",
        ),
        Topology(
            "sync_actors",
            "rank 0 learns, the others act in step with it",
            sync_actors,
            "ddppo.distributed.programs.actors:Actors",
            least_ranks=2,
        ),
        ASYNC_ACTORS,
        Topology(
            "multi_learner",
            "L learners sum their gradients, each learns from the rollouts of actors of its own",
            multi_learner,
            "ddppo.distributed.programs.actors:Actors",
            least_ranks=2,
            settings="ddppo.topologies.settings:MultiLearnerSettings",
            subgroups=True,
        ),
        Topology(
            "env_workers",
            "rank 0 acts and learns, the others step its environments",
            env_workers,
            "ddppo.distributed.programs.env_workers:EnvWorkers",
            least_ranks=2,
            settings="ddppo.topologies.settings:EnvWorkersSettings",
        ),
        Topology(
            "central_inference",
            "W agents, each acts for observers that step environments at their own pace",
            _central_inference,
            "ddppo.distributed.programs.central:Agent",
            env_backend="pool",
            settings="ddppo.topologies.settings:CentralInferenceSettings",
        ),
        Topology(
            "device",
            "W equal workers, each computes its environments and its learning in C++",
            functools.partial(_ddp, does=_OF_DEVICES),
            "ddppo.distributed.programs.device:Device",
            env_backend="batched",
            check="ddppo.distributed.programs.device:check",
        ),
    )
}


def find(name: str) -> Topology:
    """Return a topology by its name, or by the import path `module:attribute` of another. Raises ConfigError."""
    if name in TOPOLOGIES:
        return TOPOLOGIES[name]
    if name == "env_workers_hetero":
        raise ConfigError(
            f"dist.topology={name} is the preset distributed={name}, of dist.topology=env_workers: use that with "
            "dist.env_shares=[0], or with shares of your own"
        )
    if ":" not in name:
        raise ConfigError(
            f"dist.topology={name} is none of {', '.join(TOPOLOGIES)}{near(name, list(TOPOLOGIES))}; one of your own "
            "goes by its import path, my_pkg.topologies:Ring"
        )
    try:
        found = imported(name)
    except Exception as e:  # what a module of one's own may raise
        raise ConfigError(f"dist.topology={name} cannot be imported: {in_one_line(e)}") from e
    if not isinstance(found, Topology):
        raise ConfigError(
            f"dist.topology={name} is of type {type(found).__name__}, not a ddppo.topologies.Topology"
        )
    return found
