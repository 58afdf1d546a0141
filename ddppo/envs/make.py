"""From settings to a batch of environments: read the task's spec, choose a backend, build the batch.

spec = probe(env)                                  # in the parent, before any process starts
envs = make_vec_env(env, range(8, 16), rank=1, cores=2)    # in rank 1: global environments 8 to 15
obs, mask = envs.reset(seeds)
step = envs.step(actions)
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, cast

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.classic_cpp import is_robot, why_not_batched
from ddppo.envs.backends.pool_process import choose_num_workers, measure, pool_pays
from ddppo.envs.guard import STEPPED, guarded
from ddppo.envs.probing.probe import probe
from ddppo.envs.vec_env import (
    End,
    EnvNames,
    EnvSpec,
    EnvStep,
    ObsArrays,
    Options,
    PublishingEnvs,
    VecEnv,
    check_finite,
    check_masks,
    take_infos,
)
from ddppo.errors import EnvError
from ddppo.plugins import added, imported
from ddppo.spaces import each
from ddppo.terminal import warn_once

_EVAL_S = 600.0  # timeout of a step of an evaluation that a server steps

_HERE = "ddppo.envs.backends"
BACKENDS = {  # env.backend -> the function that makes its batch; plugins add others
    "batched": f"{_HERE}.classic_cpp:make_batched",
    "sync": f"{_HERE}.sync:make_sync",
    "pool": f"{_HERE}.pool:make_pool",
    "gym_vector": f"{_HERE}.gym_vector:make_gym_vector",
}
_ATARI, _ENVPOOL = f"{_HERE}.atari:make_atari", f"{_HERE}.envpool:make_envpool"


def make_vec_env(
    env: EnvConfig, env_indices: range, rank: int, cores: int, timeout_s: float = 600.0, max_restarts: int = 0
) -> VecEnv:
    """Make the environments of a rank.

    Args:
        env_indices: their global indices.
        cores: CPU cores that the rank may use.
        timeout_s: how long a step may wait for an environment process.
        max_restarts: how many environment processes may be lost and replaced.

    Raises ConfigError as probe() does, and EnvError as the batch's own reset and step do.
    """
    spec = probe(env)
    env = choose_backend(env, spec, len(env_indices), cores)
    # Games of ALE and tasks of EnvPool bring their own vector environment, and a plugin its own backend.
    plugin = added("backends").get(env.backend)
    path = plugin.make if plugin is not None else BACKENDS[env.backend]
    if env.is_ale or env.is_envpool:
        path = _ATARI if env.is_ale else _ENVPOOL
    make: Callable[..., VecEnv] = imported(path)
    # Backends take only the arguments that concern them.
    takes_cores = env.is_ale or env.is_envpool or env.backend in ("batched", "pool")
    more: dict[str, Any] = {"cores": cores} if takes_cores else {}
    if env.backend == "pool" or plugin is not None:
        more["max_restarts"] = max_restarts
    envs = make(env, spec, EnvNames(env_indices, rank), timeout_s, **more)
    # An artificial straggler, for studies.
    seconds = env.slow_ranks.get(rank, 0.0)
    return SlowEnvs(envs, seconds) if seconds else envs


def make_eval_env(env: EnvConfig, num_envs: int, device: str = "cpu", seed: int = 0) -> VecEnv:
    """Make a batch for evaluation: stepped and checked in this process, with a random stream per environment.

    A task served at env.urls is stepped by its servers. An episode of ALE or EnvPool is a whole game, even if a lost
    life ends an episode of training.

    Args:
        device: where environments of env.backend=device live.
        seed: of simulators with env.backend=device that have one random stream for the whole batch.
    """
    if env.backend == "device":
        make_on_device: Callable[..., VecEnv] = imported(f"{_HERE}.device:make_host_envs")
        return CheckedEnvs(make_on_device(env, EnvNames(range(num_envs), None), device, seed))
    if env.is_ale:
        names = EnvNames(range(num_envs), None)
        return CheckedEnvs(imported(_ATARI)(env, probe(env), names, 0.0, whole_games=True))
    if env.urls:
        make: Callable[..., VecEnv] = imported(added("backends")[env.backend].make)
        return CheckedEnvs(make(env, probe(env), EnvNames(range(num_envs), None), _EVAL_S))
    kwargs = dict(env.kwargs)
    if env.is_envpool:
        kwargs.pop("episodic_life", None)
    # Single environments give the same numbers as every other backend, so evaluation needs no processes.
    env = dataclasses.replace(env, backend="sync", slow_ranks={}, kwargs=kwargs)
    spec, names = probe(env), EnvNames(range(num_envs), None)
    backend = "sync" if why_not_batched(env) else "batched"
    # The task is stepped in this process, so undo its changes to the process when the batch closes.
    with ExitStack() as guard:
        guard.enter_context(guarded(env.id, STEPPED))
        envs = imported(BACKENDS[backend])(env, spec, names, 0.0)
        return CheckedEnvs(envs, guard.pop_all())


def choose_backend(env: EnvConfig, spec: EnvSpec, num_envs: int, cores: int) -> EnvConfig:
    """Return the settings with env.backend=auto replaced by a backend for `num_envs` environments.

    The choice changes no number: batched if the task can be batched, gym_vector for games of ALE and tasks of EnvPool,
    else sync or pool, the faster one by the measured time of a step.
    """
    if env.backend != "auto":
        return env
    if env.is_ale or env.is_envpool:
        return dataclasses.replace(env, backend="gym_vector")
    # Some tasks can live only once in a process: more of them need a process (or a server) each.
    if spec.is_text:
        needs_server = spec.one_a_process and num_envs > 1
        return dataclasses.replace(env, backend="remote" if needs_server else "sync")
    if spec.one_a_process and num_envs > 1:
        return dataclasses.replace(env, backend="pool", num_workers=num_envs)
    if (why := why_not_batched(env)) is None:
        return dataclasses.replace(env, backend="batched")
    if is_robot(env) and env.context is None:
        warn_once(f"{env.id} is stepped by Gymnasium's Python, not in C++, and slower: {why}")
    if num_envs > 1:
        with suppress(EnvError):  # training meets the same error and reports it with the environment's name
            # A pool costs messages, so it pays only if a step takes long enough.
            cost = measure(env, spec)
            num_workers = choose_num_workers(cost, num_envs, cores)
            if pool_pays(cost, num_envs, num_workers):
                return dataclasses.replace(env, backend="pool", num_workers=num_workers)
    return dataclasses.replace(env, backend="sync")


class BatchWrapper:
    """A batch that forwards every call to another batch. Subclasses change some of the calls."""

    def __init__(self, envs: VecEnv) -> None:
        self.spec = envs.spec
        self.num_envs = envs.num_envs
        self.names = envs.names
        self._envs = envs

    @property
    def num_restarts(self) -> int:
        return getattr(self._envs, "num_restarts", 0)

    @property
    def num_env_restarts(self) -> int:
        return getattr(self._envs, "num_env_restarts", self.num_restarts)

    @property
    def num_lost_episodes(self) -> int:
        return getattr(self._envs, "num_lost_episodes", 0)

    def publish(self) -> list[bytes]:
        return cast(PublishingEnvs, self._envs).publish()

    def receive(self, news: Sequence[bytes], envs: Sequence[int] | None = None) -> None:
        cast(PublishingEnvs, self._envs).receive(news, envs)

    def made_anew(self) -> list[int]:
        return cast(PublishingEnvs, self._envs).made_anew()

    def take_infos(self) -> dict[int, list[dict[str, float]]]:
        return take_infos(self._envs)

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        return self._envs.reset(seeds, options)

    def step(self, actions: np.ndarray) -> EnvStep:
        return self._envs.step(actions)

    def state(self) -> dict[str, Any]:
        return self._envs.state()

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, np.ndarray | None]:
        return self._envs.restore(state)

    def go_on_from(self, state: dict[str, Any]) -> None:
        self._envs.go_on_from(state)

    def close(self) -> None:
        self._envs.close()


class SlowEnvs(BatchWrapper):
    """A batch in which every step takes `seconds` longer: an artificial straggler (env.slow_ranks)."""

    def __init__(self, envs: VecEnv, seconds: float) -> None:
        super().__init__(envs)
        self._seconds = seconds

    def step(self, actions: np.ndarray) -> EnvStep:
        time.sleep(self._seconds)
        return self._envs.step(actions)


class CheckedEnvs(BatchWrapper):
    """A batch that checks every step by itself, and raises EnvOutputError for NaN, infinity or a mask without choices.

    Evaluation uses it. A collector checks all steps of a rollout at once instead.
    """

    def __init__(self, envs: VecEnv, guard: ExitStack | None = None) -> None:
        super().__init__(envs)
        # Closed with the batch: undoes the task's changes to this process.
        self._guard = guard or ExitStack()
        self._num_steps = 0

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        self._num_steps = 0
        obs, mask = self._envs.reset(seeds, options)
        self._check(obs, np.zeros(self.num_envs), [], mask)
        return obs, mask

    def step(self, actions: np.ndarray) -> EnvStep:
        step = self._envs.step(actions)
        self._num_steps += 1
        ends = [(0, step.ended, step.final_obs)] if len(step.ended) else []
        self._check(step.obs, step.rewards, ends, step.action_mask)
        return step

    def close(self) -> None:
        with self._guard:
            self._envs.close()

    def _check(self, obs: ObsArrays, rewards: np.ndarray, ends: list[End], mask: np.ndarray | None) -> None:
        # The checks take the steps of a rollout: this is a rollout of one step.
        check_finite(self.names, self._num_steps, each(lambda x: x[None], obs), rewards[None], ends)
        if mask is not None:
            every = np.ones((1, self.num_envs), bool)
            check_masks(self.names, self._num_steps, mask[None], every, self.spec.action)
