"""What a collective costs: alpha + n beta per message, summed over the steps of the algorithm.

alpha (`latency_s`) is the time a message takes whatever its size, beta (`byte_s`) the seconds per byte, n the bytes
that every rank contributes. The model and most costs: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective
Communication Operations in MPICH", IJHPCA 19(1), doi:10.1177/1094342005051521. Adding up (their gamma) is left out:
at a gigabyte a second and more it is small beside beta. Links are taken to be free: ranks that share one network card
share its bandwidth, so give byte_s of their share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

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


def tree(world_size: int, num_bytes: float) -> Messages:
    """All-reduce by a binomial tree, reduce then broadcast, unpipelined: 2 ceil(log2 W) (alpha + n beta).

    Source: Thakur et al. 2005, reduce and broadcast. The variant of MPICH for short messages;
    NCCL's is `double_tree`.
    """
    depth = ceil(log2(world_size))
    return Messages(2 * depth, 2 * depth * num_bytes)


def double_tree(world_size: int, num_bytes: float) -> Messages:
    """All-reduce by two pipelined binary trees, each carrying half: 2 ceil(log2 W) alpha + 2 n beta (n large).

    Source: Sanders, Speck and Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
    doi:10.1016/j.parco.2009.09.001; in NCCL since 2.4. The pipeline's own term, of order sqrt(n log W), is left out.
    """
    if world_size == 1:
        return NOTHING
    return Messages(2 * ceil(log2(world_size)), 2 * num_bytes)


def halving_doubling(world_size: int, num_bytes: float) -> Messages:
    """All-reduce by recursive halving, then doubling: 2 ceil(log2 W) alpha + 2 (W - 1) / W n beta.

    Source: Rabenseifner 2004, "Optimization of Collective Reduction Operations", doi:10.1007/978-3-540-24685-5_1;
    Thakur et al. 2005, allreduce. Exact for powers of two; for others their extra step is left out.
    """
    return Messages(2 * ceil(log2(world_size)), 2 * (world_size - 1) / world_size * num_bytes)


def shared_memory(world_size: int, num_bytes: float) -> Messages:
    """Sum through shared memory: (W - 1) alpha + 3 n beta on cores of their own.

    Ranks count themselves in one after another (`python -m ddppo.collectives 2,4,8 4` shows it). Each copies n bytes
    in and n out, and adds W parts of its W-th of them. Source: ddppo/collectives/shared_memory.c.
    """
    return Messages(world_size - 1, 3 * num_bytes) if world_size > 1 else NOTHING


def memory_gather(world_size: int, num_bytes: float) -> Messages:
    """Gather through shared memory: (W - 1) alpha + (W + 1) n beta, n bytes copied in and W n out."""
    return Messages(world_size - 1, (world_size + 1) * num_bytes) if world_size > 1 else NOTHING


ALGORITHMS: dict[str, Callable[[int, float], Messages]] = {
    "shared_memory": shared_memory,
    "gather": gather,
    "ring": ring,
    "tree": tree,
    "double_tree": double_tree,
    "halving_doubling": halving_doubling,
}


def hierarchical(
    world_size: int, num_bytes: float, ranks_per_node: int, across: str = "ring"
) -> tuple[Messages, Messages]:
    """All-reduce as reduce within nodes of g ranks, all-reduce over the W / g leaders, broadcast within nodes.

    Returns the messages within a node, 2 ceil(log2 g) (alpha + n beta) by binomial trees, and those across nodes,
    `across` over ceil(W / g) leaders with all n bytes; their times add up. One node costs the tree alone.
    """
    within = tree(min(ranks_per_node, world_size), num_bytes)
    num_nodes = ceil(world_size / ranks_per_node)
    return within, ALGORITHMS[across](num_nodes, num_bytes) if num_nodes > 1 else NOTHING


def own_choice(world_size: int, num_bytes: float, collective: str) -> str:
    """Return the algorithm by which ddppo sums: on Gloo a gather for small tensors, else a ring.

    NCCL may take trees between nodes; ask for algorithm=double_tree to see.
    """
    if collective.startswith("shm"):
        return "shared_memory"
    return "gather" if collective == "gloo" and world_size * num_bytes <= GATHER_UP_TO else "ring"


def own_sum(world_size: int, num_bytes: float, collective: str, num_hosts: int = 1) -> Messages:
    """Return the messages of one sum as ddppo does it by `collective`, as summary.json names it.

    shm+gloo: a sum inside each of the hosts, one over their leaders, and a broadcast inside, n bytes copied in and out.
    """
    if collective != "shm+gloo" or num_hosts < 2:
        return ALGORITHMS[own_choice(world_size, num_bytes, collective)](world_size, num_bytes)
    within = ceil(world_size / num_hosts)
    across = ALGORITHMS[own_choice(num_hosts, num_bytes, "gloo")](num_hosts, num_bytes)
    back = Messages(within - 1, 2 * num_bytes if within > 1 else 0)
    return shared_memory(within, num_bytes).plus(across).plus(back)


def own_gather(world_size: int, num_bytes: float, collective: str) -> Messages:
    """Return the messages of one gather: through memory on one machine, else around Gloo's or NCCL's ring."""
    return (memory_gather if collective == "shm" else gather)(world_size, num_bytes)
