"""How much an observation has room for, and the choices that are there whatever matches."""

import numpy as np

from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.task.settings import Episode, Sizes
from ddppo.domains.circuits.task.starts import Start
from ddppo.errors import ConfigError

NO_NODE = -1  # of the choice to change nothing, where it is offered once
_PAIRS_PER_NODE = 4  # three times what the package's rules have on the benchmarks, rewritten at random


def at_every_node(rewriter: Rewriter, episode: Episode) -> list[int]:
    """Return the rules that are offered at every node, whether or not they match.

    Without a mask, one more than there are stands for all that do not match there.
    """
    nop = [rewriter.nop] if episode.nop == "nodes" else []
    return nop if episode.mask else [*nop, rewriter.num_rules]


def growth_of(rewriter: Rewriter) -> np.ndarray:
    """Return by how many gates each rule makes a circuit longer, at most: rotations by 0 are left out of it."""
    return np.array([*(len(rule.target) - len(rule.source) for rule in rewriter.rules), 0])


def sized(sizes: Sizes, starts: tuple[Start, ...], rewriter: Rewriter, episode: Episode) -> tuple[int, int]:
    """Return max_nodes and max_pairs. Raises ConfigError where a start does not fit.

    null stands for: the gates of the largest start, the slack and the longest rule's growth, rounded up to a multiple
    of 8 (with cost=gate_count nothing is ever too large then); and for 4 pairs a node.
    """
    largest = max(starts, key=lambda start: len(start.circuit))
    gates = len(largest.circuit)
    room = int(np.ceil(episode.slack)) + max(0, int(growth_of(rewriter).max()))
    max_nodes = sizes.max_nodes or -(-(gates + room) // 8) * 8
    if max_nodes < gates:
        raise ConfigError(
            f"sizes.max_nodes={max_nodes}: {largest.name} has {gates} gates: raise it to {gates + room}, or "
            "leave it null"
        )
    num_extra = len(at_every_node(rewriter, episode))
    max_pairs = sizes.max_pairs or (_PAIRS_PER_NODE + (not episode.mask)) * max_nodes
    least = num_extra * max_nodes + 1 if num_extra else 2
    if max_pairs < least:
        why = (
            f" beside the {num_extra} at each of {max_nodes} nodes that are always there" if num_extra else ""
        )
        raise ConfigError(
            f"sizes.max_pairs={max_pairs}: has to be {least} or more, so that there is a choice{why}: raise it, or "
            "leave it null"
        )
    return max_nodes, max_pairs
