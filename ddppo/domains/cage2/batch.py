"""`ddppo/CAGE2-v0` as a batch (env.backend=batched): all games in one step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddppo.domains.cage2.env import episode_key
from ddppo.domains.cage2.games import OBS_SIZE, Games
from ddppo.domains.cage2.orders import ordered_step, orders_of
from ddppo.envs.backends.batched import Dynamics


class Cage2(Dynamics):
    """The games of E environments; its state is their records, as bytes. Codes of orders stand before what is seen."""

    env_axis = 0

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

    def remembered(self) -> list[dict[str, Any]]:
        if self.orders is None:
            return super().remembered()
        state = self.orders.state()
        return [_of_one(state, i) for i in range(len(self.generators))]

    def remember(self, states: list[dict[str, Any]]) -> None:
        if self.orders is not None:
            self.orders.restore(_of_all(states))


def _of_one(state: dict[str, Any], i: int) -> dict[str, Any]:
    """Return, of lists with an entry for each game, the entry of game i, as the lists of a batch of one."""
    return {key: _of_one(each, i) if isinstance(each, dict) else [each[i]] for key, each in state.items()}


def _of_all(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the lists of a batch of what `_of_one` returned of each."""
    return {
        key: _of_all([state[key] for state in states])
        if isinstance(first, dict)
        else [state[key][0] for state in states]
        for key, first in states[0].items()
    }
