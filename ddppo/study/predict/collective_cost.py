"""What a collective costs: alpha + n beta per message, summed over the steps of the algorithm.

alpha (`latency_s`) is the time a message takes at any size, beta (`byte_s`) the seconds per byte, n the bytes
that every rank contributes. The model and most costs: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective
Communication Operations in MPICH", IJHPCA 19(1), doi:10.1177/1094342005051521. Adding up (their gamma) is left out:
at a gigabyte a second and more it is small beside beta. Links are taken to be free: ranks that share one network card
share its bandwidth, so give byte_s of their share.
"""

from dataclasses import dataclass
from math import ceil

# Bytes over all ranks up to which ddppo sums by one gather on Gloo, as ddppo/collectives/torch_distributed.py has it.
GATHER_UP_TO = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Messages:
    """What one collective takes of each resource: time = num_latencies * alpha + num_bytes * beta."""

    num_latencies: float
    num_bytes: float

    def seconds(self, latency_s: float, byte_s: float) -> float:
        return self.num_latencies * latency_s + self.num_bytes * byte_s

    def plus(self, other: "Messages") -> "Messages":
        return Messages(self.num_latencies + other.num_latencies, self.num_bytes + other.num_bytes)

    def times(self, count: float) -> "Messages":
        return Messages(count * self.num_latencies, count * self.num_bytes)


NOTHING = Messages(0.0, 0.0)


def gather(world_size: int, num_bytes: float) -> Messages:
    """All-gather around a ring: (W - 1) (alpha + n beta), every rank ending with W n bytes.

    Source: Thakur et al. 2005, allgather. Gloo's allgather is this ring (gloo/allgather.cc). ddppo sums small tensors
    by it, each rank adding the W parts.
    """
    return Messages(world_size - 1, (world_size - 1) * num_bytes)


def ring(world_size: int, num_bytes: float) -> Messages:
    """All-reduce by ring reduce-scatter and ring all-gather: 2 (W - 1) alpha + 2 (W - 1) / W n beta.

    Source: Thakur et al. 2005, allreduce; Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002 (no
    algorithm sends fewer bytes). The factor 2 (W - 1) / W is NCCL's bus bandwidth:
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    return Messages(2 * (world_size - 1), 2 * (world_size - 1) / world_size * num_bytes)


def shared_memory(world_size: int, num_bytes: float) -> Messages:
    """Sum through shared memory: (W - 1) alpha + 3 n beta on cores of their own.

    Ranks count themselves in one after another (`python -m ddppo.collectives 2,4,8 4` shows it). Each copies n bytes
    in and n out, and adds W parts of its W-th of them. Source: ddppo/collectives/shared_memory.c.
    """
    return Messages(world_size - 1, 3 * num_bytes) if world_size > 1 else NOTHING


def own_sum(world_size: int, num_bytes: float, collective: str, num_hosts: int = 1) -> Messages:
    """Return the messages of one sum as ddppo does it by `collective`, as summary.json names it.

    Through memory on one machine. On Gloo a gather for small tensors, else a ring, as on NCCL. shm+gloo: a sum inside
    each of the hosts, one over their leaders, and a broadcast inside, n bytes copied in and out.
    """
    if collective == "shm+gloo" and num_hosts > 1:
        within = ceil(world_size / num_hosts)
        back = Messages(within - 1, 2 * num_bytes if within > 1 else 0)
        across = own_sum(num_hosts, num_bytes, "gloo")
        return shared_memory(within, num_bytes).plus(across).plus(back)
    if collective.startswith("shm"):
        return shared_memory(world_size, num_bytes)
    small = collective == "gloo" and world_size * num_bytes <= GATHER_UP_TO
    return (gather if small else ring)(world_size, num_bytes)
