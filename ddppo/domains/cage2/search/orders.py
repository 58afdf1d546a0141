"""Orders of priority over five kinds of hosts, and Kendall's distance between them.

An order is a tuple of indices into KINDS, the highest priority first; its id is its index in ORDERS.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from typing import TypeAlias

import numpy as np

from ddppo.errors import ConfigError
from ddppo.search.spaces import Finite, Space

Order: TypeAlias = tuple[int, ...]

KINDS = ("defender", "enterprise", "op_server", "op_host", "user")
ORDERS: tuple[Order, ...] = tuple(permutations(range(len(KINDS))))  # lexicographic
_IDS = {order: i for i, order in enumerate(ORDERS)}


def parse(text: str) -> Order:
    """Return the order of a text: the name of a preset, or all kinds by name or index, as op_server>defender>...

    Raises ConfigError for any other text.
    """
    if text in PRESETS:
        return PRESETS[text]
    names = [name.strip() for name in text.replace(">", ",").split(",")]
    indices = {name: i for i, kind in enumerate(KINDS) for name in (kind, str(i))}
    order = tuple(indices.get(name, -1) for name in names)
    if order not in _IDS:
        raise ConfigError(
            f"order={text}: must be one of {', '.join(PRESETS)}, or name each of {', '.join(KINDS)} once, the highest "
            "priority first, with > or , between"
        )
    return order


def words(order: Order) -> str:
    """Return an order as text that `parse` reads: op_server>defender>..."""
    return ">".join(KINDS[kind] for kind in order)


def order_id(order: Sequence[int]) -> int:
    """Return the index of an order in ORDERS. Raises ValueError if it is no order."""
    if tuple(order) not in _IDS:
        raise ValueError(
            f"{order} is no order of {len(KINDS)} kinds: must hold each of 0 to {len(KINDS) - 1} once"
        )
    return _IDS[tuple(order)]


def kendall(a: Sequence[int], b: Sequence[int]) -> int:
    """Return Kendall's distance, the number of pairs of kinds that the two orders rank differently, 0 to 10."""
    rank = {kind: place for place, kind in enumerate(b)}
    return sum(rank[first] > rank[second] for first, second in combinations(a, 2))


KENDALL = np.array([[kendall(a, b) for b in ORDERS] for a in ORDERS])  # [120, 120]


def nearest(order: Sequence[int], others: Iterable[Sequence[int]]) -> Order:
    """Return the order of `others` at the least Kendall distance; ties go to the lowest id."""
    ids = [order_id(other) for other in others]
    own = order_id(order)
    return ORDERS[min(ids, key=lambda other: (KENDALL[own, other], other))]


def code(order: Sequence[int]) -> np.ndarray:
    """Return the code of an order that a policy observes: one-hot of position x kind, position-major, float32 [25]."""
    order_id(order)
    return np.eye(len(KINDS), dtype=np.float32)[list(order)].reshape(-1)


def space() -> Space:
    """Return the 120 orders with the Mallows kernel exp(-theta * Kendall) (Jiao and Vert 2015, "The Kendall and Mallows
    Kernels for Permutations")."""
    return Space(Finite(ORDERS, KENDALL))


def _named(*kinds: str) -> Order:
    return tuple(KINDS.index(kind) for kind in kinds)


PRESETS = {
    "critical_first": _named("op_server", "defender", "enterprise", "op_host", "user"),
    "enterprise_focus": _named("enterprise", "op_server", "defender", "op_host", "user"),
    "user_priority": _named("user", "enterprise", "op_server", "op_host", "defender"),
    "operational_focus": _named("op_server", "op_host", "enterprise", "defender", "user"),
    "balanced": _named("defender", "op_server", "enterprise", "user", "op_host"),
    "reverse": _named("user", "op_host", "enterprise", "defender", "op_server"),
}
