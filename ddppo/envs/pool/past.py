"""What a process of a pool was told, so that another can come to where it was if it is lost."""

import time
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

_SAVE_AFTER = 256  # steps, or more where saving takes long
_SAVING_SHARE = 0.01  # of the time, at most
_LONGEST = 20_000  # steps of who cannot be saved; then nobody comes to where it was

Told = np.ndarray | tuple[str, dict[int, tuple]]  # the actions of a step, or a call of a method


@dataclass(slots=True)
class Replay:
    """What a process that takes a lost one's place is told after its reset to come to where that one was.

    crc: of the last rows that were seen of that one, before the last `num_unseen` of what it was told; None of nothing.
    """

    told: deque[Told]
    crc: int | None
    num_unseen: int

    def leads_elsewhere(self, rows: np.ndarray) -> bool:
        """Whether rows `[e]`, with what is left to be told, are others than were seen."""
        return len(self.told) == self.num_unseen and self.crc not in (None, crc(rows))


class Past:
    """What the environments of a process were at last, by their own states or by the seeds of their reset, and since.

    Playing that again leads to where they were, if nothing else decides it.
    """

    def __init__(self) -> None:
        self._states: list[Any] | None = None
        self._told: list[Told] = []
        self._num_told = 0  # so far
        self._lost_at = -1
        self._crc: int | None = None  # of the rows before the last step
        self._is_known = self._can_be_saved = True
        self._saved_at = self._save_s = 0.0

    def began(self) -> None:
        """Note a reset by seeds, which whoever takes its place begins with."""
        self._states, self._told, self._crc = None, [], None
        self._num_told += 1
        self._is_known = True

    def stepped(self, actions: np.ndarray, rows: np.ndarray) -> None:
        """Note a step that is about to be done, and the rows `[e]` before it."""
        self._crc = crc(rows)
        self.called(actions)

    def called(self, what: Told) -> None:
        """Note what was done."""
        self._num_told += 1
        if self._is_known:
            self._told.append(what)
            if len(self._told) > _LONGEST:
                self.forget()

    def saved(self, states: list[Any], seconds: float) -> None:
        """Note the states of all, which took so long to have."""
        self._states, self._told = states, []
        self._saved_at, self._save_s = time.monotonic(), seconds
        self._is_known = True

    def cannot_be_saved(self) -> None:
        self._can_be_saved = False

    def forget(self) -> None:
        """Lead nobody to where they are, until the next reset."""
        self._is_known, self._told, self._states = False, [], None

    @property
    def is_long(self) -> bool:
        """Whether it is worth while to save, lest there be much to play again."""
        if len(self._told) < _SAVE_AFTER or not self._can_be_saved:
            return False
        return time.monotonic() - self._saved_at > self._save_s / _SAVING_SHARE

    def again(self, rows: np.ndarray | None) -> Replay | None:
        """Return what leads to where they were; None where nobody knows, or where it led to the same loss before.

        rows: `[e]`, the last that they handed over; None where they were about to hand over the next.
        """
        if not self._is_known or self._lost_at == self._num_told:
            return None
        self._lost_at = self._num_told
        told: deque[Told] = deque(self._told)
        if self._states is not None:
            told.appendleft(("restore", {i: (state,) for i, state in enumerate(self._states)}))
        if rows is not None:
            return Replay(told, crc(rows), 0)
        return Replay(told, self._crc, 1)


def crc(rows: np.ndarray) -> int:
    """Return a checksum of the bytes of rows `[e]`."""
    return zlib.crc32(np.ascontiguousarray(rows).tobytes())
