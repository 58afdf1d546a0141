"""Tasks of EnvPool (Weng et al. 2022, arXiv:2206.10558), with ids envpool/<name>, stepped by its threads in C++.

Every environment has its own seed, so its episodes depend neither on the others nor on the rank that steps it. The step
after the end of an episode only resets it and is no transition (see GymVectorEnvs, NEXT_STEP).
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from ddppo.config.fields import near
from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.gym_vector import GymVectorEnvs
from ddppo.envs.vec_env import EnvNames, EnvSpec, explained
from ddppo.errors import ConfigError

_NOT_SETTINGS = ("num_envs", "max_episode_steps", "base_path", "max_num_players", "reward_threshold")
PREFIX = "envpool/"
_NEVER = 2**31 - 1
ENVPOOL_OURS = {  # keyword of EnvPool -> the setting to use instead
    "num_threads": "set env.num_workers",
    "batch_size": "leave it out: a step is one of all environments",
    "seed": "set seed",
    "env_seed": "set seed",
    "reward_clip": "set ppo.reward_clip, which clips rewards for learning only",
    "gym_reset_return_info": "leave it out",
}


def register(env_id: str) -> None:
    """Register a task of EnvPool with Gymnasium."""
    import envpool

    name = env_id.removeprefix(PREFIX)
    if env_id in gym.registry or name not in envpool.list_all_envs():
        return
    # The time limit is Gymnasium's wrapper for single environments, and EnvPool's own in a batch.
    gym.register(
        env_id,
        entry_point="ddppo.envs.backends.envpool:OneOfPool",
        vector_entry_point="ddppo.envs.backends.envpool:PooledTask",
        kwargs={"name": name},
        max_episode_steps=getattr(_config(name), "max_episode_steps", None),
        order_enforce=False,
    )


def make_envpool_task(env: EnvConfig, num_envs: int, num_threads: int = 1) -> "PooledTask":
    limit = env.max_episode_steps or gym.registry[env.id].max_episode_steps
    name = env.id.removeprefix(PREFIX)
    return PooledTask(
        num_envs, name, num_threads=num_threads, max_episode_steps=limit, **_allowed(name, env.kwargs)
    )


def make_envpool(
    env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, *, cores: int = 1
) -> "EnvPoolEnvs":
    """Make a batch that env.num_workers threads step, by default as many as the rank has cores.

    The number of threads changes no result. timeout_s is unused: nothing waits.
    """
    num_envs = len(names.indices)
    try:
        task = make_envpool_task(env, num_envs, min(env.num_workers or cores, num_envs))
        return EnvPoolEnvs(task, spec, names)
    except (Exception, SystemExit) as e:
        raise explained(names.all(), "when they were made", e) from e


class EnvPoolEnvs(GymVectorEnvs):
    """A `VecEnv` over EnvPool. The random stream of an environment depends on its own seed alone."""

    def _seed(self, seeds: Sequence[int]) -> list[int]:
        return [int(seed) for seed in seeds]


class PooledTask(gym.vector.VectorEnv):
    """EnvPool as a vector environment of Gymnasium, which resets in the step after an end.

    EnvPool takes seeds only when a pool is made, so a reset with seeds makes a new pool. Actions may have any dtype.
    """

    def __init__(self, num_envs: int, name: str, **kwargs: Any) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
        self.num_envs = num_envs
        self._name, self._kwargs = name, kwargs
        # A pool is made at once to know its spaces; reset makes another one with the right seeds.
        self._pool: Any = _made(name, range(num_envs), kwargs)
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self._dtype = (
            self.single_action_space.dtype if isinstance(self.single_action_space, Box) else np.int32
        )

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
            self._pool = None  # end its threads before new ones start
            self._pool = _made(self._name, seeds, self._kwargs)
        return self._pool.reset()[0], {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        # Infos are left out: nothing here reads them.
        obs, rewards, terminated, truncated, _ = self._pool.step(np.asarray(actions, self._dtype))
        return obs, rewards, terminated, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        self._pool = None


class OneOfPool(gym.Env):
    """A single environment of EnvPool, for evaluation, env.backend=sync and pool. Gymnasium limits its time."""

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's)

    def __init__(self, name: str, render_mode: str | None = None, **kwargs: Any) -> None:
        self._task = PooledTask(1, name, num_threads=1, max_episode_steps=_NEVER, **_allowed(name, kwargs))
        self.observation_space = self._task.single_observation_space
        self.action_space = self._task.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        obs, _ = self._task.reset(seed=None if seed is None else [seed])
        return _first(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, rewards, terminated, truncated, _ = self._task.step(np.asarray(action)[None])
        return _first(obs), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        self._task.close()


def _made(name: str, seeds: Sequence[int], kwargs: dict[str, Any]) -> Any:
    import envpool

    with _quietly():
        pool = envpool.make(
            name, env_type="gymnasium", num_envs=len(seeds), env_seed=[int(seed) for seed in seeds], **kwargs
        )
        pool.observation_space, pool.action_space  # noqa: B018 (made at the first access)
        return pool


def _config(name: str) -> Any:
    import envpool

    with _quietly():
        return envpool.make_spec(name).config


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress Gymnasium's warnings about the bounds of EnvPool's spaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _allowed(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    for key, remedy in ENVPOOL_OURS.items():
        if key in kwargs:
            raise ConfigError(f"env.kwargs.{key} is no setting of the task: {remedy}")
    # Check keywords here, for a message with the nearest name.
    known = [key for key in _config(name)._fields if key not in (*ENVPOOL_OURS, *_NOT_SETTINGS)]
    for key in kwargs:
        if key not in known:
            raise ConfigError(
                f"env.kwargs.{key}: EnvPool's {name} has no such keyword{near(key, known)}; it has {', '.join(known)}"
            )
    return kwargs


def _first(obs: Any) -> Any:
    return {key: _first(part) for key, part in obs.items()} if isinstance(obs, dict) else obs[0]
