"""Which costs fit the measured times? The parameters of the iteration model, by non-negative least squares.

Some W cannot tell two costs apart (fixed or per environment, say). Then each gets half, and a note says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from ddppo.study.predict.parameters import HEAVIEST, CostParameters, Work, normal_expected_max
from ddppo.study.predict.points import Point

_ASSUMED_BANDWIDTH = 1e9  # bytes/s; runs of one model size cannot tell latency from bandwidth
# Assumed turn_s through shared memory, and else, if no W has crowded cores.
_TURN_S = {
    True: 1e-4,
    False: 4e-3,
}


def fit_parameters(points: Sequence[Point], notes: list[str]) -> CostParameters:
    """Return the parameters for points in order of W; `notes` is extended by costs that cannot be told apart."""
    # Each part of an iteration is fitted by itself: t_comm, t_other, t_rollout, t_learn; t_sync last, because it
    # depends on the others.
    alike = with_one_backend(points, notes)
    last = alike[-1]
    # Communication, and the rest of an iteration.
    call, latency, byte, turn = _fit_communication(points, notes)
    other, sigma = _measured(points, "t_other")
    ranks, writers = _column(points, lambda p: p.world_size), _column(points, lambda p: p.writer_s)
    weights = sigma**-2.0
    writer = float(np.average(writers, weights=weights * (ranks > 1))) if ranks.max() > 1 else 0.0
    fitted = CostParameters(
        step=_fit_step(alike, notes),
        env_sleep_s=last.sleep_s,
        env_step_s=last.step_s,
        env_processes=last.env_processes,
        minibatch=_fit_minibatch(points, notes),
        call_s=call,
        latency_s=latency,
        byte_s=byte,
        turn_s=turn,
        other_s=max(0.0, float(np.average(other - writer / ranks, weights=weights))),
        writer_s=writer,
        slow=_slow(points),
    )
    return _with_waiting(fitted, points)


def with_one_backend(points: Sequence[Point], notes: list[str]) -> list[Point]:
    """Return the points with the environment backend of the largest W: another backend has other costs."""
    stepping = points[-1].stepping
    if others := sorted({p.world_size for p in points if p.stepping != stepping}):
        notes.append(
            f"rollouts at W={', '.join(map(str, others))} are left out of the fit: the largest W stepped its "
            f"environments by {stepping}, these W did not; env.backend={stepping} makes all alike"
        )
    return [p for p in points if p.stepping == stepping]


def _column(points: Sequence[Point], of: Callable[[Point], float]) -> np.ndarray:
    return np.array([of(p) for p in points], dtype=float)


def _measured(points: Sequence[Point], part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of a part at each W and their errors."""
    return _column(points, lambda p: p.means[part]), _column(points, lambda p: p.errors[part])


def _fit_step(alike: Sequence[Point], notes: list[str]) -> Work:
    """Return the work of a vectorised step of E environments, without their sleep."""
    last, envs = alike[-1], _column(alike, lambda p: p.load.local_num_envs)
    steps = _column(alike, lambda p: p.load.rollout_steps)
    # Known sleep is subtracted first: a pool sleeps in parallel.
    sleep = last.sleep_s * np.maximum(1.0, envs / last.env_processes)
    rollout, sigma = _measured(alike, "t_rollout")
    if not identified([np.ones(len(envs)), envs]):
        notes.append(
            f"all rollouts had about {envs.mean():g} environments per rank: the fixed cost of a vectorised step and "
            "the cost of an environment cannot be told apart; half of it each is assumed"
        )
    # A rank that sleeps leaves the core to others, so that its work is not stretched.
    pieces = np.zeros(len(envs)) if last.sleep_s else steps
    return _fit_work(
        alike, (envs, np.ones(len(envs)), pieces), np.maximum(rollout / steps - sleep, 0.0), sigma / steps
    )


def _fit_minibatch(points: Sequence[Point], notes: list[str]) -> Work:
    count = _column(points, lambda p: p.load.num_segments)
    sizes = _column(points, lambda p: p.load.minibatch_size)
    if not identified([count, count * sizes]):
        notes.append(
            "all runs learned from batches of one size: the fixed cost of a minibatch and the cost of a sample cannot "
            "be told apart; half of it each is assumed"
        )
    # All minibatches of an iteration.
    y, sigma = _measured(points, "t_learn")
    return _fit_work(points, (sizes, count, np.ones(len(points))), y, sigma)


