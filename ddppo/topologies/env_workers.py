"""env_workers: rank 0 acts and learns, the others step its environments."""

from ddppo.errors import ConfigError
from ddppo.topologies.declaration import Layout, Message, Role, Sizes

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
