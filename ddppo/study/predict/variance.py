"""Standard errors of series whose neighbours depend on each other, and the variance of rollouts by its sources."""

import numpy as np

_BLOCK = 5  # iterations


def standard_error(x: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean of `x` `[iterations, ...]`, whose neighbours are not independent.

    From the spread of blocks of 5 iterations; 0 for a single iteration.
    """
    num_blocks = min(len(x), max(2, len(x) // _BLOCK))
    if num_blocks < 2:
        return np.zeros(x.shape[1:])
    blocks = np.stack([block.mean(axis=0) for block in np.array_split(x, num_blocks)])
    return np.std(blocks, axis=0, ddof=1) / num_blocks**0.5


def variance_components(x: np.ndarray) -> tuple[float, float, float]:
    """Return the variances (common, persistent, idiosyncratic) of `x` `[iterations, W]`, W >= 2, relative to its mean.

    x = mean (1 + c_i + p_r + e_ir): a two-way layout with one observation per cell. With row and column means, from
    MSE = sum(e^2) / ((n - 1) (W - 1)):  e = MSE, c = var(rows) - MSE / W, p = var(columns) - MSE / n, at least 0.
    Source: Searle, Casella and McCulloch 1992, Variance Components.
    """
    x = x / x.mean()
    n, world_size = x.shape
    rows, columns = x.mean(axis=1), x.mean(axis=0)
    residual = x - rows[:, None] - columns + 1.0
    mse = float((residual**2).sum()) / max(1, (n - 1) * (world_size - 1))
    common = float(rows.var(ddof=1)) - mse / world_size if n > 1 else 0.0
    persistent = float(columns.var(ddof=1)) - mse / n
    return max(0.0, common), max(0.0, persistent), mse
