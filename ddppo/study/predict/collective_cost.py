"""How long does a collective take? alpha + n beta for each message, summed over the steps of its algorithm.

alpha (`latency_s`) is the time of a message of any size, beta (`byte_s`) the seconds per byte, and n the bytes that
every rank contributes. Source of the model and of most costs: Thakur, Rabenseifner and Gropp 2005, "Optimization of
Collective Communication Operations in MPICH", IJHPCA 19(1), doi:10.1177/1094342005051521. The time of additions (their
gamma) is neglected: at a gigabyte per second or more it is small against beta. Links are assumed to be free: ranks that
share a network card share its bandwidth, and byte_s is for their share.
"""

from dataclasses import dataclass
from math import ceil

# Up to this many bytes over all ranks ddppo sums by one gather on Gloo (ddppo/collectives/torch_distributed.py).
GATHER_UP_TO = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Messages:
    """The cost of one or more collectives: time = num_latencies * alpha + num_bytes * beta."""

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
    """All-gather around a ring: (W - 1) (alpha + n beta); in the end every rank has W n bytes.

    Source: Thakur et al. 2005, allgather. Gloo's allgather is this ring (gloo/allgather.cc). ddppo sums small tensors
    this way: each rank adds the W parts itself.
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
    """Sum through shared memory: (W - 1) alpha + 3 n beta, if each rank has a core.

    Ranks enter one after another, by a counter (`python -m ddppo.collectives 2,4,8 4` shows it). Each copies n bytes in
    and n bytes out, and adds up a W-th of the bytes over W parts. Source: ddppo/collectives/shared_memory.c.
    """
    return Messages(world_size - 1, 3 * num_bytes) if world_size > 1 else NOTHING


def own_sum(world_size: int, num_bytes: float, collective: str, num_hosts: int = 1) -> Messages:
    """Return the cost of one gradient sum by `collective`, a name as in summary.json.

    shm is shared memory on one machine; gloo is a gather for small tensors and else a ring; nccl is a ring. shm+gloo is
    a sum within each host, a sum over the hosts' leaders, and a broadcast within each host (n bytes copied in and out).
    """
    if collective == "shm+gloo" and num_hosts > 1:
        # Ranks within a host, then hosts among each other, then back into each host.
        within = ceil(world_size / num_hosts)
        back = Messages(within - 1, 2 * num_bytes if within > 1 else 0)
        across = own_sum(num_hosts, num_bytes, "gloo")
        return shared_memory(within, num_bytes).plus(across).plus(back)
    if collective.startswith("shm"):
        return shared_memory(world_size, num_bytes)
    # gloo and nccl.
    small = collective == "gloo" and world_size * num_bytes <= GATHER_UP_TO
    return (gather if small else ring)(world_size, num_bytes)
