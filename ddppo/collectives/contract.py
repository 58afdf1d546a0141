"""What every group of ranks can do, and the group of one rank, for which each operation is the identity."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ddppo.collectives.board import Board

if TYPE_CHECKING:  # what is compiled and imports no torch is in this package too
    import torch


class Record(NamedTuple):
    """One collective on this rank: seconds on this machine's monotonic clock.

    `hidden` is communication that ran while this rank computed (overlapped gradient sync), in seconds. num_bytes: that
    this rank handed over; None where nothing is handed over by anybody, as in a barrier, or nobody counts.
    """

    start: float
    end: float
    is_barrier: bool = False
    hidden: float = 0.0
    num_bytes: int | None = None


class Wait(NamedTuple):
    """Waiting outside collectives, for ranks or processes of the role `whom`: as Record."""

    whom: str
    start: float
    end: float


class SumCall(NamedTuple):
    """How C sums numbers over ranks in place: int begin(context, what, type, address, address, num_bytes), 0 if done.

    What else it returns `wait` takes, which returns when the sum is done, or raises CollectiveError.
    """

    begin: int
    context: int
    what: int
    type: int
    wait: Callable[[int], None]


class Group:
    """One rank, no communication.

    rank and world_size are this rank's place in the group and its size. members: the ranks of the run at its places.
    process_group: that of torch.distributed over its ranks, where it is another than the default one.
    """

    name: str = "none"  # of the collective
    rank: int = 0
    world_size: int = 1
    members: tuple[int, ...] = (0,)
    clocks_shared: bool = True
    process_group: Any = None

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.waits: list[Wait] = []
        self.sends: list[int] = []  # bytes of each message outside collectives

    def subgroup(self, ranks: Sequence[int]) -> "Group | None":
        """Return the group of some of the run's ranks, ascending, the first its root; None for a rank outside.

        Every rank calls it, in the same order as all others. Raises TrainingError where they cannot meet so.
        """
        assert tuple(ranks) == self.members, f"ranks {ranks} of a run of one"
        return self

    def board(self) -> Board:
        """Return a new board of all ranks, each of which calls it, in the same order as all others."""
        return Board()

    def sum_(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Replace `tensor` by its sum over ranks and return it."""
        return tensor

    def sum_call(self, dtype: "torch.dtype") -> SumCall | None:
        """Return how C sums without Python, who then records it; None where only `sum_` can."""
        return None

    def gather(self, values: "torch.Tensor") -> "torch.Tensor":
        """Return every rank's `values` (CPU, same shape on all ranks) as `[W, ...]`, on every rank."""
        return values.unsqueeze(0)

    def gather_at_root(self, values: "torch.Tensor") -> "torch.Tensor | None":
        """Return every rank's `values` as `gather` does, on rank 0; None on the others, who receive nothing."""
        return values.unsqueeze(0)

    def broadcast_(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Replace `tensor` by rank 0's and return it."""
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def begin(self, iteration: int) -> None:
        """Say which iteration begins, for the message of a rank that waits in vain."""

    def record(self, record: Record) -> None:
        """Note a collective that has ended."""
        self.records.append(record)

    @contextmanager
    def wait_for(self, whom: str) -> Iterator[None]:
        """Note the enclosed time as waiting for a role, outside collectives."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waits.append(Wait(whom, start, time.perf_counter()))

    def lost(self, what: str, waited_s: float) -> str:
        """Return the message of a rank that waited in vain in the collective `what`."""
        raise AssertionError("one rank waits for nobody")

    def close(self) -> None:
        """Leave the group."""
