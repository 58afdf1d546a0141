"""The sizes of an iteration as a function of the number of ranks W. Pure arithmetic, no torch.

Strong scaling keeps the global batch: more ranks have fewer environments each. Weak scaling keeps the batch of a rank.
If the number of ranks does not divide the environments, the first ranks have one environment more than the others.

Why results do not depend on W, in one place:

- The global batch is the same (strong scaling, W <= env.num_envs).
- Seeds and action noise follow the global index of an environment (seeding.py).
- All ranks derive one permutation of the global batch (ppo/minibatches.py).
- A loss is a local sum over a global count, and gradients are summed (distributed/gradient_sync.py).
- Moments are merged by count (ppo/rollout_stats.py).
- Parameters begin as those of rank 0 (loop/build.py).

So runs differ only by the order of floating-point sums, which dist.reduction=ordered fixes (collectives/group.py).
Exceptions: weak scaling, W > env.num_envs, ppo.normalize_advantages=local, a model that mixes the samples of a batch,
and env.backend=gym_vector for a task with one random stream for its whole batch (docs/design.md).
"""

from dataclasses import dataclass, replace
from itertools import islice

from ddppo.errors import ConfigError


def nearly_equal(number: int, num_parts: int) -> tuple[int, ...]:
    """Return `number` in whole parts that differ by at most one, the larger ones first."""
    fewest, rest = divmod(number, num_parts)
    return (fewest + 1,) * rest + (fewest,) * (num_parts - rest)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The sizes of one iteration. Names without `local_` count over all ranks.

    B = N * T samples are collected per iteration, and split into M nearly equal minibatches.
    """

    num_envs: int  # N, environments
    rollout_steps: int  # T, steps per environment and iteration
    world_size: int  # W, ranks
    num_minibatches: int  # M, per epoch
    num_epochs: int  # K, passes over the batch
    learning_rate_scale: float = 1.0  # factor of the step sizes, by weak scaling
    num_stepping: int = 0  # ranks that step environments; 0: all ranks
    env_shares: tuple[
        int, ...
    ] = ()  # environments of each stepping rank, in global order; (): nearly equal shares
    batch_envs: int = (
        0  # async_actors: rollouts of one environment that an update learns from; 0: one of each
    )
    num_shards: int = (
        0  # V, equal shards of the environments, computed one by one; 0: a rank's environments at once
    )

    @property
    def num_shares(self) -> int:
        """Number of ranks that share the environments."""
        return self.num_stepping or self.world_size

    @property
    def local_num_envs(self) -> int:
        """E, environments of one stepping rank; the largest share if shares are unequal."""
        return max(self.env_shares, default=-(-self.num_envs // self.num_shares))

    @property
    def fewest_envs(self) -> int:
        """The smallest share of the environments."""
        return min(self.env_shares, default=self.num_envs // self.num_shares)

    @property
    def local_num_shards(self) -> int:
        """Shards of one rank, at least 1."""
        return max(1, self.num_shards // self.world_size)

    @property
    def batch_size(self) -> int:
        """B = N * T, samples of all ranks in one iteration."""
        return (self.batch_envs or self.num_envs) * self.rollout_steps

    @property
    def local_batch_size(self) -> int:
        """Samples of the rank with the largest share."""
        return self.local_num_envs * self.rollout_steps

    @property
    def minibatch_size(self) -> int:
        """Samples of all ranks in the largest minibatch."""
        return -(-self.batch_size // self.num_minibatches)

    def env_indices(self, place: int) -> range:
        """Return the global indices of the environments of a rank, by its place among the stepping ranks."""
        if self.env_shares:
            first = sum(self.env_shares[:place])
            return range(first, first + self.env_shares[place])
        # The first `rest` ranks have one environment more.
        fewest, rest = divmod(self.num_envs, self.num_shares)
        first = place * fewest + min(place, rest)
        return range(first, first + fewest + (place < rest))

    def over(self, num_ranks: int) -> "BatchShape":
        """Return the same batch over `num_ranks` ranks, the ones that learn.

        A rank that learns for several stepping ranks has the environments of all of them, neighbours in order. Every
        learner has as many of these ranks as the others, or the first learners one more.
        """
        shares: tuple[int, ...] = ()
        if num_ranks == self.num_shares:
            shares = self.env_shares
        elif 1 < num_ranks < self.num_shares:
            sizes = (len(self.env_indices(place)) for place in range(self.num_shares))
            shares = tuple(sum(islice(sizes, n)) for n in nearly_equal(self.num_shares, num_ranks))
        num_envs = self.batch_envs or self.num_envs
        return replace(
            self, num_envs=num_envs, world_size=num_ranks, num_stepping=0, batch_envs=0, env_shares=shares
        )


def strong(
    *,
    num_envs: int,
    rollout_steps: int,
    world_size: int,
    num_minibatches: int,
    num_epochs: int,
    section: str = "ppo",
) -> BatchShape:
    """Keep the global batch B = num_envs * rollout_steps for every W.

    The ranks share the environments. If there are more ranks than environments, each rank has one, so num_envs grows
    to W, and rollout_steps shrinks to B / W. Raises ConfigError if W then does not divide B. section: the section of
    rollout_steps, for the message.
    """
    check_division(num_envs, rollout_steps, world_size, f"dist.world_size={world_size}", section)
    # Fewer environments a rank; beyond one environment a rank, shorter rollouts.
    if world_size <= num_envs:
        return BatchShape(num_envs, rollout_steps, world_size, num_minibatches, num_epochs)
    batch = num_envs * rollout_steps
    return BatchShape(world_size, batch // world_size, world_size, num_minibatches, num_epochs)


def check_division(
    num_envs: int, rollout_steps: int, num_ranks: int, subject: str, section: str = "ppo"
) -> None:
    """Raise ConfigError if strong scaling cannot divide the batch among `num_ranks`.

    subject: begins the message. section: the section of rollout_steps.
    """
    batch = num_envs * rollout_steps
    if num_ranks > num_envs and batch % num_ranks:
        raise ConfigError(
            f"{subject} does not divide the batch env.num_envs={num_envs} * {section}.rollout_steps={rollout_steps} "
            f"= {batch}, which scaling=strong keeps: use at most {num_envs}, change either to make the batch a "
            f"multiple of {num_ranks}, or use scaling=weak"
        )


def weak(
    *,
    num_envs: int,
    rollout_steps: int,
    world_size: int,
    num_minibatches: int,
    num_epochs: int,
    learning_rate_rule: str,
) -> BatchShape:
    """Keep the batch of one rank: each has num_envs environments, so B grows with W.

    `learning_rate_rule` scales the learning rate with the batch: "none" by 1, "linear" by W (Goyal et al. 2017,
    arXiv:1706.02677), "sqrt" by sqrt(W) (Krizhevsky 2014, arXiv:1404.5997).
    """
    scale = {"none": 1.0, "linear": float(world_size), "sqrt": world_size**0.5}[learning_rate_rule]
    return BatchShape(num_envs * world_size, rollout_steps, world_size, num_minibatches, num_epochs, scale)
