"""The topologies of ddppo by name: their layouts, and their declarations in `TOPOLOGIES` at the end.

A layout is a function of W and `Sizes`; it says which ranks step, act and learn, and which messages travel. Everything
here is data that configurations are checked with, so it imports no torch; the class that a rank runs is named by its
import path. `find` also finds a user's own topology.
"""

# One file of all layouts, not a torch-free file beside each program: seven files of thirty lines would be read together
# anyway, as layouts share functions (four are equal workers or learners with actors) and the table is checked as a
# whole. A topology of a user's own has all of it in one file (docs/guide/topology.md).

import functools
from dataclasses import replace
from itertools import accumulate

from ddppo.distributed.topologies.contract import Layout, Message, Role, Sizes, TopologySpec
from ddppo.errors import ConfigError, in_one_line, near
from ddppo.plugins import imported
from ddppo.scaling import nearly_equal

# -- ddp, ddp_preempt and device: W equal workers.

_WORKER_TASKS = ("step environments and act", "learn from the own share, gradients summed over all")
_PREEMPTED_WORKER_TASKS = (
    "step environments and act, until all steps are done or enough other workers are",
    "learn from the own share of any length, gradients summed over all",
)
_CPP_WORKER_TASKS = (
    "step environments and act, T steps in one call of C++",
    "learn from the own share, an epoch in one call, gradients summed over all",
)


def _equal_workers(world_size: int, sizes: Sizes, does: tuple[str, ...] = _WORKER_TASKS) -> Layout:
    ranks = tuple(range(world_size))
    worker = Role("worker", ranks, steps=True, acts=True, learns=True, does=does)
    if world_size == 1:
        return Layout((worker,), ())
    gradients = Message("gradients", "worker", "worker", "sum", sizes.num_gradients, sizes.parameter_bytes)
    return Layout((worker,), (gradients,))


# -- sync_actors and multi_learner: learners, and actors that collect for one of them.


def sync_actors(world_size: int, sizes: Sizes) -> Layout:
    """Return the layout of one learner, rank 0, and W - 1 actors."""
    return _learners_with_actors(world_size, 1, sizes)


def multi_learner(world_size: int, sizes: Sizes) -> Layout:
    """Return the layout of L learners with W / L - 1 actors each; if L does not divide W, the first have one more.

    Ranks are ordered learner, its actors, next learner, its actors, ... If ranks fill one machine after another, as
    SLURM's do, actors are on the machine of their learner.
    """
    most = world_size // 2
    num_learners = sizes.num_learners or max(n for n in range(1, most + 1) if world_size % n == 0)
    if num_learners > most:
        raise ConfigError(
            f"dist.num_learners={num_learners} with dist.world_size={world_size}: every learner has at least one "
            f"actor; use at most {most} learner{'s' * (most > 1)}, or at least {2 * num_learners} ranks"
        )
    return _learners_with_actors(world_size, num_learners, sizes)


def _learners_with_actors(world_size: int, num_learners: int, sizes: Sizes) -> Layout:
    # A team is a learner and its actors.
    learners = tuple(accumulate(nearly_equal(world_size, num_learners)[:-1], initial=0))
    actors = tuple(rank for rank in range(world_size) if rank not in learners)
    learner = Role(
        "learner", learners, steps=False, acts=False, learns=True,
        does=(
            "wait for the rollouts of all its actors",
            "learn from all of them" + (", gradients summed over all learners" if num_learners > 1 else ""),
            "send the parameters",
        ),
    )  # fmt: skip
    actor = Role(
        "actor", actors, steps=True, acts=True, learns=False,
        does=("step environments and act", "send the rollout", "wait for the parameters"),
    )  # fmt: skip
    # In the order of an iteration.
    messages = [Message("rollout", "actor", "learner", "gather", 1, rollout_bytes(len(actors), sizes))]
    if num_learners > 1:
        messages.append(
            Message("gradients", "learner", "learner", "sum", sizes.num_gradients, sizes.parameter_bytes)
        )
    messages.append(Message("parameters", "learner", "actor", "broadcast", 1, acting_bytes(sizes)))
    return Layout((learner, actor), tuple(messages))


