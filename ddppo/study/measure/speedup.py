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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddppo.errors import ConfigError
from ddppo.statistics import median, spread
from ddppo.study.measure.slow import PHASES, Slowness, level_of, slowness
from ddppo.study.measure.statistics import SeedMedian, estimate, ratio, time_estimate
from ddppo.study.read.record import PARTS, Evaluation, Run, by_world_size


def first_reaching(curve: Sequence[Evaluation], target_return: float) -> Evaluation | None:
    """Return the first point at or above the target; nothing is interpolated between points."""
    return next((point for point in curve if point.return_mean >= target_return), None)


def curve(run: Run) -> tuple[Evaluation, ...]:
    """Return the evaluations of a run, or its windowed training returns if it was not evaluated while it trained."""
    return run.evaluations if len(run.evaluations) > 1 or not run.returns else run.returns


def time_to_target(run: Run) -> float:
    """Return the training seconds at which `curve` or an evaluation was first seen at or above the run's target.

    +inf if it never was (the run is censored). NaN if there is no target or nothing to compare with it, and for a run
    of several world sizes: their seconds are those of none of them.
    """
    if not math.isnan(run.reached_at_s):
        return run.reached_at_s
    return math.nan if run.others else _to_target(run, "wall_s")


def steps_to_target(run: Run) -> float:
    """Return the same in environment steps of all ranks, also for a run of several world sizes."""
    return _to_target(run, "env_steps")


def _to_target(run: Run, what: str) -> float:
    # A run that was evaluated only at its end was at the target then at the latest.
    points = sorted({*curve(run), *run.evaluations}, key=lambda point: point.wall_s)
    if math.isnan(run.target_return) or not points:
        return math.nan
    reached = first_reaching(points, run.target_return)
    return math.inf if reached is None else float(getattr(reached, what))


@dataclass(frozen=True, slots=True)
class MeasuredRank:
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


# -- by W ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpeedupRow:
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
    fps: SeedMedian
    speedup: SeedMedian
    efficiency: SeedMedian
    time_to_target: SeedMedian
    num_reached: int
    speedup_by_target: SeedMedian
    efficiency_by_target: SeedMedian
    t_iter: dict[str, float]
    parts: dict[str, float]
    ranks: tuple[MeasuredRank, ...]
    slowness: tuple[Slowness, ...]
    final_return: SeedMedian
    stability: dict[str, dict[str, float]]

    @property
    def rho_comm(self) -> float:
        return self.parts.get("t_comm", math.nan) / self.t_iter["mean"]

    @property
    def rho_sync(self) -> float:
        return self.parts.get("t_sync", math.nan) / self.t_iter["mean"]

    @property
    def slow_ranks(self) -> tuple[MeasuredRank, ...]:
        return tuple(rank for rank in self.ranks if rank.slow)


@dataclass(frozen=True, slots=True)
class Study:
    """The runs of one study and what follows from them at each W; `baseline` is the smallest W."""

    runs: tuple[Run, ...]
    rows: tuple[SpeedupRow, ...]
    env_id: str
    rule: str
    target_return: float

    @property
    def topology(self) -> str:
        return self.runs[0].topology

    @property
    def baseline(self) -> int:
        return self.rows[0].world_size

    @property
    def world_sizes(self) -> list[int]:
        return [row.world_size for row in self.rows]

    def row(self, world_size: int) -> SpeedupRow:
        return next(row for row in self.rows if row.world_size == world_size)

    def runs_at(self, world_size: int) -> list[Run]:
        return [run for run in self.runs if run.world_size == world_size]


def study(runs: list[Run]) -> Study:
    """Compute every row of a study from its runs, which are of one task, rule and target."""
    if not runs:
        raise ConfigError("there is no usable run to report on")
    ordered = sorted(runs, key=lambda run: (run.world_size, run.seed))
    first, *others = by_world_size(ordered).values()
    base = _row(first, first, _slowness(first, None))
    rows = (base, *(_row(same, first, _slowness(same, base)) for same in others))
    return Study(tuple(ordered), rows, first[0].env_id, first[0].rule, first[0].target_return)


