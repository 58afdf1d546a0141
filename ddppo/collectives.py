"""Sums, gathers and barriers over ranks, each recorded with its start and end. Silent at W = 1.

`Group` is one rank in process: every operation is the identity and nothing is recorded. `ProcessGroup` speaks
torch.distributed. Records say when this rank arrived at a collective and when it left; `run/timing.py` turns the
records of all ranks into waiting and communication.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ddppo.errors import CollectiveError

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13

# Bytes over all ranks up to which Gloo gathers and adds instead of all-reducing: one exchange instead of the
# 2 (W - 1) steps of its ring. Four ranks on two cores, 37 kB each: 1.4 ms instead of 4.7 ms.
_GATHER_UP_TO = 4 * 2**20

# Where ranks that lost their peers leave word in the store.
_WORD, _NUM_WORDS = "ddppo/word/{}", "ddppo/num_words"


@dataclass(frozen=True, slots=True)
class Record:
    """One collective on this rank: seconds on this machine's monotonic clock.

    `hidden` is communication that ran while this rank computed (overlapped gradient sync), in seconds.
    """

    start: float
    end: float
    is_barrier: bool = False
    hidden: float = 0.0


class Group:
    """One rank, no communication."""

    rank: int = 0
    world_size: int = 1
    clocks_shared: bool = True

    def __init__(self) -> None:
        self.records: list[Record] = []

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace `tensor` by its sum over ranks and return it."""
        return tensor

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return every rank's `values` (CPU, same shape on all ranks) as `[W, ...]`, on every rank."""
        return values.unsqueeze(0)

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace `tensor` by rank 0's and return it."""
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks are here."""

    def begin(self, iteration: int) -> None:
        """Say which iteration begins, for the message of a rank that waits in vain."""

    def record(self, record: Record) -> None:
        """Note a collective that has ended."""
        self.records.append(record)

    def close(self) -> None:
        """Leave the group."""


class ProcessGroup(Group):
    """A rank of an initialised torch.distributed process group."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        super().__init__()
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.device = device
        self.timeout_s = timeout_s
        self.clocks_shared = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) == self.world_size
        self._comm_device = device if dist.get_backend() == "nccl" else torch.device("cpu")
        self._store = dist.distributed_c10d._get_default_store()
        while isinstance(self._store, dist.PrefixStore):  # what this process group alone would read
            self._store = self._store.underlying_store
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._iteration = 0
        self._heard_at = (
            time.perf_counter()
        )  # of all ranks: by the last collective, which none leaves before all came
        self._heard_in = 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._recorded("sum"):
            local = tensor.to(self._comm_device)
            size = local.numel() * local.element_size() * self.world_size
            if self._comm_device.type == "cpu" and size <= _GATHER_UP_TO:
                gathered = self._buffer(local)
                _all_gather(gathered, local.reshape(1, -1))
                torch.sum(gathered, dim=0, out=local.view(-1))
            else:
                dist.all_reduce(local)
            if local is not tensor:
                tensor.copy_(local)
        return tensor

    def _buffer(self, local: torch.Tensor) -> torch.Tensor:
        """Return room for every rank's `local` as `[W, numel]`, allocated once per size and type."""
        key = (local.numel(), local.dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(self.world_size, local.numel(), dtype=local.dtype)
        return self._buffers[key]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        with self._recorded("gather"):
            local = values.contiguous().to(self._comm_device)
            gathered = torch.empty((self.world_size, *local.shape), dtype=local.dtype, device=local.device)
            _all_gather(gathered, local.unsqueeze(0))
            return gathered.cpu()

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._recorded("broadcast"):
            local = tensor.to(self._comm_device)
            dist.broadcast(local, src=0)
            if local is not tensor:
                tensor.copy_(local)
        return tensor

    def barrier(self) -> None:
        with self._recorded("barrier", is_barrier=True):
            if self._comm_device.type == "cuda":
                dist.barrier(device_ids=[self.device.index])
                torch.cuda.synchronize(self.device)
            else:
                dist.barrier()

    def begin(self, iteration: int) -> None:
        self._iteration = iteration

    def record(self, record: Record) -> None:
        self.records.append(record)
        self._heard_at, self._heard_in = record.end, self._iteration

    def close(self) -> None:
        dist.destroy_process_group()

    @contextmanager
    def _recorded(self, what: str, *, is_barrier: bool = False) -> Iterator[None]:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what was queued before is not communication
        start = time.perf_counter()
        try:
            yield
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except RuntimeError as e:
            raise CollectiveError(self.lost(what, time.perf_counter() - start)) from e
        self.record(Record(start, time.perf_counter(), is_barrier))

    def lost(self, what: str, waited_s: float) -> str:
        """Say who waited where, how long, and which ranks were behind or gone."""
        silence_s = time.perf_counter() - self._heard_at
        word = f"for {silence_s:.1f} s, last heard of {_when(self._heard_in)}"
        try:
            silent = self._leave_word(word)
            who = f"no word from {in_words(silent)} {word}" if silent else "all others lost theirs too"
        except (RuntimeError, ValueError) as e:  # the store went with the rank or launcher that held it
            who = f"nobody knows whom, for the rendezvous store does not answer ({type(e).__name__})"
        return (
            f"rank {self.rank} on {socket.gethostname()} lost its peers in a {what} {_when(self._iteration)} after "
            f"waiting {waited_s:.1f} s (limit dist.timeout_s={self.timeout_s:g}): {who}"
        )

    def _leave_word(self, word: str) -> list[int]:
        """Tell the others and the launcher that this rank lives; return the ranks that do not within a second."""
        self._store.set_timeout(timedelta(seconds=2))
        leave_word(self._store, self.rank, word)
        end = time.monotonic() + 1.0
        while self._store.add(_NUM_WORDS, 0) < self.world_size - 1 and time.monotonic() < end:
            time.sleep(0.05)
        return [rank for rank in range(self.world_size) if not self._store.check([_WORD.format(rank)])]


def leave_word(store: dist.Store, rank: int, word: str) -> None:
    """Tell the other ranks and the launcher for how long this one has not heard of all of them: "for 8.1 s, ..."."""
    store.set(_WORD.format(rank), word)
    store.add(_NUM_WORDS, 1)


def last_words(store: dist.Store, world_size: int) -> dict[int, str]:
    """Return the words of the ranks that left one."""
    words = {rank: _WORD.format(rank) for rank in range(world_size)}
    return {rank: store.get(word).decode() for rank, word in words.items() if store.check([word])}


def in_words(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _when(iteration: int) -> str:
    return f"in iteration {iteration}" if iteration else "before the first iteration"
