"""Sums whose order of additions follows from the number of shards alone, whichever ranks hold them."""

import torch

from ddppo.collectives.contract import Group


def sum_in_pairs(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of rows `[n, ...]`: 0 + 1, 2 + 3, ..., then these in pairs, until one is left.

    An addition of two numbers has one result, however many are added at once; so the bits follow from n.
    """
    while len(rows) > 1:
        pairs = _pairs(rows)
        rows = pairs if len(rows) % 2 == 0 else torch.cat([pairs, rows[-1:]])
    return rows[0]


class OrderedSum:
    """Adds up vectors `[n]` of V shards in pairs (`sum_in_pairs`), V / W of them on each rank, consecutive ones.

    A rank adds what pairs are its own before it gathers the rest: where V / W is a power of two, as many vectors travel
    as there are ranks. rows `[V / W, n]`: this rank's.
    """

    def __init__(self, group: Group, num_shards: int, like: torch.Tensor) -> None:
        self.rows = like.new_zeros(num_shards, *like.shape)
        self._group = group
        self._next = 0

    def sum_(self, vector: torch.Tensor) -> torch.Tensor:
        """Take the vector of this rank's next shard; of its last one, replace it by the sum over all shards."""
        self.rows[self._next].copy_(vector)
        self._next += 1
        if self._next == len(self.rows):
            self._next = 0
            self.finish_(vector)
        return vector

    def finish_(self, out: torch.Tensor) -> None:
        """Leave the sum of all ranks' rows in `out`."""
        rows = self.rows
        while len(rows) % 2 == 0:
            rows = _pairs(rows)
        out.copy_(sum_in_pairs(self._group.gather(rows).flatten(0, 1)))


def _pairs(rows: torch.Tensor) -> torch.Tensor:
    last = len(rows) // 2 * 2
    return rows[0:last:2] + rows[1:last:2]