def _slowness(runs: list[Run], base: SpeedupRow | None) -> tuple[Slowness, ...]:
    """Return which ranks are slow in each run, by what `base` lets expect of ranks that are not."""
    expected, turns = {}, 1.0
    if base is not None:
        g = work(_steps(runs), runs[0].world_size, base)
        for phase in PHASES:
            means = np.array([rank.times.get(phase, math.nan) for rank in base.ranks] or [math.nan])
            expected[phase] = g * level_of(means)
        turns = max(1.0, _oversubscription(runs[0]) / base.oversubscription)
    return tuple(slowness(run, expected=expected, turns=turns) for run in runs)


def work(steps_per_iter: float, world_size: int, base: SpeedupRow) -> float:
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


def _row(runs: list[Run], base: list[Run], slow: tuple[Slowness, ...]) -> SpeedupRow:
    run, relative = runs[0], runs[0].world_size / base[0].world_size
    fps = [r.fps for r in runs]
    reach = [time_to_target(r) for r in runs]
    speedup = ratio(fps, fps if runs is base else [r.fps for r in base])
    by_target = ratio(reach, reach if runs is base else [time_to_target(r) for r in base], inverse=True)
    names = [n for n in ("t_iter", *PARTS) if all(n in r.times for r in runs)]
    times = {name: np.concatenate([r.times[name] for r in runs]) for name in names}
    stability = {
        name: _quantiles(np.concatenate([r.stability[name] for r in runs if name in r.stability]))
        for name in sorted({name for r in runs for name in r.stability})
    }
    return SpeedupRow(
        world_size=run.world_size,
        seeds=tuple(r.seed for r in runs),
        num_envs=run.num_envs,
        rollout_steps=run.rollout_steps,
        steps_per_iter=_steps(runs),
        threads=run.origin.threads_per_rank,
        cores=run.cores,
        oversubscription=_oversubscription(run),
        fps=estimate(fps),
        speedup=speedup,
        efficiency=speedup.scaled(1 / relative),
        time_to_target=time_estimate(reach),
        num_reached=sum(math.isfinite(t) for t in reach),
        speedup_by_target=by_target,
        efficiency_by_target=by_target.scaled(1 / relative),
        t_iter=spread(times["t_iter"].mean(axis=1) if "t_iter" in times else np.array([])),
        parts={name: float(times[name].mean()) for name in PARTS if name in times},
        ranks=_ranks(times, slow) if all(r.tells_ranks for r in runs) else (),
        slowness=slow,
        final_return=estimate([r.final_return for r in runs]),
        stability=stability,
    )


def _ranks(times: dict[str, np.ndarray], slow: tuple[Slowness, ...]) -> tuple[MeasuredRank, ...]:
    if "t_iter" not in times or "t_rollout" not in times:
        return ()
    rollout = times["t_rollout"]
    means = rollout.mean(axis=0)
    level = level_of(means)
    low, high = np.percentile(rollout, (5, 95), axis=0)
    blame = _blame(times["t_sync"]) if "t_sync" in times else np.zeros(len(means))
    factors = {p: [s.ranks.get(p, {}) for s in slow] for p in PHASES}
    return tuple(
        MeasuredRank(
            rank=r,
            times={name: float(values[:, r].mean()) for name, values in times.items()},
            t_rollout_p5=float(low[r]),
            t_rollout_p95=float(high[r]),
            ratio=float(mean / level) if level > 0 else math.nan,
            blame=float(blame[r]),
            slow={
                phase: median([seed[r] for seed in seeds if r in seed])
                for phase, seeds in factors.items()
                if 2 * sum(r in seed for seed in seeds) >= len(seeds)
            },
        )
        for r, mean in enumerate(means)
    )


def _blame(t_sync: np.ndarray) -> np.ndarray:
    """Return `[W]` shares of all waiting: that of an iteration is charged to the rank that waited least in it."""
    waited = t_sync.sum(axis=1)
    blame = np.bincount(t_sync.argmin(axis=1), weights=waited, minlength=t_sync.shape[1])
    return blame / waited.sum() if waited.sum() > 0 else np.zeros(t_sync.shape[1])


def _quantiles(values: np.ndarray) -> dict[str, float]:
    finite = values[np.isfinite(values)]
    found = np.percentile(finite, (5, 50, 95)).tolist() if finite.size else [math.nan] * 3
    return dict(zip(("p5", "p50", "p95"), found, strict=True))
