"""Bayesian search by upper confidence bounds of a Gaussian process (GP-UCB; Srinivas et al., 2010).

`ask` returns the point with the highest mean + beta deviation, `tell` adds the value of a point. `ask` is a function of
the seed and of the values so far, so a search that is resumed from a checkpoint continues as if it had not stopped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddppo.search.gp import Array, Data, Hyperparameters, Posterior, low_discrepancy, sample
from ddppo.search.spaces import Space

# Deviations on either side of the mean that hold 95 %: Student's t with 26 degrees of freedom, those of 30 values less
# four hyperparameters. In planted searches they hold 95.6 % of the values of best orders (experiments/search).
COVERS = 2.06
_SLOPE = 1.0  # prior deviation of the slope by the covariate, both in their own deviations
_SAMPLES, _SAMPLES_OF_A_BOX = 32, 8  # of the hyperparameters; thousands of points of a box are predicted
_ENUMERATED = 2000  # a space of at most so many points is listed; of a larger one, so many points are drawn
# Then the search around the best of them.
_KEPT, _NEIGHBOURS, _SCALES = (
    5,
    40,
    (0.1, 0.03, 0.01, 0.003, 0.001),
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The prediction for a point, in units of the values."""

    point: Any
    ucb: float  # upper confidence bound, mean + beta deviation
    mean: float
    deviation: float  # standard deviation

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that holds the point's value with 95 %."""
        return self.mean - COVERS * self.deviation, self.mean + COVERS * self.deviation


@dataclass(frozen=True, slots=True)
class _Scored:
    """A point with its value."""

    code: list[float]
    value: float | None  # None: it failed
    noise_variance: float | None  # None: unknown, and fitted
    covariate: float = 0.0


