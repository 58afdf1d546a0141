"""Gaussian-process regression with the covariance s^2 exp(-sum_k theta_k d_k) (Rasmussen and Williams, 2006, ch. 2, 5).

Values are those of a process of mean 0 with independent normal noise. Distances d are spaces.py's.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Data:
    """The observed points and values."""

    distances: Array  # between the points, [k, n, n]
    values: Array  # [n]
    noise: Array  # variances of the values' errors, [n]; NaN: unknown, and fitted


class Posterior:
    """The process given the data: factors once, predicts anywhere."""

    def __init__(self, data: Data, hyperparameters: Hyperparameters) -> None:
        self._hyperparameters = hyperparameters
        noise = np.where(np.isnan(data.noise), hyperparameters.noise, data.noise)
        covariance = _covariance(data.distances, hyperparameters) + np.diag(noise + JITTER)
        # NumPy has no triangular solve, and each prediction needs L^-1.
        self._inverse = np.linalg.inv(np.linalg.cholesky(covariance))  # L^-1, K = L L^T
        self._weights = self._inverse.T @ (self._inverse @ data.values)

    def predict(self, distances: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation, without noise, at points at `distances` [k, m, n] from those observed.

        mean = k^T K^-1 y; variance = s^2 - k^T K^-1 k (equation 2.25 and 2.26).
        """
        cross = _covariance(distances, self._hyperparameters)
        whitened = cross @ self._inverse.T
        variance = self._hyperparameters.signal - np.einsum("mn,mn->m", whitened, whitened)
        return cross @ self._weights, np.sqrt(np.maximum(variance, 0.0))


def _covariance(distances: Array, hyperparameters: Hyperparameters) -> Array:
    return hyperparameters.signal * np.exp(-np.tensordot(np.array(hyperparameters.thetas), distances, 1))


def log_likelihood(data: Data, hyperparameters: Hyperparameters) -> float:
    """Return the log marginal likelihood -(y^T K^-1 y + log det K + n log 2 pi) / 2 (equation 2.30)."""
    logs = np.log([*hyperparameters.thetas, hyperparameters.signal, max(hyperparameters.noise, 1e-300)])
    return float(_likelihoods(data, logs[None])[0][0])


# -- Fitting.

# Normal priors of the logarithms. They decide with few data, and yield to more. The mean is that of a single theta: k
# thetas share it, so that many dimensions do not make all points uncorrelated (Hvarfner et al., 2024).
_THETA, _SIGNAL, _NOISE = (np.log(3.0), 1.0), (0.0, 0.7), (np.log(1e-3), 2.5)
_STARTS = ((0.0, 0.0, 0.0), (1.5, 0.0, 2.0), (-1.5, 0.5, -1.0), (0.5, 0.0, 5.5))  # from the priors' means
_TRIED, _ITERATIONS = 5, 15  # iterations of all starts, and in all, of the best


def fit(data: Data) -> Hyperparameters:
    """Return the hyperparameters with the highest marginal likelihood times prior, from several starts.

    Fisher scoring with Levenberg's damping, first from all starts side by side, then from the best one. A pure function
    of the data.
    """
    k = len(data.distances)
    # All starts side by side, as rows.
    mean, precision = _priors(k)
    logs = mean + np.array([[theta] * k + [signal, noise] for theta, signal, noise in _STARTS])
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
            + damping[:, None, None] * np.eye(k + 2) * np.trace(curvatures, axis1=1, axis2=2)[:, None, None]
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
    found = np.exp(logs[0])
    return Hyperparameters(tuple(map(float, found[:k])), float(found[k]), float(found[k + 1]))


def _priors(k: int) -> tuple[Array, Array]:
    """Return means and precisions of the logarithms of k thetas, signal and noise."""
    mean = np.array([_THETA[0] - np.log(k)] * k + [_SIGNAL[0], _NOISE[0]])
    return mean, np.array([_THETA[1]] * k + [_SIGNAL[1], _NOISE[1]]) ** -2.0


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
    k, n = len(data.distances), len(data.values)
    thetas, signal, noise = np.exp(logs[:, :k]), np.exp(logs[:, k]), np.exp(logs[:, k + 1])
    unknown = np.isnan(data.noise)
    signals = signal[:, None, None] * np.exp(-np.einsum("sk,kij->sij", thetas, data.distances))
    diagonal = np.where(unknown, noise[:, None], data.noise) + JITTER  # [s, n]
    factors = np.linalg.cholesky(signals + diagonal[:, :, None] * np.eye(n))
    inverses = np.linalg.inv(factors)
    precisions = inverses.swapaxes(1, 2) @ inverses
    weights = precisions @ data.values
    heights = (
        -0.5 * weights @ data.values
        - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        - 0.5 * n * np.log(2.0 * np.pi)
    )
    by_theta = -thetas[:, :, None, None] * data.distances * signals[:, None]  # dK/dp [s, k, n, n]
    # K^-1 dK/dp. For the signal (K without its diagonal) and the noise no matrix product is needed: K^-1 K = 1.
    by_signal = np.eye(n) - precisions * diagonal[:, None, :]
    by_noise = precisions * np.where(unknown, noise[:, None], 0.0)[:, None, :]
    # [s, p, n, n]
    scaled = np.concatenate([precisions[:, None] @ by_theta, by_signal[:, None], by_noise[:, None]], axis=1)
    # a^T dK/dp a = y^T K^-1 dK/dp a.
    quadratics = np.einsum("spj,sj->sp", data.values @ scaled, weights)
    slopes = 0.5 * (quadratics - np.trace(scaled, axis1=2, axis2=3))
    return heights, slopes, 0.5 * np.einsum("spij,sqji->spq", scaled, scaled)
