"""The 120 orders of five things with their Kendall distances: a space of options that are near and far."""

from itertools import combinations, permutations

import numpy as np

from ddppo.search.spaces import Finite, Space

ORDERS = tuple(permutations(range(5)))  # lexicographic


def kendall(a, b):
    """Return how many pairs the two orders rank differently, 0 to 10."""
    return sum(b.index(first) > b.index(second) for first, second in combinations(a, 2))


KENDALL = np.array([[kendall(a, b) for b in ORDERS] for a in ORDERS])  # [120, 120]


def order_id(order):
    return ORDERS.index(order)


def space():
    return Space(Finite(ORDERS, KENDALL))
