"""The rules of a search over orders: what has no effect without one, and what one needs of the rest."""

from dataclasses import fields

from ddppo.config.settings import Config, SearchConfig
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape


def check_search(config: Config, shape: BatchShape) -> None:
    """Raise ConfigError for settings of a search that make no sense with the others."""
    search, defaults = config.search, SearchConfig()
    if search.name is None:
        for item in fields(search):
            if (value := getattr(search, item.name)) != getattr(defaults, item.name):
                raise ConfigError(
                    f"search.{item.name}={value} has no effect without a search: use experiment=workflows, or leave "
                    "it out"
                )
        return
    said = f"search.name={search.name}"
    if config.dist.topology != "ddp":
        raise ConfigError(
            f"distributed={config.dist.topology} with {said}: only ddp gives environments orders: use it"
        )
    if config.ppo.algorithm != "ppo":
        raise ConfigError(
            f"ppo.algorithm={config.ppo.algorithm} with {said}: only the returns of all environments are those of one "
            "order: use ppo.algorithm=ppo"
        )
    if config.ppo.normalize_obs:
        raise ConfigError(
            f"ppo.normalize_obs=true with {said}: the running moments are of all trials, so that no policy kept "
            "would see again what it learned from: use ppo.normalize_obs=false"
        )
    if config.env.backend in ("native", "remote"):
        raise ConfigError(
            f"env.backend={config.env.backend} with {said}: it begins episodes without a reset's options, which name "
            "the order: use env.backend=auto"
        )
    if search.budget_episodes < shape.num_envs:
        raise ConfigError(
            f"search.budget_episodes={search.budget_episodes} is less than one episode of each of the "
            f"{shape.num_envs} environments: use at least {shape.num_envs}"
        )
    total_steps = search.budget_episodes * shape.rollout_steps
    if config.ppo.total_steps != total_steps:
        raise ConfigError(
            f"ppo.total_steps={config.ppo.total_steps} is not search.budget_episodes * ppo.rollout_steps = "
            f"{search.budget_episodes} * {shape.rollout_steps}: use ppo.total_steps={total_steps}"
        )
