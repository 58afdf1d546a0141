"""A batch whose environments are served elsewhere: env.backend=remote."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ddppo.envs.faults import EnvNames, no_state
from ddppo.envs.remote.env_pool import Answer, SyncEnvPool
from ddppo.envs.rows import ObsArrays, RowLayout
from ddppo.envs.vec_env import EnvStep
from ddppo.errors import ConfigError
from ddppo.spaces import EnvSpec, each, leaves


def make_remote(
    spec: EnvSpec, names: EnvNames, timeout_s: float, *, urls: Sequence[str], **settings: Any
) -> "RemoteEnvs":
    """Connect to servers of a task, as many sessions as there are names. Raises EnvError, ConfigError."""
    pool = SyncEnvPool(urls, len(names.indices), answer_s=timeout_s, **settings)
    if pool.spec != spec:
        served = pool.spec
        pool.close()
        raise ConfigError(
            f"env.urls={list(urls)} serve a task of {served}, not of {spec}: serve the same task"
        )
    return RemoteEnvs(pool, spec, names)


class RemoteEnvs:
    """`VecEnv` over sessions. A session that was lost and opened anew is a row that is not valid (`EnvStep`)."""

    num_lost_episodes = 0

    def __init__(self, pool: SyncEnvPool, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self._pool = pool
        layout = RowLayout(spec)
        rows = np.zeros(self.num_envs, layout.dtype)
        self._obs, self._mask = layout.obs(rows), layout.mask(rows)
        self._none = layout.obs(rows[:0])
        self._rewards = np.zeros(self.num_envs)
        self._terminated, self._truncated, self._valid = np.ones((3, self.num_envs), bool)

    @property
    def num_restarts(self) -> int:
        return self._pool.num_reconnects

    def reset(self, seeds: Sequence[int]) -> tuple[ObsArrays, np.ndarray | None]:
        self._take(self._pool.reset(seeds))
        return self._obs, self._mask

    def step(self, actions: np.ndarray) -> EnvStep:
        answers = self._pool.step(actions)
        self._take(answers)
        for i, answer in enumerate(answers):
            self._rewards[i], self._valid[i] = answer.reward, not answer.is_lost
            self._terminated[i], self._truncated[i] = answer.terminated, answer.truncated or answer.is_lost
            self.num_lost_episodes += answer.is_lost
        (ended,) = (self._terminated | self._truncated).nonzero()
        # Of a lost episode nobody saw the end: numbers of no transition stand there, as in a pool.
        finals = [answers[i].final_obs if answers[i].final_obs is not None else answers[i].obs for i in ended]
        final_obs = each(lambda *parts: np.stack(parts), *finals) if finals else self._none
        return EnvStep(
            self._obs, self._rewards, self._terminated, self._truncated, self._valid, ended, final_obs, self._mask
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        raise no_state(self.names)

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, np.ndarray | None]:
        raise no_state(self.names)

    def close(self) -> None:
        self._pool.close()

    def _take(self, answers: Sequence[Answer]) -> None:
        for i, answer in enumerate(answers):
            for array, told in zip(leaves(self._obs), leaves(answer.obs), strict=True):
                array[i] = told
            if self._mask is not None:
                self._mask[i] = answer.mask
