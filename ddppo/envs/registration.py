"""Makes tasks known to Gymnasium: ours, those of plugins, and those of packages behind an extra of ours.

Importing this module registers our tasks and those of plugins. `register_extra` imports the package of an id such as
ALE/Pong-v5. `adapted` turns MiniGrid's observations, which hold sentences, into numbers.
"""

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

# Our tasks, without Gymnasium's wrappers that check every step and cost time.
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

# Tasks of plugins, which declare ids and entry points without being imported.
for task_id, keywords in added("tasks").items():
    gym.register(task_id, **keywords)

_EXTRAS = {  # prefix of an id -> (module to import, extra of ours that installs it)
    "ALE/": ("ale_py", "atari"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    "popgym-": ("popgym", "popgym"),
    PREFIX: ("envpool", "envpool"),
}
_MOST_MISSIONS = 1000
_LARGEST = 10  # the largest number in an image of MiniGrid, the kind "agent"


def register_extra(env_id: str) -> None:
    """Import the package that registers `env_id`, if it needs one. Raises ConfigError if that is not installed."""
    for prefix, (module, extra) in _EXTRAS.items():
        # The id may have a module in front: my_pkg.envs:ALE/Pong-v5.
        if env_id.rpartition(":")[2].startswith(prefix):
            # Else pygame prints a line in every process.
            os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
            try:
                importlib.import_module(module)
            except ImportError as e:
                raise ConfigError(
                    f"env.id={env_id} needs a package that is not installed: {install_command(extra)}"
                ) from e
            if prefix == PREFIX:
                register(env_id)


def adapted(task: gym.Env) -> gym.Env:
    """Return the task with observations that a model can take. Raises ConfigError if it has too many missions."""
    space = task.observation_space
    # Recognised by its module, so that minigrid is not imported for other tasks.
    if isinstance(space, Dict) and type(space.spaces.get("mission")).__module__.startswith("minigrid."):
        return GridObs(task)
    return task


class Missions(Discrete):
    """A space of numbers, each of which stands for one of a task's sentences."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__(len(sentences))
        self.sentences = sentences
        self._numbers = {sentence: k for k, sentence in enumerate(sentences)}

    def number(self, sentence: str) -> int:
        """Return a sentence's number. Raises ValueError if the task has no such sentence."""
        if sentence not in self._numbers:
            raise ValueError(f"mission {sentence!r}: the task has no such mission")
        return self._numbers[sentence]


def missions_of(space: gym.Space) -> Missions | None:
    """Return the numbering of missions in observations of `space`, None if they hold no mission."""
    missions = space.spaces.get("mission") if isinstance(space, Dict) else None
    return missions if isinstance(missions, Missions) else None


def numbered(space: gym.Space, observation: Any) -> Any:
    """Return an observation with its mission as a number; MiniGrid itself gives a sentence."""
    missions = missions_of(space)
    if missions is not None and isinstance(observation, dict) and isinstance(observation.get("mission"), str):
        return {**observation, "mission": missions.number(observation["mission"])}
    return observation


class GridObs(gym.ObservationWrapper):
    """MiniGrid's observations as numbers: `image` uint8 `[7, 7, 3]` (kind, colour and state of each cell), `direction`.

    `mission`, a sentence, becomes its number among all sentences of the task; it is left out if there is only one. The
    image is no picture: its space ends at 10, the number of the last kind, so that models take the numbers as they are
    and do not scale them by 1 / 255 as pixels.
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
    """Return all missions of a task, in the same order in every process. Raises ConfigError if they are too many."""
    # A mission is a template with placeholders; enumerate all combinations of their words.
    lists = space.ordered_placeholders or []
    count = math.prod(len(words) for words in lists)
    if type(space).__name__ != "MissionSpace" or count > _MOST_MISSIONS:  # BabyAI has another class
        raise ConfigError(
            "it has too many missions to number them, and a model of arrays takes no sentences: use a task of "
            "MiniGrid-..., or wrap it and register the wrapped task under an id of your own"
        )
    return list(dict.fromkeys(space.mission_func(*words) for words in itertools.product(*lists)))