def _fit_work(
    points: Sequence[Point], what: tuple[np.ndarray, np.ndarray, np.ndarray], y: np.ndarray, sigma: np.ndarray
) -> Work:
    """Fit y = count * work(sizes), in which a piece of `pieces` times the work is interrupted or not, as fits best.

    what: sizes, count, pieces. Contention is fitted only if three W or more can tell it from the other costs.
    """
    sizes, count, pieces = what
    crowded, ranks = _column(points, lambda p: p.load.crowded), [p.world_size for p in points]
    others = np.array(ranks) - 1.0
    # Which of the costs can be told apart?
    apart = identified([count, count * sizes])
    known = [count, count * sizes, count * sizes * others][not apart :]
    contended = len(set(ranks)) >= 3 and identified(known)
    best, best_error = Work(0.0, 0.0), np.inf
    for interrupted in (False, True) if (crowded > 1).any() and pieces.any() else (False,):
        work, factor = Work(0.0, 0.0, 0.0, interrupted), np.ones(len(y))
        # The stretching factor depends on the work and the work on the factor: iterate until both settle.
        for _ in range(10):
            both = [count, count * sizes] if apart else [(count + count * sizes / sizes.mean()) / 2]
            columns = [c * factor for c in (*both, *([count * sizes * others] if contended else []))]
            found = nnls(columns, y, sigma).tolist()
            fixed, unit = found[:2] if apart else (found[0] / 2, found[0] / 2 / float(sizes.mean()))
            work = Work(fixed, unit, found[-1] if contended else 0.0, interrupted)
            alone = np.array([work.seconds(n, w) for n, w in zip(sizes, ranks, strict=True)])
            stretched = [work.stretched(s, c) for s, c in zip(pieces * alone, crowded, strict=True)]
            if stretched == factor.tolist():
                break
            factor = np.array(stretched)
        # Keep the better of the two assumptions about interruption.
        error = float((((count * alone * factor - y) / sigma) ** 2).sum())
        if error < best_error * (1 - 1e-9):
            best, best_error = work, error
    return best


def _fit_communication(points: Sequence[Point], notes: list[str]) -> tuple[float, float, float, float]:
    """Return (call, alpha, beta, turn): t_comm = calls (call + (crowded - 1) turn) + latencies alpha + bytes beta.

    A collective of any size waits once until all ranks have had a core. Sweeps on two cores (W = 4 to 32, through
    shared memory and by Gloo) show nearly the same cost for each further rank on a core at every W.
    """
    unmeasured = _TURN_S[points[-1].run.origin.collective.startswith("shm")]
    many = [p for p in points if p.world_size > 1]
    if not many:
        notes.append("only W=1 is measured: communication and waiting are unknown and taken as 0")
        return 0.0, 0.0, 0.0, unmeasured
    # Columns of the linear model.
    y, sigma = _measured(many, "t_comm")
    calls = _column(many, lambda p: p.load.num_calls)
    latencies = _column(many, lambda p: p.load.messages.num_latencies)
    num_bytes = _column(many, lambda p: p.load.messages.num_bytes)
    turns = calls * (_column(many, lambda p: p.load.crowded) - 1)
    notes.append(
        f"one model size cannot tell latency from bandwidth: {_ASSUMED_BANDWIDTH / 1e9:g} GB/s is assumed where that "
        "fits, the rest is latency"
    )
    # Turns come before latencies: if the two cannot be told apart, the known lack of cores is the better explanation.
    columns = [calls, turns, latencies] if turns.any() else [calls, latencies]
    apart = identified([calls, latencies])
    if not apart:
        notes.append(
            "one W above 1 is measured: the fixed cost of a collective and the cost of each further rank cannot be "
            "told apart; equal parts are assumed"
        )
    # Fit without bytes and with the assumed bandwidth; keep the latter unless it fits clearly worse.
    tried = []
    for byte in (0.0, min(1 / _ASSUMED_BANDWIDTH, float((y / num_bytes).min()))):
        rest = y - byte * num_bytes
        equal = [float(rest.mean()) / len(columns) / float(column.mean()) for column in columns]
        found = nnls(columns, rest, sigma).tolist() if apart else equal
        tried.append((float((((found @ np.array(columns) - rest) / sigma) ** 2).sum()), found, byte))
    _, found, byte = tried[tried[1][0] < tried[0][0] + 0.1]
    return found[0], found[-1], byte, found[1] if turns.any() else unmeasured


