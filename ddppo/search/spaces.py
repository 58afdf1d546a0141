"""The points that a search may choose: finite sets, intervals, and their products.

A point has a code, a row of numbers, for which distances are defined. The covariance of two points is
s^2 exp(-sum_k theta_k d_k), with one distance d_k for each dimension, at most 1:
 - an interval: the squared difference of the places in it, of their logarithms if it is logarithmic (RBF,
   theta = 1 / (2 l^2));
 - options with distances of their own: these, divided by the largest (for orders by Kendall, the Mallows kernel);
 - options without distances: 0 for the same option, 1 for another.
exp(-theta d) is positive semi-definite for each of them, and so are products.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Dimension(Protocol):
    """One coordinate: values, their codes, and the distance between codes."""

    def encode(self, value: Any) -> float:
        """Return the code of a value. Raises ValueError for a value outside this dimension."""

    def decode(self, code: float) -> Any: ...

    def all(self) -> Array:
        """Return the codes of all `size` values."""

    def spread(self, places: Array) -> Array:
        """Return codes of values at `places` in [0, 1): uniform places give uniform values."""

    def moved(self, codes: Array, steps: Array, redraws: Array) -> Array:
        """Return neighbours of codes. steps: normal numbers times a scale; redraws: uniform numbers, for options."""

    def distances(self, a: Array, b: Array) -> Array:
        """Return the distances between codes a [n] and b [m], at most 1: [n, m]."""

    @property
    def size(self) -> float:
        """The number of values; infinite for an interval without steps."""


class Finite:
    """A dimension of options, with or without distances between them."""

    def __init__(self, options: Sequence[Any], distances: Any = None) -> None:
        if not options:
            raise ValueError("a search needs at least one option")
        self.options = list(options)
        if len(set(map(repr, self.options))) < len(self.options):
            raise ValueError(f"the options {self.options} hold one twice")
        self._codes = {repr(option): i for i, option in enumerate(self.options)}
        count = len(self.options)
        # Without distances of their own, all options are equally far apart.
        table = 1.0 - np.eye(count) if distances is None else np.asarray(distances, dtype=np.float64)
        if table.shape != (count, count) or not np.array_equal(table, table.T) or table.diagonal().any():
            raise ValueError(
                f"distances of {count} options: must be symmetric, zero on the diagonal, {count} square"
            )
        self.table = table / (table.max() or 1.0)

    @property
    def size(self) -> float:
        return len(self.options)

    def encode(self, value: Any) -> float:
        if repr(value) not in self._codes:
            raise ValueError(f"{value!r} is none of the {len(self.options)} options {self.options[:5]}...")
        return float(self._codes[repr(value)])

    def decode(self, code: float) -> Any:
        return self.options[int(code)]

    def all(self) -> Array:
        return np.arange(len(self.options), dtype=np.float64)

    def spread(self, places: Array) -> Array:
        return np.minimum(np.floor(places * len(self.options)), len(self.options) - 1)

    def moved(self, codes: Array, steps: Array, redraws: Array) -> Array:
        # With a probability of 20 % another option, drawn uniformly.
        return np.where(redraws < 0.2, self.spread(redraws / 0.2), codes)

    def distances(self, a: Array, b: Array) -> Array:
        return self.table[np.ix_(a.astype(np.int64), b.astype(np.int64))]


@dataclass(frozen=True, slots=True)
class Interval:
    """The numbers from low to high. The code is the place in the interval, 0 to 1.

    Values without steps are rounded, so that they are short: to millionths of the interval, or of the value if it is
    logarithmic.
    """

    low: float
    high: float
    log: bool = False  # uniform in the logarithm
    step: float | None = None  # only low, low + step, ...; integers if both are

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"interval({self.low}, {self.high}): must be two finite numbers, the lower one first"
            )
        if self.log and self.low <= 0:
            raise ValueError(
                f"interval({self.low}, {self.high}) has no logarithm at its lower end: must be above 0"
            )
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise ValueError(
                f"step={self.step} in interval({self.low}, {self.high}): must be above 0 and fit into it"
            )

    @property
    def size(self) -> float:
        return math.inf if self.step is None else 1 + self._last

    @property
    def _last(self) -> int:
        """The number of steps that fit; rounding must not lose the last one."""
        assert self.step is not None
        return int((self.high - self.low) / self.step + 1e-9)

    def encode(self, value: Any) -> float:
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} is not in interval({self.low}, {self.high})")
        return float(self._codes(np.array([value], dtype=np.float64))[0])

    def decode(self, code: float) -> float:
        value = float(self._values(np.array([code]))[0])
        # Short numbers: 6 digits of the interval, or of the value.
        if self.step is None:
            of = value if self.log else self.high - self.low
            return min(max(round(value, 6 - math.floor(math.log10(of))), self.low), self.high)
        # A step may be .1, which floats do not hold: 12 digits give back the number that was written.
        stepped = self.low + round((value - self.low) / self.step) * self.step
        return stepped if isinstance(stepped, int) else float(f"{stepped:.12g}")

    def _codes(self, values: Array) -> Array:
        low, high = self.low, self.high
        if self.log:
            return np.log(values / low) / math.log(high / low)
        return (values - low) / (high - low)

    def _values(self, codes: Array) -> Array:
        low, high = self.low, self.high
        values = low * (high / low) ** codes if self.log else low + codes * (high - low)
        return np.clip(values, low, high)

    def all(self) -> Array:
        assert self.step is not None, "an interval without steps has no list of its values"
        return self._codes(self.low + np.arange(self._last + 1.0) * self.step)

    def spread(self, places: Array) -> Array:
        if self.step is None:
            return places
        if self.log:
            return self._stepped(self._values(places))
        return self.all()[np.minimum(np.floor(places * self.size), self._last).astype(np.int64)]

    def moved(self, codes: Array, steps: Array, redraws: Array) -> Array:
        moved = np.clip(codes + steps, 0.0, 1.0)
        return moved if self.step is None else self._stepped(self._values(moved))

    def _stepped(self, values: Array) -> Array:
        """Return the codes of the nearest values that are whole steps from the lower end."""
        assert self.step is not None
        steps = np.clip(np.round((values - self.low) / self.step), 0, self._last)
        return self._codes(self.low + steps * self.step)

    def distances(self, a: Array, b: Array) -> Array:
        return (a[:, None] - b[None, :]) ** 2


class Space:
    """A space of points: the values of one dimension, or tuples of values of several.

    The codes of points are rows with one number for each dimension: [n, k].
    """

    def __init__(self, dimensions: Dimension | Sequence[Dimension]) -> None:
        self._is_tuple = isinstance(dimensions, Sequence)
        self.dimensions: list[Dimension] = (
            list(dimensions) if isinstance(dimensions, Sequence) else [dimensions]
        )
        if not self.dimensions:
            raise ValueError("a search needs at least one dimension")
        self.size = math.prod(dimension.size for dimension in self.dimensions)

    def encode(self, point: Any) -> Array:
        """Return a point's code [k]. Raises ValueError for a point outside this space."""
        # A point of one dimension is a value, not a tuple.
        values = point if self._is_tuple else (point,)
        if len(values) != len(self.dimensions):
            raise ValueError(f"{point}: must be {len(self.dimensions)} values")
        return np.array([d.encode(value) for d, value in zip(self.dimensions, values, strict=True)])

    def decode(self, code: Array) -> Any:
        values = tuple(d.decode(float(c)) for d, c in zip(self.dimensions, code, strict=True))
        return values if self._is_tuple else values[0]

    def all(self) -> Array:
        """Return the codes of all points of a finite space, the last dimension the fastest."""
        # The grid of all codes, one row a point.
        each = [d.all() for d in self.dimensions]
        return np.stack(np.meshgrid(*each, indexing="ij"), axis=-1).reshape(-1, len(each))

    def spread(self, places: Array) -> Array:
        """Return codes of points at `places` in the unit cube [n, k]."""
        return np.stack([d.spread(places[:, i]) for i, d in enumerate(self.dimensions)], axis=1)

    def moved(self, codes: Array, scale: float, rng: np.random.Generator) -> Array:
        """Return a neighbour of each code: a normal step of `scale` in intervals, now and then another option."""
        # Draw both kinds of numbers for all dimensions, so that the draws do not depend on their kinds.
        steps = scale * rng.standard_normal(codes.shape)
        redraws = rng.random(codes.shape)
        return np.stack(
            [d.moved(codes[:, i], steps[:, i], redraws[:, i]) for i, d in enumerate(self.dimensions)], axis=1
        )

    def distances(self, a: Array, b: Array) -> Array:
        """Return the distances in every dimension between the codes a [n, k] and b [m, k]: [k, n, m]."""
        return np.stack([d.distances(a[:, i], b[:, i]) for i, d in enumerate(self.dimensions)])
