"""One environment that observes and takes text, and what its infos say in plain values."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ddppo.envs.encoding.returned import WrongOutput, as_flag, as_info, as_number, as_pair, described
from ddppo.envs.faults import explained, task_name, when_reset, when_stepped
from ddppo.spaces import EnvSpec

_SCALARS = (bool, int, float, str, type(None))


def scalars(info: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what of an info is one plain value by a name; NumPy's numbers become Python's."""
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in info.items()}
    return {key: value for key, value in plain.items() if type(key) is str and type(value) in _SCALARS}


class TextEnv(gym.Wrapper):
    """A task of text, whose infos are scalars. Whatever goes wrong in it is raised as an EnvError that names it."""

    def __init__(self, task: gym.Env, spec: EnvSpec, name: str) -> None:
        super().__init__(task)
        assert not isinstance(spec.obs, dict), spec
        (self._max_length,) = spec.obs.shape
        self._name = name
        self._task = task_name(task)
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        if seed is not None:
            self._num_steps = 0
        try:
            text, info = as_pair(self.env.reset(seed=seed, **options))
            return self._checked(text), scalars(info)
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_reset(self._num_steps), e, self._task) from e

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        try:
            text, reward, terminated, truncated, info = self.env.step(action)
            ends = as_flag(terminated, "terminated"), as_flag(truncated, "truncated")
            return self._checked(text), as_number(reward), *ends, scalars(as_info(info))
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_stepped(self._num_steps), e, self._task) from e

    def _checked(self, text: Any) -> str:
        if not isinstance(text, str):
            raise WrongOutput(f"{described(text)} as an observation", "its space says Text, a str")
        if len(text) > self._max_length:
            raise WrongOutput(
                f"an observation of {len(text)} characters", f"its space says at most {self._max_length}"
            )
        return text
