"""Parameters of the iteration model, fitted to measured runs by non-negative least squares.

What the measured world sizes cannot tell apart is split by a share: a half for the estimate, anything from 0 to 1 for
its interval, and said in a note.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ddppo.study.predict.iteration import expected
from ddppo.study.predict.least_squares import identified, nnls
from ddppo.study.predict.order_statistics import Noise, empirical, lognormal, normal_expected_max
from ddppo.study.predict.parameters import Parameters, sliced, system_of_point
from ddppo.study.predict.points import Point, env_processes, of_one_stepping

ASSUMED_BANDWIDTH = 1e9  # bytes/s, where runs of one model size cannot tell latency from bandwidth
_ASSUMED_BANDWIDTHS = (1e8, 1e10)
_MIN_RESIDUALS = 200  # fewer have no tail to fit
_SHARES = np.linspace(0.0, 1.0, 11)

Share = Callable[[], float]


def fit_parameters(
    all_points: Sequence[Point], slow: dict[int, float], share: Share, notes: list[str]
) -> Parameters:
    """Return the parameters; `share` is asked for every split that cannot be measured, and `notes` gets the reasons."""
    alike = of_one_stepping(all_points)
    stepping = alike[0].stepping
    if len(alike) < len(all_points):
        others = sorted({p.run.world_size for p in all_points} - {p.run.world_size for p in alike})
        notes.append(
            f"rollouts at W={', '.join(map(str, others))} are left out of the fit: their environments were stepped "
            f"otherwise than the {stepping} of the largest W; env.backend={stepping} makes all alike"
        )
    asleep, processes = alike[-1].env_asleep, env_processes(alike[-1])
    sleep = (alike[-1].env_step_s or 0.0) if asleep else 0.0
    acting, per_env, computing = fit_rollout(alike, sleep, share, notes, processes=processes)
    minibatch, sample = fit_learning(all_points, share, notes)
    call, latency, byte, comm_crowding = fit_communication(all_points, share, notes)
    variance, common, shape = fit_noise(all_points, notes)
    by_rank: list[np.ndarray] = [p.run.times["t_other"].mean(axis=0) for p in all_points]
    first = float(np.mean([t[0] for t in by_rank]))  # rank 0 writes
    other = float(np.mean([t[1:].mean() for t in by_rank if len(t) > 1] or first))
    writer = max(0.0, first - other)
    fitted = Parameters(
        acting_s=acting,
        per_env_s=per_env,
        computing=computing,
        env_sleep_s=sleep,
        env_step_s=alike[-1].env_step_s,
        env_processes=processes,
        minibatch_s=minibatch,
        sample_s=sample,
        call_s=call,
        latency_s=latency,
        byte_s=byte,
        comm_crowding=comm_crowding,
        jitter_s=0.0,
        other_s=other,
        writer_s=writer,
        noise_variance=variance,
        noise_shape=shape,
        common_cv=common,
        slow_step_s=slow,
    )
    return _with_jitter(fitted, all_points)


def fit_rollout(
    alike: Sequence[Point], sleep_s: float, share: Share, notes: list[str], *, processes: float
) -> tuple[float, float, float]:
    """Return (a, b, computing) of a vectorised step that works a + b E; Parameters.step_s adds sleep and cores.

    What environments that sleep take beyond their sleep is part computing, part waking late. Only the first needs a
    core; without a run bound by its cores the two cannot be told apart.
    """
    y = np.array([p.means["t_rollout"] / p.run.rollout_steps for p in alike])
    sigma = np.array([p.spread["t_rollout"] / p.run.rollout_steps for p in alike])
    envs = np.array([p.local_num_envs for p in alike])
    crowded = np.array([p.crowding for p in alike])
    sleep = sleep_s * np.maximum(1.0, envs / processes)
    bound = (crowded > 1.0) & (sleep == 0.0)
    split = None if identified([np.ones(len(y)), envs]) else share()
    if split is not None:
        notes.append(
            f"all rollouts had about {envs.mean():g} environments per rank: what a vectorised step costs by itself and "
            "what each environment adds cannot be told apart; the interval covers every split"
        )
    computing = share() if sleep_s > 0.0 else 1.0
    a = b = 0.0
    for _ in range(5):  # who is bound by cores depends on a and b; it settles at once or is a tie
        factor = np.where(bound, crowded * computing, 1.0)
        compute = np.maximum((y - np.where(bound, 0.0, sleep)) / factor, 0.0)
        if split is None:
            a, b = nnls([np.ones(len(y)), envs], compute, sigma / factor).tolist()
        else:
            mean = float(np.average(compute, weights=(factor / sigma) ** 2))
            a, b = split * mean, (1 - split) * mean / float(envs.mean())
        now = (crowded * computing - 1.0) * (a + b * envs) > sleep
        if (now == bound).all():
            break
        bound = now
    return a, b, computing


def fit_learning(all_points: Sequence[Point], share: Share, notes: list[str]) -> tuple[float, float]:
    """Return (c0, c1) of t_learn = (c0 K M + c1 K n) (1 + sliced (crowding - 1)), n the local batch; see `sliced`."""
    y = np.array([p.means["t_learn"] for p in all_points])
    sigma = np.array([p.spread["t_learn"] for p in all_points])
    calls = np.array([p.num_segments for p in all_points])
    samples = np.array([p.num_epochs * p.local_batch_size for p in all_points])
    crowded = np.array([p.crowding for p in all_points])
    split = None if identified([calls, samples]) else share()
    if split is not None:
        notes.append(
            "all runs learned from batches of one size: the fixed cost of a minibatch and the cost of a sample cannot "
            "be told apart; the interval covers every split"
        )
    factor = np.ones(len(y))
    c0 = c1 = 0.0
    for _ in range(10):  # how much is sliced depends on the cost of a minibatch: it settles
        if split is None:
            c0, c1 = nnls([calls * factor, samples * factor], y, sigma).tolist()
        else:
            level = float(np.average(y / factor, weights=(factor / sigma) ** 2))
            c0, c1 = split * level / float(calls.mean()), (1 - split) * level / float(samples.mean())
        segments = c0 + c1 * samples / calls
        factor = 1 + np.array([sliced(float(s)) for s in segments]) * (crowded - 1)
    return c0, c1


def fit_communication(
    all_points: Sequence[Point], share: Share, notes: list[str]
) -> tuple[float, float, float, float]:
    """Return (call, alpha, beta, crowded): t_comm = calls * call + (latencies * alpha + bytes * beta) * factor.

    factor = 1 + crowded (crowding - 1): how far messages wait for turns on shared cores.
    """
    many = [p for p in all_points if p.run.world_size > 1]
    if not many:
        notes.append("only W=1 is measured: communication and waiting are unknown and taken as 0")
        return 0.0, 0.0, 0.0, 1.0
    y = np.array([p.means["t_comm"] for p in many])
    sigma = np.array([p.spread["t_comm"] for p in many])
    calls = np.array([p.num_segments + p.num_gathers for p in many])
    latencies = np.array([p.sums.num_latencies + p.gathers.num_latencies for p in many])
    num_bytes = np.array([p.sums.num_bytes + p.gathers.num_bytes for p in many])
    crowded = np.array([p.crowding for p in many])
    know_bytes = identified([latencies, num_bytes])
    world_sizes = {p.run.world_size for p in many}
    byte = 1.0 / ASSUMED_BANDWIDTH
    if not know_bytes:
        low, high = np.log(_ASSUMED_BANDWIDTHS)
        byte = float(np.exp(-(low + share() * (high - low))))  # a share of a half is 1 GB/s
        byte = min(byte, float((y / num_bytes).min()))
        notes.append(
            f"one model size over these W cannot tell latency from bandwidth: {ASSUMED_BANDWIDTH / 1e9:g} GB/s is "
            "assumed, the rest is latency; runs with another model.hidden_sizes would tell"
        )
    is_crowded = bool((crowded > 1.0).any())
    # Where it cannot be measured, a quarter, as three sweeps W=1,2,4,8 on 2 cores had it; 0 to 1 in the interval.
    candidates = _SHARES if is_crowded and len(world_sizes) >= 4 else np.array([share() ** 2])
    columns_known = identified([calls, latencies, num_bytes] if know_bytes else [calls, latencies])
    best: tuple[float, float, float, float, float] | None = None
    for crowd in candidates:
        factor = 1 + crowd * (crowded - 1)
        alpha_beta = [latencies * factor, num_bytes * factor]
        if know_bytes and columns_known:
            call, latency, byte = nnls([calls, *alpha_beta], y, sigma).tolist()
        elif know_bytes:
            call = 0.0
            latency, byte = nnls(alpha_beta, y, sigma).tolist()
        else:
            rest = np.maximum(y - byte * alpha_beta[1], 0.0)
            if columns_known:
                call, latency = nnls([calls, alpha_beta[0]], rest, sigma).tolist()
            else:
                split, level = share(), float(rest.mean())
                call, latency = (
                    split * level / float(calls.mean()),
                    (1 - split) * level / float(alpha_beta[0].mean()),
                )
        predicted = call * calls + latency * alpha_beta[0] + byte * alpha_beta[1]
        error = float(((predicted - y) ** 2 / sigma**2).sum())
        if best is None or error < best[0]:
            best = error, call, latency, byte, float(crowd)
    if not know_bytes and not columns_known:
        notes.append(
            "one W above 1 is measured: what a collective costs by itself and what every further rank adds cannot be "
            "told apart; the interval covers every split"
        )
    assert best is not None
    return best[1:]


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


def fit_noise(all_points: Sequence[Point], notes: list[str]) -> tuple[tuple[float, float], float, Noise]:
    """Return (v0, v1) of cv^2 = v0 + v1 / n for a rank's rollout of n samples, the common cv, and the noise's shape.

    v0 is noise of the rank in an iteration (and between ranks), v1 that of independent steps. Residuals are deviations
    from the mean less the part of their iteration's deviation that all ranks share.
    """
    many = [p for p in all_points if p.run.world_size > 1 and p.rollout.mean() > 0.0 and len(p.rollout) > 1]
    if not many:
        return (0.0, 0.0), 0.0, lognormal(0.0)
    variances, weights, commons, residuals = [], [], [], []
    for p in many:
        common, persistent, own = variance_components(p.rollout)
        n, world_size = p.rollout.shape
        x = p.rollout / p.rollout.mean() - 1.0
        rows = x.mean(axis=1, keepdims=True)
        shared = common / (common + (own + persistent) / world_size) if common > 0 else 0.0
        left = (x - shared * rows).ravel()
        variances.append(persistent + own)
        weights.append((n - 1) * (world_size - 1))
        commons.append(common)
        if left.std() > 0:
            residuals.append(left / left.std())
    variance, df = np.array(variances), np.array(weights, dtype=float)
    common_cv = float(np.sqrt(np.average(commons, weights=df)))
    inverse = np.array([1 / p.local_batch_size for p in many])
    if variance.max() < 1e-12:
        return (0.0, 0.0), common_cv, lognormal(0.0)
    floor = 1e-3 * float(variance.max())
    sigma = np.maximum(variance, floor) * np.sqrt(
        2 / df
    )  # of a variance estimated with df degrees of freedom
    if identified([np.ones(len(many)), inverse]):
        v0, v1 = nnls([np.ones(len(many)), inverse], variance, sigma).tolist()
    else:
        v0, v1 = float(np.average(variance, weights=df)), 0.0
    pooled = np.concatenate(residuals)
    if len(pooled) >= _MIN_RESIDUALS:
        shape = empirical(pooled, 0.1)
    else:
        shape = lognormal(0.1)
        notes.append(
            f"{len(pooled)} rollouts at W > 1 are too few to fit the tail of their durations (from "
            f"{_MIN_RESIDUALS}): lognormal is assumed"
        )
    return (v0, v1), common_cv, shape


def _with_jitter(fitted: Parameters, all_points: Sequence[Point]) -> Parameters:
    """Return the parameters with jitter_s: waiting that rollouts, queues and rank 0's writing do not explain."""
    many = [p for p in all_points if p.run.world_size > 1]
    if not many:
        return fitted
    columns, rest, sigma = [], [], []
    for p in many:
        explained = expected(system_of_point(fitted, p)).parts["t_sync"]
        factor = 1 + fitted.comm_crowding * (p.crowding - 1)
        columns.append(p.num_segments * factor * normal_expected_max(p.run.world_size))
        rest.append(max(0.0, p.means["t_sync"] - explained))
        sigma.append(p.spread["t_sync"])
    jitter = nnls([np.array(columns)], np.array(rest), np.array(sigma))[0]
    return replace(fitted, jitter_s=float(jitter))
