"""How many steps an episode may take: a cap that grows and shrinks with use."""

import math
from collections.abc import Iterable

from ddppo.domains.circuits.task.settings import Episode

ROUND = 8  # episodes after which the cap is set anew


class LengthCap:
    """The cap of one starting circuit in one environment, from min_steps up to max_steps.

    After every ROUND episodes it is multiplied by 1.5 where it is below 40, else by 1.2, if one of them was cut, and
    divided by that if the longest would have fitted into what is left. Where environments tell each other of theirs,
    `own`, the cap is the largest: it grows at once, and shrinks when the last of them has.
    """

    def __init__(self, episode: Episode) -> None:
        self._least, self._most = episode.min_steps, episode.max_steps
        self.own = self._least
        self._others = 0
        self._num_episodes = 0
        self._longest = 0

    @property
    def cap(self) -> int:
        return max(self.own, self._others)

    def hear(self, caps: Iterable[int]) -> None:
        """Take notice of what all environments found, this one included."""
        self._others = max(caps, default=0)

    def note(self, num_steps: int) -> None:
        """Take notice of an episode that is over."""
        self._num_episodes += 1
        self._longest = max(self._longest, num_steps)
        if self._num_episodes < ROUND:
            return
        factor = 1.5 if self.cap < 40 else 1.2
        shorter = math.ceil(self.cap / factor)
        if self._longest >= self.cap:
            self.own = min(self._most, math.ceil(self.cap * factor))
        elif self._longest <= shorter:
            self.own = max(self._least, shorter)
        else:
            self.own = self.cap
        self._num_episodes = self._longest = 0

    def state(self) -> list[int]:
        return [self.own, self._others, self._num_episodes, self._longest]

    def restore(self, state: list[int]) -> None:
        self.own, self._others, self._num_episodes, self._longest = state
