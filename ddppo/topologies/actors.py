"""sync_actors and multi_learner: learners, and actors that collect for one of them."""

from ddppo.errors import ConfigError
from ddppo.topologies.declaration import Layout, Message, Role, Sizes


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
