"""The topologies that ddppo has, by name, and how another is found by its import path."""

import functools
import importlib
from typing import Any

from ddppo.errors import ConfigError, near
from ddppo.topologies.declaration import Layout, Message, Role, Sizes, Topology

_OF_WORKERS = ("step environments and act", "learn from the own share, gradients summed over all")
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


def _sync_actors(world_size: int, sizes: Sizes) -> Layout:
    learner = Role(
        "learner", (0,), steps=False, acts=False, learns=True,
        does=("wait for the rollouts of all actors", "learn from all of them", "send the parameters"),
    )  # fmt: skip
    actors = tuple(range(1, world_size))
    actor = Role(
        "actor", actors, steps=True, acts=True, learns=False,
        does=("step environments and act", "send the rollout", "wait for the parameters"),
    )  # fmt: skip
    samples = sizes.num_envs // len(actors) * sizes.rollout_steps
    # Of a sample: observation, action, logprob, value, next value, reward, and four flags.
    rollout = samples * (sizes.obs_bytes + sizes.action_bytes + 5 * sizes.float_bytes + 4)
    return Layout(
        (learner, actor),
        (
            Message("rollout", "actor", "learner", "gather", 1, rollout),
            Message("parameters", "learner", "actor", "broadcast", 1, sizes.parameter_bytes),
        ),
    )


def _env_workers(world_size: int, sizes: Sizes) -> Layout:
    learner = Role(
        "learner", (0,), steps=False, acts=True, learns=True,
        does=("act for all environments, step after step", "learn from all of them"),
    )  # fmt: skip
    workers = tuple(range(1, world_size))
    stepper = Role(
        "environments", workers, steps=True, acts=False, learns=False,
        does=("step the environments by the actions that come, step after step",),
    )  # fmt: skip
    each = -(-sizes.num_envs // len(workers))
    # Back come an observation, a final observation, a reward and five flags.
    answer, steps = each * (2 * sizes.obs_bytes + 8 + 5), sizes.rollout_steps
    return Layout(
        (learner, stepper),
        (
            Message(
                "actions", "learner", "environments", "broadcast", steps, sizes.num_envs * sizes.action_bytes
            ),
            Message("what environments answer", "environments", "learner", "gather", steps, answer),
        ),
    )


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
        Message("observations", "observer", "agent", "shared memory", steps, each * (sizes.obs_bytes + 10)),
    ]
    if world_size > 1:
        messages.append(
            Message("gradients", "agent", "agent", "sum", sizes.num_gradients, sizes.parameter_bytes)
        )
    return Layout((agent, observer), tuple(messages))


TOPOLOGIES = {
    topology.name: topology
    for topology in (
        Topology(
            "ddp", "W equal workers, each acts and learns", _ddp, "ddppo.distributed.programs.workers:Worker"
        ),
        Topology(
            "sync_actors",
            "rank 0 learns, the others act in step with it",
            _sync_actors,
            "ddppo.distributed.programs.actors:SyncActors",
            least_ranks=2,
        ),
        Topology(
            "env_workers",
            "rank 0 acts and learns, the others step its environments",
            _env_workers,
            "ddppo.distributed.programs.env_workers:EnvWorkers",
            least_ranks=2,
        ),
        Topology(
            "central_inference",
            "W agents, each acts for observers that step environments at their own pace",
            _central_inference,
            "ddppo.distributed.programs.central:Agent",
            env_backend="pool",
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
    if ":" not in name:
        raise ConfigError(
            f"dist.topology={name} is none of {', '.join(TOPOLOGIES)}{near(name, list(TOPOLOGIES))}; one of your own "
            "goes by its import path, my_pkg.topologies:Ring"
        )
    try:
        found = imported(name)
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"dist.topology={name} cannot be imported: {e}") from e
    if not isinstance(found, Topology):
        raise ConfigError(
            f"dist.topology={name} is a {type(found).__name__}, not a ddppo.topologies.Topology"
        )
    return found


def imported(path: str) -> Any:
    """Return what stands at an import path `module:attribute`."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
