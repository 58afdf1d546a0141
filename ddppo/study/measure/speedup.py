"""Speedup and efficiency against the number of workers W, by throughput and by time to target.

With FPS = environment steps of all ranks / seconds of training, after warm-up, and W_1 the smallest W measured
(1, unless that is missing):

    S(W) = FPS(W) / FPS(W_1),    E(W) = S(W) * W_1 / W,    and by time to target S_T(W) = T(W_1) / T(W).

Under strong scaling W workers share one batch, so the ideal iteration is W times shorter. Under weak scaling each
worker keeps its batch: an ideal iteration takes as long as with one worker and collects W times the steps, so S and
E are defined on throughput, and S_T also depends on how learning takes to the larger batch.

Medians are over seeds; source of the two readings: DD-PPO, arXiv:1911.00357, section 4.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from ddppo.errors import ConfigError
from ddppo.statistics import Estimate, estimate, median, ratio, spread, time_estimate
from ddppo.study.measure.slow import PHASES, Slowness, level_of, slowness
from ddppo.study.measure.time_to_target import time_to_target
from ddppo.study.runs import PARTS, Run


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank at one W: mean seconds per iteration, and whether the others wait for it.

    ratio: t_rollout / that of the ranks that are not slow. blame: share of all ranks' waiting in iterations where this
    rank waited least, i.e. arrived last. slow: {phase: times the others', median over seeds} where it is slow in at
    least half of the seeds.
    """

    rank: int
    times: dict[str, float]
    t_rollout_p5: float
    t_rollout_p95: float
    ratio: float
    blame: float
    slow: dict[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One W of a study. Estimates are over seeds; times are seconds, over ranks, iterations and seeds.

    cores: of all machines that ran W, 0 if unknown. oversubscription is compute threads per core where they exceed
    it, else 1. slowness: of each seed. num_reached: seeds that reached the target.
    """

    world_size: int
    seeds: tuple[int, ...]
    num_envs: int
    rollout_steps: int
    steps_per_iter: float
    threads: int
    cores: int
    oversubscription: float
    fps: Estimate
    speedup: Estimate
    efficiency: Estimate
    time_to_target: Estimate
    num_reached: int
    speedup_by_target: Estimate
    efficiency_by_target: Estimate
    t_iter: dict[str, float]
    parts: dict[str, float]
    ranks: tuple[Rank, ...]
    slowness: tuple[Slowness, ...]
    final_return: Estimate
    stability: dict[str, dict[str, float]]

    @property
    def rho_comm(self) -> float:
        """Mean t_comm / mean t_iter."""
        return self.parts.get("t_comm", math.nan) / self.t_iter["mean"]

    @property
    def rho_sync(self) -> float:
        """Mean t_sync / mean t_iter."""
        return self.parts.get("t_sync", math.nan) / self.t_iter["mean"]

    @property
    def slow_ranks(self) -> tuple[Rank, ...]:
        return tuple(rank for rank in self.ranks if rank.slow)


@dataclass(frozen=True, slots=True)
class Study:
    """The runs of one study and what follows from them at each W; `baseline` is the smallest W."""

    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    env_id: str
    rule: str
    target_return: float

    @property
    def baseline(self) -> int:
        return self.rows[0].world_size

    @property
    def world_sizes(self) -> list[int]:
        return [row.world_size for row in self.rows]

    def row(self, world_size: int) -> Row:
        return next(row for row in self.rows if row.world_size == world_size)

    def runs_at(self, world_size: int) -> list[Run]:
        return [run for run in self.runs if run.world_size == world_size]


def study(runs: list[Run]) -> Study:
    """Compute every row of a study from its runs, which are of one task, rule and target."""
    if not runs:
        raise ConfigError("there is no usable run to report on")
    groups: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.world_size].append(run)
    for same in groups.values():
        same.sort(key=lambda run: run.seed)
    base = groups[min(groups)]
    rows: list[Row] = []
    for world_size in sorted(groups):
        same = groups[world_size]
        rows.append(_row(same, base, _slowness(same, rows)))
    first = base[0]
    ordered = tuple(run for world_size in sorted(groups) for run in groups[world_size])
    return Study(ordered, tuple(rows), first.env_id, first.rule, first.target_return)


def _slowness(runs: list[Run], before: list[Row]) -> tuple[Slowness, ...]:
    """Return who is slow in each run, judged by the smaller W `before` whose cores were no more crowded."""
    calm = [row for row in before if row.oversubscription <= before[0].oversubscription]
    turns = _oversubscription(runs[0]) / (calm[0].oversubscription if calm else 1.0)
    known = {p: {rank.rank for row in calm for rank in row.slow_ranks if p in rank.slow} for p in PHASES}
    expected = {p: _expected(p, runs, calm) for p in PHASES} if calm else {}
    return tuple(slowness(run, expected=expected, turns=max(turns, 1.0), known=known) for run in runs)


def _expected(phase: str, runs: list[Run], calm: list[Row]) -> float:
    """Return the seconds of a phase on a line, in the work g of an iteration, through the first and the last of `calm`.

    At least g times those of the first; NaN where they are not known.
    """
    first, last = calm[0], calm[-1]
    g, g_last = (
        work(_steps(runs), runs[0].world_size, first),
        work(last.steps_per_iter, last.world_size, first),
    )
    at_first, at_last = (
        level_of(np.array([rank.times.get(phase, math.nan) for rank in row.ranks] or [math.nan]))
        for row in (first, last)
    )
    slope = (at_first - at_last) / (1 - g_last) if g_last < 1 else 0.0
    return max(g * at_first, at_last + (g - g_last) * slope) if last is not first else g * at_first


def work(steps_per_iter: float, world_size: int, base: Row) -> float:
    """Return g, what a worker has to do in an iteration relative to one at the smallest W.

    g = (steps per iteration at W / at W_1) * W_1 / W: W_1 / W under strong scaling, 1 under weak scaling.
    """
    return (steps_per_iter / base.steps_per_iter) * base.world_size / world_size


def _steps(runs: list[Run]) -> float:
    """Return environment steps of all ranks per iteration, NaN if no run tells them."""
    steps = np.concatenate([run.steps for run in runs])
    return float(steps.mean()) if steps.size else math.nan


def _oversubscription(run: Run) -> float:
    """Return compute threads per core, at least 1; 1 where cores are not known."""
    return max(1.0, run.world_size * run.origin.threads_per_rank / run.cores) if run.cores else 1.0


def _row(runs: list[Run], base: list[Run], slow: tuple[Slowness, ...]) -> Row:
    run, relative = runs[0], runs[0].world_size / base[0].world_size
    fps, base_fps = [r.fps for r in runs], [r.fps for r in base]
    reach, base_reach = [time_to_target(r) for r in runs], [time_to_target(r) for r in base]
    times = pooled_times(runs)
    stability = {
        name: _quantiles(np.concatenate([r.stability[name] for r in runs if name in r.stability]))
        for name in sorted({name for r in runs for name in r.stability})
    }
    return Row(
        world_size=run.world_size,
        seeds=tuple(r.seed for r in runs),
        num_envs=run.num_envs,
        rollout_steps=run.rollout_steps,
        steps_per_iter=_steps(runs),
        threads=run.origin.threads_per_rank,
        cores=run.cores,
        oversubscription=_oversubscription(run),
        fps=estimate(fps),
        speedup=_speedup(fps, base_fps, runs is base),
        efficiency=_speedup(fps, base_fps, runs is base, 1 / relative),
        time_to_target=time_estimate(reach),
        num_reached=sum(math.isfinite(t) for t in reach),
        speedup_by_target=_speedup_by_target(reach, base_reach, runs is base),
        efficiency_by_target=_speedup_by_target(reach, base_reach, runs is base, 1 / relative),
        t_iter=spread(times["t_iter"].mean(axis=1) if "t_iter" in times else np.array([])),
        parts={name: float(times[name].mean()) for name in PARTS if name in times},
        ranks=_ranks(times, slow) if all(r.tells_ranks for r in runs) else (),
        slowness=slow,
        final_return=estimate([r.final_return for r in runs]),
        stability=stability,
    )


def _speedup(fps: list[float], base: list[float], against_itself: bool, scale: float = 1.0) -> Estimate:
    """Return scale * median(fps) / median(base); the smallest W against itself is 1, without an interval."""
    value = ratio(fps, base, scale)
    seeds = tuple(scale * one / median(base) for one in fps)
    return replace(value if not against_itself else replace(value, low=math.nan, high=math.nan), values=seeds)


def _speedup_by_target(
    seconds: list[float], base: list[float], against_itself: bool, scale: float = 1.0
) -> Estimate:
    """Return scale * median(base) / median(seconds), nothing unless both are reached by most seeds."""
    value = ratio(base, seconds, scale)
    if math.isnan(value.median):
        return value
    seeds = tuple(scale * median(base) / one if 0 < one < math.inf else math.nan for one in seconds)
    return replace(value if not against_itself else replace(value, low=math.nan, high=math.nan), values=seeds)


def pooled_times(runs: list[Run]) -> dict[str, np.ndarray]:
    """Return `[iterations of all runs, W]` seconds by name, of the names that all runs have."""
    names = [n for n in ("t_iter", *PARTS) if all(n in run.times for run in runs)]
    return {name: np.concatenate([run.times[name] for run in runs]) for name in names}


def _ranks(times: dict[str, np.ndarray], slow: tuple[Slowness, ...]) -> tuple[Rank, ...]:
    if "t_iter" not in times or "t_rollout" not in times:
        return ()
    rollout = times["t_rollout"]
    means = rollout.mean(axis=0)
    level = level_of(means)
    low, high = np.percentile(rollout, (5, 95), axis=0)
    blame = _blame(times["t_sync"]) if "t_sync" in times else np.zeros(len(means))
    return tuple(
        Rank(
            rank=r,
            times={name: float(values[:, r].mean()) for name, values in times.items()},
            t_rollout_p5=float(low[r]),
            t_rollout_p95=float(high[r]),
            ratio=float(mean / level) if level > 0 else math.nan,
            blame=float(blame[r]),
            slow=_mostly_slow(r, slow),
        )
        for r, mean in enumerate(means)
    )


def _mostly_slow(rank: int, slow: tuple[Slowness, ...]) -> dict[str, float]:
    factors = {p: [s.ranks[p][rank] for s in slow if rank in s.ranks.get(p, {})] for p in PHASES}
    return {phase: median(found) for phase, found in factors.items() if found and 2 * len(found) >= len(slow)}


def _blame(t_sync: np.ndarray) -> np.ndarray:
    """Return `[W]` shares of all waiting: that of an iteration is charged to the rank that waited least in it."""
    waited = t_sync.sum(axis=1)
    total = waited.sum()
    if total <= 0:
        return np.zeros(t_sync.shape[1])
    return np.bincount(t_sync.argmin(axis=1), weights=waited, minlength=t_sync.shape[1]) / total


def _quantiles(values: np.ndarray) -> dict[str, float]:
    values = values[np.isfinite(values)]
    if not values.size:
        return dict.fromkeys(("p5", "p50", "p95"), math.nan)
    return dict(zip(("p5", "p50", "p95"), map(float, np.percentile(values, (5, 50, 95))), strict=True))
