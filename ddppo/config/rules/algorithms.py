"""The rules of ppo.algorithm: what has no effect under one, and what groups of whole episodes need."""

from ddppo.config.settings import Config, PPOConfig
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape

_OF_GRPO = ("divide_by_std", "token_mean", "kl_coef")
_OF_PPO = (
    "gamma",
    "gae_lambda",
    "value_coef",
    "clip_value_coef",
    "normalize_advantages",
    "normalize_rewards",
)


def check_algorithm(config: Config, shape: BatchShape) -> None:
    """Raise ConfigError for settings that make no sense under ppo.algorithm."""
    ppo, defaults = config.ppo, PPOConfig()
    is_grpo = ppo.algorithm == "grpo"
    for name in _OF_PPO if is_grpo else _OF_GRPO:
        if (value := getattr(ppo, name)) != getattr(defaults, name):
            other = "grpo, whose preset is ppo=grpo" if not is_grpo else "ppo"
            raise ConfigError(
                f"ppo.{name}={value} has no effect with ppo.algorithm={ppo.algorithm}: use ppo.algorithm={other}, or "
                "leave it out"
            )
    _check_reward_scale(ppo)
    if not is_grpo:
        _check_more_than_one(ppo, shape)
    if ppo.normalize_advantages == "minibatch" and 2 * shape.num_minibatches > shape.batch_size:
        raise ConfigError(
            f"ppo.normalize_advantages=minibatch with ppo.num_minibatches={shape.num_minibatches} of "
            f"{shape.batch_size} samples: one sample has no deviation: use at most {shape.batch_size // 2} "
            "minibatches, or ppo.normalize_advantages=global"
        )
    if not is_grpo:
        return
    if ppo.group_size < 2:
        raise ConfigError(
            f"ppo.group_size={ppo.group_size} with ppo.algorithm=grpo: a rollout alone has nothing to be compared "
            "with: use at least 2"
        )
    if config.compile in ("on", "torch"):
        raise ConfigError(
            f"compile={config.compile} with ppo.algorithm=grpo: the loss of groups is not compiled: use compile=auto"
        )
    if config.env.backend == "native":
        raise ConfigError(
            "env.backend=native with ppo.algorithm=grpo: a natively vectorised task has one random stream for its "
            "whole batch, so that no group can begin alike: use env.backend=sync"
        )
    check_groups(config, shape, "ppo.algorithm=grpo")


def _check_more_than_one(ppo: PPOConfig, shape: BatchShape) -> None:
    """Raise ConfigError where advantages are normalised over one sample: all of them would be 0."""
    samples = shape.local_batch_size if ppo.normalize_advantages == "local" else shape.batch_size
    if samples == 1 and ppo.normalize_advantages != "none":
        raise ConfigError(
            f"ppo.normalize_advantages={ppo.normalize_advantages} over 1 sample, of env.num_envs={shape.num_envs} and "
            f"ppo.rollout_steps={shape.rollout_steps}: one sample has no deviation, and its advantage would be 0: use "
            "more environments or steps, or ppo.normalize_advantages=none"
        )


def _check_reward_scale(ppo: PPOConfig) -> None:
    if ppo.reward_scale == 1.0:
        return
    divides = {"normalize_rewards": ppo.normalize_rewards, "divide_by_std": ppo.divide_by_std}
    name = "divide_by_std" if ppo.algorithm == "grpo" else "normalize_rewards"
    if divides[name] and ppo.reward_clip is None:
        raise ConfigError(
            f"ppo.reward_scale={ppo.reward_scale} has no effect with ppo.{name}=true, which divides by a deviation "
            f"that grows alike: set ppo.{name}=false, or leave the scale out"
        )


def check_groups(config: Config, shape: BatchShape, why: str) -> None:
    """Raise ConfigError where iterations are not K groups of G whole episodes; `why` is what asks for that."""
    ppo, dist = config.ppo, config.dist
    if dist.topology != "ddp":
        raise ConfigError(
            f"distributed={dist.topology} with {why}: only ddp collects groups of whole episodes: use distributed=ddp"
        )
    if shape.rollout_steps != ppo.rollout_steps:
        raise ConfigError(
            f"dist.world_size={dist.world_size} exceeds env.num_envs={config.env.num_envs} with {why}: scaling=strong "
            f"would cut episodes after {shape.rollout_steps} steps: use at most {config.env.num_envs} ranks, or more "
            "environments"
        )
    if shape.num_envs % ppo.group_size:
        above = -(-shape.num_envs // ppo.group_size) * ppo.group_size
        raise ConfigError(
            f"ppo.group_size={ppo.group_size} does not divide the {shape.num_envs} environments of all ranks with "
            f"{why}: use a divisor, or {above} environments"
        )
