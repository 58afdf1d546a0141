"""The choices of a step: where which rule matches, listed in one order and no more than an observation has room for."""

from typing import NamedTuple

import numpy as np

from ddppo.circuits import Circuit
from ddppo.circuits.rewriting import Rewriter
from ddppo.envs.tasks.circuit.settings import Episode, Sizes
from ddppo.envs.tasks.circuit.starts import Start
from ddppo.errors import ConfigError

NO_NODE = -1  # of the choice to change nothing, where it is offered once
_PAIRS_PER_NODE = 4  # three times what the package's rules have on the benchmarks, rewritten at random


class Choices(NamedTuple):
    """pairs [M, 2] int32: node and rule, ascending.

    num_too_large counts what matches but might make a circuit of more than max_nodes, num_without_room what was left
    out because more than max_pairs were left.
    """

    pairs: np.ndarray
    num_too_large: int
    num_without_room: int


class PairLister:
    """Lists the pairs of circuits for observations of these sizes."""

    def __init__(self, rewriter: Rewriter, max_nodes: int, max_pairs: int, episode: Episode) -> None:
        self._rewriter = rewriter
        self._max_nodes = max_nodes
        self._max_pairs = max_pairs
        self._growth = growth_of(rewriter)
        self._has_nop = episode.nop == "once"
        self._at_nodes = at_every_node(rewriter, episode)

    def check(self, starts: tuple[Start, ...]) -> None:
        """Raise ConfigError for a circuit where there is nothing to choose."""
        for start in starts:
            if not len(self(start.circuit).pairs):
                raise ConfigError(
                    f"episode.nop=never: no rule matches {start.name}, so there is nothing to choose: leave it out, or "
                    "give larger rules"
                )

    def __call__(self, circuit: Circuit) -> Choices:
        """Return the choices at a circuit.

        Where there are too many, those stay whose rules add the fewest gates, of these the first rules, then the first
        nodes.
        """
        pairs = self._rewriter.pairs(circuit)
        growth = self._growth[pairs[:, 1]]
        fits = growth <= self._max_nodes - len(circuit)
        num_too_large = len(pairs) - int(np.count_nonzero(fits))
        if num_too_large:
            pairs, growth = pairs[fits], growth[fits]
        extra = [[NO_NODE, self._rewriter.nop]] if self._has_nop else []
        extra += [[node, rule] for node in range(len(circuit)) for rule in self._at_nodes]
        room = self._max_pairs - len(extra)
        num_without_room = max(0, len(pairs) - room)
        if num_without_room:
            pairs = pairs[np.lexsort((pairs[:, 0], pairs[:, 1], growth))[:room]]
        if extra:
            pairs = np.concatenate([np.array(extra), pairs])
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].astype(np.int32)
        return Choices(pairs, num_too_large, num_without_room)


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
