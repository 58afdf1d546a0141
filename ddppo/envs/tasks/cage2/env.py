"""`ddppo/CAGE2-v0`: one game, as a batch of one."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from ddppo.envs.tasks.cage2.games import OBS_SIZE, Games
from ddppo.envs.tasks.cage2.rules import NUM_ACTIONS
from ddppo.errors import ConfigError

_ONE = np.zeros(1, np.int64)


class CageEnv(gym.Env):
    """Defend the network against an agent `red`, while users (`green`) are asleep or active. Rules: docs/cage2.md.

    Never terminated; truncated after episode_steps, 30, 50 or 100 in the challenge. Observations `[52]` are zeros and
    ones, actions the 145 of `rules.ACTIONS`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium.Env declares it so)

    def __init__(
        self,
        red: str = "b_line",
        green: str = "sleep",
        episode_steps: int = 100,
        faithful_ot_quirk: bool = False,
    ) -> None:
        check_episode_steps(episode_steps)
        self.games = Games(1, red, green, faithful_ot_quirk)
        self.observation_space = Box(0.0, 1.0, (OBS_SIZE,), np.float32)
        self.action_space = Discrete(NUM_ACTIONS)
        self._episode_steps = episode_steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.games.reset(_ONE, episode_key(self.np_random))
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        (reward,) = self.games.step(np.array([action]))
        is_over = int(self.games.state_of.time[0]) >= self._episode_steps
        return self._observe(), float(reward), False, is_over, {}

    def state(self) -> dict[str, Any]:
        """Return all that decides what follows, in plain values."""
        return {"generator": self.np_random.bit_generator.state, "game": self.games.state()}

    def restore(self, state: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        self.np_random.bit_generator.state = state["generator"]
        self.games.restore(state["game"])
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        return self.games.obs[0].copy()


def episode_key(generator: np.random.Generator) -> np.ndarray:
    """Draw what decides all that is random in an episode `[1]`."""
    return generator.integers(2**64, size=1, dtype=np.uint64)


def check_episode_steps(episode_steps: int) -> None:
    if type(episode_steps) is not int or episode_steps < 1:
        raise ConfigError(
            f"episode_steps={episode_steps} must be a whole number of at least 1: the challenge's are 30, 50 and 100"
        )
