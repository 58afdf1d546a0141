"""Which topology is fastest on a workload, and where does the time of its ranks go?

The fastest has the smallest median over seeds of the time to target or, if no run reached the target, of the seconds
per step, 1 / FPS. Two topologies are compared seed by seed, as x_B / x_A: a seed is equally hard for both.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ddppo.statistics import LEAST_SEEDS, median
from ddppo.study.measure.speedup import SpeedupRow, Study, steps_to_target, time_to_target
from ddppo.study.measure.statistics import SeedMedian, difference
from ddppo.study.read.record import PARTS, Run


@dataclass(frozen=True, slots=True)
class Side:
    """One topology at one W. Numbers are NaN if unknown."""

    study: Study
    row: SpeedupRow
    ranks: dict[str, int]  # {role: number of ranks}; empty if unknown
    # {role: {part: share of its ranks' time}}. Parts are PARTS and "for <role>", the waiting for that role in t_sync.
    spent: dict[str, dict[str, float]]
    messages: float  # in an iteration, of the rank with most
    num_bytes: float  # in an iteration, handed over by all ranks
    lag: float  # mean, in updates
    inference_batch: float  # rows of a forward pass

    @property
    def runs(self) -> list[Run]:
        return self.study.runs_at(self.row.world_size)

    @property
    def learner(self) -> str:
        """The role that learns."""
        return max(self.spent, key=lambda role: self.spent[role]["t_learn"], default="")

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration, by throughput: t_iter of an actor at its own pace covers another span of time."""
        return self.row.steps_per_iter / self.row.fps.median

    @property
    def name(self) -> str:
        return f"{self.study.topology} at W={self.row.world_size}"


@dataclass(frozen=True, slots=True)
class Behind:
    """A side that is not the fastest."""

    side: Side
    times: SeedMedian  # its time / the fastest's, by seed
    steps: float  # its environment steps to target / the fastest's; NaN if not compared by target


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The topologies of one task and rule."""

    sides: tuple[Side, ...]  # each topology at every W
    by_target: bool  # compared by time to target, else by throughput
    best: Side  # the fastest
    behind: tuple[Behind, ...]  # the best W of every other topology, fastest first


def side_by_side(studies: Sequence[Study]) -> SideBySide | None:
    """Compare the studies of several topologies of one task and rule; None for a single topology."""
    if len(studies) < 2:
        return None
    sides = tuple(_side(study, row) for study in studies for row in study.rows)
    # Compare by time to target if all have the same target and some run reached it.
    one_target = len({str(study.target_return) for study in studies}) == 1
    by_target = one_target and any(math.isfinite(side.row.time_to_target.median) for side in sides)
    value = time_to_target if by_target else _seconds_a_step
    # The best W of each topology.
    of_each = [
        min((s for s in sides if s.study is each), key=lambda s: _middle(s, value)) for each in studies
    ]
    # The fastest, and the others relative to it.
    best, *others = sorted(of_each, key=lambda side: _middle(side, value))
    steps_to = steps_to_target if by_target else lambda run: math.nan
    behind = [
        Behind(side, _paired(_times(side, best, value)), _paired(_times(side, best, steps_to)).median)
        for side in others
    ]
    return SideBySide(sides, by_target, best, tuple(behind))


def _seconds_a_step(run: Run) -> float:
    return 1 / run.fps


def _middle(side: Side, value: Callable[[Run], float]) -> float:
    known = [x for x in map(value, side.runs) if not math.isnan(x)]
    return median(known) if known else math.inf


def _times(side: Side, best: Side, value: Callable[[Run], float]) -> tuple[float, ...]:
    """Return value(side) / value(best) for each common seed, or of the medians if there is none.

    A ratio is inf if only the side never reached the target, 0 if only the best did not, NaN if neither did.
    """
    # Common seeds, or medians if the topologies share none.
    of_best = {run.seed: value(run) for run in best.runs}
    pairs = [(value(run), of_best[run.seed]) for run in side.runs if run.seed in of_best]
    pairs = pairs or [(_middle(side, value), _middle(best, value))]
    return tuple(a / b if b > 0 else math.nan for a, b in pairs)


def _paired(times: tuple[float, ...]) -> SeedMedian:
    """Return the median ratio with Student's interval of the logarithms."""
    known = [x for x in times if not math.isnan(x)]
    low = high = math.nan
    # No interval if a seed never reached the target (inf or 0).
    if len(known) >= LEAST_SEEDS and min(known) > 0 and max(known) < math.inf:
        low, high = (math.exp(min(x, 700.0)) for x in difference([math.log(x) for x in known]))
    return SeedMedian(median(known), low, high, len(known), times)


def _side(study: Study, row: SpeedupRow) -> Side:
    runs = study.runs_at(row.world_size)
    # Roles, if all runs have them and agree.
    has_roles = all(len(run.roles) == run.world_size and run.tells_ranks for run in runs)
    roles = runs[0].roles if has_roles and len({run.roles for run in runs}) == 1 else ()
    # Per-rank means [W], over runs.
    names = {name for run in runs for rank in run.rank_means for name in rank} if roles else ()
    means = {
        name: np.mean([[rank.get(name, math.nan) for rank in run.rank_means] for run in runs], axis=0)
        for name in sorted(names)
    }
    return Side(
        study=study,
        row=row,
        ranks=dict(Counter(roles)),
        spent={role: _spent(runs, [r == role for r in roles], means) for role in dict.fromkeys(roles)},
        messages=_known(np.max, means.get("dist/messages")),
        num_bytes=_known(np.sum, means.get("dist/bytes")),
        lag=_known(np.mean, means.get("dist/lag_mean")),
        inference_batch=_known(np.mean, means.get("rollout/inference_batch")),
    )


def _known(reduce: Callable[[np.ndarray], float], of_ranks: np.ndarray | None) -> float:
    known = np.array([]) if of_ranks is None else of_ranks[np.isfinite(of_ranks)]
    return float(reduce(known)) if known.size else math.nan


def _spent(runs: Sequence[Run], in_role: Sequence[bool], means: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the shares of the time of the ranks in a role, over iterations and runs."""
    chosen, waits = np.array(in_role), [name for name in means if name.startswith("time/t_wait_")]
    seconds = {
        n: float(np.mean([run.times[n][:, chosen].mean() for run in runs])) for n in ("t_iter", *PARTS)
    }
    seconds |= {f"for {n.removeprefix('time/t_wait_')}": float(means[n][chosen].mean()) for n in waits}
    t_iter = seconds.pop("t_iter")
    return {part: x / t_iter if t_iter > 0 else 0.0 for part, x in seconds.items()}
