"""Two tasks that a policy can only solve with a memory.

`ddppo/TMaze-v0`: the first observation decides where to turn at the end of a corridor.
`ddppo/MaskedCartPole-v0`: CartPole-v1 without velocities, which have to be inferred from successive positions.
Each is written twice: as a `gym.Env`, and as `Dynamics` that step a whole batch at once.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box, Discrete

from ddppo.envs.backends.batched import Dynamics
from ddppo.envs.backends.classic import CartPole

NORTH, EAST, SOUTH, WEST = range(4)
_CUES = {NORTH: (0.0, 1.0, 1.0), SOUTH: (1.0, 1.0, 0.0)}
_CORRIDOR, _JUNCTION = (1.0, 0.0, 1.0), (0.0, 1.0, 0.0)


def time_limit(length: int) -> int:
    """Return the steps after which an episode is truncated: ten times the shortest way."""
    return 10 * (length + 1)


class TMazeEnv(gym.Env):
    """A corridor of `length` steps to a junction. A cue, visible only at the start, tells which arm of it is rewarded.

    Observations are 3 bits: 011 or 110 at the start (turn north, or south), 101 in the corridor, 010 at the junction.
    Actions: 0 north, 1 east, 2 south, 3 west. Turning at the junction ends the episode, with reward 1 for the arm
    of the cue and -1 for the other; a step against a wall gets -0.1, all others 0. So the best return is 1, and a
    policy without memory gets 0. Truncated after 10 times the shortest way.

    Bakker 2001, "Reinforcement Learning with Long Short-Term Memory", section 4, with rewards 4 and -0.1.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium.Env declares it so)

    def __init__(self, length: int = 10) -> None:
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ValueError(f"length={length} must be a whole number of at least 1")
        self.observation_space = Box(0, 1, (3,), np.float32)
        self.action_space = Discrete(4)
        self._length = length
        self._arm, self._place, self._num_steps = NORTH, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._arm = SOUTH if self.np_random.random() < 0.5 else NORTH
        self._place = self._num_steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        reward, terminated = self._move(int(action))
        return self._observe(), reward, terminated, self._num_steps >= time_limit(self._length), {}

    def _move(self, action: int) -> tuple[float, bool]:
        """Move the agent; return the reward and whether the episode is over."""
        # North and south turn at the junction; everywhere else they run into a wall.
        at_junction = self._place == self._length
        if at_junction and action in (NORTH, SOUTH):
            return (1.0 if action == self._arm else -1.0), True
        if action == EAST and not at_junction:
            self._place += 1
        elif action == WEST and self._place > 0:
            self._place -= 1
        else:
            return -0.1, False
        return 0.0, False

    def _observe(self) -> np.ndarray:
        if self._place == self._length:
            return np.array(_JUNCTION, np.float32)
        return np.array(_CORRIDOR if self._place else _CUES[self._arm], np.float32)


class TMazes(Dynamics):
    """The T-maze for a batch. State: the place in the corridor, and the rewarded arm."""

    def __init__(self, num_envs: int, length: int = 10) -> None:
        super().__init__(2, num_envs)
        self.max_episode_steps = time_limit(length)
        self._length = length

    def reset(self, i: int) -> np.ndarray:
        arm = SOUTH if self.generators[i].random() < 0.5 else NORTH
        self.state[:, i] = 0, arm
        return np.array(_CUES[arm], np.float32)

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place, arm = self.state
        # The same rules for all environments at once.
        at_junction = place == self._length
        turned = at_junction & ((actions == NORTH) | (actions == SOUTH))
        east, west = (actions == EAST) & ~at_junction, (actions == WEST) & (place > 0)
        rewards = np.where(east | west, 0.0, -0.1)
        rewards[turned] = np.where(actions == arm, 1.0, -1.0)[turned]
        place += east
        place -= west
        # The three bits of the observation.
        at_start, at_junction = place == 0, place == self._length
        in_corridor = ~(at_start | at_junction)
        obs[:, 0] = in_corridor | (at_start & (arm == SOUTH))
        obs[:, 1] = ~in_corridor
        obs[:, 2] = in_corridor | (at_start & (arm == NORTH))
        return rewards, turned


class MaskedCartPoleEnv(CartPoleEnv):
    """Gymnasium's CartPole with only the cart's position and the pole's angle observed: float32 `[2]`.

    The task of Wierstra et al. 2007, "Solving Deep Memory POMDPs with Recurrent Policy Gradients", section 5.1.
    """

    def __init__(self, sutton_barto_reward: bool = False, render_mode: str | None = None) -> None:
        super().__init__(sutton_barto_reward=sutton_barto_reward, render_mode=render_mode)
        # Position and angle are entries 0 and 2 of CartPole's observation.
        whole = self.observation_space
        assert isinstance(whole, Box)
        self.observation_space = Box(whole.low[::2], whole.high[::2], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        return obs[::2], info

    def step(self, action: int | np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[::2], float(reward), terminated, truncated, info


class MaskedCartPole(CartPole):
    """Masked CartPole for a batch."""

    def __init__(self, num_envs: int, sutton_barto_reward: bool = False) -> None:
        super().__init__(num_envs, sutton_barto_reward)
        self._whole = np.zeros((num_envs, 4), np.float32)

    def reset(self, i: int) -> np.ndarray:
        return super().reset(i)[::2]

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards, terminated = super().step(actions, self._whole)
        obs[:] = self._whole[:, ::2]
        return rewards, terminated
