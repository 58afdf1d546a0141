"""How much faster is training with W workers? Speedup and efficiency, by throughput and by time to target.

With FPS = environment steps of all ranks / seconds of training, after warm-up, and W_1 the smallest W measured
(1, unless that is missing):

    S(W) = FPS(W) / FPS(W_1),    E(W) = S(W) * W_1 / W,    and by time to target S_T(W) = T(W_1) / T(W).

Under strong scaling W workers share one batch, so the ideal iteration is W times shorter. Under weak scaling each
worker keeps its batch: an ideal iteration takes as long as with one worker and collects W times the steps. Hence S and
E are defined on throughput, and S_T also depends on how well learning uses the larger batch.

Medians are over seeds. Source of both readings: DD-PPO, arXiv:1911.00357, section 4.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddppo.errors import ConfigError
from ddppo.statistics import median, spread
from ddppo.study.measure.slow import PHASES, Slowness, level_of, slowness
from ddppo.study.measure.statistics import NOTHING, SeedMedian, estimate, ratio, time_estimate
from ddppo.study.read.record import PARTS, Evaluation, Run, by_world_size

# -- One run: when did it reach the target?


def first_reaching(curve: Sequence[Evaluation], target_return: float) -> Evaluation | None:
    """Return the first point at or above the target, None if there is none. Nothing is interpolated."""
    return next((point for point in curve if point.return_mean >= target_return), None)


def curve(run: Run) -> tuple[Evaluation, ...]:
    """Return the evaluations of a run, or its windowed training returns if it was evaluated at its end only."""
    return run.evaluations if len(run.evaluations) > 1 or not run.returns else run.returns


def time_to_target(run: Run) -> float:
    """Return the training seconds until `curve` or an evaluation first was at or above the run's target.

    +inf if it never was (the run is censored). NaN without a target or a return, and for a run of several world sizes,
    because its seconds belong to none of them.
    """
    if not math.isnan(run.reached_at_s):
        return run.reached_at_s
    return math.nan if run.others else _to_target(run, "wall_s")


def steps_to_target(run: Run) -> float:
    """Return the same in environment steps of all ranks; a run of several world sizes has them too."""
    return _to_target(run, "env_steps")


def _to_target(run: Run, what: str) -> float:
    # Evaluations count besides training returns: one at the end may be the first at the target.
    points = sorted({*curve(run), *run.evaluations}, key=lambda point: point.wall_s)
    if math.isnan(run.target_return) or not points:
        return math.nan
    reached = first_reaching(points, run.target_return)
    return math.inf if reached is None else float(getattr(reached, what))


# -- One W: all its runs.


@dataclass(frozen=True, slots=True)
class MeasuredRank:
    """One rank at one W, over iterations and seeds."""

    rank: int
    times: dict[str, float]  # mean seconds per iteration, "t_iter" and PARTS
    t_rollout_p5: float
    t_rollout_p95: float
    ratio: float  # t_rollout / the level of the ranks that are not slow
    blame: float  # share of all waiting that is charged to this rank, because it waited least and so arrived last
    # {phase: its time / the level, median over seeds} if slow in at least half of the seeds.
    slow: dict[str, float]


@dataclass(frozen=True, slots=True)
class SpeedupRow:
    """One W of a study."""

    world_size: int
    seeds: tuple[int, ...]
    # Sizes.
    num_envs: int
    rollout_steps: int
    steps_per_iter: float  # environment steps of all ranks
    threads: int  # compute threads of a rank
    cores: int  # of all machines; 0 if unknown
    oversubscription: float  # compute threads per core, at least 1
    # Speed, over seeds.
    fps: SeedMedian
    speedup: SeedMedian
    efficiency: SeedMedian
    time_to_target: SeedMedian
    num_reached: int  # seeds that reached the target
    speedup_by_target: SeedMedian
    efficiency_by_target: SeedMedian
    # Seconds of an iteration.
    t_iter: dict[
        str, float
    ]  # mean, p50, p95, max over the iterations of the median run, of the mean over ranks
    parts: dict[str, float]  # mean of each of PARTS over its ranks and iterations
    ranks: tuple[MeasuredRank, ...]  # empty if runs have no times of single ranks
    slowness: tuple[Slowness, ...]  # of each seed
    # Learning.
    final_return: SeedMedian
    stability: dict[str, dict[str, float]]  # p5, p50, p95 of train/* metrics

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
    """The runs of one study, and a row for each W."""

    runs: tuple[Run, ...]  # by W and seed
    rows: tuple[SpeedupRow, ...]  # by W
    env_id: str
    rule: str
    target_return: float  # NaN if there is none

    @property
    def topology(self) -> str:
        return self.runs[0].topology

    @property
    def baseline(self) -> int:
        """The smallest W, W_1 in formulas."""
        return self.rows[0].world_size

    @property
    def world_sizes(self) -> list[int]:
        return [row.world_size for row in self.rows]

    def row(self, world_size: int) -> SpeedupRow:
        return next(row for row in self.rows if row.world_size == world_size)

    def runs_at(self, world_size: int) -> list[Run]:
        return [run for run in self.runs if run.world_size == world_size]


def study(runs: list[Run]) -> Study:
    """Compute the rows of a study from its runs, which have one task, rule and target."""
    if not runs:
        raise ConfigError("there is no usable run to report on")
    # The smallest W is the base of all others, also for the expected times of ranks.
    ordered = sorted(runs, key=lambda run: (run.world_size, run.seed))
    first, *others = by_world_size(ordered).values()
    base = _row(first, first, _slowness(first, None))
    rows = (base, *(_row(same, first, _slowness(same, base)) for same in others))
    # A rank that is slow at some W is looked for at the others with less caution: it does not become fast there.
    suspected = {
        phase: {rank.rank for row in rows for rank in row.slow_ranks if phase in rank.slow}
        for phase in PHASES
    }
    if any(suspected.values()):
        rows = (base, *(_row(same, first, _slowness(same, base, suspected)) for same in others))
    return Study(tuple(ordered), rows, first[0].env_id, first[0].rule, first[0].target_return)


def _slowness(
    runs: list[Run], base: SpeedupRow | None, suspected: Mapping[str, Collection[int]] | None = None
) -> tuple[Slowness, ...]:
    """Return the slow ranks of each run. `base`, the row of the smallest W, gives the expected times."""
    expected, turns = {}, 1.0
    if base is not None:
        # Expected seconds of a phase: g times the level at the smallest W.
        g = work(_steps(runs), runs[0].world_size, base)
        for phase in PHASES:
            means = np.array([rank.times.get(phase, math.nan) for rank in base.ranks] or [math.nan])
            expected[phase] = g * level_of(means)
        turns = max(1.0, _oversubscription(runs[0]) / base.oversubscription)
    return tuple(slowness(run, expected=expected, turns=turns, suspected=suspected) for run in runs)


def work(steps_per_iter: float, world_size: int, base: SpeedupRow) -> float:
    """Return g, the work of a worker in an iteration relative to the smallest W.

    g = (steps per iteration at W / at W_1) * W_1 / W: W_1 / W under strong scaling, 1 under weak scaling.
    """
    return (steps_per_iter / base.steps_per_iter) * base.world_size / world_size


def _steps(runs: list[Run]) -> float:
    """Return environment steps of all ranks per iteration, NaN if unknown."""
    steps = np.concatenate([run.steps for run in runs])
    return float(steps.mean()) if steps.size else math.nan


def _oversubscription(run: Run) -> float:
    """Return compute threads per core, at least 1; 1 if the number of cores is unknown."""
    return max(1.0, run.world_size * run.origin.threads_per_rank / run.cores) if run.cores else 1.0


def _row(runs: list[Run], base: list[Run], slow: tuple[Slowness, ...]) -> SpeedupRow:
    """Return the row of one W from its runs and those of the smallest W."""
    run, relative = runs[0], runs[0].world_size / base[0].world_size
    # By throughput, and by time to target.
    fps = [r.fps for r in runs]
    reach = [time_to_target(r) for r in runs]
    speedup = ratio(fps, fps if runs is base else [r.fps for r in base])
    there = reach if runs is base else [time_to_target(r) for r in base]
    by_target = ratio(reach, there, inverse=True)
    if runs is not base and by_target.count == 0:
        by_target = _bound(reach, there, runs, base)
    # Times [iterations of all seeds, W] that all runs have.
    names = [n for n in ("t_iter", *PARTS) if all(n in r.times for r in runs)]
    times = {name: np.concatenate([r.times[name] for r in runs]) for name in names}
    # An iteration is that of the run with the median FPS, or of the two in the middle, so that it agrees with the FPS.
    ordered = sorted(runs, key=lambda r: r.fps)
    middle = ordered[(len(runs) - 1) // 2 : len(runs) // 2 + 1]
    usual = {name: np.concatenate([r.times[name] for r in middle]) for name in names}
    # Quantiles of train/* metrics over iterations and seeds.
    stability = {
        name: _quantiles(np.concatenate([r.stability[name] for r in runs if name in r.stability]))
        for name in sorted({name for r in runs for name in r.stability})
    }
    # Together.
    return SpeedupRow(
        world_size=run.world_size,
        seeds=tuple(r.seed for r in runs),
        num_envs=run.num_envs,
        rollout_steps=run.rollout_steps,
        steps_per_iter=_steps(runs),
        threads=run.origin.threads_per_rank,
        cores=run.cores,
        oversubscription=_oversubscription(run),
        fps=estimate(fps, positive=True),
        speedup=speedup,
        efficiency=speedup.scaled(1 / relative),
        time_to_target=time_estimate(reach),
        num_reached=sum(math.isfinite(t) for t in reach),
        speedup_by_target=by_target,
        efficiency_by_target=by_target.scaled(1 / relative),
        t_iter=spread(usual["t_iter"].mean(axis=1) if "t_iter" in usual else np.array([])),
        parts={name: float(usual[name].mean()) for name in PARTS if name in usual},
        ranks=_ranks(times, slow) if all(r.tells_ranks for r in runs) else (),
        slowness=slow,
        final_return=estimate([r.final_return for r in runs]),
        stability=stability,
    )


def _bound(reach: list[float], there: list[float], runs: list[Run], base: list[Run]) -> SeedMedian:
    """Return the bound of the speedup by time to target if the median of one side never reached it.

    A run that never reached the target would have taken longer than it lasted.
    """
    if not reach or any(math.isnan(t) for t in (*reach, *there)):
        return NOTHING
    least, least_there = (
        median([t if math.isfinite(t) else r.wall_s for t, r in zip(times, of, strict=True)])
        for times, of in ((reach, runs), (there, base))
    )
    here, below = median(reach), median(there)
    if math.isinf(here) == math.isinf(below) or not (least > 0 and least_there > 0):
        return NOTHING
    low, high = (least_there / here, math.inf) if math.isinf(below) else (0.0, below / least)
    return SeedMedian(math.nan, low, high, 0)


def _ranks(times: dict[str, np.ndarray], slow: tuple[Slowness, ...]) -> tuple[MeasuredRank, ...]:
    """Return the ranks of one W from times `[iterations of all seeds, W]`."""
    if "t_iter" not in times or "t_rollout" not in times:
        return ()
    rollout = times["t_rollout"]
    means = rollout.mean(axis=0)
    level = level_of(means)
    low, high = np.percentile(rollout, (5, 95), axis=0)
    blame = _blame(times["t_sync"]) if "t_sync" in times else np.zeros(len(means))
    # Slow ranks of each seed; a rank is slow here if it is so in at least half of the seeds.
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
    """Return shares of all waiting `[W]`: an iteration's waiting is charged to the rank that waited least in it."""
    waited = t_sync.sum(axis=1)
    blame = np.bincount(t_sync.argmin(axis=1), weights=waited, minlength=t_sync.shape[1])
    return blame / waited.sum() if waited.sum() > 0 else np.zeros(t_sync.shape[1])


def _quantiles(values: np.ndarray) -> dict[str, float]:
    finite = values[np.isfinite(values)]
    found = np.percentile(finite, (5, 50, 95)).tolist() if finite.size else [math.nan] * 3
    return dict(zip(("p5", "p50", "p95"), found, strict=True))