def _slow(points: Sequence[Point]) -> dict[int, tuple[float, float, float]]:
    """Return the extra time of slow ranks at the largest W: the sleep set by env.slow_ranks, or in proportion."""
    # A sleep that was set is known in seconds; any other slowness is in proportion.
    slept = {int(rank): float(s) for rank, s in (points[-1].env.get("slow_ranks") or {}).items()}
    return {
        rank: (slept[rank], 0.0, learning - 1) if rank in slept else (0.0, acting - 1, learning - 1)
        for rank, (acting, learning) in points[-1].slow.items()
    }


def _with_waiting(fitted: CostParameters, points: Sequence[Point]) -> CostParameters:
    """Return the parameters with the costs of waiting that slow ranks and rank 0's writing do not explain.

    These are rollouts that end late by chance (light tails: the maximum of W normals; heavy tails: W^0.4), jitter at
    every sum, uninterrupted work of other ranks on the core, and turns at every collective.
    """
    many = [p for p in points if p.world_size > 1]
    if not many:
        return fitted
    alone = replace(fitted, queueing=0.0)
    rest = _column(many, lambda p: p.means["t_sync"] - alone.expected(p.load).parts["t_sync"])
    # Columns: lateness of rollouts and sums by chance, uninterrupted work, turns.
    sigma, sums = _measured(many, "t_sync")[1], _column(many, lambda p: p.load.num_segments)
    rollouts = _column(many, lambda p: fitted.rollout_s(p.load))
    normal = _column(many, lambda p: normal_expected_max(p.world_size))
    heavy = _column(many, lambda p: p.world_size**HEAVIEST - 1)
    queue = _column(many, lambda p: fitted.run_through_s(p.load))
    turns = _column(many, lambda p: p.load.num_calls * (p.load.crowded - 1))
    columns = [rollouts * normal, sums * normal, rollouts * heavy, queue, turns]
    if len(many) < 3:  # too few W to tell: take turns as in collectives, and the rest as lateness by chance
        turn_s = fitted.turn_s / 2
        light = nnls(columns[:1], np.maximum(rest - queue - turn_s * turns, 0.0), sigma)[0]
        return replace(fitted, late_light=float(light), waiting_turn_s=turn_s)
    light, jitter, tail, queueing, turn_s = nnls(columns, np.maximum(rest, 0.0), sigma).tolist()
    # Without crowded cores queueing and turns cannot be fitted: keep what was assumed.
    if not turns.any():
        queueing, turn_s = fitted.queueing, fitted.turn_s / 2
    chance = {"late_light": light, "late_heavy": tail, "jitter_s": jitter}
    return replace(fitted, **chance, queueing=queueing, waiting_turn_s=turn_s)


# -- Least squares.


def nnls(columns: Sequence[np.ndarray], y: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Return x >= 0 that minimises sum(((columns x - y) / sigma)^2), by trying every set of non-zero coefficients.

    The minimum of a convex function over x >= 0 is the best feasible unconstrained minimum over a subset of columns.
    For 3 columns that is 8 small solves. Source of the problem: Lawson and Hanson 1974, Solving Least Squares Problems,
    ch. 23.

    Few W often leave several minima. The one with the fewest coefficients is returned and, among these, the one with
    the earliest columns, so that callers can name the likeliest explanation first. scipy.optimize.nnls returns any.
    """
    # Weighted, and with columns of length 1 so that the solves are well conditioned.
    a = np.stack(columns, axis=1) / sigma[:, None]
    b = y / sigma
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a = a / scale
    best, best_error = np.zeros(a.shape[1]), float(b @ b)
    # Fewer coefficients first: a larger set must be clearly better to replace a smaller one.
    for size in range(1, a.shape[1] + 1):
        for chosen in combinations(range(a.shape[1]), size):
            part = a[:, chosen]
            x = np.linalg.lstsq(part, b, rcond=None)[0]
            error = float(((part @ x - b) ** 2).sum())
            if (x >= 0).all() and error < best_error * (1 - 1e-12):
                best_error = error
                best = np.zeros(a.shape[1])
                best[list(chosen)] = x
    return best / scale


def identified(columns: Sequence[np.ndarray]) -> bool:
    """Return whether the coefficients of the columns can be told apart, by the condition number of scaled columns."""
    a = np.stack(columns, axis=1).astype(float)
    norms = np.linalg.norm(a, axis=0)
    if (norms == 0).any() or len(a) < a.shape[1]:
        return False
    return float(np.linalg.cond(a / norms)) < 300.0
