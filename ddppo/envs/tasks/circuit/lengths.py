"""How many steps an episode may take: a cap that grows and shrinks with use."""

import math

from ddppo.envs.tasks.circuit.settings import Episode

ROUND = 8  # episodes after which the cap is set anew


class LengthCap:
    """The cap of one starting circuit in one environment, from min_steps up to max_steps.

    After every ROUND episodes it is multiplied by 1.5 where it is below 40, else by 1.2, if one of them was cut, and
    divided by that if the longest would have fitted into what is left.
    """

    def __init__(self, episode: Episode) -> None:
        self._least, self._most = episode.min_steps, episode.max_steps
        self.cap = self._least
        self._num_episodes = 0
        self._longest = 0

    def note(self, num_steps: int) -> None:
        """Take notice of an episode that is over."""
        self._num_episodes += 1
        self._longest = max(self._longest, num_steps)
        if self._num_episodes < ROUND:
            return
        factor = 1.5 if self.cap < 40 else 1.2
        shorter = math.ceil(self.cap / factor)
        if self._longest >= self.cap:
            self.cap = min(self._most, math.ceil(self.cap * factor))
        elif self._longest <= shorter:
            self.cap = max(self._least, shorter)
        self._num_episodes = self._longest = 0

    def state(self) -> list[int]:
        return [self.cap, self._num_episodes, self._longest]

    def restore(self, state: list[int]) -> None:
        self.cap, self._num_episodes, self._longest = state
