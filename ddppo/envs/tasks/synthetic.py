"""`ddppo/Synthetic-v0`: a task with a configurable cost per step, for studies of the system, not of learning."""

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class SyntheticEnv(gym.Env):
    """A contextual bandit: reward 1 for action 1 if obs[0] > 0, else for action 0. Truncated after episode_steps.

    Observations are standard normal, `[obs_size]`.

    Args:
        step_time_s, reset_time_s: seconds that a step and a reset take at least.
        busy: compute during this time, as a simulator does; else sleep, as one that waits for another machine does.
        tail: step times are Pareto distributed with this shape and mean step_time_s. 1.5 has no variance; a large
            shape has no tail. None: every step takes step_time_s.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium.Env declares it so)

    def __init__(
        self,
        step_time_s: float = 0.0,
        reset_time_s: float = 0.0,
        busy: bool = False,
        episode_steps: int = 100,
        obs_size: int = 8,
        tail: float | None = None,
    ) -> None:
        if step_time_s < 0 or reset_time_s < 0 or episode_steps < 1 or obs_size < 1:
            raise ValueError(
                f"step_time_s={step_time_s} and reset_time_s={reset_time_s} must be at least 0, "
                f"episode_steps={episode_steps} and obs_size={obs_size} at least 1"
            )
        if tail is not None and tail <= 1:
            raise ValueError(f"tail={tail} must be above 1, else steps have no mean time")
        self.observation_space = Box(-np.inf, np.inf, (obs_size,), np.float32)
        self.action_space = Discrete(2)
        self._step_time_s = step_time_s
        self._reset_time_s = reset_time_s
        self._tail = tail
        if not isinstance(busy, bool):
            raise ValueError(f"busy={busy} must be true or false")
        self._wait = _spin if busy else time.sleep
        self._episode_steps = episode_steps
        self._obs_size = obs_size

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:  # a separate generator: observations come from np_random
            self._times = np.random.default_rng([seed, 1])
        if self._reset_time_s:
            self._wait(self._reset_time_s)
        self._num_steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._step_time_s:
            self._wait(self._step_time_s if self._tail is None else self._random_time(self._tail))
        reward = float(int(action) == int(self._obs[0] > 0))
        self._num_steps += 1
        return self._observe(), reward, False, self._num_steps >= self._episode_steps, {}

    def _random_time(self, tail: float) -> float:
        # A Pareto number with minimum 1 has mean tail / (tail - 1).
        least = self._step_time_s * (tail - 1) / tail
        return least * (1 + self._times.pareto(tail))

    def _observe(self) -> np.ndarray:
        self._obs = self.np_random.standard_normal(self._obs_size, dtype=np.float32)
        return self._obs


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
