"""`ddppo/CAGE2-v0`: one game, as a batch of one."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from ddppo.domains.cage2.games import OBS_SIZE, Games
from ddppo.domains.cage2.orders import CODE_SIZE, JOURNAL, ordered_step, orders_of
from ddppo.domains.cage2.rules import NUM_ACTIONS
from ddppo.envs.single import CONTEXT
from ddppo.errors import ConfigError

_ONE = np.zeros(1, np.int64)


class CageEnv(gym.Env):
    """Defend the network against an agent `red`, while users (`green`) are asleep or active. Rules: docs/cage2.md.

    Never terminated; truncated after episode_steps, 30, 50 or 100 in the challenge. Observations `[52]` are zeros and
    ones, actions the 145 of `rules.ACTIONS`. With an order of priority, repairs that keep to it are rewarded, its code
    `[25]` is observed beside them, and what came of episodes is published (`orders.Orders`).
    """

    journal: str | None = None

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium.Env declares it so)

    def __init__(
        self,
        red: str = "b_line",
        green: str = "sleep",
        episode_steps: int = 100,
        faithful_ot_quirk: bool = False,
        order: str | Sequence[int] | None = None,
        compliance: str = "state",
        alignment_weight: float = 30.0,
    ) -> None:
        check_episode_steps(episode_steps)
        self.games = Games(1, red, green, faithful_ot_quirk)
        self.observation_space: gym.Space = Box(0.0, 1.0, (OBS_SIZE,), np.float32)
        self.orders = orders_of(1, order, compliance, alignment_weight)
        if self.orders is not None:
            self.journal = JOURNAL
            codes: gym.Space = Box(0.0, 1.0, (CODE_SIZE,), np.float32)
            self.observation_space = Dict({"obs": self.observation_space, CONTEXT: codes})
        self.action_space = Discrete(NUM_ACTIONS)
        self._episode_steps = episode_steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.games.reset(_ONE, episode_key(self.np_random))
        if self.orders is not None:
            self.orders.take_options(0, options or {})
            self.orders.begin(_ONE)
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        (reward,) = ordered_step(self.games, self.orders, np.array([action]), self._episode_steps)
        is_over = int(self.games.state_of.time[0]) >= self._episode_steps
        return self._observe(), float(reward), False, is_over, {}

    def state(self) -> dict[str, Any]:
        """Return all that decides what follows, in plain values."""
        orders = {} if self.orders is None else {"orders": self.orders.state()}
        return {"generator": self.np_random.bit_generator.state, "game": self.games.state(), **orders}

    def restore(self, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self.np_random.bit_generator.state = state["generator"]
        self.games.restore(state["game"])
        if self.orders is not None:
            self.orders.restore(state["orders"])
        return self._observe(), {}

    def publish(self) -> bytes:
        """Return what came of the episodes that ended, where there is an order."""
        return b"" if self.orders is None else self.orders.publish()[0]

    def receive(self, news: Sequence[bytes]) -> None:
        """Nothing that others tell changes a game."""

    def _observe(self) -> Any:
        obs = self.games.obs[0].copy()
        return obs if self.orders is None else {"obs": obs, CONTEXT: self.orders.codes[0].copy()}


def episode_key(generator: np.random.Generator) -> np.ndarray:
    """Draw what decides all that is random in an episode `[1]`."""
    return generator.integers(2**64, size=1, dtype=np.uint64)


def check_episode_steps(episode_steps: int) -> None:
    if type(episode_steps) is not int or episode_steps < 1:
        raise ConfigError(
            f"episode_steps={episode_steps} must be a whole number of at least 1: the challenge's are 30, 50 and 100"
        )
