"""`ddppo/CAGE2-v0` as a batch (env.backend=batched): all games in one step."""

import numpy as np

from ddppo.envs.batched.dynamics import Dynamics
from ddppo.envs.tasks.cage2.env import episode_key
from ddppo.envs.tasks.cage2.games import Games


class Cage2(Dynamics):
    """The games of E environments; its state is their records, as bytes."""

    def __init__(
        self,
        num_envs: int,
        red: str = "b_line",
        green: str = "sleep",
        episode_steps: int = 100,
        faithful_ot_quirk: bool = False,
    ) -> None:
        self.games = Games(num_envs, red, green, faithful_ot_quirk)
        self.state = self.games.state_of.records.view(np.uint8).reshape(num_envs, -1)
        self.generators = []
        self.max_episode_steps = episode_steps
        self._never = np.zeros(num_envs, bool)

    def reset(self, i: int) -> np.ndarray:
        self.games.reset(np.array([i]), episode_key(self.generators[i]))
        return self.games.obs[i]

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards = self.games.step(actions)
        obs[:] = self.games.obs
        return rewards, self._never
