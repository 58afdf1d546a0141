"""`ddppo/CAGE2-v0` as a batch (env.backend=batched): all games in one step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddppo.envs.batched.dynamics import Dynamics
from ddppo.envs.tasks.cage2.env import episode_key
from ddppo.envs.tasks.cage2.games import OBS_SIZE, Games
from ddppo.envs.tasks.cage2.orders import ordered_step, orders_of


class Cage2(Dynamics):
    """The games of E environments; its state is their records, as bytes. Codes of orders stand before what is seen."""

    def __init__(
        self,
        num_envs: int,
        red: str = "b_line",
        green: str = "sleep",
        episode_steps: int = 100,
        faithful_ot_quirk: bool = False,
        order: str | Sequence[int] | None = None,
        compliance: str = "state",
        alignment_weight: float = 30.0,
    ) -> None:
        self.games = Games(num_envs, red, green, faithful_ot_quirk)
        self.state = self.games.state_of.records.view(np.uint8).reshape(num_envs, -1)
        self.generators = []
        self.max_episode_steps: int = episode_steps
        self.orders = orders_of(num_envs, order, compliance, alignment_weight)
        self._never = np.zeros(num_envs, bool)

    def reset(self, i: int) -> np.ndarray:
        which = np.array([i])
        self.games.reset(which, episode_key(self.generators[i]))
        if self.orders is None:
            return self.games.obs[i]
        self.orders.begin(which)
        return np.concatenate([self.orders.codes[i], self.games.obs[i]])

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards = ordered_step(self.games, self.orders, actions, self.max_episode_steps)
        obs[:, -OBS_SIZE:] = self.games.obs
        return rewards, self._never

    def take_options(self, i: int, options: Mapping[str, Any]) -> None:
        if self.orders is None:
            super().take_options(i, options)
        else:
            self.orders.take_options(i, options)

    def publish(self) -> list[bytes]:
        return super().publish() if self.orders is None else self.orders.publish()

    def remembered(self) -> dict[str, Any]:
        return {} if self.orders is None else self.orders.state()

    def remember(self, state: dict[str, Any]) -> None:
        if self.orders is not None:
            self.orders.restore(state)