def rollout_bytes(num_actors: int, sizes: Sizes) -> int:
    """Return the bytes of one actor's rollout; the largest one if shares are unequal."""
    steps = -(-sizes.num_envs // num_actors) * sizes.rollout_steps
    # A step is an observation, an action, some numbers and four flags.
    return steps * (sizes.obs_bytes + sizes.action_bytes + sizes.step_numbers * sizes.float_bytes + 4)


def acting_bytes(sizes: Sizes) -> int:
    """Return the bytes of the parameters that an actor needs."""
    return sizes.parameter_bytes if sizes.acting_bytes is None else sizes.acting_bytes


# -- async_actors: one learner, and actors at their own pace.


def _async_actors(world_size: int, sizes: Sizes) -> Layout:
    learner = Role(
        "learner", (0,), steps=False, acts=False, learns=True,
        does=(
            "take rollouts from any actors that have one, refuse rollouts older than dist.max_lag",
            "reply to an actor with the parameters as soon as its next rollout can be used",
            "learn from as many rollouts as make a batch",
        ),
    )  # fmt: skip
    actors = tuple(range(1, world_size))
    actor = Role(
        "actor", actors, steps=True, acts=True, learns=False,
        does=("step environments and act", "send the rollout", "wait for the parameters"),
        can_restart=True,
    )  # fmt: skip
    return Layout(
        (learner, actor),
        (
            Message("rollout", "actor", "learner", "send", 1, rollout_bytes(len(actors), sizes)),
            Message("parameters", "learner", "actor", "send", len(actors), acting_bytes(sizes)),
        ),
    )


# -- env_workers: rank 0 acts and learns, the other ranks step its environments.


# The same as dist.env_shares=[], nearly equal shares. Older runs and the preset distributed=env_workers_hetero have it.
NEARLY_EQUAL = (0,)


def env_workers(world_size: int, sizes: Sizes) -> Layout:
    """Return the layout with nearly equal shares of the environments, or with the shares of dist.env_shares.

    Shares do not adapt to the cores of each rank, which are unknown before the ranks start.
    """
    shares = sizes.env_shares
    if shares in ((), NEARLY_EQUAL):
        return _learner_with_env_workers(world_size, sizes, ())
    num_envs, stepping = sizes.num_envs, world_size - 1
    given = f"dist.env_shares={list(shares)}"
    if len(shares) != stepping:
        raise ConfigError(
            f"{given} has {len(shares)} numbers: one is needed for each of the {stepping} ranks of "
            f"dist.world_size={world_size} that step environments"
        )
    if min(shares) < 1:
        raise ConfigError(f"{given}: every rank steps at least 1 environment; use fewer ranks")
    if sum(shares) != num_envs:
        raise ConfigError(f"{given} is {sum(shares)} environments in all: set env.num_envs={sum(shares)}")
    return _learner_with_env_workers(world_size, sizes, shares)


def _learner_with_env_workers(world_size: int, sizes: Sizes, shares: tuple[int, ...]) -> Layout:
    learner = Role(
        "learner", (0,), steps=False, acts=True, learns=True,
        does=("act for all environments, step after step", "learn from all of them"),
    )  # fmt: skip
    workers = tuple(range(1, world_size))
    stepper = Role(
        "environments", workers, steps=True, acts=False, learns=False,
        does=("step the environments by the actions that arrive, step after step",),
    )  # fmt: skip
    if sizes.turns:
        return _text_on_env_workers(learner, stepper, sizes, shares)
    # Messages of a gather are equally long: a rank with fewer environments pads its own.
    most = max(shares, default=-(-sizes.num_envs // len(workers)))
    # A result is an observation, a final observation, a reward (8 bytes) and five flags.
    result_bytes, steps = most * (2 * sizes.raw_obs_bytes + 8 + 5), sizes.rollout_steps
    action_bytes = sizes.num_envs * sizes.action_bytes
    return Layout(
        (learner, stepper),
        (
            Message("actions", "learner", "environments", "broadcast", steps, action_bytes),
            Message("results of a step", "environments", "learner", "gather", steps, result_bytes),
        ),
        shares,
    )


def _text_on_env_workers(learner: Role, stepper: Role, sizes: Sizes, shares: tuple[int, ...]) -> Layout:
    """Return the layout for tasks of text, with bytes of the longest texts and of as many turns as it allows."""
    most = max(shares, default=-(-sizes.num_envs // len(stepper.ranks)))
    call_bytes = sizes.num_envs * sizes.turn_bytes
    return Layout(
        (
            replace(
                learner, does=("type the turns of all environments that have answered", *learner.does[1:])
            ),
            replace(stepper, does=("step the environments by the turns that arrive, send the answers",)),
        ),
        (
            Message("turns of text", "learner", "environments", "broadcast", sizes.turns + 1, call_bytes),
            Message(
                "answers",
                "environments",
                "learner",
                "gather",
                sizes.turns + 1,
                most * sizes.raw_obs_bytes,
            ),
        ),
        shares,
    )


# -- central_inference: agents, and observers that step their environments.


def _central_inference(world_size: int, sizes: Sizes) -> Layout:
    agent = Role(
        "agent", tuple(range(world_size)), steps=True, acts=True, learns=True,
        does=("act for all observers that wait, in one forward", "learn, gradients summed over all agents"),
    )  # fmt: skip
    observer = Role(
        "observer", (), steps=False, acts=False, learns=False,
        does=("step environments by the actions that arrive, each at its own pace",),
    )  # fmt: skip
    steps, local_num_envs = sizes.rollout_steps, -(-sizes.num_envs // world_size)  # of the first agent
    action_bytes = local_num_envs * sizes.action_bytes
    # A result is an observation, a reward (8 bytes) and two flags.
    result_bytes = local_num_envs * (sizes.raw_obs_bytes + 10)
    messages = [
        Message("actions", "agent", "observer", "shared memory", steps, action_bytes),
        Message("observations", "observer", "agent", "shared memory", steps, result_bytes),
    ]
    if world_size > 1:
        messages.append(
            Message("gradients", "agent", "agent", "sum", sizes.num_gradients, sizes.parameter_bytes)
        )
    return Layout((agent, observer), tuple(messages))


# -- The declarations.

_HERE = "ddppo.distributed.topologies"

TOPOLOGIES = {
    topology.name: topology
    for topology in (
        TopologySpec(
            "ddp",
            "W equal workers, each acts and learns",
            _equal_workers,
            f"{_HERE}.ddp:Ddp",
            takes_device_envs=True,
        ),
        TopologySpec(
            "ddp_preempt",
            "W equal workers as in ddp; slow ones end their rollouts early",
            functools.partial(_equal_workers, does=_PREEMPTED_WORKER_TASKS),
            f"{_HERE}.ddp:DdpPreempt",
            settings=f"{_HERE}.settings:PreemptSettings",
            cannot={
                "episodes": "it ends slow rollouts early, and the return of a cut episode says nothing: use "
                "distributed=ddp",
                "groups": "it ends slow rollouts early, and the return of a cut episode says nothing: use "
                "distributed=ddp",
                "text": "it ends slow rollouts early, and the return of a cut episode says nothing: use "
                "distributed=ddp",
                "orders": "it ends slow rollouts early, and orders are compared by whole episodes: use distributed=ddp",
            },
        ),
        TopologySpec(
            "sync_actors",
            "rank 0 learns, the others act in step with it",
            sync_actors,
            f"{_HERE}.actors:SyncActors",
            least_ranks=2,
        ),
        TopologySpec(
            "async_actors",
            "rank 0 learns, the others act at their own pace",
            _async_actors,
            f"{_HERE}.async_actors.learner:make",
            least_ranks=2,
            settings=f"{_HERE}.settings:AsyncActorsSettings",
            own_pace=True,
        ),
        TopologySpec(
            "multi_learner",
            "L learners sum their gradients; each learns from the rollouts of its own actors",
            multi_learner,
            f"{_HERE}.actors:SyncActors",
            least_ranks=2,
            settings=f"{_HERE}.settings:MultiLearnerSettings",
            subgroups=True,
        ),
        TopologySpec(
            "env_workers",
            "rank 0 acts and learns, the others step its environments",
            env_workers,
            f"{_HERE}.env_workers:make",
            least_ranks=2,
            settings=f"{_HERE}.settings:EnvWorkersSettings",
        ),
        TopologySpec(
            "central_inference",
            "W agents, each acts for observers that step environments at their own pace",
            _central_inference,
            f"{_HERE}.central_inference:Agent",
            env_backend="pool",
            settings=f"{_HERE}.settings:CentralInferenceSettings",
            cannot={
                "text": "a rank of distributed=ddp acts for all its environments of text that wait already, in one "
                "forward pass: use that",
            },
        ),
        TopologySpec(
            "device",
            "W equal workers, each computes its environments and its learning in C++; or on its device, with "
            "env.backend=device",
            functools.partial(_equal_workers, does=_CPP_WORKER_TASKS),
            f"{_HERE}.device:Device",
            env_backend="batched",
            takes_device_envs=True,
            check=f"{_HERE}.device:check",
            cannot={
                "episodes": "its C++ collects T steps of every environment in one call: use distributed=ddp",
                "groups": "its C++ collects T steps of every environment in one call: use distributed=ddp",
                "text": "its C++ steps no tasks of text: use distributed=ddp",
                "memory": "its C++ has no policies with memory: use distributed=ddp",
                "orders": "its C++ collects T steps of every environment in one call: use distributed=ddp",
            },
        ),
    )
}


def find(name: str) -> TopologySpec:
    """Return a topology by its name, or a user's by its import path `module:attribute`. Raises ConfigError."""
    if name in TOPOLOGIES:
        return TOPOLOGIES[name]
    if name == "env_workers_hetero":
        raise ConfigError(
            f"dist.topology={name} is the preset distributed={name}, of dist.topology=env_workers: use that; shares of "
            "your own are dist.env_shares"
        )
    if ":" not in name:
        raise ConfigError(
            f"dist.topology={name} is none of {', '.join(TOPOLOGIES)}{near(name, list(TOPOLOGIES))}; one of your own "
            "goes by its import path, my_pkg.topologies:Ring"
        )
    try:
        found = imported(name)
    except Exception as e:  # a user's module may raise anything
        raise ConfigError(f"dist.topology={name} cannot be imported: {in_one_line(e)}") from e
    if not isinstance(found, TopologySpec):
        raise ConfigError(
            f"dist.topology={name} is of type {type(found).__name__}, no TopologySpec "
            "(ddppo.distributed.topologies.contract)"
        )
    return found
