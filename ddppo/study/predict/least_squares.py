"""Least squares without negative coefficients, and whether coefficients can be told apart."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np


def nnls(columns: Sequence[np.ndarray], y: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Return x >= 0 that minimises sum(((columns x - y) / sigma)^2), by trying every set of non-zero coefficients.

    The minimum of a convex function over x >= 0 is the best feasible unconstrained minimum over a subset. For 3 columns
    that is 8 small solves. Source of the problem: Lawson and Hanson 1974, Solving Least Squares Problems, ch. 23.
    """
    a = np.stack(columns, axis=1) / sigma[:, None]
    b = y / sigma
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a = a / scale
    best, best_error = np.zeros(a.shape[1]), float(b @ b)
    for size in range(1, a.shape[1] + 1):
        for chosen in combinations(range(a.shape[1]), size):
            part = a[:, chosen]
            x = np.linalg.lstsq(part, b, rcond=None)[0]
            error = float(((part @ x - b) ** 2).sum())
            if (x >= 0).all() and error < best_error * (1 - 1e-12):
                best_error = error
                best = np.zeros(a.shape[1])
                best[list(chosen)] = x
    return best / scale


def identified(columns: Sequence[np.ndarray]) -> bool:
    """Return whether the columns, scaled to length 1, differ enough for their coefficients to be told apart."""
    a = np.stack(columns, axis=1).astype(float)
    norms = np.linalg.norm(a, axis=0)
    if (norms == 0).any() or len(a) < a.shape[1]:
        return False
    return float(np.linalg.cond(a / norms)) < 300.0
