"""Load the policy of a run folder, and find the observation and action space of its task."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import yaml
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from ddppo.config import stored
from ddppo.config.settings import Config, EnvConfig
from ddppo.envs.probing.probe import make_env
from ddppo.envs.vec_env import EnvSpec
from ddppo.errors import ConfigError, RunFolderError
from ddppo.loop.evaluation import Policy
from ddppo.loop.evaluation import load_policy as policy_of
from ddppo.records import checkpoint
from ddppo.spaces import ArraySpec, each


@dataclass(frozen=True, slots=True)
class Trained:
    """A checkpoint of a run, loaded."""

    run_dir: Path
    config: Config
    checkpoint: Path
    state: dict[str, Any]  # the whole content of the checkpoint
    policy: Policy

    @property
    def spec(self) -> EnvSpec:
        return self.policy.spec


def config_of(run: str | Path, device: str | None = "cpu", *, other_spaces: bool = False) -> Config:
    """Return the settings of a run, for use on `device`. Raises RunFolderError if `run` is no run folder.

    device: None is the CPU, or the run's own device if its environments live there: a simulator may exist nowhere else.
    """
    path = Path(run) / "config.yaml"
    if not path.is_file():
        raise RunFolderError(f"run={run}: not a run folder, it has no config.yaml")
    config = stored.load_config(path)
    if device is None:
        device = config.device if config.env.backend == "device" else "cpu"
    return dataclasses.replace(config, device=device, other_spaces=other_spaces)


def trained(
    run: str | Path, which: str = "last", device: str | None = "cpu", *, other_spaces: bool = False
) -> Trained:
    """Load a checkpoint of a run. Raises ConfigError, RunFolderError.

    which: last, best, or the path of a checkpoint. other_spaces: load it even if the task's spaces differ from those in
    training.
    """
    run_dir = Path(run)
    config = config_of(run_dir, device, other_spaces=other_spaces)
    # last and best belong to the run; a path may belong to another one.
    path = checkpoint.chosen(which, run_dir)
    state = checkpoint.load(path)
    if which not in ("last", "best"):
        _check_model(config, state, path)
    return Trained(run_dir, config, path, state, policy_of(config, state))


def _check_model(config: Config, state: dict[str, Any], path: Path) -> None:
    """Raise RunFolderError if a checkpoint, given by its path, belongs to another model than the run's.

    Comparing shapes would not do: the parameters may fit a model that computes something else.
    """
    # A checkpoint holds the settings of its run.
    ours, its = dataclasses.asdict(config.model), yaml.safe_load(state["config"]).get("model", {})
    for name, value in its.items():
        if name in ours and ours[name] != value:
            raise RunFolderError(
                f"checkpoint={path}: it is another run's, with model.{name}={value}; this run has {ours[name]}"
            )


def spaces(env: EnvConfig, spec: EnvSpec) -> tuple[gym.Space, gym.Space]:
    """Return the task's own observation space and action space. Raises ConfigError for a task on a server."""
    # ale-py steps games in batches, so there is no environment to ask.
    if env.is_ale:
        assert isinstance(spec.obs, ArraySpec)
        return Box(0, 255, spec.obs.shape, np.uint8), Discrete(spec.action.sizes[0])
    if env.backend == "device":
        return spaces_on_device(spec)
    if env.urls:
        raise ConfigError(
            f"env.urls={','.join(env.urls)}: {env.id} is made by servers, which do not tell its spaces: use "
            "ddppo.evaluate"
        )
    made = make_env(env)
    try:
        return made.task.observation_space, made.task.action_space
    finally:
        made.close()


def spaces_on_device(spec: EnvSpec) -> tuple[gym.Space, gym.Space]:
    """Return spaces of observations and actions with the shapes of a spec; bounds of observations are unknown."""

    def box(leaf: ArraySpec) -> gym.Space:
        is_pixels = leaf.dtype == "uint8"
        low, high = (0, 255) if is_pixels else (-np.inf, np.inf)
        return Box(low, high, leaf.shape, np.dtype(leaf.dtype).type)

    boxes = each(box, spec.obs)
    action = spec.action
    if action.kind == "box":
        low, high = (np.array(x, np.float32) if x else np.inf for x in (action.low, action.high))
        acts: gym.Space = Box(low if action.low else -np.inf, high, action.shape, np.float32)
    else:
        kinds = {"discrete": Discrete, "multi_discrete": MultiDiscrete, "multi_binary": MultiBinary}
        acts = kinds[action.kind](action.sizes if action.kind == "multi_discrete" else action.sizes[0])
    return Dict(boxes) if isinstance(boxes, dict) else boxes, acts


def refuse_text(trained: Trained, what: str) -> None:
    """Raise ConfigError, on behalf of the option or call `what`, if the task is a text task."""
    if trained.spec.is_text:
        raise ConfigError(
            f"{what}: {trained.config.env.id} is a task of text, whose policy types and is no such file: use "
            "ddppo.enjoy, which prints its episodes, ddppo.evaluate, or ddppo.load_policy"
        )
