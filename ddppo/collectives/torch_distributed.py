"""Collectives through torch.distributed: `ProcessGroup` (Gloo on CPUs, NCCL or XCCL on GPUs) and `Hierarchy`.

`Hierarchy` is for several machines: shared memory inside each machine, Gloo between one leader per machine.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ddppo.collectives.group import CollectiveTiming, Group
from ddppo.collectives.peers import Peers, Watch
from ddppo.device import BACKENDS, synchronize
from ddppo.errors import CollectiveError

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13

# Bytes over all ranks up to which Gloo gathers and adds, in one exchange, instead of the 2 (W - 1) steps of its ring
# all-reduce. Four ranks on two cores, 37 kB each: 1.4 ms instead of 4.7 ms.
_GATHER_UP_TO = 4 * 2**20


class ProcessGroup(Peers):
    """A rank of an initialised process group: the default one, or `members`."""

    def __init__(
        self,
        watch: Watch,
        device: torch.device,
        *,
        clocks_shared: bool,
        members: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(watch)
        self.name = dist.get_backend(members)
        self.device = device
        self.clocks_shared = clocks_shared
        self._members = members
        self._size = dist.get_world_size(members)
        self._comm_device = device if self.name in BACKENDS.values() else torch.device("cpu")
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._recorded("sum", tensor.nbytes):
            local = tensor.to(self._comm_device)
            size = local.numel() * local.element_size() * self._size
            if self._comm_device.type == "cpu" and size <= _GATHER_UP_TO:
                gathered = self._buffer(local)
                _all_gather(gathered, local.reshape(1, -1), group=self._members)
                torch.sum(gathered, dim=0, out=local.view(-1))
            else:
                dist.all_reduce(local, group=self._members)
            if local is not tensor:
                tensor.copy_(local)
        return tensor

    def _buffer(self, local: torch.Tensor) -> torch.Tensor:
        """Return room for every rank's `local` as `[W, numel]`, allocated once per size and type."""
        key = (local.numel(), local.dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(self._size, local.numel(), dtype=local.dtype)
        return self._buffers[key]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        with self._recorded("gather", values.nbytes):
            local = values.contiguous().to(self._comm_device)
            gathered = torch.empty((self._size, *local.shape), dtype=local.dtype, device=local.device)
            _all_gather(gathered, local.unsqueeze(0), group=self._members)
            return gathered.cpu()

    def gather_at_root(self, values: torch.Tensor) -> torch.Tensor | None:
        place = dist.get_rank(self._members)
        with self._recorded("gather", values.nbytes if place else 0):
            local = values.contiguous().to(self._comm_device)
            if place:
                dist.gather(local, group_dst=0, group=self._members)
                return None
            gathered = torch.empty((self._size, *local.shape), dtype=local.dtype, device=local.device)
            dist.gather(local, list(gathered.unbind()), group_dst=0, group=self._members)
            return gathered.cpu()

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._recorded("broadcast", 0 if dist.get_rank(self._members) else tensor.nbytes):
            local = tensor.to(self._comm_device)
            dist.broadcast(local, group_src=0, group=self._members)
            if local is not tensor:
                tensor.copy_(local)
        return tensor

    def barrier(self) -> None:
        with self._recorded("barrier", None):
            if self._comm_device.type != "cpu":
                dist.barrier(self._members, device_ids=[self.device.index])
                synchronize(self.device)
            else:
                dist.barrier(self._members)

    @contextmanager
    def _recorded(self, what: str, num_bytes: int | None) -> Iterator[None]:
        """Record the enclosed collective, and turn its errors into a CollectiveError. num_bytes: None for a barrier."""
        synchronize(self.device)  # else time of queued kernels would count as communication
        start = time.perf_counter()
        try:
            yield
            synchronize(self.device)
        except RuntimeError as e:
            raise CollectiveError(self.lost(what, time.perf_counter() - start)) from e
        is_barrier = num_bytes is None
        self.record(CollectiveTiming(start, time.perf_counter(), is_barrier, num_bytes=num_bytes))


# -- Collectives over several machines.


class Hierarchy(Peers):
    """A rank on one of several machines. The first rank of each machine is its leader.

    A sum adds up within machines first, so its last bits differ from those of one machine. All ranks have equal bits.
    """

    name = "shm+gloo"
    clocks_shared = False

    def __init__(
        self, watch: Watch, local: Group, across: Group | None, machines: Sequence[Sequence[int]]
    ) -> None:
        super().__init__(watch)
        assert machines[0][0] == 0, f"the first machine's leader broadcasts for rank 0: {machines}"
        # machines: for each machine, the places of its ranks in ascending order.
        self._local = local  # the ranks of this machine
        self._across = across  # the leaders; None on other ranks
        # Gathers between leaders have equal sizes, so each machine sends rows for as many ranks as the largest has.
        # `_order` finds a rank's row among them.
        self._most = max(map(len, machines))
        at = {
            place: m * self._most + p for m, places in enumerate(machines) for p, place in enumerate(places)
        }
        self._order = torch.tensor([at[place] for place in range(self.world_size)])

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        local = tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()
        # Every rank of the machine has the machine's sum; leaders add these up; the machine takes its leader's result.
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
            assert rows is not None, "a leader is the root of its machine's group"
            padded = torch.zeros((self._most, *values.shape), dtype=values.dtype)
            padded[: len(rows)] = rows
            all_rows = self._across.gather_at_root(padded)
            gathered = None if all_rows is None else all_rows.flatten(0, 1)[self._order]
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
        # All ranks here have come; all machines have come; every rank here may know it.
        self._local.barrier()
        if self._across is not None:
            self._across.barrier()
        self._local.barrier()
        self._note(start, None)

    def _note(self, start: float, num_bytes: int | None) -> None:
        """Record the whole collective in place of its parts. num_bytes: None for a barrier."""
        self._local.records.clear()
        if self._across is not None:
            self._across.records.clear()
        self.record(
            CollectiveTiming(start, time.perf_counter(), is_barrier=num_bytes is None, num_bytes=num_bytes)
        )
