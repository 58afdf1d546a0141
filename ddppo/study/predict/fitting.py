"""Parameters of the iteration model, fitted to measured W by non-negative least squares.

What the measured W cannot tell apart is split by a share: a half for the estimate, anything from 0 to 1 for its
interval, and said in a note.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ddppo.study.predict.iteration import expected
from ddppo.study.predict.least_squares import identified, nnls
from ddppo.study.predict.order_statistics import Noise, empirical, lognormal, normal_expected_max
from ddppo.study.predict.parameters import Parameters, Work
from ddppo.study.predict.points import Point

ASSUMED_BANDWIDTH = 1e9  # bytes/s, where runs of one model size cannot tell latency from bandwidth
_TURN_S = {
    True: 1e-4,
    False: 4e-3,
}  # through shared memory, else; where no crowded W tells, up to twice as long
_MIN_RESIDUALS = 200  # fewer have no tail to fit

Share = Callable[[], float]


def of_one_stepping(points: Sequence[Point], notes: list[str]) -> list[Point]:
    """Return the points whose environments were stepped as those of the largest W were; others cost otherwise."""
    stepping = points[-1].stepping
    others = sorted({p.world_size for p in points if p.stepping != stepping})
    if others:
        notes.append(
            f"rollouts at W={', '.join(map(str, others))} are left out of the fit: their environments were stepped "
            f"otherwise than the {stepping} of the largest W; env.backend={stepping} makes all alike"
        )
    return [p for p in points if p.stepping == stepping]


def fit_parameters(
    points: Sequence[Point], share: Share, notes: list[str], shape: Noise | None = None
) -> Parameters:
    """Return the parameters; `share` is asked for every split that cannot be measured, and `notes` gets the reasons.

    points: W ascending. shape: of the noise, if it is known already.
    """
    alike = of_one_stepping(points, notes)
    last = alike[-1]
    step, computing = _fit_step(alike, share, notes)
    minibatch = _fit_minibatch(points, share, notes)
    call, latency, byte, turn = _fit_communication(points, share, notes)
    shape = shape or noise_shape(points, notes)
    errors = np.array([p.errors["t_other"] for p in points])
    many = [p.world_size > 1 for p in points]
    writer = (
        float(np.average(_column(points, lambda p: p.writer_s)[many], weights=errors[many] ** -2.0))
        if any(many)
        else 0.0
    )
    others = np.array([p.means["t_other"] - writer / p.world_size for p in points])
    fitted = Parameters(
        step=step,
        computing=computing,
        env_sleep_s=(last.step_s or 0.0) if last.asleep else 0.0,
        env_step_s=last.step_s,
        env_processes=last.env_processes,
        minibatch=minibatch,
        call_s=call,
        latency_s=latency,
        byte_s=byte,
        turn_s=turn,
        other_s=max(0.0, float(np.average(others, weights=errors**-2.0))),
        writer_s=writer,
        noise_variance=_fit_noise(points, shape),
        noise_shape=shape,
    )
    return _with_waiting(replace(fitted, slow=_fit_slow(fitted, points)), points, share)


def _column(points: Sequence[Point], of: Callable[[Point], float]) -> np.ndarray:
    return np.array([of(p) for p in points], dtype=float)


def _coefficients(
    columns: list[np.ndarray], y: np.ndarray, sigma: np.ndarray, split: float | None
) -> list[float]:
    """Return non-negative coefficients; where `split` is given the first two columns share what both explain."""
    if split is None:
        return nnls(columns, y, sigma).tolist()
    first, second, *others = columns
    level, *rest = nnls([first, *others], y, sigma).tolist()
    return [split * level, (1 - split) * level * float((first / second).mean()), *rest]


def _fit_step(alike: Sequence[Point], share: Share, notes: list[str]) -> tuple[Work, float]:
    """Return the work of a vectorised step of E environments, and the share of it that needs a core.

    What environments that sleep take beyond their sleep is part computing, part waking late. Only the first needs a
    core; without a run bound by its cores the two cannot be told apart.
    """
    envs = _column(alike, lambda p: p.load.local_num_envs)
    split = None if identified([np.ones(len(envs)), envs]) else share()
    if split is not None:
        notes.append(
            f"all rollouts had about {envs.mean():g} environments per rank: what a vectorised step costs by itself and "
            "what each environment adds cannot be told apart; the interval covers every split"
        )
    steps = _column(alike, lambda p: p.load.rollout_steps)
    y = _column(alike, lambda p: p.means["t_rollout"]) / steps
    sigma = _column(alike, lambda p: p.errors["t_rollout"]) / steps
    if not (alike[-1].asleep and alike[-1].step_s):
        return _fit_work(alike, envs, np.ones(len(y)), steps, y, sigma, split), 1.0
    sleep = alike[-1].step_s * np.maximum(1.0, envs / alike[-1].env_processes)
    crowded = _column(alike, lambda p: p.load.crowded)
    computing, work = share(), Work(0.0, 0.0)
    bound = np.zeros(len(y), dtype=bool)
    for _ in range(5):  # who is bound by cores depends on the work; it settles at once or is a tie
        factor = np.where(bound, crowded * computing, 1.0)
        rest = np.maximum((y - np.where(bound, 0.0, sleep)) / factor, 0.0)
        fixed, unit = _coefficients([np.ones(len(y)), envs], rest, sigma / factor, split)
        work = Work(fixed, unit)
        now = (crowded * computing - 1.0) * (fixed + unit * envs) > sleep
        if (now == bound).all():
            break
        bound = now
    return work, computing


def _fit_minibatch(points: Sequence[Point], share: Share, notes: list[str]) -> Work:
    count = _column(points, lambda p: p.load.num_segments)
    sizes = _column(points, lambda p: p.load.minibatch_size)
    split = None if identified([count, count * sizes]) else share()
    if split is not None:
        notes.append(
            "all runs learned from batches of one size: the fixed cost of a minibatch and the cost of a sample cannot "
            "be told apart; the interval covers every split"
        )
    y = _column(points, lambda p: p.means["t_learn"])
    sigma = _column(points, lambda p: p.errors["t_learn"])
    return _fit_work(points, sizes, count, np.ones(len(y)), y, sigma, split)


def _fit_work(
    points: Sequence[Point],
    sizes: np.ndarray,
    count: np.ndarray,
    piece: np.ndarray,
    y: np.ndarray,
    sigma: np.ndarray,
    split: float | None,
) -> Work:
    """Fit y = count * work(sizes), where `piece` times the work runs at a stretch: interrupted or not, as fits best.

    What further ranks add (contention) is asked only of three W or more.
    """
    crowded = _column(points, lambda p: p.load.crowded)
    others = _column(points, lambda p: p.load.others)
    contended = len(points) >= 3 and bool(others.any())
    best, best_error = Work(0.0, 0.0), np.inf
    for interrupted in (False, True) if (crowded > 1).any() else (False,):
        work, factor = Work(0.0, 0.0, 0.0, interrupted), np.ones(len(y))
        for _ in range(10):  # how much is interrupted depends on how long it is: it settles
            columns = [count * factor, count * sizes * factor]
            columns += [count * sizes * others * factor] if contended else []
            fixed, unit, contention = (*_coefficients(columns, y, sigma, split), 0.0)[:3]
            work = Work(fixed, unit, contention, interrupted)
            alone = [work.seconds(n, p.load.others) for n, p in zip(sizes, points, strict=True)]
            factor = np.array(
                [work.stretched(k * s, c) for k, s, c in zip(piece, alone, crowded, strict=True)]
            )
        error = float((((count * np.array(alone) * factor - y) / sigma) ** 2).sum())
        if error < best_error * (1 - 1e-9):
            best, best_error = work, error
    return best


def _fit_communication(
    points: Sequence[Point], share: Share, notes: list[str]
) -> tuple[float, float, float, float]:
    """Return (call, alpha, beta, turn): t_comm = calls (call + (crowded - 1) turn) + latencies alpha + bytes beta.

    Every collective waits once for all ranks to have had a core, whatever it sends: six sweeps on two cores, through
    shared memory and by Gloo, W = 4 to 32, cost so much for each further rank of a core at every W.
    """
    many = [p for p in points if p.world_size > 1]
    in_memory = bool(many) and many[-1].run.origin.collective.startswith("shm")
    unmeasured = 2 * share() * _TURN_S[in_memory]
    if not many:
        notes.append("only W=1 is measured: communication and waiting are unknown and taken as 0")
        return 0.0, 0.0, 0.0, unmeasured
    y = _column(many, lambda p: p.means["t_comm"])
    sigma = _column(many, lambda p: p.errors["t_comm"])
    calls = _column(many, lambda p: p.load.num_calls)
    latencies = _column(many, lambda p: p.load.messages.num_latencies)
    num_bytes = _column(many, lambda p: p.load.messages.num_bytes)
    turns = calls * (_column(many, lambda p: p.load.crowded) - 1)
    crowded = [turns] if turns.any() else []
    if identified([latencies, num_bytes]):
        columns = [calls, *crowded, latencies, num_bytes]
        found = nnls(columns, y, sigma).tolist()
        call, latency, byte = found[0], found[-2], found[-1]
        return call, latency, byte, found[1] if crowded else unmeasured
    byte = 10 ** (2 * share() - 1) / ASSUMED_BANDWIDTH  # a share of a half is 1 GB/s
    byte = min(byte, float((y / num_bytes).min()))
    notes.append(
        f"one model size over these W cannot tell latency from bandwidth: {ASSUMED_BANDWIDTH / 1e9:g} GB/s is "
        "assumed, the rest is latency; runs with another model.hidden_sizes would tell"
    )
    rest = np.maximum(y - byte * num_bytes, 0.0)
    if identified([calls, latencies]):
        found = nnls([calls, *crowded, latencies], rest, sigma).tolist()
        return found[0], found[-1], byte, found[1] if crowded else unmeasured
    notes.append(
        "one W above 1 is measured: what a collective costs by itself and what every further rank adds cannot be told "
        "apart; the interval covers every split"
    )
    split = share()
    level = float(rest.mean()) * (1 - share() if crowded else 1.0)
    turn = (float(rest.mean()) - level) / float(turns.mean()) if crowded else unmeasured
    return split * level / float(calls.mean()), (1 - split) * level / float(latencies.mean()), byte, turn


def _fit_noise(points: Sequence[Point], shape: Noise) -> tuple[float, float]:
    """Return (v0, v1) of cv^2 = v0 + v1 / n for a rank's rollout of n samples.

    v0 is noise of the rank in an iteration (and between ranks), v1 that of independent steps. cv is what makes E[max of
    W] - 1 of the noise's shape the gap that was seen: what ranks wait for, and steadier than a variance of heavy tails.
    """
    known = [p for p in points if p.spread is not None]
    spreads = [p.spread for p in known if p.spread is not None]
    unit = _column(known, lambda p: shape.expected_max(p.world_size) - 1) / shape.cv
    cv = np.array([s.gap for s in spreads]) / unit
    if not known or cv.max() < 1e-6:
        return 0.0, 0.0
    sigma = 2 * cv * np.array([s.gap_error for s in spreads]) / unit + 1e-3 * float((cv**2).max())
    inverse = 1 / _column(known, lambda p: p.load.local_batch_size)
    if not identified([np.ones(len(known)), inverse]):
        return float(np.average(cv**2, weights=sigma**-2.0)), 0.0
    v0, v1 = nnls([np.ones(len(known)), inverse], cv**2, sigma).tolist()
    return v0, v1


def noise_shape(points: Sequence[Point], notes: list[str]) -> Noise:
    """Return how rollouts are distributed about their mean: as the residuals, lognormal where these are too few."""
    pooled = np.concatenate([np.zeros(0), *(p.spread.residuals for p in points if p.spread is not None)])
    if len(pooled) >= _MIN_RESIDUALS:
        return empirical(pooled, 0.1)
    if len(pooled):
        notes.append(
            f"{len(pooled)} rollouts at W > 1 are too few to fit the tail of their durations (from {_MIN_RESIDUALS}): "
            "lognormal is assumed"
        )
    return lognormal(0.1)


def _fit_slow(fitted: Parameters, points: Sequence[Point]) -> dict[int, tuple[float, float, float]]:
    """Return what slow ranks take longer: so long a step (a sleep), or in proportion (a slow core), as fits best."""
    slow = {}
    for rank in sorted({rank for p in points for rank in p.slow}):
        having = [p for p in points if rank in p.slow]
        steps = _column(having, lambda p: p.load.rollout_steps)
        rollouts = _column(having, lambda p: fitted.rollout_s(p.load))
        extra = np.array([p.slow[rank].rollout_s for p in having])
        known = identified([steps, rollouts])
        each = nnls([rollouts, steps] if known else [rollouts], extra, rollouts).tolist()
        slow[rank] = (
            each[1] if known else 0.0,
            each[0],
            float(np.mean([p.slow[rank].learning for p in having])),
        )
    return slow


def _with_waiting(fitted: Parameters, points: Sequence[Point], share: Share) -> Parameters:
    """Return the parameters with the waiting that rollouts, slow ranks and rank 0's writing do not explain.

    It is jitter at every sum, work of others on a rank's core that runs through, and turns at every collective.
    """
    many = [p for p in points if p.world_size > 1]
    fitted = replace(fitted, queueing=0.5 + share(), waiting_turn_s=fitted.turn_s * share())
    if not many:
        return fitted
    alone = replace(fitted, queueing=0.0, waiting_turn_s=0.0)
    explained = _column(many, lambda p: expected(alone.system(p.load)).parts["t_sync"])
    rest = np.maximum(_column(many, lambda p: p.means["t_sync"]) - explained, 0.0)
    sigma = _column(many, lambda p: p.errors["t_sync"])
    jitter = _column(many, lambda p: p.load.num_segments * normal_expected_max(p.world_size))
    queue = _column(many, lambda p: fitted.run_through_s(p.load))
    turns = _column(many, lambda p: p.load.num_calls * (p.load.crowded - 1))
    if not turns.any():
        return replace(fitted, jitter_s=float(nnls([jitter], rest, sigma)[0]))
    if len(many) < 3:  # turns take as long as they do in collectives, and the rest is jitter
        rest = np.maximum(rest - fitted.queueing * queue - fitted.waiting_turn_s * turns, 0.0)
        return replace(fitted, jitter_s=float(nnls([jitter], rest, sigma)[0]))
    jitter_s, queueing, turn = nnls([jitter, queue, turns], rest, sigma).tolist()
    return replace(fitted, jitter_s=jitter_s, queueing=queueing, waiting_turn_s=turn)
