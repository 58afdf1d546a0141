"""From a run folder to its policy and the spaces of its task."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import yaml
from gymnasium.spaces import Box, Discrete

from ddppo.config import stored
from ddppo.config.settings import Config, EnvConfig
from ddppo.envs.probing.probe import make_env
from ddppo.envs.vec_env import EnvSpec
from ddppo.errors import ConfigError, RunFolderError
from ddppo.loop.evaluation import Policy
from ddppo.loop.evaluation import load_policy as policy_of
from ddppo.records import checkpoint
from ddppo.spaces import ArraySpec


@dataclass(frozen=True, slots=True)
class Trained:
    """A checkpoint of a run and its policy. state: all that the checkpoint holds."""

    run_dir: Path
    config: Config
    checkpoint: Path
    state: dict[str, Any]
    policy: Policy

    @property
    def spec(self) -> EnvSpec:
        return self.policy.spec


def config_of(run: str | Path, device: str = "cpu", *, other_spaces: bool = False) -> Config:
    """Return the settings of a run, to be used on `device`. Raises RunFolderError where there is no run."""
    path = Path(run) / "config.yaml"
    if not path.is_file():
        raise RunFolderError(f"run={run}: not a run folder, it has no config.yaml")
    return dataclasses.replace(stored.load_config(path), device=device, other_spaces=other_spaces)


def trained(
    run: str | Path, which: str = "last", device: str = "cpu", *, other_spaces: bool = False
) -> Trained:
    """Return the policy of a run's checkpoint: last, best, or the path of one. Raises ConfigError, RunFolderError.

    other_spaces: also where the task's spaces are not those that it was trained on.
    """
    run_dir = Path(run)
    config = config_of(run_dir, device, other_spaces=other_spaces)
    path = checkpoint.chosen(which, run_dir)
    state = checkpoint.load(path)
    if which not in ("last", "best"):
        _check_model(config, state, path)
    return Trained(run_dir, config, path, state, policy_of(config, state))


def _check_model(config: Config, state: dict[str, Any], path: Path) -> None:
    """Raise RunFolderError where a checkpoint is of another model: parameters may fit one that computes otherwise."""
    ours, its = dataclasses.asdict(config.model), yaml.safe_load(state["config"]).get("model", {})
    for name, value in its.items():
        if name in ours and ours[name] != value:
            raise RunFolderError(
                f"checkpoint={path}: it is another run's, with model.{name}={value}; this run has {ours[name]}"
            )


def spaces(env: EnvConfig, spec: EnvSpec) -> tuple[gym.Space, gym.Space]:
    """Return what the task itself observes and takes. Raises ConfigError where nobody here knows."""
    if env.is_ale:
        assert isinstance(spec.obs, ArraySpec)
        return Box(0, 255, spec.obs.shape, np.uint8), Discrete(spec.action.sizes[0])
    if env.urls:
        raise ConfigError(
            f"env.urls={','.join(env.urls)}: {env.id} is made by servers, which do not tell its spaces: use "
            "ddppo.evaluate"
        )
    played = make_env(env)
    try:
        return played.task.observation_space, played.task.action_space
    finally:
        played.close()


def no_text(trained: Trained, what: str) -> None:
    """Raise ConfigError where the policy types text, for which there is no `what`."""
    if trained.spec.is_text:
        raise ConfigError(
            f"{what}: {trained.config.env.id} is a task of text, whose policy types: only ddppo.evaluate plays it"
        )
