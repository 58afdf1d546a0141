"""A batch of environments that are stepped by NumPy, and still equal their scalar ones to the bit.

Environment i keeps a generator of its own, seeded as Gymnasium's reset(seed=...) seeds it and drawn from in the same
order. So its episodes are those of env.backend=sync and do not depend on which environments are in the batch.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils.seeding import np_random

from ddppo.envs.batched.dynamics import Dynamics
from ddppo.envs.faults import EnvNames, explained, no_options, when_stepped
from ddppo.envs.vec_env import EnvSpec, EnvStep, Options


class BatchedEnvs:
    """`VecEnv` over the dynamics of a task: its seeds, its time limit, and resets in the step that ends an episode."""

    def __init__(
        self,
        dynamics: Dynamics,
        action_space: gym.Space,
        spec: EnvSpec,
        names: EnvNames,
        max_episode_steps: int | None,
    ) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self._dynamics = dynamics
        self._space = action_space
        self._max_episode_steps = max_episode_steps or np.iinfo(np.int64).max // 2
        self._num_steps = 0
        self._last_steps = np.zeros(self.num_envs, np.int64)  # in which the time limit ends the episode
        self._obs = np.zeros((self.num_envs, spec.obs_size), np.float32)
        self._valid = np.ones(self.num_envs, bool)
        self._no_final_obs = self._obs[:0]

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if options is not None:
            raise no_options(self.names)
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        self._num_steps = 0
        self._take_generators([np_random(int(seed))[0] for seed in seeds])
        for i in range(self.num_envs):
            self._reset(i)
        return self._obs, None

    def step(self, actions: np.ndarray) -> EnvStep:
        assert actions.shape == (self.num_envs, *self.spec.action.shape), actions.shape
        self._num_steps += 1
        try:
            return self._step(actions)
        except Exception as e:
            raise explained(self.names.all(), when_stepped(self._num_steps), e) from e

    def _step(self, actions: np.ndarray) -> EnvStep:
        if isinstance(self._space, Box):
            actions = np.minimum(np.maximum(actions, self._space.low), self._space.high).astype(np.float32)
        rewards, terminated = self._dynamics.step(actions, self._obs)
        truncated = self._last_steps <= self._num_steps
        (ended,) = (terminated | truncated).nonzero()
        final_obs = self._no_final_obs
        if ended.size:
            final_obs = self._obs[ended]
            for i in ended.tolist():
                self._reset(i)
        return EnvStep(self._obs, rewards, terminated, truncated, self._valid, ended, final_obs, None)

    def close(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {
            "dynamics": self._dynamics.state.tolist(),
            "obs": self._obs.tolist(),
            "steps_left": (self._last_steps - self._num_steps).tolist(),
            "num_steps": self._num_steps,
            "generators": [generator.bit_generator.state for generator in self._dynamics.generators],
        }

    def restore(self, state: dict[str, Any]) -> tuple[np.ndarray, np.ndarray | None]:
        self._dynamics.state[:] = np.reshape(state["dynamics"], self._dynamics.state.shape)
        self._obs[:] = state["obs"]
        self._num_steps = state["num_steps"]
        self._last_steps[:] = np.array(state["steps_left"], np.int64) + self._num_steps
        generators = []
        for generator_state in state["generators"]:
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = generator_state
            generators.append(generator)
        self._take_generators(generators)
        return self._obs, None

    def _take_generators(self, generators: list[np.random.Generator]) -> None:
        self._dynamics.generators = generators

    def _reset(self, i: int) -> None:
        self._obs[i] = self._dynamics.reset(i)
        self._last_steps[i] = self._num_steps + self._max_episode_steps
