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
from ddppo.study.measure.time_to_target import time_to_target
from ddppo.study.runs import PARTS, Run

SLOW_RATIO = 1.1
SLOW_MATTERS = 0.01


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank at one W: mean seconds per iteration, and whether the others wait for it.

    ratio: t_rollout / median of t_rollout over ranks. blame: share of all ranks' waiting in iterations where this
    rank waited least, i.e. arrived last. slow: ratio > SLOW_RATIO, and the surplus is more than
    SLOW_MATTERS of t_iter.
    """

    rank: int
    times: dict[str, float]
    t_rollout_p5: float
    t_rollout_p95: float
    ratio: float
    blame: float
    slow: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One W of a study. Estimates are over seeds; times are seconds, over ranks, iterations and seeds.

    cores: of all machines that ran W, 0 if unknown. oversubscription is compute threads per core where they exceed
    it, else 1. wall_per_iter: seconds of training /
    iterations. num_reached: seeds that reached the target.
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
    wall_per_iter: float
    ranks: tuple[Rank, ...]
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

    @property
    def slow_extra(self) -> float:
        """Seconds that slow ranks act longer than the median rank, as a mean over all ranks."""
        surplus = [rank.times["t_rollout"] * (1 - 1 / rank.ratio) for rank in self.slow_ranks]
        return sum(surplus) / self.world_size


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
    rows = tuple(_row(groups[world_size], base) for world_size in sorted(groups))
    first = base[0]
    return Study(tuple(runs), rows, first.env_id, first.rule, first.target_return)


def _row(runs: list[Run], base: list[Run]) -> Row:
    run, relative = runs[0], runs[0].world_size / base[0].world_size
    fps, base_fps = [r.fps for r in runs], [r.fps for r in base]
    reach, base_reach = [time_to_target(r) for r in runs], [time_to_target(r) for r in base]
    times = pooled_times(runs)
    threads = run.origin.threads_per_rank
    stability = {
        name: _quantiles(np.concatenate([r.stability[name] for r in runs if name in r.stability]))
        for name in sorted({name for r in runs for name in r.stability})
    }
    steps = np.concatenate([r.steps for r in runs])
    return Row(
        world_size=run.world_size,
        seeds=tuple(r.seed for r in runs),
        num_envs=run.num_envs,
        rollout_steps=run.rollout_steps,
        steps_per_iter=float(steps.mean()) if steps.size else math.nan,
        threads=threads,
        cores=run.cores,
        oversubscription=max(1.0, run.world_size * threads / run.cores) if run.cores else 1.0,
        fps=estimate(fps),
        speedup=_speedup(fps, base_fps, runs is base),
        efficiency=_speedup(fps, base_fps, runs is base, 1 / relative),
        time_to_target=time_estimate(reach),
        num_reached=sum(math.isfinite(t) for t in reach),
        speedup_by_target=_speedup_by_target(reach, base_reach, runs is base),
        efficiency_by_target=_speedup_by_target(reach, base_reach, runs is base, 1 / relative),
        t_iter=spread(times["t_iter"].mean(axis=1) if "t_iter" in times else np.array([])),
        parts={name: float(times[name].mean()) for name in PARTS if name in times},
        wall_per_iter=_wall(runs) / len(steps) if len(steps) else math.nan,
        ranks=_ranks(times) if all(r.tells_ranks for r in runs) else (),
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


def _wall(runs: list[Run]) -> float:
    """Return the seconds of training that the arrays of these runs cover: steps / fps, summed."""
    return sum(float(run.steps.sum()) / run.fps for run in runs)


def pooled_times(runs: list[Run]) -> dict[str, np.ndarray]:
    """Return `[iterations of all runs, W]` seconds by name, of the names that all runs have."""
    names = [n for n in ("t_iter", *PARTS) if all(n in run.times for run in runs)]
    return {name: np.concatenate([run.times[name] for run in runs]) for name in names}


def _ranks(times: dict[str, np.ndarray]) -> tuple[Rank, ...]:
    if "t_iter" not in times or "t_rollout" not in times:
        return ()
    rollout = times["t_rollout"]
    means = rollout.mean(axis=0)
    middle = float(np.median(means))
    low, high = np.percentile(rollout, (5, 95), axis=0)
    blame = _blame(times["t_sync"]) if "t_sync" in times else np.zeros(len(means))
    t_iter = float(times["t_iter"].mean())
    ranks = []
    for r, mean in enumerate(means):
        slow = mean > SLOW_RATIO * middle and mean - middle > SLOW_MATTERS * t_iter
        ranks.append(
            Rank(
                rank=r,
                times={name: float(values[:, r].mean()) for name, values in times.items()},
                t_rollout_p5=float(low[r]),
                t_rollout_p95=float(high[r]),
                ratio=float(mean / middle) if middle > 0 else math.nan,
                blame=float(blame[r]),
                slow=bool(slow),
            )
        )
    return tuple(ranks)


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
