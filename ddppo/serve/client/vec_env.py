"""A batch whose environments are served elsewhere: env.backend=remote."""

from collections.abc import Sequence

import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.encoding.rows import ObsArrays, RowLayout
from ddppo.envs.faults import EnvNames, no_options
from ddppo.envs.vec_env import EnvStep, Options, Unsaved
from ddppo.errors import EnvError
from ddppo.serve.client.connection import EnvServerFault
from ddppo.serve.client.env_pool import SyncEnvPool
from ddppo.serve.client.sessions import Answer
from ddppo.serve.client.source import Source, patience
from ddppo.spaces import EnvSpec, each, leaves


def make_remote(
    env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, *, max_restarts: int = 0
) -> "RemoteEnvs":
    """Open a session for every name, with the servers at env.urls or one of this rank's own. Raises EnvError."""
    source = Source(env, spec, names, timeout_s)
    try:
        pool = SyncEnvPool(
            source.urls, len(names.indices), first=names.indices.start, token=source.token, revive=source.revive,
            **patience(timeout_s, max_restarts),
        )  # fmt: skip
        return RemoteEnvs(pool, spec, names, source)
    except BaseException:
        source.close()
        raise


class RemoteEnvs(Unsaved):
    """`VecEnv` over sessions. A session that was lost and opened anew is a row that is not valid (`EnvStep`)."""

    num_lost_episodes = 0

    def __init__(self, pool: SyncEnvPool, spec: EnvSpec, names: EnvNames, source: Source) -> None:
        if pool.spec != spec:
            pool.close()
            raise EnvError(
                f"{pool.addresses[0]} serves a task of {pool.spec}, not of {spec}, as it did before"
            )
        self._source = source
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

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        if options is not None:
            raise no_options(self.names)
        try:
            self._take(self._pool.reset(seeds))
        except EnvServerFault as e:
            raise EnvError(f"{self.names(e.place)}: {e}") from e
        return self._obs, self._mask

    def step(self, actions: np.ndarray) -> EnvStep:
        try:
            answers = self._pool.step(actions)
        except EnvServerFault as e:
            raise EnvError(f"{self.names(e.place)}: {e}") from e
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

    def close(self) -> None:
        """Give the slots back; a second time does nothing."""
        self._pool.close()
        self._source.close()

    def _take(self, answers: Sequence[Answer]) -> None:
        for i, answer in enumerate(answers):
            for array, told in zip(leaves(self._obs), leaves(answer.obs), strict=True):
                array[i] = told
            if self._mask is not None:
                self._mask[i] = answer.mask
