"""One environment that observes and takes text, and what its infos say in plain values."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ddppo.envs.encoding.rows import WrongOutput, as_number
from ddppo.envs.faults import explained, when_reset, when_stepped
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
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        if seed is not None:
            self._num_steps = 0
        try:
            text, info = self.env.reset(seed=seed, **options)
            return self._checked(text), scalars(info)
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_reset(self._num_steps), e) from e

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        try:
            text, reward, terminated, truncated, info = self.env.step(action)
            return self._checked(text), as_number(reward), bool(terminated), bool(truncated), scalars(info)
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_stepped(self._num_steps), e) from e

    def _checked(self, text: Any) -> str:
        if not isinstance(text, str):
            raise WrongOutput(f"an observation of type {type(text).__name__}", "its space says text")
        if len(text) > self._max_length:
            raise WrongOutput(
                f"an observation of {len(text)} characters", f"its space says at most {self._max_length}"
            )
        return text
