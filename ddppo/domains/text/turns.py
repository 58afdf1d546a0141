"""Environments that are stepped each at its own pace, and start an episode only by `begin`.

    turns = make_turns(env, range(8), rank=0, timeout_s=60.0, max_restarts=0)
    for i in range(8):
        turns.begin(i, seed=7, options={"task": "make-a-bucket"})
    while answers := turns.ready(wait_s=0.02):
        for turn in answers:
            if not turn.is_over:
                turns.act(turn.env, "aws s3 mb s3://b")
    turns.close()

(Environments that all step together, with arrays, are a `VecEnv`.) `Turns` is the contract; `LocalTurns` steps
environments in this process, `RemoteTurns` (served_turns.py) steps environments of a server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.step_values import PARTS
from ddppo.envs.make import choose_backend
from ddppo.envs.probing.probe import probe
from ddppo.envs.single import make_single_env
from ddppo.envs.vec_env import EnvNames
from ddppo.errors import EnvError, EnvRaised
from ddppo.plugins import imported
from ddppo.spaces import EnvSpec
from ddppo.terminal import warn

# Entries of an info that the collector reads; all are optional. Of a step, `reward_parts`: the named parts of the
# reward; `tool_failed`: whether the command or tool that the policy called has failed. Of a reset, `system` and
# `shots`, and for records of rollouts the names `task` and `tier`.
READ = ("is_success", PARTS, "tool_failed", "system", "shots", "task", "tier")

_SERVED = "ddppo.domains.text.served_turns:RemoteTurns"  # needs the extra serve
_SERVED_BACKENDS = ("remote", "openenv")


@dataclass(slots=True)
class Turn:
    """The answer of one environment to `begin` or `act`."""

    env: int  # index of the environment among the E of this rank
    obs: Any  # text, or the arrays that its spec describes; None if it failed
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    failed: bool = False  # its world was lost, or it raised: the episode is over and is not counted
    # Plain values, and action_mask if the task has masks.
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.terminated or self.truncated or self.failed


class Turns(Protocol):
    """E environments of a rank. After `begin` or `act`, an environment takes no further call until it has answered.

    An environment may lose up to max_restarts episodes, by an error or with its world; each is a Turn that failed. The
    next lost episode raises its EnvError.
    """

    spec: EnvSpec
    num_envs: int
    names: EnvNames

    @property
    def num_restarts(self) -> int:
        """Worlds that were lost and replaced, over all environments."""
        ...

    @property
    def num_lost_episodes(self) -> int:
        """Episodes that failed, over all environments."""
        ...

    def begin(self, i: int, seed: int, options: Mapping[str, Any]) -> None:
        """Start an episode of environment i and return at once. An unfinished episode of it is dropped."""
        ...

    def act(self, i: int, action: Any) -> None:
        """Start one step of environment i and return at once."""
        ...

    def ready(self, wait_s: float | None) -> list[Turn]:
        """Wait for the first answer, then up to wait_s seconds for the others (None: for all).

        Returns the answers since the last call; [] if no environment is busy. Raises EnvError.
        """
        ...

    def close(self) -> None: ...


def make_turns(env: EnvConfig, env_indices: range, rank: int, timeout_s: float, max_restarts: int) -> Turns:
    """Make the environments of a rank: served with env.backend=remote, else in this process.

    env.backend=auto serves tasks that allow one environment per process. Raises ConfigError as probe() does, EnvError.

    Args:
        env_indices: global indices of the environments.
        timeout_s: seconds in which an environment must answer.
        max_restarts: episodes that each environment may lose.
    """
    spec, names = probe(env), EnvNames(env_indices, rank)
    # For tasks of text, `choose_backend` replaces the backend "auto" by the one that is used.
    chosen = choose_backend(env, spec, len(env_indices), cores=1) if spec.is_text else env
    if chosen.backend in _SERVED_BACKENDS:
        served: Turns = imported(_SERVED)(env, spec, names, timeout_s, max_restarts)
        return served
    return LocalTurns(env, spec, names, max_restarts)


class LocalTurns:
    """Environments in this process. `begin` and `act` note a call; `ready` runs the noted calls in their order."""

    num_restarts = 0

    def __init__(self, env: EnvConfig, spec: EnvSpec, names: EnvNames, max_restarts: int) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self.num_lost_episodes = 0
        self._max_restarts = max_restarts
        # `played` wraps an environment so that it checks its own outputs and names itself in errors.
        self._num_lost_of = [0] * self.num_envs
        self._envs = [make_single_env(env, spec, names(i)) for i in range(self.num_envs)]
        self._pending: dict[int, Callable[[], Turn]] = {}

    def begin(self, i: int, seed: int, options: Mapping[str, Any]) -> None:
        self._note(i, partial(self._reset, i, seed, dict(options)))

    def act(self, i: int, action: Any) -> None:
        self._note(i, partial(self._step, i, action))

    def ready(self, wait_s: float | None) -> list[Turn]:
        pending, self._pending = self._pending, {}
        return [self._answer(i, call) for i, call in pending.items()]

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _note(self, i: int, call: Callable[[], Turn]) -> None:
        assert i not in self._pending, f"{self.names(i)} has not answered yet"
        self._pending[i] = call

    def _reset(self, i: int, seed: int, options: dict[str, Any]) -> Turn:
        obs, info = self._envs[i].reset(seed=seed, **({"options": options} if options else {}))
        return Turn(i, obs, info=info)

    def _step(self, i: int, action: Any) -> Turn:
        obs, reward, terminated, truncated, info = self._envs[i].step(action)
        return Turn(i, obs, float(reward), terminated, truncated, info=info)

    def _answer(self, i: int, call: Callable[[], Turn]) -> Turn:
        try:
            return call()
        except EnvError as e:
            # Each environment has its own allowance, so that the outcome does not depend on how ranks share them.
            if self._num_lost_of[i] >= self._max_restarts:
                raise
            self._num_lost_of[i] += 1
            self.num_lost_episodes += 1
            said = e.said if isinstance(e, EnvRaised) else e
            warn(f"{said}; its episode is lost ({self._num_lost_of[i]} of {self._max_restarts})")
            return Turn(i, None, failed=True)
