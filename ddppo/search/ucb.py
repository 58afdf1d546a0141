"""Bayesian search by upper confidence bounds of a Gaussian process (GP-UCB; Srinivas et al., 2010).

Asks for the point of the highest mean + beta deviation. What it asks is a function of the seed and of what it was told
alone, so that a search goes on from a checkpoint as if it had not stopped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddppo.search.gp import Array, Data, Hyperparameters, Posterior, fit
from ddppo.search.spaces import Space

_ENUMERATED = 2000  # the points of a space that are listed, of a larger one those looked at first
_KEPT, _NEIGHBOURS, _SCALES = 5, 40, (0.1, 0.03, 0.01, 0.003, 0.001)  # the search around the best of these


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is thought of a point: its upper confidence bound, mean and standard deviation, in units of the values."""

    point: Any
    ucb: float
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class _Scored:
    code: list[float]
    value: float | None
    noise_variance: float | None


class UCB:
    """Maximises an unknown function of the points of a space.

    The first `num_random` points are a seeded draw. `repeats` lets it ask for a point again that it was told of, as
    noise may make worth while.
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
        self._told: list[_Scored] = []
        self._model: _Model | None = None

    @property
    def num_told(self) -> int:
        return len(self._told)

    def tell(self, point: Any, value: float | None, noise_variance: float | None = None) -> None:
        """Hear of a point's value, and the variance of its error if that is known; None: it failed.

        What failed counts as the worst of all. Raises ValueError for what is no point or no number.
        """
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{point}: a value of {value} says nothing; None says that it failed")
        if noise_variance is not None and not (math.isfinite(noise_variance) and noise_variance >= 0):
            raise ValueError(f"{point}: noise_variance={noise_variance} is no variance")
        code = self.space.encode(point)
        self._told.append(
            _Scored(
                code.tolist(),
                None if value is None else float(value),
                None if noise_variance is None else float(noise_variance),
            )
        )
        self._model = None

    def ask(self, n: int = 1) -> list[Any]:
        """Return the n points to try next, the same until something is told.

        Of several, each is chosen as if those before it had been told their own means, which leaves the mean as it is
        and takes away the deviation around them (GP-BUCB; Desautels et al., 2014). There may be fewer than n where all
        points of a finite space are told of and `repeats` is off.
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
        return self._fitted().predict(self._all)

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
        """Return the point of the highest mean among those that were told of."""
        assert self._told, "the best of no points"
        codes = np.array([told.code for told in self._told])
        return self._estimate(codes[np.argmax(self._fitted().predict(codes)[0])])

    def estimate(self, point: Any) -> Estimate:
        """Return what is thought of any point. Raises ValueError where it is none of the space."""
        return self._estimate(self.space.encode(point))

    def _estimate(self, code: Array) -> Estimate:
        mean, deviation = (float(row[0]) for row in self._fitted().predict(code[None]))
        return Estimate(self.space.decode(code), mean + self.beta * deviation, mean, deviation)

    def hyperparameters(self) -> Hyperparameters | None:
        """Return what was learned of the covariance of the standardised values; None before anything was told."""
        return self._fitted().hyperparameters if self._told else None

    def state(self) -> dict[str, Any]:
        """Return what was told, in plain values."""
        return {
            "told": [
                {"code": told.code, "value": told.value, "noise_variance": told.noise_variance}
                for told in self._told
            ]
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._told = [_Scored(**told) for told in state["told"]]
        self._model = None

    # -- choosing -------------------------------------------------------------------------------------------------

    def _next(self, pending: list[Array]) -> Array | None:
        """Return the code of the point to try after those told and `pending`; None where none is left."""
        count = len(self._told) + len(pending)
        rng = np.random.default_rng((self._seed, count))
        codes = self._candidates(rng)
        codes = codes[self._is_new(codes, pending)]
        if not len(codes):
            return None
        if count < self.num_random:
            return codes[rng.integers(len(codes))]
        model = self._fitted().with_means_at(pending)
        if self._all is None:
            codes = self._refined(codes, model, pending, rng)
        return codes[self._ranked(model.bound(codes, self.beta), rng)[0]]

    def _candidates(self, rng: np.random.Generator) -> Array:
        """Return the codes of all points, or of a quasi-random set of them beside those told."""
        if self._all is not None:
            return self._all
        spread = self.space.spread(_low_discrepancy(_ENUMERATED, len(self.space.dimensions), rng))
        return np.concatenate([spread, [told.code for told in self._told]]) if self._told else spread

    def _is_new(self, codes: Array, pending: list[Array]) -> Any:
        """Return which of the codes may be asked for: where points do not repeat, none of those told and pending."""
        known = [*(told.code for told in self._told), *pending]
        if self.repeats or not known:
            return np.ones(len(codes), dtype=np.bool_)
        return ~(np.abs(codes[:, None] - np.array(known)[None]).max(axis=2) < 1e-9).any(axis=1)

    def _refined(
        self, codes: Array, model: "_Model", pending: list[Array], rng: np.random.Generator
    ) -> Array:
        """Return the best codes after a search around the best, in ever smaller steps."""
        for scale in _SCALES:
            best = codes[np.argsort(-model.bound(codes, self.beta), kind="stable")[:_KEPT]]
            around = self.space.moved(np.repeat(best, _NEIGHBOURS, axis=0), scale, rng)
            codes = np.concatenate([best, around[self._is_new(around, pending)]])
        return codes

    def _ranked(self, bounds: Array, rng: np.random.Generator | None = None) -> NDArray[np.intp]:
        """Return the indices from the highest bound to the lowest; equals by a seeded draw.

        Rounded: what differs in the last digits alone would be ranked otherwise by another machine.
        """
        rng = rng or np.random.default_rng((self._seed, len(self._told)))
        return np.lexsort((rng.random(len(bounds)), -np.round(bounds, 7)))

    def _fitted(self) -> "_Model":
        if self._model is None:
            self._model = _Model.of(self.space, self._told)
        return self._model


class _Model:
    """The process fitted to what was told, and the scale of its values."""

    def __init__(
        self, space: Space, codes: Array, values: Array, noise: Array, hyperparameters: Hyperparameters
    ) -> None:
        self._space, self._codes, self._values, self._noise = space, codes, values, noise
        self.hyperparameters = hyperparameters
        self.shift, self.scale = 0.0, 1.0
        self._posterior = Posterior(Data(space.distances(codes, codes), values, noise), hyperparameters)

    @classmethod
    def of(cls, space: Space, told: list[_Scored]) -> "_Model":
        codes = np.array([entry.code for entry in told]).reshape(len(told), len(space.dimensions))
        heard = [entry.value for entry in told if entry.value is not None]
        worst = min(heard, default=0.0)
        values = np.array([worst if entry.value is None else entry.value for entry in told])
        shift, scale = _standard(values)
        noise = np.array(
            [math.nan if entry.noise_variance is None else entry.noise_variance for entry in told]
        )
        standard, noise = (values - shift) / scale, noise / scale**2
        data = Data(space.distances(codes, codes), standard, noise)
        model = cls(space, codes, standard, noise, fit(data))
        model.shift, model.scale = shift, scale
        return model

    def bound(self, codes: Array, beta: float) -> Array:
        """Return mean + beta deviation of the standardised values."""
        mean, deviation = self._posterior.predict(self._space.distances(codes, self._codes))
        return mean + beta * deviation

    def predict(self, codes: Array) -> tuple[Array, Array]:
        """Return mean and deviation in units of the values."""
        mean, deviation = self._posterior.predict(self._space.distances(codes, self._codes))
        return self.shift + self.scale * mean, self.scale * deviation

    def with_means_at(self, codes: list[Array]) -> "_Model":
        """Return the process as if it had been told its own means at `codes`."""
        if not codes:
            return self
        added = np.array(codes)
        means, _ = self._posterior.predict(self._space.distances(added, self._codes))
        return _Model(
            self._space,
            np.concatenate([self._codes, added]),
            np.concatenate([self._values, means]),
            np.concatenate([self._noise, np.full(len(codes), math.nan)]),
            self.hyperparameters,
        )


def _standard(values: Array) -> tuple[float, float]:
    """Return mean and standard deviation; (their mean, 1) of values that differ by rounding alone."""
    if not len(values):
        return 0.0, 1.0
    deviation = float(values.std())
    return float(values.mean()), deviation if deviation > 1e-12 * float(np.abs(values).max()) else 1.0


def _low_discrepancy(n: int, k: int, rng: np.random.Generator) -> Array:
    """Return n points of the unit cube [n, k] that leave no large hole: Roberts' sequence from a random place.

    Multiples of (1/g, 1/g^2, ...) modulo 1, g^(k+1) = g + 1 (M. Roberts, 2018).
    """
    g = 2.0
    for _ in range(60):
        g = (1.0 + g) ** (1.0 / (k + 1))
    steps = g ** -np.arange(1.0, k + 1)
    return (rng.random(k) + np.arange(n)[:, None] * steps) % 1.0
