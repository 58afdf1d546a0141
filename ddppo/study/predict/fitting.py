"""Parameters of the iteration model, fitted to measured W by non-negative least squares.

What the measured W cannot tell apart is halved, and said in a note.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ddppo.study.predict.iteration import expected
from ddppo.study.predict.least_squares import identified, nnls
from ddppo.study.predict.order_statistics import Noise, empirical, lognormal, normal_expected_max
from ddppo.study.predict.parameters import Parameters, Work
from ddppo.study.predict.points import Point, section

_ASSUMED_BANDWIDTH = 1e9  # bytes/s, where runs of one model size cannot tell latency from bandwidth
_TURN_S = {True: 1e-4, False: 4e-3}  # through shared memory, else; where no crowded W tells
_MIN_RESIDUALS = 200  # fewer have no tail to fit


def fit_parameters(points: Sequence[Point], notes: list[str], shape: Noise | None = None) -> Parameters:
    """Return the parameters; `notes` gets what cannot be told. points: W ascending. shape: of the noise, if known."""
    alike = of_one_stepping(points, notes)
    last, shape = alike[-1], shape or noise_shape(points, notes)
    call, latency, byte, turn = _fit_communication(points, notes)
    weights = _column(points, lambda p: p.errors["t_other"]) ** -2.0
    writers = _column(points, lambda p: p.writer_s)
    many = _column(points, lambda p: p.world_size > 1)
    writer = float(np.average(writers, weights=weights * many)) if many.any() else 0.0
    others = _column(points, lambda p: p.means["t_other"] - writer / p.world_size)
    fitted = Parameters(
        step=_fit_step(alike, notes),
        env_sleep_s=last.sleep_s,
        env_step_s=last.step_s,
        env_processes=last.env_processes,
        minibatch=_fit_minibatch(points, notes),
        call_s=call,
        latency_s=latency,
        byte_s=byte,
        turn_s=turn,
        other_s=max(0.0, float(np.average(others, weights=weights))),
        writer_s=writer,
        noise_variance=_fit_noise(points, shape),
        noise_shape=shape,
        slow=_slow(points),
    )
    return _with_waiting(fitted, points)


def of_one_stepping(points: Sequence[Point], notes: list[str]) -> list[Point]:
    """Return the points whose environments were stepped as those of the largest W were; others cost otherwise."""
    stepping = points[-1].stepping
    if others := sorted({p.world_size for p in points if p.stepping != stepping}):
        notes.append(
            f"rollouts at W={', '.join(map(str, others))} are left out of the fit: their environments were stepped "
            f"otherwise than the {stepping} of the largest W; env.backend={stepping} makes all alike"
        )
    return [p for p in points if p.stepping == stepping]


def noise_shape(points: Sequence[Point], notes: list[str]) -> Noise:
    """Return how rollouts are distributed about their mean: as the residuals, lognormal where these are too few.

    Those of W = 2 are symmetric, whatever the rollouts: they count only where no other W has any.
    """
    pooled = np.concatenate([np.zeros(0), *(p.residuals for p in points if p.world_size > 2)])
    if len(pooled) >= _MIN_RESIDUALS:
        return empirical(pooled, 0.1)
    if any(p.residuals.any() for p in points):
        notes.append(
            f"{len(pooled)} rollouts at W > 2 are too few to fit the tail of their durations (from {_MIN_RESIDUALS}): "
            "lognormal is assumed"
        )
    return lognormal(0.1)


def _column(points: Sequence[Point], of: Callable[[Point], float]) -> np.ndarray:
    return np.array([of(p) for p in points], dtype=float)


def _fit_step(alike: Sequence[Point], notes: list[str]) -> Work:
    """Return the work of a vectorised step of E environments, beside the sleep of those that sleep."""
    envs, steps = (
        _column(alike, lambda p: p.load.local_num_envs),
        _column(alike, lambda p: p.load.rollout_steps),
    )
    last = alike[-1]
    sleep = last.sleep_s * np.maximum(1.0, envs / last.env_processes)
    work = _column(alike, lambda p: p.means["t_rollout"]) / steps - sleep
    sigma = _column(alike, lambda p: p.errors["t_rollout"]) / steps
    if not identified([np.ones(len(envs)), envs]):
        notes.append(
            f"all rollouts had about {envs.mean():g} environments per rank: what a vectorised step costs by itself and "
            "what each environment adds cannot be told apart; half of it each is assumed"
        )
    # Who sleeps leaves the core to others, so that nothing is stretched.
    pieces = np.zeros(len(envs)) if last.sleep_s else steps
    return _fit_work(alike, (envs, np.ones(len(envs)), pieces), np.maximum(work, 0.0), sigma)


def _fit_minibatch(points: Sequence[Point], notes: list[str]) -> Work:
    count = _column(points, lambda p: p.load.num_segments)
    sizes = _column(points, lambda p: p.load.minibatch_size)
    if not identified([count, count * sizes]):
        notes.append(
            "all runs learned from batches of one size: the fixed cost of a minibatch and the cost of a sample cannot "
            "be told apart; half of it each is assumed"
        )
    y, sigma = _column(points, lambda p: p.means["t_learn"]), _column(points, lambda p: p.errors["t_learn"])
    return _fit_work(points, (sizes, count, np.ones(len(points))), y, sigma)


def _fit_work(
    points: Sequence[Point], what: tuple[np.ndarray, np.ndarray, np.ndarray], y: np.ndarray, sigma: np.ndarray
) -> Work:
    """Fit y = count * work(sizes); `pieces` times the work runs at a stretch, interrupted or not, as fits best.

    what: sizes, count, pieces. What further ranks add (contention) is asked only of three W or more.
    """
    sizes, count, pieces = what
    crowded, others = _column(points, lambda p: p.load.crowded), _column(points, lambda p: p.load.others)
    apart, contended = identified([count, count * sizes]), len(points) >= 3 and bool(others.any())
    best, best_error = Work(0.0, 0.0), np.inf
    for interrupted in (False, True) if (crowded > 1).any() and pieces.any() else (False,):
        work, factor = Work(0.0, 0.0, 0.0, interrupted), np.ones(len(y))
        for _ in range(10):  # how much is interrupted depends on how long it is: it settles
            both = [count, count * sizes] if apart else [(count + count * sizes / sizes.mean()) / 2]
            columns = [c * factor for c in (*both, *([count * sizes * others] if contended else []))]
            found = nnls(columns, y, sigma).tolist()
            fixed, unit = found[:2] if apart else (found[0] / 2, found[0] / 2 / float(sizes.mean()))
            work = Work(fixed, unit, found[-1] if contended else 0.0, interrupted)
            alone = np.array([work.seconds(n, other) for n, other in zip(sizes, others, strict=True)])
            factor = np.array([work.stretched(s, c) for s, c in zip(pieces * alone, crowded, strict=True)])
        error = float((((count * alone * factor - y) / sigma) ** 2).sum())
        if error < best_error * (1 - 1e-9):
            best, best_error = work, error
    return best


def _fit_communication(points: Sequence[Point], notes: list[str]) -> tuple[float, float, float, float]:
    """Return (call, alpha, beta, turn): t_comm = calls (call + (crowded - 1) turn) + latencies alpha + bytes beta.

    Every collective waits once for all ranks to have had a core, whatever it sends: sweeps on two cores, W = 4 to 32,
    through shared memory and by Gloo, cost nearly the same for each further rank of a core at every W.
    """
    unmeasured = _TURN_S[points[-1].run.origin.collective.startswith("shm")]
    many = [p for p in points if p.world_size > 1]
    if not many:
        notes.append("only W=1 is measured: communication and waiting are unknown and taken as 0")
        return 0.0, 0.0, 0.0, unmeasured
    y, sigma = _column(many, lambda p: p.means["t_comm"]), _column(many, lambda p: p.errors["t_comm"])
    calls = _column(many, lambda p: p.load.num_calls)
    latencies = _column(many, lambda p: p.load.messages.num_latencies)
    num_bytes = _column(many, lambda p: p.load.messages.num_bytes)
    turns = calls * (_column(many, lambda p: p.load.crowded) - 1)
    byte = min(1 / _ASSUMED_BANDWIDTH, float((y / num_bytes).min()))
    know_bytes = identified([latencies, num_bytes])
    if not know_bytes:
        notes.append(
            f"one model size over these W cannot tell latency from bandwidth: {_ASSUMED_BANDWIDTH / 1e9:g} GB/s is "
            "assumed, the rest is latency; runs with another model.hidden_sizes would tell"
        )
        y = y - byte * num_bytes
    if not know_bytes and not identified([calls, latencies]):
        notes.append(
            "one W above 1 is measured: what a collective costs by itself and what every further rank adds cannot be "
            "told apart; half of it each is assumed"
        )
        level = max(0.0, float(y.mean()))
        turn = level / 2 / float(turns.mean()) if turns.any() else unmeasured
        level -= level / 2 if turns.any() else 0.0
        return level / 2 / float(calls.mean()), level / 2 / float(latencies.mean()), byte, turn
    columns = [calls, latencies, *([turns] if turns.any() else []), *([num_bytes] if know_bytes else [])]
    if turns.any():  # before latencies, which it cannot always be told from: cores are known to be short
        columns[1:3] = columns[2], columns[1]
    found = nnls(columns, np.maximum(y, 0.0), sigma).tolist()
    turn = found.pop(1) if turns.any() else unmeasured
    return found[0], found[1], found[2] if know_bytes else byte, turn


def _fit_noise(points: Sequence[Point], shape: Noise) -> tuple[float, float]:
    """Return (v0, v1) of cv^2 = v0 + v1 / n for a rank's rollout of n samples.

    v0 is noise of the rank in an iteration (and between ranks), v1 that of independent steps. cv is what makes E[max of
    W] - 1 of the noise's shape the gap that was seen: what ranks wait for, and steadier than a variance of heavy tails.
    """
    known = [p for p in points if p.gap[0] > 1e-6]
    if not known:
        return 0.0, 0.0
    unit = _column(known, lambda p: shape.expected_max(p.world_size) - 1) / shape.cv
    cv = _column(known, lambda p: p.gap[0]) / unit
    sigma = 2 * cv * _column(known, lambda p: p.gap[1]) / unit + 1e-3 * float((cv**2).max())
    columns = [np.ones(len(known)), 1 / _column(known, lambda p: p.load.local_batch_size)]
    simple = float(np.average(cv**2, weights=sigma**-2.0))
    v0, v1 = nnls(columns, cv**2, sigma).tolist() if identified(columns) else (simple, 0.0)
    better = (((cv**2 - simple) / sigma) ** 2 - ((cv**2 - v0 - v1 * columns[1]) / sigma) ** 2).sum()
    return (v0, v1) if better > 4 else (simple, 0.0)  # two standard deviations


def _slow(points: Sequence[Point]) -> dict[int, tuple[float, float, float]]:
    """Return what slow ranks take longer at the largest W: a sleep that was asked for, or in proportion."""
    injected = section(points[-1].run, "env").get("slow_ranks") or {}
    asked = {int(rank): float(seconds) for rank, seconds in injected.items()}
    return {
        rank: (asked[rank], 0.0, learning - 1) if rank in asked else (0.0, acting - 1, learning - 1)
        for rank, (acting, learning) in points[-1].slow.items()
    }


def _with_waiting(fitted: Parameters, points: Sequence[Point]) -> Parameters:
    """Return the parameters with the waiting that rollouts, slow ranks and rank 0's writing do not explain.

    It is jitter at every sum, work of others on a rank's core that runs through, and turns at every collective.
    """
    many = [p for p in points if p.world_size > 1]
    if not many:
        return fitted
    alone = replace(fitted, queueing=0.0, waiting_turn_s=0.0)
    explained = _column(many, lambda p: expected(alone.system(p.load)).parts["t_sync"])
    rest = _column(many, lambda p: p.means["t_sync"]) - explained
    sigma = _column(many, lambda p: p.errors["t_sync"])
    jitter = _column(many, lambda p: p.load.num_segments * normal_expected_max(p.world_size))
    queue = _column(many, lambda p: fitted.run_through_s(p.load))
    turns = _column(many, lambda p: p.load.num_calls * (p.load.crowded - 1))
    if not turns.any() or len(many) < 3:  # turns as in collectives; the rest is jitter
        fitted = replace(fitted, waiting_turn_s=fitted.turn_s / 2)
        rest = rest - queue - fitted.waiting_turn_s * turns
        return replace(fitted, jitter_s=float(nnls([jitter], np.maximum(rest, 0.0), sigma)[0]))
    jitter_s, queueing, turn = nnls([jitter, queue, turns], np.maximum(rest, 0.0), sigma).tolist()
    return replace(fitted, jitter_s=jitter_s, queueing=queueing, waiting_turn_s=turn)
