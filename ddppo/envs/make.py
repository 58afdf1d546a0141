"""From settings to a batch of environments: learn the task, choose who steps it, build the batch.

spec = probe(env)                                  # in the parent, before any process starts
envs = make_vec_env(env, range(8, 16), rank=1, cores=2)    # in rank 1: environments 8 to 15 of all
obs, mask = envs.reset(seeds)
step = envs.step(actions)
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.codec import sample_action
from ddppo.envs.faults import EnvNames, check_finite, check_masks
from ddppo.envs.native import make_native
from ddppo.envs.probe import probe
from ddppo.envs.same_step import make_async, make_sync
from ddppo.envs.scalar import make_row_env
from ddppo.envs.vec_env import EnvSpec, EnvStep, VecEnv

BACKENDS: dict[str, Callable[[EnvConfig, EnvSpec, EnvNames, float], VecEnv]] = {
    "sync": make_sync,
    "async": make_async,
    "native": make_native,
}

# Per environment and step, a process of its own costs about 60 us of pipes and waking. Measured on 2 cores
# with ddppo/Synthetic-v0, busy, 2 to 32 environments: async lost at 150 us a step, broke even between 200 and
# 300 us, and took 0.6 to 0.7 of sync's time at 1 ms. More cores move the point down, towards 60 us.
ASYNC_PAYS_ABOVE_S = 250e-6


def make_vec_env(
    env: EnvConfig, env_indices: range, rank: int, cores: int, timeout_s: float = 600.0
) -> VecEnv:
    """Make the environments `env_indices` (global) of this rank, who has `cores` cores to itself.

    timeout_s is how long a step may wait for an environment process. Raises ConfigError as probe() does, and EnvError
    as the batch's own reset and step do.
    """
    spec = probe(env)
    backend = choose_backend(env, spec, len(env_indices), cores)
    envs = BACKENDS[backend](env, spec, EnvNames(env_indices, rank), timeout_s)
    seconds = env.slow_ranks.get(rank, 0.0)
    return SlowEnvs(envs, seconds) if seconds else envs


def make_eval_env(env: EnvConfig, num_envs: int) -> VecEnv:
    """Make a batch for evaluation: stepped and checked in this process, a stream per environment, never slowed."""
    env = dataclasses.replace(env, backend="sync", slow_ranks={})
    return CheckedEnvs(make_sync(env, probe(env), EnvNames(range(num_envs), None), 0.0))


def choose_backend(env: EnvConfig, spec: EnvSpec, num_envs: int, cores: int) -> str:
    """Return env.backend, or for `auto` the faster of sync and async. The choice changes no number."""
    if env.backend != "auto":
        return env.backend
    if cores < 2 or num_envs < 2:
        return "sync"
    return "async" if seconds_per_step(env, spec) > ASYNC_PAYS_ABOVE_S else "sync"


def seconds_per_step(env: EnvConfig, spec: EnvSpec, measure_s: float = 0.05, min_steps: int = 20) -> float:
    """Measure one environment with random actions, resets included, over measure_s and min_steps or more."""
    row_env = make_row_env(env, spec, "an environment that was made to measure a step")
    try:
        row_env.action_space.seed(0)
        row, _ = row_env.reset(seed=0)
        num_steps = 0
        start = time.perf_counter()
        while num_steps < min_steps or time.perf_counter() - start < measure_s:
            mask = row[spec.obs_size :] if spec.mask_size else None
            row, _, terminated, truncated, _ = row_env.step(sample_action(row_env.action_space, mask))
            num_steps += 1
            if terminated or truncated:
                row, _ = row_env.reset()
        return (time.perf_counter() - start) / num_steps
    finally:
        row_env.close()


class SlowEnvs:
    """A batch whose every step takes `seconds` longer: a straggler, for studies of waiting."""

    def __init__(self, envs: VecEnv, seconds: float) -> None:
        self.spec = envs.spec
        self.num_envs = envs.num_envs
        self.names = envs.names
        self._envs = envs
        self._seconds = seconds

    def reset(self, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
        return self._envs.reset(seeds)

    def step(self, actions: np.ndarray) -> EnvStep:
        time.sleep(self._seconds)
        return self._envs.step(actions)

    def close(self) -> None:
        self._envs.close()


class CheckedEnvs:
    """A batch that raises EnvOutputError from the very step that returned NaN, infinity or a mask without choices."""

    def __init__(self, envs: VecEnv) -> None:
        self.spec = envs.spec
        self.num_envs = envs.num_envs
        self.names = envs.names
        self._envs = envs
        self._num_steps = 0

    def reset(self, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
        self._num_steps = 0
        obs, mask = self._envs.reset(seeds)
        self._check(obs, np.zeros(self.num_envs), [], mask)
        return obs, mask

    def step(self, actions: np.ndarray) -> EnvStep:
        step = self._envs.step(actions)
        self._num_steps += 1
        ends = [(0, step.ended, step.final_obs)] if len(step.ended) else []
        self._check(step.obs, step.rewards, ends, step.action_mask)
        return step

    def close(self) -> None:
        self._envs.close()

    def _check(
        self,
        obs: np.ndarray,
        rewards: np.ndarray,
        ends: list[tuple[int, np.ndarray, np.ndarray]],
        mask: np.ndarray | None,
    ) -> None:
        check_finite(self.names, self._num_steps, obs[None], rewards[None], ends)
        if mask is not None:
            every = np.ones((1, self.num_envs), bool)
            check_masks(self.names, self._num_steps, mask[None], every, self.spec.action)
