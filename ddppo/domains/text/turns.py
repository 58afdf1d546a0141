"""Environments that are stepped each at its own pace, and begin an episode only when told.

    turns = make_turns(env, range(8), rank=0, timeout_s=60.0, max_restarts=0)
    for i in range(8):
        turns.begin(i, seed=7, options={"task": "make-a-bucket"})
    while answers := turns.ready(wait_s=0.02):
        for turn in answers:
            if not turn.is_over:
                turns.act(turn.env, "aws s3 mb s3://b")
    turns.close()

A batch of arrays in step is a `VecEnv`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import settled
from ddppo.envs.probing.probe import probe
from ddppo.envs.single import played
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import EnvError, EnvRaised
from ddppo.plugins import imported
from ddppo.spaces import EnvSpec
from ddppo.terminal import warn

_SERVED = "ddppo.domains.text.served_turns:RemoteTurns"  # needs the extra serve


@dataclass(slots=True)
class Turn:
    """What one environment answers. env: its index in this batch. obs: text, or the arrays that its spec describes.

    failed: the world was lost, or it raised: the episode is over and counts for nothing, obs is None. info: what the
    environment tells in plain values, and its action_mask where it has masks.
    """

    env: int
    obs: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    failed: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.terminated or self.truncated or self.failed


class Turns(Protocol):
    """E environments of a rank. An environment that was told something is told nothing more until it has answered.

    The first max_restarts episodes of an environment that are lost, or in which it raises, are turns that failed; the
    next raises its EnvError. num_restarts: how often a world was lost and another took its place. num_lost_episodes:
    that failed. Both of all environments.
    """

    spec: EnvSpec
    num_envs: int
    names: EnvNames

    @property
    def num_restarts(self) -> int: ...

    @property
    def num_lost_episodes(self) -> int: ...

    def begin(self, i: int, seed: int, options: Mapping[str, Any]) -> None:
        """Have environment i begin an episode, and return at once; one that is under way is over."""
        ...

    def act(self, i: int, action: Any) -> None:
        """Have environment i do one step, and return at once."""
        ...

    def ready(self, wait_s: float | None) -> list[Turn]:
        """Wait for the first answer, and then up to wait_s for those still under way (None: for all).

        Returns what was answered since it was last asked; [] where nothing is under way. Raises EnvError.
        """
        ...

    def close(self) -> None: ...


def make_turns(env: EnvConfig, env_indices: range, rank: int, timeout_s: float, max_restarts: int) -> Turns:
    """Make the environments `env_indices` (global) of this rank: served with env.backend=remote, else in this process.

    env.backend=auto serves those of which a process can hold only one. timeout_s: how long one may take to answer.
    Raises ConfigError as probe() does, EnvError.
    """
    spec, names = probe(env), EnvNames(env_indices, rank)
    if (settled(env, spec, len(env_indices), cores=1) if spec.is_text else env).backend == "remote":
        served: Turns = imported(_SERVED)(env, spec, names, timeout_s, max_restarts)
        return served
    return LocalTurns(env, spec, names, max_restarts)


class LocalTurns:
    """Environments of this process. `begin` and `act` only note what is to be done; `ready` does it, in their order."""

    num_restarts = 0

    def __init__(self, env: EnvConfig, spec: EnvSpec, names: EnvNames, max_restarts: int) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self.num_lost_episodes = 0
        self._max_restarts = max_restarts
        self._num_lost_of = [0] * self.num_envs
        self._envs = [played(env, spec, names(i)) for i in range(self.num_envs)]
        self._told: dict[int, Callable[[], Turn]] = {}

    def begin(self, i: int, seed: int, options: Mapping[str, Any]) -> None:
        self._tell(i, partial(self._begun, i, seed, dict(options)))

    def act(self, i: int, action: Any) -> None:
        self._tell(i, partial(self._stepped, i, action))

    def ready(self, wait_s: float | None) -> list[Turn]:
        told, self._told = self._told, {}
        return [self._answer(i, do) for i, do in told.items()]

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _tell(self, i: int, do: Callable[[], Turn]) -> None:
        assert i not in self._told, f"{self.names(i)} has not answered yet"
        self._told[i] = do

    def _begun(self, i: int, seed: int, options: dict[str, Any]) -> Turn:
        obs, info = self._envs[i].reset(seed=seed, **({"options": options} if options else {}))
        return Turn(i, obs, info=info)

    def _stepped(self, i: int, action: Any) -> Turn:
        obs, reward, terminated, truncated, info = self._envs[i].step(action)
        return Turn(i, obs, float(reward), terminated, truncated, info=info)

    def _answer(self, i: int, do: Callable[[], Turn]) -> Turn:
        try:
            return do()
        except EnvError as e:
            if self._num_lost_of[i] >= self._max_restarts:
                raise
            self._num_lost_of[i] += 1
            self.num_lost_episodes += 1
            said = e.said if isinstance(e, EnvRaised) else e
            warn(f"{said}; its episode is lost ({self._num_lost_of[i]} of {self._max_restarts})")
            return Turn(i, None, failed=True)
