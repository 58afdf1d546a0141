"""What one published point tells: the overhead of an iteration it implies, and where the same system stops paying.

A speedup S at W0 workers says how much longer an iteration took than S = W0 would have allowed, h = W0 / S - 1 ideal
iterations, and nothing about how that grows. So its growth is assumed, S(W) = W / (1 + h(W)); the truth lies mostly
between the first and the last. Weak scaling is meant, as published: a worker keeps its batch.
"""

from math import inf, log2

from ddppo.errors import ConfigError
from ddppo.study.columns import aligned

# h(W) as a multiple of h(2), and what grows like that.
GROWTHS = {
    "constant": (lambda w: 1.0, "a fixed cost of being many: bandwidth-bound all-reduce, one serial part"),
    "log": (log2, "trees; the slowest of W with a light tail"),
    "linear": (lambda w: w - 1.0, "rings bound by latency; a shared resource"),
}


def overhead(world_size: int, speedup: float) -> float:
    """Return h = W / S - 1 in ideal iterations, negative if superlinear. Raises ConfigError for what cannot be one."""
    if world_size < 2 or not speedup > 0:
        raise ConfigError(
            f"published world_size={world_size}, speedup={speedup:g}: needs at least 2 workers and a speedup above 0"
        )
    return world_size / speedup - 1


def speedup_at(growth: str, w0: int, h: float, world_size: float) -> float:
    """Return S(W) = W / (1 + h(W)), with h scaled through h(W0) = h."""
    grows, _ = GROWTHS[growth]
    return world_size / (1 + h * grows(world_size) / grows(w0))


def efficient_until(growth: str, w0: int, h: float, efficiency: float) -> float:
    """Return the largest W with E(W) = 1 / (1 + h(W)) at least `efficiency`, not rounded: h(W) = 1 / efficiency - 1."""
    most = (1 / efficiency - 1) / h  # in h(W0)
    if growth == "constant":
        return inf if most >= 1 else 1.0
    exponent = most * log2(w0)
    return (2**exponent if exponent < 1000 else inf) if growth == "log" else 1 + most * (w0 - 1)


def text(world_size: int, speedup: float) -> str:
    """Return what the point implies and what it cannot say."""
    h, e = overhead(world_size, speedup), speedup / world_size
    lines = [
        f"{speedup:g} times at {world_size} workers: efficiency {100 * e:.1f} %",
        f"overhead per iteration: 1/E - 1 = {h:.3f} of an ideal iteration ({100 * (1 - e):.1f} % of the actual one)",
    ]
    if h <= 0:
        return "\n".join([*lines, "superlinear: more than W workers' worth; no overhead to extrapolate"])
    lines += ["", f"If overhead h grows with W, scaled through this point (W0 = {world_size}):"]
    cells = [["S(2 W0)", "S(8 W0)", "largest S", "E >= 50 % to"]]
    for growth in GROWTHS:
        s2, s8 = (speedup_at(growth, world_size, h, k * world_size) for k in (2, 8))
        largest = (world_size - 1) / h if growth == "linear" else inf
        until = efficient_until(growth, world_size, h, 0.5)
        cells.append([f"{s2:.1f}", f"{s8:.1f}", _count(largest), _count(until)])
    names = ["growth", *GROWTHS]
    meanings = ["", *(meaning for _, meaning in GROWTHS.values())]
    table = aligned(cells, (10, 10, 11, 14))
    lines += [f"  {n:<10}{row}   {m}" for n, row, m in zip(names, table, meanings, strict=True)]
    lines += [
        "",
        "One point cannot say which of these holds: the split of h into waiting, communication and serial work, and",
        "how each grows, need times per rank at two or more W (give a sweep folder instead).",
    ]
    return "\n".join(lines)


def _count(x: float) -> str:
    """Return a number of workers; beyond a million it says only that an assumption was stretched too far."""
    return "no end" if x == inf else "> 1e6" if x > 1e6 else f"{int(x):,}"