class UCB:
    """Maximises an unknown function of the points of a space.

    Args:
        space: the points.
        beta: weight of the deviation; a larger one explores more.
        seed: of the random points, and of ties.
        num_random: number of random points at the beginning.
        repeats: whether `ask` may return a point that has a value, which may be worth it if values are noisy.
    """

    def __init__(
        self, space: Space, *, beta: float = 2.0, seed: int = 0, num_random: int = 4, repeats: bool = True
    ) -> None:
        if not (math.isfinite(beta) and beta >= 0):
            raise ValueError(f"beta={beta}: must be a number of at least 0")
        if num_random < 1:
            raise ValueError(f"num_random={num_random}: must be at least 1")
        self.space = space
        self.beta = beta
        self.num_random = num_random
        self.repeats = repeats
        self._seed = seed
        self._all = space.all() if space.size <= _ENUMERATED else None
        self._scored: list[_Scored] = []
        self._model: _Model | None = None
        self._posterior: tuple[Array, Array] | None = None  # at all points, once computed

    @property
    def num_values(self) -> int:
        return len(self._scored)

    def tell(
        self, point: Any, value: float | None, noise_variance: float | None = None, covariate: float = 0.0
    ) -> None:
        """Add the value of a point. A value of None: the point failed, and counts as the worst value of all.

        Args:
            noise_variance: of the value's error; None: unknown, and fitted.
            covariate: a number with which values rise or fall along a line, at every point alike.
                Predictions are for the mean covariate so far.

        Raises ValueError for a wrong point or number.
        """
        if not math.isfinite(covariate):
            raise ValueError(f"{point}: a covariate of {covariate} is no number")
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{point}: a value of {value} is no number; None means that it failed")
        if noise_variance is not None and not (math.isfinite(noise_variance) and noise_variance >= 0):
            raise ValueError(f"{point}: noise_variance={noise_variance} is no variance")
        code = self.space.encode(point)
        self._scored.append(
            _Scored(
                code.tolist(),
                None if value is None else float(value),
                None if noise_variance is None else float(noise_variance),
                float(covariate),
            )
        )
        self._model = self._posterior = None

    def ask(self, n: int = 1) -> list[Any]:
        """Return the n points to try next. Without a `tell` in between, they stay the same.

        Each is chosen as if the points before it had their own means as values. This keeps the mean, and takes away the
        deviation around them (GP-BUCB; Desautels et al., 2014). There are fewer than n if `repeats` is off and a finite
        space has no other points.
        """
        codes: list[Array] = []
        for _ in range(n):
            code = self._next(codes)
            if code is None:
                break
            codes.append(code)
        return [self.space.decode(code) for code in codes]

    def posterior(self) -> tuple[Array, Array]:
        """Return mean and deviation at all points of a finite space, in their order: [m], [m]."""
        assert self._all is not None, "the posterior of a space that is listed"
        if self._posterior is None:
            self._posterior = self._fitted().predict(self._all)
        return self._posterior

    def best(self, k: int) -> list[Estimate]:
        """Return the k points of a finite space with the highest upper confidence bounds."""
        assert self._all is not None, "the best of a space that is listed"
        mean, deviation = self.posterior()
        ucb = mean + self.beta * deviation
        ranked = self._ranked(self._fitted().bound(self._all, self.beta))[:k]
        return [
            Estimate(self.space.decode(self._all[i]), float(ucb[i]), float(mean[i]), float(deviation[i]))
            for i in ranked
        ]

    def incumbent(self) -> Estimate:
        """Return the point with the highest mean among those that have a value."""
        assert self._scored, "the best of no points"
        codes = np.array([each.code for each in self._scored])
        return self._estimate(codes[np.argmax(self._fitted().predict(codes)[0])])

    def estimate(self, point: Any) -> Estimate:
        """Return the prediction for any point of the space. Raises ValueError for another point."""
        return self._estimate(self.space.encode(point))

    def _estimate(self, code: Array) -> Estimate:
        mean, deviation = (float(row[0]) for row in self._fitted().predict(code[None]))
        return Estimate(self.space.decode(code), mean + self.beta * deviation, mean, deviation)

    def hyperparameters(self) -> list[Hyperparameters]:
        """Return equally likely covariances of the standardised values; [] before the first value."""
        return self._fitted().samples if self._scored else []

    def noise_deviation(self) -> float:
        """Return the standard deviation of the values of one point under repeats, as estimated from all values."""
        model = self._fitted()
        return model.scale * math.sqrt(np.mean([each.noise for each in model.samples]))

    def state(self) -> dict[str, Any]:
        """Return all points and values in plain types."""
        return {
            "told": [
                {
                    "code": each.code,
                    "value": each.value,
                    "noise_variance": each.noise_variance,
                    "covariate": each.covariate,
                }
                for each in self._scored
            ]
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._scored = [_Scored(**each) for each in state["told"]]
        self._model = self._posterior = None

    def _next(self, pending: list[Array]) -> Array | None:
        """Return the code of the next point, when `pending` are being tried; None if no point is left."""
        # The generator depends on the number of points only: a resumed search draws the same.
        count = len(self._scored) + len(pending)
        rng = np.random.default_rng((self._seed, count))
        codes = self._candidates(rng)
        codes = codes[self._is_new(codes, pending)]
        if not len(codes):
            return None
        # First random points, then the highest bound of the fitted process.
        if count < self.num_random:
            return codes[rng.integers(len(codes))]
        model = self._fitted().with_means_at(pending)
        if self._all is None:
            codes = self._refined(codes, model, pending, rng)
        return codes[self._ranked(model.bound(codes, self.beta), rng)[0]]

    def _candidates(self, rng: np.random.Generator) -> Array:
        """Return the codes of all points, or of a quasi-random set and the points that have values."""
        if self._all is not None:
            return self._all
        dimensions = len(self.space.dimensions)
        spread = self.space.spread(low_discrepancy(_ENUMERATED, dimensions, rng.random(dimensions)))
        return np.concatenate([spread, [each.code for each in self._scored]]) if self._scored else spread

    def _is_new(self, codes: Array, pending: list[Array]) -> Any:
        """Return which of the codes `ask` may return: without repeats, no point that has a value or is pending."""
        known = [*(each.code for each in self._scored), *pending]
        if self.repeats or not known:
            return np.ones(len(codes), dtype=np.bool_)
        return ~(np.abs(codes[:, None] - np.array(known)[None]).max(axis=2) < 1e-9).any(axis=1)

    def _refined(
        self, codes: Array, model: "_Model", pending: list[Array], rng: np.random.Generator
    ) -> Array:
        """Return the best codes after a search around the best, in ever smaller steps."""
        # Around the best points so far, in ever smaller steps.
        for scale in _SCALES:
            best = codes[np.argsort(-model.bound(codes, self.beta), kind="stable")[:_KEPT]]
            around = self.space.moved(np.repeat(best, _NEIGHBOURS, axis=0), scale, rng)
            codes = np.concatenate([best, around[self._is_new(around, pending)]])
        return codes

    def _ranked(self, bounds: Array, rng: np.random.Generator | None = None) -> NDArray[np.intp]:
        """Return the indices from the highest bound to the lowest. Ties are ordered by a seeded draw.

        Bounds are rounded first: in their last digits machines differ.
        """
        rng = rng or np.random.default_rng((self._seed, len(self._scored)))
        return np.lexsort((rng.random(len(bounds)), -np.round(bounds, 7)))

    def _fitted(self) -> "_Model":
        if self._model is None:
            # In a finite space that is asked for repeats, points have effects of their own.
            listed = self._all is not None
            self._model = _Model.of(
                self.space, self._scored, self.repeats and listed, _SAMPLES if listed else _SAMPLES_OF_A_BOX
            )
        return self._model


class _Model:
    """The Gaussian process fitted to the values, and their scale."""

    def __init__(
        self,
        space: Space,
        codes: Array,
        data: Data,
        samples: list[Hyperparameters],
        shift: float,
        scale: float,
    ) -> None:
        self._space, self._codes, self._data = space, codes, data
        self.samples = samples
        self.shift, self.scale = shift, scale
        self._posterior = Posterior(data, samples)

    @classmethod
    def of(cls, space: Space, scored: list[_Scored], has_own: bool, num_samples: int) -> "_Model":
        # A failed point counts as the worst value. Values and their noise are standardised.
        codes = np.array([entry.code for entry in scored]).reshape(len(scored), len(space.dimensions))
        known = [entry.value for entry in scored if entry.value is not None]
        worst = min(known, default=0.0)
        values = np.array([worst if entry.value is None else entry.value for entry in scored])
        shift, scale = _standard(values)
        noise = np.array(
            [math.nan if entry.noise_variance is None else entry.noise_variance for entry in scored]
        )
        basis = _basis(np.array([entry.covariate for entry in scored]))
        distances = space.distances(codes, codes)
        data = Data(distances, (values - shift) / scale, noise / scale**2, basis, has_own)
        return cls(space, codes, data, sample(data, num_samples), shift, scale)

    def bound(self, codes: Array, beta: float) -> Array:
        """Return mean + beta deviation of the standardised values."""
        mean, deviation = self._standardised(codes)
        return mean + beta * deviation

    def predict(self, codes: Array) -> tuple[Array, Array]:
        """Return mean and deviation in units of the values."""
        mean, deviation = self._standardised(codes)
        return self.shift + self.scale * mean, self.scale * deviation

    def _standardised(self, codes: Array) -> tuple[Array, Array]:
        return self._posterior.predict(
            self._space.distances(codes, self._codes), _basis(np.zeros(len(codes)))
        )

    def with_means_at(self, codes: list[Array]) -> "_Model":
        """Return the process with its own means as values at `codes`."""
        if not codes:
            return self
        added, data = np.array(codes), self._data
        means, _ = self._standardised(added)
        all_codes = np.concatenate([self._codes, added])
        more = Data(
            self._space.distances(all_codes, all_codes),
            np.concatenate([data.values, means]),
            np.concatenate([data.noise, np.full(len(codes), math.nan)]),
            np.concatenate([data.basis, _basis(np.zeros(len(codes)))]),
            data.has_own,
        )
        return _Model(self._space, all_codes, more, self.samples, self.shift, self.scale)


def _basis(covariates: Array) -> Array:
    """Return the column of the linear part [n, 1]: the distance from the mean covariate, times its prior deviation."""
    if not len(covariates):
        return np.zeros((0, 1))
    return _SLOPE * (covariates - covariates.mean())[:, None] / (float(covariates.std()) or 1.0)


def _standard(values: Array) -> tuple[float, float]:
    """Return mean and standard deviation; (mean, 1) if the values differ only by rounding."""
    if not len(values):
        return 0.0, 1.0
    deviation = float(values.std())
    return float(values.mean()), deviation if deviation > 1e-12 * float(np.abs(values).max()) else 1.0
