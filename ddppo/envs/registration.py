"""Tasks of packages that come with an extra of ours: Gymnasium knows their ids once the package is imported."""

import importlib
import itertools
import math
import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from ddppo.envs.backends.envpool import PREFIX, register
from ddppo.errors import ConfigError
from ddppo.package import install_command
from ddppo.plugins import added

gym.register(
    "ddppo/Synthetic-v0",
    entry_point="ddppo.envs.tasks.synthetic:SyntheticEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/TMaze-v0",
    entry_point="ddppo.envs.tasks.memory_tasks:TMazeEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/MaskedCartPole-v0",
    entry_point="ddppo.envs.tasks.memory_tasks:MaskedCartPoleEnv",
    max_episode_steps=500,
)

for task_id, keywords in added("tasks").items():
    gym.register(task_id, **keywords)

_EXTRAS = {  # by how an id begins: the module to import, and its extra
    "ALE/": ("ale_py", "atari"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    "popgym-": ("popgym", "popgym"),
    PREFIX: ("envpool", "envpool"),
}
_MOST_MISSIONS = 1000
_LARGEST = 10  # number in an image of MiniGrid: the kind "agent"


def register_extra(env_id: str) -> None:
    """Make Gymnasium know an id of such a package. Raises ConfigError, with the remedy, where it is not installed."""
    for prefix, (module, extra) in _EXTRAS.items():
        if env_id.rpartition(":")[2].startswith(prefix):
            os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # else a line on stdout of every process
            try:
                importlib.import_module(module)
            except ImportError as e:
                raise ConfigError(
                    f"env.id={env_id} needs a package that is not installed: {install_command(extra)}"
                ) from e
            if prefix == PREFIX:
                register(env_id)


def adapted(task: gym.Env) -> gym.Env:
    """Return the task in what models take: MiniGrid's without texts. Raises ConfigError where these are too many."""
    space = task.observation_space
    if isinstance(space, Dict) and type(space.spaces.get("mission")).__module__.startswith("minigrid."):
        return GridObs(task)
    return task


class Missions(Discrete):
    """The numbers of a task's sentences, in their order."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__(len(sentences))
        self.sentences = sentences
        self._numbers = {sentence: k for k, sentence in enumerate(sentences)}

    def number(self, sentence: str) -> int:
        """Return a sentence's number. Raises ValueError for one that the task does not have."""
        if sentence not in self._numbers:
            raise ValueError(f"mission {sentence!r}: the task has no such mission")
        return self._numbers[sentence]


def missions_of(space: gym.Space) -> Missions | None:
    """Return what numbers the missions in observations of `space`, if any does."""
    missions = space.spaces.get("mission") if isinstance(space, Dict) else None
    return missions if isinstance(missions, Missions) else None


def numbered(space: gym.Space, observation: Any) -> Any:
    """Return an observation as its `space` has it, whose mission may be a sentence as MiniGrid by itself says it."""
    missions = missions_of(space)
    if missions is not None and isinstance(observation, dict) and isinstance(observation.get("mission"), str):
        return {**observation, "mission": missions.number(observation["mission"])}
    return observation


class GridObs(gym.ObservationWrapper):
    """MiniGrid's observations as numbers: `image` uint8 `[7, 7, 3]`, by cell its kind, colour and state; `direction`.

    `mission`, a sentence, is its number among all that the task has; where it has one, it is left out. The image is no
    picture: its space is said to go to 10, the number of the last kind, so that models are given these numbers, and
    not pixels that they would scale by 1 / 255.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        spaces = dict(env.observation_space.spaces)  # type: ignore[attr-defined]  # adapted() saw a Dict
        sentences = _sentences(spaces.pop("mission"))
        spaces["image"] = Box(0, _LARGEST, spaces["image"].shape, np.uint8)
        if len(sentences) > 1:
            spaces["mission"] = Missions(sentences)
        self.observation_space = Dict(spaces)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        known = self.observation_space.spaces  # type: ignore[attr-defined]  # a Dict
        return numbered(self.observation_space, {key: x for key, x in observation.items() if key in known})


def _sentences(space: Any) -> list[str]:
    """Return all missions of a task, in an order that is the same in every process. Raises ConfigError."""
    lists = space.ordered_placeholders or []
    count = math.prod(len(words) for words in lists)
    if type(space).__name__ != "MissionSpace" or count > _MOST_MISSIONS:  # BabyAI's is another
        raise ConfigError(
            "its missions are sentences beyond counting, and a model of arrays takes none: use a task of MiniGrid-..., "
            "or wrap it and register what you made under an id of your own"
        )
    return list(dict.fromkeys(space.mission_func(*words) for words in itertools.product(*lists)))
