"""What a turn of an environment is, and what is stepped turn by turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ddppo.envs.faults import EnvNames
from ddppo.spaces import EnvSpec


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
