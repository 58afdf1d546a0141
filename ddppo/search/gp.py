"""Gaussian-process regression with the covariance s^2 exp(-sum_k theta_k d_k) (Rasmussen and Williams, 2006, ch. 2, 5).

A value is the process at its point, plus the point's own effect (the same whenever the point is repeated), plus a
linear part of known covariates, plus independent normal noise. Distances d are spaces.py's.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Added to the diagonal of every covariance, in units of the variance of the values. It is larger than the rounding of
# float64 in the eigenvalues of some hundred points, and far smaller than any noise.
JITTER = 1e-8


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The parameters of the covariance that are fitted."""

    thetas: tuple[float, ...]  # theta_k, one for each distance
    signal: float = 1.0  # s^2
    noise: float = 0.0  # variance
    own: float = 0.0  # variance of the points' own effects


@dataclass(frozen=True, slots=True)
class Data:
    """The observed points and values."""

    distances: Array  # between the points, [k, n, n]
    values: Array  # [n]
    noise: Array  # variances of the values' errors, [n]; NaN: unknown, and fitted
    # Columns of the linear part, [n, b], each times the prior deviation of its coefficient.
    basis: Array
    has_own: bool = False  # whether points have effects of their own; only repeats tell these from noise


class Posterior:
    """The process given the data and samples of the hyperparameters: factors once, predicts anywhere."""

    def __init__(self, data: Data, samples: list[Hyperparameters]) -> None:
        self._data = data
        self._samples = samples
        # NumPy has no triangular solve, and each prediction needs L^-1: [s, n, n], K = L L^T.
        self._inverses = np.linalg.inv(np.linalg.cholesky(_of_data(data, _logs(samples, data.has_own))))
        self._weights = np.einsum("sji,sj->si", self._inverses, self._inverses @ data.values)

    def predict(self, distances: Array, basis: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation, without noise, at points at `distances` [k, m, n] with `basis` [m, b].

        For each sample: mean = k^T K^-1 y; variance = k** - k^T K^-1 k (equations 2.25 and 2.26). The variance of the
        mixture is the mean of the variances plus the variance of the means.
        """
        means, variances = [], []
        for each, inverse, weights in zip(self._samples, self._inverses, self._weights, strict=True):
            covariances = each.signal * np.exp(-np.tensordot(np.array(each.thetas), distances, 1))
            cross = covariances + each.own * _is_same(distances) + basis @ self._data.basis.T
            whitened = cross @ inverse.T
            prior = each.signal + each.own + np.einsum("mb,mb->m", basis, basis)
            means.append(cross @ weights)
            variances.append(np.maximum(prior - np.einsum("mn,mn->m", whitened, whitened), 0.0))
        return np.mean(means, axis=0), np.sqrt(np.mean(variances, axis=0) + np.var(means, axis=0))


def _is_same(distances: Array) -> Array:
    """Return 1 for pairs of the same point and 0 for others, [m, n], from distances [k, m, n]."""
    return np.asarray(distances.sum(axis=0) == 0, dtype=np.float64)


def _logs(samples: list[Hyperparameters], has_own: bool) -> Array:
    """Return the hyperparameters as rows of logarithms [s, p]: thetas, signal, noise, and own if points have it."""
    rows = [[*h.thetas, h.signal, h.noise, *([h.own] if has_own else [])] for h in samples]
    return np.asarray(np.log(np.maximum(rows, 1e-300)))


def _parts(data: Data, logs: Array) -> tuple[Array, Array, Array]:
    """Return the parts of the covariance [s, n, n] that scale with a hyperparameter: signals, noise, own."""
    k = len(data.distances)
    signals = np.exp(logs[:, k, None, None] - np.einsum("sk,kij->sij", np.exp(logs[:, :k]), data.distances))
    noise = np.exp(logs[:, k + 1, None, None]) * np.diag(np.isnan(data.noise).astype(np.float64))
    own = (
        np.exp(logs[:, k + 2, None, None]) * _is_same(data.distances) if data.has_own else np.zeros((1, 1, 1))
    )
    return signals, noise, own


def _of_data(data: Data, logs: Array) -> Array:
    """Return the covariance of the values [s, n, n]."""
    signals, noise, own = _parts(data, logs)
    known = np.where(np.isnan(data.noise), 0.0, data.noise)
    return signals + noise + own + data.basis @ data.basis.T + np.diag(known + JITTER)


def log_likelihood(data: Data, hyperparameters: Hyperparameters) -> float:
    """Return the log marginal likelihood -(y^T K^-1 y + log det K + n log 2 pi) / 2 (equation 2.30)."""
    return float(_likelihoods(data, _logs([hyperparameters], data.has_own))[0][0])


# -- Fitting.

# Normal priors of the logarithms. They decide with few data, and yield to more. The mean is that of a single theta: k
# thetas share it, so that many dimensions do not make all points uncorrelated (Hvarfner et al., 2024).
_THETA, _SIGNAL, _NOISE, _OWN = (np.log(3.0), 1.0), (0.0, 0.7), (np.log(0.2), 1.5), (np.log(0.1), 1.5)
# Without repeats noise is what no smooth function explains, and there may be none.
_NOISE_ALONE = (np.log(1e-3), 2.5)
_STARTS = ((0.0, 0.0, 0.0), (1.5, 0.0, 2.0), (-1.5, 0.5, -1.0), (0.5, 0.0, 5.5))  # from the priors' means
_TRIED, _ITERATIONS = 5, 15  # iterations of all starts, and in all, of the best
_DRAWN = 128  # samples drawn from each proposal
_WIDER = 1.3  # deviations of the proposal around the mode, in those of its normal approximation


def fit(data: Data) -> Hyperparameters:
    """Return the hyperparameters with the highest marginal likelihood times prior, from several starts.

    Fisher scoring with Levenberg's damping, first from all starts side by side, then from the best one. A pure function
    of the data.
    """
    return _of_logs(data, _mode(data)[0])


def sample(data: Data, num: int = 32) -> list[Hyperparameters]:
    """Return `num` equally likely hyperparameters, drawn from marginal likelihood times prior.

    A single best fit takes itself for certain: after thirty noisy values it may hold the noise for nothing, and its
    deviations for zero. So draws of the prior and of a normal distribution around the mode are weighted by importance
    (Gelman et al., 2013, ch. 10.4), and resampled. The draws are quasi-random numbers that do not change: a pure
    function of the data.
    """
    # 1. Draws of both proposals, each half of the mixture.
    mode, curvature = _mode(data)
    mean, precision = _priors(data)
    normal = _normal_points(len(mode))
    factor = np.linalg.cholesky(np.linalg.inv(curvature)) * _WIDER
    drawn = np.concatenate([mean + normal / np.sqrt(precision), mode + normal @ factor.T])
    drawn = np.clip(drawn, mean - 14.0, mean + 14.0)
    # 2. Their weights: likelihood times prior, by the density of the mixture of proposals.
    prior = -0.5 * (precision * (drawn - mean) ** 2).sum(axis=1)
    around = -0.5 * (np.linalg.solve(factor, (drawn - mode).T) ** 2).sum(axis=0)
    density = np.logaddexp(prior + 0.5 * np.log(precision).sum(), around - np.log(np.diagonal(factor)).sum())
    factors = np.linalg.cholesky(_of_data(data, drawn))
    whitened = np.linalg.solve(
        factors, np.broadcast_to(data.values[:, None], (len(drawn), len(data.values), 1))
    )
    heights = -0.5 * (whitened**2).sum(axis=(1, 2)) - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(
        axis=1
    )
    logs = heights + prior - density
    weights = np.cumsum(np.exp(logs - logs.max()))
    # 3. Systematic resampling: a draw is kept as often as its share of the weights has room for.
    chosen = np.searchsorted(weights, (np.arange(num) + 0.5) / num * weights[-1])
    return [_of_logs(data, drawn[i]) for i in chosen]


def _normal_points(p: int) -> Array:
    """Return quasi-random points of the standard normal distribution, [_DRAWN, p]."""
    inverse = NormalDist().inv_cdf
    places = low_discrepancy(_DRAWN, p, np.full(p, 0.5))
    return np.array([[inverse(min(max(x, 1e-6), 1 - 1e-6)) for x in row] for row in places])


def low_discrepancy(n: int, k: int, start: Array) -> Array:
    """Return n points of the unit cube [n, k] that leave no large hole: Roberts' sequence from a place `start` [k].

    Multiples of (1/g, 1/g^2, ...) modulo 1, g^(k+1) = g + 1 (M. Roberts, 2018).
    """
    # g by fixed-point iteration.
    g = 2.0
    for _ in range(60):
        g = (1.0 + g) ** (1.0 / (k + 1))
    steps = g ** -np.arange(1.0, k + 1)
    return np.asarray((start + np.arange(n)[:, None] * steps) % 1.0)


def _of_logs(data: Data, logs: Array) -> Hyperparameters:
    k = len(data.distances)
    found = [float(x) for x in np.exp(logs)]
    return Hyperparameters(tuple(found[:k]), found[k], found[k + 1], found[k + 2] if data.has_own else 0.0)


def _mode(data: Data) -> tuple[Array, Array]:
    """Return the logarithms with the highest posterior [p], and the curvature there [p, p]."""
    k = len(data.distances)
    # All starts side by side, as rows.
    mean, precision = _priors(data)
    p = len(mean)
    logs = mean + np.array([[theta] * k + [signal, noise, 0.0] for theta, signal, noise in _STARTS])[:, :p]
    damping = np.full(len(logs), 1e-2)
    heights, slopes, curvatures = _posteriors(data, logs, mean, precision)
    for iteration in range(_ITERATIONS):
        # After some iterations only the best start continues.
        if iteration == _TRIED:
            best = [int(np.argmax(heights))]
            logs, damping, heights, slopes, curvatures = (
                rows[best] for rows in (logs, damping, heights, slopes, curvatures)
            )
        # A damped Newton step with the Fisher information as curvature, of at most 2 in each logarithm.
        damped = (
            curvatures
            + damping[:, None, None] * np.eye(p) * np.trace(curvatures, axis1=1, axis2=2)[:, None, None]
        )
        steps = np.clip(np.linalg.solve(damped, slopes[..., None])[..., 0], -2.0, 2.0)
        tried = np.clip(logs + steps, mean - 14.0, mean + 14.0)
        results = _posteriors(data, tried, mean, precision)
        # Keep a step that rises, and damp less; after another one damp more.
        better = results[0] >= heights
        logs[better] = tried[better]
        for old, new in zip((heights, slopes, curvatures), results, strict=True):
            old[better] = new[better]
        damping = np.where(better, damping / 5.0, damping * 5.0)
    return logs[0], curvatures[0]


def _priors(data: Data) -> tuple[Array, Array]:
    """Return means and precisions of the logarithms of the thetas, signal, noise, and own if points have it."""
    k = len(data.distances)
    rest = [_SIGNAL, _NOISE, _OWN] if data.has_own else [_SIGNAL, _NOISE_ALONE]
    mean = np.array([_THETA[0] - np.log(k)] * k + [each[0] for each in rest])
    return mean, np.array([_THETA[1]] * k + [each[1] for each in rest]) ** -2.0


def _posteriors(data: Data, logs: Array, mean: Array, precision: Array) -> tuple[Array, Array, Array]:
    """Return log likelihood + log prior of rows of logarithms [s, p], its slopes [s, p] and curvatures [s, p, p]."""
    heights, slopes, curvatures = _likelihoods(data, logs)
    away = logs - mean
    return (
        heights - 0.5 * (precision * away**2).sum(axis=1),
        slopes - precision * away,
        curvatures + np.diag(precision),
    )


def _likelihoods(data: Data, logs: Array) -> tuple[Array, Array, Array]:
    """Return log marginal likelihoods, their slopes, and the Fisher information, by the logarithms [s, p].

    d/dp = tr((a a^T - K^-1) dK/dp) / 2 with a = K^-1 y (equation 5.9); information tr(K^-1 dK/dp K^-1 dK/dq) / 2.
    """
    # K = L L^T for each row s of hyperparameters, and a = K^-1 y.
    n, thetas = len(data.values), np.exp(logs[:, : len(data.distances)])
    signals, noise, own = _parts(data, logs)
    factors = np.linalg.cholesky(_of_data(data, logs))
    inverses = np.linalg.inv(factors)
    precisions = inverses.swapaxes(1, 2) @ inverses
    weights = precisions @ data.values
    heights = (
        -0.5 * weights @ data.values
        - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        - 0.5 * n * np.log(2.0 * np.pi)
    )
    # dK/dp [s, p, n, n], and K^-1 dK/dp.
    by_theta = -thetas[:, :, None, None] * data.distances * signals[:, None]
    others = [signals[:, None], noise[:, None], *([own[:, None]] if data.has_own else [])]
    scaled = precisions[:, None] @ np.concatenate([by_theta, *others], axis=1)
    # a^T dK/dp a = y^T K^-1 dK/dp a.
    quadratics = np.einsum("spj,sj->sp", data.values @ scaled, weights)
    slopes = 0.5 * (quadratics - np.trace(scaled, axis1=2, axis2=3))
    return heights, slopes, 0.5 * np.einsum("spij,sqji->spq", scaled, scaled)
