"""The topologies that ddppo has, by name, and how another is found by its import path."""

import functools

from ddppo.distributed.topologies.contract import Layout, Message, Role, Sizes, TopologySpec
from ddppo.errors import ConfigError, in_one_line, near
from ddppo.plugins import imported

# -- sync_actors and multi_learner: learners, and actors that collect for one of them.


def sync_actors(world_size: int, sizes: Sizes) -> Layout:
    """Return the layout of one learner, rank 0, and W - 1 actors."""
    return _learners_with_actors(world_size, 1, sizes)


def multi_learner(world_size: int, sizes: Sizes) -> Layout:
    """Return the layout of L learners with W / L - 1 actors each.

    Ranks go learner, its actors, next learner, ..., so that where ranks fill one machine after another, as SLURM's do,
    actors are beside their learner.
    """
    possible = [n for n in range(1, world_size // 2 + 1) if world_size % n == 0]
    num_learners = sizes.num_learners or possible[-1]
    if num_learners not in possible:
        raise ConfigError(
            f"dist.num_learners={num_learners} with dist.world_size={world_size}: every learner has as many actors as "
            f"the others, at least one; use {_either(possible)} learners, or {2 * num_learners}, {3 * num_learners}, "
            "... ranks"
        )
    return _learners_with_actors(world_size, num_learners, sizes)


def rollout_bytes(num_actors: int, sizes: Sizes) -> int:
    """Return the bytes of one actor's rollout."""
    samples = sizes.num_envs // num_actors * sizes.rollout_steps
    # Of a sample: observation, action, logprob, value, next value, reward, and four flags.
    return samples * (sizes.obs_bytes + sizes.action_bytes + 4 * sizes.float_bytes + 4)


def _either(numbers: list[int]) -> str:
    return " or ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def _learners_with_actors(world_size: int, num_learners: int, sizes: Sizes) -> Layout:
    each = world_size // num_learners  # a learner with its actors
    learners = tuple(range(0, world_size, each))
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
    messages = [
        Message("rollout", "actor", "learner", "gather", 1, rollout_bytes(len(actors), sizes)),
        Message("parameters", "learner", "actor", "broadcast", 1, sizes.parameter_bytes),
    ]
    if num_learners > 1:
        messages.append(
            Message("gradients", "learner", "learner", "sum", sizes.num_gradients, sizes.parameter_bytes)
        )
    return Layout((learner, actor), tuple(messages))


# -- async_actors: one learner, actors at their own pace.


def _async_actors(world_size: int, sizes: Sizes) -> Layout:
    learner = Role(
        "learner", (0,), steps=False, acts=False, learns=True,
        does=(
            "take rollouts from whichever actors have one, refuse those older than dist.max_lag",
            "answer an actor with the parameters as soon as its next rollout can be used",
            "learn from as many as make a batch",
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
            Message("parameters", "learner", "actor", "send", len(actors), sizes.parameter_bytes),
        ),
    )


ASYNC_ACTORS = TopologySpec(
    "async_actors",
    "rank 0 learns, the others act at their own pace",
    _async_actors,
    "ddppo.distributed.topologies.async_actors.learner:make",
    least_ranks=2,
    settings="ddppo.distributed.topologies.settings:AsyncActorsSettings",
    own_pace=True,
)


# -- env_workers: rank 0 acts and learns, the others step its environments.


UNEVEN = (0,)  # dist.env_shares of distributed=env_workers_hetero, until it is given others


def env_workers(world_size: int, sizes: Sizes) -> Layout:
    """Return the layout where each rank steps as many environments, or as many as dist.env_shares gives it.

    UNEVEN gives the first ranks one more than the others, so that any number of ranks goes with any number of
    environments. What cores ranks have is not known before they start, so nothing follows from it.
    """
    if not sizes.env_shares:
        return _layout(world_size, sizes, ())
    num_envs, stepping = sizes.num_envs, world_size - 1
    if num_envs < stepping:
        raise ConfigError(
            f"dist.world_size={world_size} with env.num_envs={num_envs}: each of the {stepping} ranks that step "
            f"environments needs one: use at most {num_envs + 1} ranks, or more environments"
        )
    shares = sizes.env_shares
    if shares == UNEVEN:
        fewest, rest = divmod(num_envs, stepping)
        shares = tuple(fewest + (place < rest) for place in range(stepping))
    said = f"dist.env_shares={list(shares)}"
    if len(shares) != stepping:
        raise ConfigError(
            f"{said} has {len(shares)} numbers: one is needed for each of the {stepping} ranks of "
            f"dist.world_size={world_size} that step environments"
        )
    if min(shares) < 1:
        raise ConfigError(f"{said}: every rank steps at least 1 environment; use fewer ranks")
    if sum(shares) != num_envs:
        raise ConfigError(f"{said} is {sum(shares)} environments in all: set env.num_envs={sum(shares)}")
    return _layout(world_size, sizes, shares)


def _layout(world_size: int, sizes: Sizes, shares: tuple[int, ...]) -> Layout:
    learner = Role(
        "learner", (0,), steps=False, acts=True, learns=True,
        does=("act for all environments, step after step", "learn from all of them"),
    )  # fmt: skip
    workers = tuple(range(1, world_size))
    stepper = Role(
        "environments", workers, steps=True, acts=False, learns=False,
        does=("step the environments by the actions that come, step after step",),
    )  # fmt: skip
    # A rank with fewer fills its message up.
    each = max(shares, default=-(-sizes.num_envs // len(workers)))
    # Back come an observation, a final observation, a reward and five flags.
    answer, steps = each * (2 * sizes.raw_obs_bytes + 8 + 5), sizes.rollout_steps
    actions = sizes.num_envs * sizes.action_bytes
    return Layout(
        (learner, stepper),
        (
            Message("actions", "learner", "environments", "broadcast", steps, actions),
            Message("what environments answer", "environments", "learner", "gather", steps, answer),
        ),
        shares,
    )


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
        TopologySpec(
            "ddp", "W equal workers, each acts and learns", _ddp, "ddppo.distributed.topologies.ddp:Ddp"
        ),
        TopologySpec(
            "ddp_preempt",
            "W equal workers as of ddp, whose slow ones end their rollouts early",
            functools.partial(_ddp, does=_OF_PREEMPTED),
            "ddppo.distributed.topologies.ddp:DdpPreempt",
            settings="ddppo.distributed.topologies.settings:PreemptSettings",
        ),
        TopologySpec(
            "sync_actors",
            "rank 0 learns, the others act in step with it",
            sync_actors,
            "ddppo.distributed.topologies.actors:SyncActors",
            least_ranks=2,
        ),
        ASYNC_ACTORS,
        TopologySpec(
            "multi_learner",
            "L learners sum their gradients, each learns from the rollouts of actors of its own",
            multi_learner,
            "ddppo.distributed.topologies.actors:SyncActors",
            least_ranks=2,
            settings="ddppo.distributed.topologies.settings:MultiLearnerSettings",
            subgroups=True,
        ),
        TopologySpec(
            "env_workers",
            "rank 0 acts and learns, the others step its environments",
            env_workers,
            "ddppo.distributed.topologies.env_workers:EnvWorkers",
            least_ranks=2,
            settings="ddppo.distributed.topologies.settings:EnvWorkersSettings",
        ),
        TopologySpec(
            "central_inference",
            "W agents, each acts for observers that step environments at their own pace",
            _central_inference,
            "ddppo.distributed.topologies.central_inference:Agent",
            env_backend="pool",
            settings="ddppo.distributed.topologies.settings:CentralInferenceSettings",
        ),
        TopologySpec(
            "device",
            "W equal workers, each computes its environments and its learning in C++",
            functools.partial(_ddp, does=_OF_DEVICES),
            "ddppo.distributed.topologies.device:Device",
            env_backend="batched",
            check="ddppo.distributed.topologies.device:check",
        ),
    )
}


def find(name: str) -> TopologySpec:
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
    if not isinstance(found, TopologySpec):
        raise ConfigError(
            f"dist.topology={name} is of type {type(found).__name__}, no TopologySpec "
            "(ddppo.distributed.topologies.contract)"
        )
    return found
