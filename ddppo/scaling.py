"""The batch as a function of the number of workers W: pure arithmetic, no torch."""

from dataclasses import dataclass

from ddppo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Sizes of one iteration: N = num_envs and T = rollout_steps over all W = world_size ranks.

    B = N * T samples are collected per iteration and split into num_minibatches nearly equal parts.
    """

    num_envs: int
    rollout_steps: int
    world_size: int
    num_minibatches: int
    num_epochs: int
    learning_rate_scale: float = 1.0

    @property
    def local_num_envs(self) -> int:
        """E, environments of one rank."""
        return self.num_envs // self.world_size

    @property
    def batch_size(self) -> int:
        """B = W * E * T, samples of all ranks in one iteration."""
        return self.num_envs * self.rollout_steps

    @property
    def local_batch_size(self) -> int:
        return self.local_num_envs * self.rollout_steps

    @property
    def minibatch_size(self) -> int:
        """Samples of all ranks in the largest minibatch."""
        return -(-self.batch_size // self.num_minibatches)

    def env_indices(self, rank: int) -> range:
        """Global indices of the environments that `rank` steps."""
        return range(rank * self.local_num_envs, (rank + 1) * self.local_num_envs)


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)


def strong(
    *, num_envs: int, rollout_steps: int, world_size: int, num_minibatches: int, num_epochs: int
) -> BatchShape:
    """Keep the global batch B = num_envs * rollout_steps whatever W is.

    Environments are divided among ranks; once a rank is down to one environment, num_envs grows to W and
    rollout_steps shrinks to B / W. Raises ConfigError where no exact division exists.
    """
    if world_size <= num_envs:
        if num_envs % world_size:
            raise ConfigError(
                f"dist.world_size={world_size} does not divide env.num_envs={num_envs}: use one of "
                f"{_divisors(num_envs)}, or set env.num_envs to a multiple of {world_size}"
            )
        return BatchShape(num_envs, rollout_steps, world_size, num_minibatches, num_epochs)
    batch = num_envs * rollout_steps
    if batch % world_size:
        raise ConfigError(
            f"dist.world_size={world_size} does not divide the batch env.num_envs={num_envs} * "
            f"ppo.rollout_steps={rollout_steps} = {batch}, which scaling=strong keeps: change either to make "
            f"the batch a multiple of {world_size}, or use scaling=weak"
        )
    return BatchShape(world_size, batch // world_size, world_size, num_minibatches, num_epochs)


def weak(
    *,
    num_envs: int,
    rollout_steps: int,
    world_size: int,
    num_minibatches: int,
    num_epochs: int,
    learning_rate_rule: str,
) -> BatchShape:
    """Keep the batch of one rank: num_envs environments each, so B grows with W.

    `learning_rate_rule` scales the learning rate with the batch: "none" by 1, "linear" by W (Goyal et al. 2017,
    arXiv:1706.02677), "sqrt" by sqrt(W) (Krizhevsky 2014, arXiv:1404.5997).
    """
    scale = {"none": 1.0, "linear": float(world_size), "sqrt": world_size**0.5}[learning_rate_rule]
    return BatchShape(num_envs * world_size, rollout_steps, world_size, num_minibatches, num_epochs, scale)
