"""What one published point tells: the overhead of an iteration it implies, and where the same system stops paying.

A speedup S at W workers says how much longer an iteration took than S = W would have allowed, and nothing about why,
nor how that grows. So its growth is assumed, three ways, each scaled through the point; the truth of a synchronous
system lies mostly between the first and the last. Weak scaling is meant, as published: a worker keeps its batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log2

from ddppo.errors import ConfigError
from ddppo.study.columns import aligned

_MOST_WORKERS = 2**40


@dataclass(frozen=True, slots=True)
class Growth:
    """How overhead grows with W, as a multiple of its value at W = 2; none at W = 1."""

    name: str
    formula: str
    meaning: str
    at: Callable[[float], float]


GROWTHS = (
    Growth(
        "constant",
        "h(W) = h",
        "a fixed cost of being many: bandwidth-bound all-reduce, one serial part",
        lambda w: float(w > 1),
    ),
    Growth("log", "h(W) = h log2(W) / log2(W0)", "trees; the slowest of W with a light tail", log2),
    Growth(
        "linear", "h(W) = h (W - 1) / (W0 - 1)", "rings bound by latency; a shared resource", lambda w: w - 1
    ),
)


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """A speedup over one worker at `world_size` workers. Raises ConfigError for what cannot be one."""

    world_size: int
    speedup: float

    def __post_init__(self) -> None:
        if self.world_size < 2 or not self.speedup > 0:
            raise ConfigError(
                f"published world_size={self.world_size}, speedup={self.speedup:g}: needs at least 2 workers and a "
                "speedup above 0"
            )

    @property
    def efficiency(self) -> float:
        """E = S / W."""
        return self.speedup / self.world_size

    @property
    def overhead(self) -> float:
        """h = 1 / E - 1: seconds lost per iteration, in ideal iterations; negative if superlinear.

        An ideal iteration takes as long on W workers as on one, t; this one took t (1 + h), so S = W / (1 + h).
        """
        return 1.0 / self.efficiency - 1.0


def overhead(point: PublishedPoint, growth: Growth, world_size: float) -> float:
    """Return h(W), in ideal iterations, scaled through the point: h(W0) = 1 / E - 1."""
    return point.overhead * growth.at(world_size) / growth.at(point.world_size)


def speedup(point: PublishedPoint, growth: Growth, world_size: float) -> float:
    """Return S(W) = W / (1 + h(W))."""
    return world_size / (1.0 + overhead(point, growth, world_size))


def marginal_efficiency(point: PublishedPoint, growth: Growth, world_size: int) -> float:
    """Return (S(2 W) - S(W)) / W: what each worker of a doubling adds, in workers; 1 is ideal."""
    gain = speedup(point, growth, 2 * world_size) - speedup(point, growth, world_size)
    return gain / world_size


def stops_paying(point: PublishedPoint, growth: Growth, floor: float) -> float:
    """Return the largest W from which doubling the workers still adds at least `floor` of them; inf if it always does.

    Nothing stops paying without overhead. constant: (S(2 W) - S(W)) / W = 1 / (1 + h) for ever.
    """
    if not 0.0 < floor < 1.0:
        raise ConfigError(f"floor={floor:g}: a share of the ideal gain, above 0 and below 1")
    if point.overhead <= 0 or marginal_efficiency(point, growth, _MOST_WORKERS) >= floor:
        return inf
    return _last(lambda w: marginal_efficiency(point, growth, w) >= floor, start=2)


def efficient_until(point: PublishedPoint, growth: Growth, floor: float) -> float:
    """Return the largest W with E(W) = 1 / (1 + h(W)) >= floor; inf if every W has, 1 if none above 1."""
    if not 0.0 < floor < 1.0:
        raise ConfigError(f"floor={floor:g}: an efficiency, above 0 and below 1")
    if point.overhead <= 0 or 1 / (1 + overhead(point, growth, _MOST_WORKERS)) >= floor:
        return inf
    return _last(lambda w: 1 / (1 + overhead(point, growth, w)) >= floor, start=1)


def _last(holds: Callable[[int], bool], start: int) -> float:
    """Return the last W from `start` on where a condition that fails once and for all still holds; 1 if none does."""
    if not holds(start):
        return 1
    low, high = start, _MOST_WORKERS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def text(point: PublishedPoint, floor: float = 0.5) -> str:
    """Return what the point implies and what it cannot say."""
    e, h = point.efficiency, point.overhead
    lines = [
        f"{point.speedup:g} times at {point.world_size} workers: efficiency {100 * e:.1f} %",
        f"overhead per iteration: 1/E - 1 = {h:.3f} of an ideal iteration ({100 * (1 - e):.1f} % of the actual one)",
    ]
    if h <= 0:
        return "\n".join([*lines, "superlinear: more than W workers' worth; no overhead to extrapolate"])
    lines += [
        "",
        f"If overhead h grows with W, scaled through this point (W0 = {point.world_size}):",
    ]
    cells = [["S(2 W0)", "S(8 W0)", "largest S", "E >= 50 % to", "doubling pays to"]]
    for growth in GROWTHS:
        s2, s8 = (speedup(point, growth, k * point.world_size) for k in (2, 8))
        largest = inf if growth.name != "linear" else 1.0 / (h / (point.world_size - 1))
        until, pays = efficient_until(point, growth, 0.5), stops_paying(point, growth, floor)
        cells.append([f"{s2:.1f}", f"{s8:.1f}", _count(largest), _count(until), _count(pays)])
    names = ["growth", *(growth.name for growth in GROWTHS)]
    meanings = ["formula", *(f"{growth.formula}: {growth.meaning}" for growth in GROWTHS)]
    table = aligned(cells, (10, 10, 11, 14, 18))
    lines += [f"  {n:<10}{row}   {m}" for n, row, m in zip(names, table, meanings, strict=True)]
    lines += [
        f"Doubling pays while S(2 W) - S(W) >= {floor:g} W: the new workers add that share of themselves at least.",
        "",
        "One point cannot say which of these holds: the split of h into waiting, communication and serial work, and",
        "how each grows, need times per rank at two or more W (give a sweep folder instead). It also leaves open how",
        "the baseline was run, the spread over seeds, and whether W0 needed as many samples: S is of throughput.",
    ]
    return "\n".join(lines)


def _count(x: float) -> str:
    """Return a number of workers; beyond a million it says only that an assumption was stretched too far."""
    return "no end" if x == inf else "> 1e6" if x > 1e6 else f"{x:,.0f}"
