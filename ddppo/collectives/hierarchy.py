"""Collectives over several machines: shared memory inside each, Gloo between one leader each."""

import time
from collections.abc import Sequence

import torch

from ddppo.collectives.contract import Group, Record
from ddppo.collectives.peers import Peers, Watch


class Hierarchy(Peers):
    """A rank of one machine of several. `machines` has the places of each one's ranks in ascending order; the first
    leads.

    A sum adds up within machines first, so its order, and its last bits, are not those of one machine. All ranks have
    the same bits.
    """

    name = "shm+gloo"
    clocks_shared = False

    def __init__(
        self, watch: Watch, local: Group, across: Group | None, machines: Sequence[Sequence[int]]
    ) -> None:
        super().__init__(watch)
        assert machines[0][0] == 0, f"the first machine's leader broadcasts for rank 0: {machines}"
        self._local = local
        self._across = across  # of a leader
        self._most = max(map(len, machines))
        at = {
            place: m * self._most + p for m, places in enumerate(machines) for p, place in enumerate(places)
        }
        self._order = torch.tensor([at[place] for place in range(self.world_size)])

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        local = tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()
        self._local.sum_(local)
        if self._across is not None:
            self._across.sum_(local)
        self._local.broadcast_(local)
        if local is not tensor:
            tensor.copy_(local)
        self._note(start, local.nbytes)
        return tensor

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        rows = self._local.gather(values)
        gathered = torch.empty((self.world_size, *values.shape), dtype=values.dtype)
        if self._across is not None:
            # [ranks here, ...] -> [most ranks of a machine, ...] -> [machines, most, ...] -> [W, ...] by rank
            padded = torch.zeros((self._most, *values.shape), dtype=values.dtype)
            padded[: len(rows)] = rows
            gathered.copy_(self._across.gather(padded).flatten(0, 1)[self._order])
        self._local.broadcast_(gathered)
        self._note(start, values.nbytes)
        return gathered

    def gather_at_root(self, values: torch.Tensor) -> torch.Tensor | None:
        start = time.perf_counter()
        rows, gathered = self._local.gather_at_root(values), None
        if self._across is not None:
            assert rows is not None, "who leads its machine is its root"
            padded = torch.zeros((self._most, *values.shape), dtype=values.dtype)
            padded[: len(rows)] = rows
            parts = self._across.gather_at_root(padded)
            gathered = None if parts is None else parts.flatten(0, 1)[self._order]
        self._note(start, values.nbytes if self.rank else 0)
        return gathered

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        local = tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()
        if self._across is not None:
            self._across.broadcast_(local)
        self._local.broadcast_(local)
        if local is not tensor:
            tensor.copy_(local)
        self._note(start, 0 if self.rank else local.nbytes)
        return tensor

    def barrier(self) -> None:
        start = time.perf_counter()
        self._local.barrier()
        if self._across is not None:
            self._across.barrier()
        self._local.barrier()
        self._note(start, None)

    def _note(self, start: float, num_bytes: int | None) -> None:
        """Note a collective; a barrier hands over no bytes."""
        self._local.records.clear()
        if self._across is not None:
            self._across.records.clear()
        self.record(Record(start, time.perf_counter(), is_barrier=num_bytes is None, num_bytes=num_bytes))
