"""env.backend=batched: all environments of a batch at once, with NumPy.

`Dynamics` is the task for all environments, `BatchedEnvs` the batch around it: seeds, time limit, resets and states.
classic.py has the dynamics of the classic-control tasks, classic_cpp.py steps them in C++.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils.seeding import np_random

from ddppo.envs.vec_env import (
    EnvNames,
    EnvSpec,
    EnvStep,
    ObsArrays,
    Options,
    explained,
    no_options,
    other_state,
    when_reset,
    when_stepped,
)
from ddppo.spaces import leaves


class NoOptions(Exception):
    """The task takes no options at a reset."""


class Dynamics(abc.ABC):
    """The dynamics of one task for E environments. Made as `Dynamics(E, **env.kwargs)`."""

    max_episode_steps: int | None = None  # the task's own time limit
    env_axis = 1  # the axis of E in `state`

    def __init__(self, state_size: int, num_envs: int) -> None:
        # [S, E]: all that environments remember apart from their last observations.
        self.state: np.ndarray = np.zeros((state_size, num_envs))
        self.generators: list[np.random.Generator] = []  # one per environment, seeded by the batch

    @abc.abstractmethod
    def reset(self, i: int) -> np.ndarray:
        """Put environment i into a state drawn from its generator; return its observation `[obs_size]`."""

    def take_options(self, i: int, options: Mapping[str, Any]) -> None:
        """Pass options to every later reset of environment i. Raises NoOptions if the task takes none."""
        raise NoOptions

    def publish(self) -> list[bytes]:
        """Return the message of each environment (ddppo.envs.vec_env)."""
        return [b""] * len(self.generators)

    def remembered(self) -> list[dict[str, Any]]:
        """Return the rest of each environment's state, besides `state`, in plain values."""
        return [{} for _ in self.generators]

    def remember(self, states: list[dict[str, Any]]) -> None:  # noqa: B027 (most have nothing more)
        """Restore the values of `remembered`, from these environments in this or other batches."""

    @abc.abstractmethod
    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Step all environments with actions of the task's space; return rewards `[E]` (float64) and terminated `[E]`.

        `obs` `[E, obs_size]` holds the last observations and is overwritten with the next.
        """


# -- The batch. Its numbers equal those of single environments to the bit.
#
# Environment i has its own random generator, seeded as by Gymnasium's reset(seed=...) and used in the same order. So
# its episodes equal those of env.backend=sync, and do not depend on the other environments in the batch.


class BatchedEnvs:
    """A `VecEnv` over the dynamics of a task. It resets an environment in the step that ends its episode."""

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
        # For each environment, the step in which the time limit ends its episode.
        self._last_steps = np.zeros(self.num_envs, np.int64)
        is_double = all(leaf.dtype == "float64" for leaf in leaves(spec.obs))
        self._obs = np.zeros((self.num_envs, spec.obs_size), np.float64 if is_double else np.float32)
        self._valid = np.ones(self.num_envs, bool)
        self._obs_arrays = self._split(self._obs)  # views by name
        self._no_final_obs = self._split(self._obs[:0])
        self._next: dict[str, Any] | None = None  # the state that the next reset restores

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        self._num_steps = 0
        # Options first: the resets below use them.
        for i, each in enumerate(options or ()):
            try:
                self._dynamics.take_options(i, each)
            except NoOptions:
                raise no_options(self.names) from None
            except Exception as e:
                raise explained(self.names(i), when_reset(0), e) from e
        self._take_generators([np_random(int(seed))[0] for seed in seeds])
        for i in range(self.num_envs):
            self._reset(i)
        if self._next is not None:
            state, self._next = self._next, None
            return self.restore(state)
        return self._obs_arrays, None

    def step(self, actions: np.ndarray) -> EnvStep:
        assert actions.shape == (self.num_envs, *self.spec.action.shape), actions.shape
        self._num_steps += 1
        try:
            return self._step(actions)
        except Exception as e:
            raise explained(self.names.all(), when_stepped(self._num_steps), e) from e

    def _step(self, actions: np.ndarray) -> EnvStep:
        # Clip as decode_actions does, in the float32 of the bounds.
        if isinstance(self._space, Box):
            actions = np.minimum(np.maximum(actions, self._space.low), self._space.high).astype(np.float32)
        rewards, terminated = self._dynamics.step(actions, self._obs)
        # The time limit of every environment is one comparison.
        truncated = self._last_steps <= self._num_steps
        (ended,) = (terminated | truncated).nonzero()
        final_obs = self._no_final_obs
        # Copy the last observations, then reset these environments one by one.
        if ended.size:
            final_obs = self._split(self._obs[ended])
            for i in ended.tolist():
                self._reset(i)
        return EnvStep(self._obs_arrays, rewards, terminated, truncated, self._valid, ended, final_obs, None)

    def close(self) -> None:
        pass

    def state(self) -> dict[str, Any]:
        # One entry per environment, so that a resumed run may distribute them anew.
        rows = zip(
            np.moveaxis(self._dynamics.state, self._dynamics.env_axis, 0).tolist(),
            self._obs.tolist(),
            (self._last_steps - self._num_steps).tolist(),
            self._dynamics.remembered(),
            self._dynamics.generators,
            strict=True,
        )
        return {
            "envs": [
                {
                    "how": "batched",
                    "dynamics": dynamics,
                    "obs": obs,
                    "steps_left": steps_left,
                    "num_steps": self._num_steps,
                    "remembered": remembered,
                    "generator": generator.bit_generator.state,
                }
                for dynamics, obs, steps_left, remembered, generator in rows
            ]
        }

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, np.ndarray | None]:
        envs = state["envs"]
        assert len(envs) == self.num_envs, (len(envs), self.num_envs)
        # Refuse states of other backends before anything is changed.
        for i, env in enumerate(envs):
            if env.get("how") != "batched":
                raise other_state(self.names(i), env.get("how"), "batched")
        dynamics = np.moveaxis(self._dynamics.state, self._dynamics.env_axis, 0)
        dynamics[:] = np.reshape([env["dynamics"] for env in envs], dynamics.shape)
        self._dynamics.remember([env["remembered"] for env in envs])
        self._obs[:] = [env["obs"] for env in envs]
        # Environments of several batches may have done different numbers of steps: keep the steps left of each.
        self._num_steps = max(env["num_steps"] for env in envs)
        self._last_steps[:] = np.array([env["steps_left"] for env in envs], np.int64) + self._num_steps
        generators = []
        for env in envs:
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = env["generator"]
            generators.append(generator)
        self._take_generators(generators)
        return self._obs_arrays, None

    def publish(self) -> list[bytes]:
        return self._dynamics.publish()

    def receive(self, news: Sequence[bytes], envs: Sequence[int] | None = None) -> None:
        """Do nothing: messages do not change a batched task."""

    def go_on_from(self, state: dict[str, Any]) -> None:
        self._next = state

    def made_anew(self) -> list[int]:
        return []

    def _split(self, rows: np.ndarray) -> ObsArrays:
        """Return rows `[n, obs_size]` as spec.obs describes them: views of the arrays side by side in a row."""
        if not isinstance(self.spec.obs, dict):
            return rows
        parts, start = {}, 0
        for name, leaf in self.spec.obs.items():
            parts[name] = rows[:, start : start + leaf.size].reshape(len(rows), *leaf.shape)
            start += leaf.size
        return parts

    def _take_generators(self, generators: list[np.random.Generator]) -> None:
        self._dynamics.generators = generators

    def _reset(self, i: int) -> None:
        self._obs[i] = self._dynamics.reset(i)
        self._last_steps[i] = self._num_steps + self._max_episode_steps


# -- `ddppo/Synthetic-v0` without artificial step times.


class Synthetic(Dynamics):
    """The contextual bandit of `ddppo.envs.tasks.synthetic`; its observation is its state."""

    def __init__(self, num_envs: int, episode_steps: int = 100, obs_size: int = 8, **_: Any) -> None:
        super().__init__(0, num_envs)
        self.max_episode_steps = episode_steps
        self._obs_size = obs_size
        self._never = np.zeros(num_envs, bool)

    def reset(self, i: int) -> np.ndarray:
        return self.generators[i].standard_normal(self._obs_size, dtype=np.float32)

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards = (actions == (obs[:, 0] > 0)).astype(np.float64)
        for row, generator in zip(obs, self.generators, strict=True):
            generator.standard_normal(dtype=np.float32, out=row)
        return rewards, self._never
