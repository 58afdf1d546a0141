"""A board: what ranks post without waiting for one another, and each reads in its own memory.

A step of an environment reads it, so it costs a look at some integers. Numbers only rise.
"""

import mmap
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch.distributed as dist

_CELL_BYTES = 8
_FOREVER = timedelta(days=365)  # a wait that times out complains on stderr, and a rollout may take hours
_KEPT = 64  # numbers whose keys stay in the store


class Board:
    """That of one rank. cells `[n]`, int64, are what is known of posts: see `awaited`."""

    def __init__(self, cells: np.ndarray | None = None, place: int = 0) -> None:
        self.cells = np.zeros(1, np.int64) if cells is None else cells
        self._place = place

    def begin(self, number: int, num_ranks: int) -> int:
        """Ask of `number`, above all before, whether num_ranks have posted it; every rank asks the same.

        Returns how many cells are at least `number` once they have.
        """
        return num_ranks

    def post(self, number: int) -> None:
        """Tell all ranks that this one is done with `number`."""
        self.cells[self._place] = number


class MemoryBoard(Board):
    """That of ranks of one machine: a cell of each, `[W]`, in a file that all map."""

    def __init__(self, file: int, world_size: int, place: int) -> None:
        memory = mmap.mmap(file, board_bytes(world_size))  # which the array keeps
        super().__init__(np.frombuffer(memory, np.int64, world_size), place)


class StoreBoard(Board):
    """That of ranks of several machines: they count in a store, and a thread of each rank waits for the last of them.

    cells `[1]`: the last number that enough ranks have posted.
    """

    def __init__(self, store: "dist.Store") -> None:
        super().__init__()
        self._store = store
        self._listening = store.clone()  # type: ignore[attr-defined]  # for who waits keeps a connection to itself
        self._number = self._num_ranks = 0
        self._has_begun = threading.Event()
        threading.Thread(target=self._listen, name="ddppo board", daemon=True).start()

    def begin(self, number: int, num_ranks: int) -> int:
        self._number, self._num_ranks = number, num_ranks
        self._has_begun.set()
        return 1

    def post(self, number: int) -> None:
        if self._store.add(_count_of(number), 1) != self._num_ranks:
            return
        self._store.set(_word_of(number), "")
        for key in (_count_of(number - _KEPT), _word_of(number - _KEPT)):
            self._store.delete_key(key)

    def _listen(self) -> None:
        """Note each number that enough have posted, as long as the process lives."""
        import torch.distributed as dist

        with suppress(dist.DistError):  # the store is gone: whoever waits for others hears of it
            while True:
                self._has_begun.wait()
                self._has_begun.clear()
                while self.cells[0] < (number := self._number):
                    self._listening.wait([_word_of(number)], _FOREVER)
                    self.cells[0] = number


def board_bytes(world_size: int) -> int:
    return world_size * _CELL_BYTES


def _count_of(number: int) -> str:
    return f"ddppo/board/{number}"


def _word_of(number: int) -> str:
    return f"ddppo/board/{number}/enough"
