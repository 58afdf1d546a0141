"""A context beside what a task observes: a vector that whoever resets the task gives it, the same for a whole episode.

A policy that is told what is wanted of it, such as in which order to repair, is one policy for all that may be wanted.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Text

from ddppo.envs.encoding.returned import WrongOutput, as_pair, described
from ddppo.errors import ConfigError

CONTEXT = "context"


class ContextEnv(gym.Wrapper):
    """A task that also observes the `size` numbers of options={"context": ...}; the task itself hears the options too.

    An episode that begins without has the last one's; before any was given they are 0. Observations are {"obs",
    "context"}, or the task's own dict with one more key. Raises ConfigError for a task of text, or with that key.
    """

    def __init__(self, task: gym.Env, size: int) -> None:
        super().__init__(task)
        self._context = np.zeros(size, np.float32)
        space = task.observation_space
        if isinstance(space, Text):
            raise ConfigError(
                f"env.context={size}: what it observes is text, which holds no numbers: leave it out"
            )
        self._is_dict = isinstance(space, Dict)
        parts = dict(space.spaces) if isinstance(space, Dict) else {"obs": space}
        if CONTEXT in parts:
            raise ConfigError(f"env.context={size}: it observes a {CONTEXT} of its own: leave it out")
        self.observation_space = Dict({**parts, CONTEXT: Box(-np.inf, np.inf, (size,), np.float32)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if options and CONTEXT in options:
            self._context = as_context(options, len(self._context))
        obs, info = as_pair(self.env.reset(seed=seed, options=options))
        return self._with_context(obs), dict(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_context(obs), reward, terminated, truncated, info

    def _with_context(self, obs: Any) -> dict[str, Any]:
        if self._is_dict and not isinstance(obs, Mapping):
            raise WrongOutput(
                f"{described(obs)} as an observation", f"its space says {self.env.observation_space}"
            )
        return {**(obs if self._is_dict else {"obs": obs}), CONTEXT: self._context}


def as_context(options: Mapping[str, Any], size: int) -> np.ndarray:
    """Return the context `[size]` that options of a reset name. Raises ValueError where they name none."""
    try:
        context = np.array(options[CONTEXT], np.float32)
    except (TypeError, ValueError):
        context = np.zeros(0, np.float32)
    if context.shape != (size,) or not np.isfinite(context).all():
        raise ValueError(
            f"the context {options[CONTEXT]!r:.80} of the reset's options: it must be {size} numbers"
        )
    return context
