"""Can the numbers of a study be believed? The reasons against it, each with what to run again.

A report with such a reason names no cause, no remedy and no W, and says no PASS about speed: the sentences here come
first. docs/report.md, "Can these numbers be believed?", lists the rules with their thresholds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations, pairwise

import numpy as np

from ddppo.study.columns import duration, percent
from ddppo.study.measure.pace import Change, change, drift
from ddppo.study.measure.speedup import PHASES, SpeedupRow, Study, work
from ddppo.study.measure.statistics import t_quantile
from ddppo.study.read.record import Run, by_world_size

_OVERLAP = 0.02  # of the shorter run, beside another run on the same host
_BASE_ABOVE = 1.1  # an efficiency that is no longer taken for chance or for a small gain
_BASE_SLOWER = 1.15  # in acting and in learning, than a line through the other W
_OF_ONE_PHASE = 0.05  # the other phase does not differ by more: the gain has a cause that is seen
_ODD, _ODD_CHANCE = 0.1, 0.01  # a run is odd if it is further from the others, in log FPS, and not by chance
_APART = 2.0  # runs of one W that differ by this factor are no repeats of one another
_OF_MIDDLE = 2.5  # a standard deviation, in deviations of the runs in the middle
_DRIFT = 0.05  # change of speed over the whole sweep
_AGAIN = "run the whole sweep again"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason for which the numbers of a study cannot be believed."""

    kind: str  # overlap, processor, hosts, order, pace, run, or base
    sentence: str
    again: str  # what to run again

    def __str__(self) -> str:
        return f"{self.sentence} {self.again}"


def doubts(study: Study) -> list[Doubt]:
    """Return the reasons for which the numbers of a study cannot be believed, the most basic one first; [] if none."""
    if len(study.rows) < 2:
        return []
    # Runs that disturb each other, or differ in their machine, show all the other signs too.
    outside = [*_overlap(study), *_machines(study)]
    if outside:
        return outside
    # A run that changed its pace within itself tells nothing of a drift from run to run.
    changed = change(study.runs)
    inside = [*(_pace(study, changed) or _order(study)), *_odd(study, [each.run for each in changed])]
    return inside or _base(study)


# -- What is known from outside: the time and place of the runs.


def _overlap(study: Study) -> list[Doubt]:
    """Runs that overlapped in time on one host."""
    timed = [(run, span) for run in study.runs if (span := _span(run)) is not None]
    pairs = []
    for (one, a), (other, b) in combinations(timed, 2):
        seconds = min(a[1], b[1]) - max(a[0], b[0])
        shorter = min(a[1] - a[0], b[1] - b[0])
        if seconds > 1.0 and seconds > _OVERLAP * shorter and (host := _shared_host(one, other)):
            pairs.append((seconds, one, other, host))
    if not pairs:
        return []
    seconds, one, other, host = max(pairs, key=lambda pair: pair[0])
    involved = {run.path for _, *both, _ in pairs for run in both}
    return [
        Doubt(
            "overlap",
            f"{len(involved)} of {len(study.runs)} runs shared the host {host} with another run of this study at the "
            f"same time ({_named(one)} and {_named(other)} for {duration(seconds)}), so each slowed the others down.",
            f"{_capital(_AGAIN)} one run after another: hydra.launcher.one_at_a_time=true under SLURM, or a single "
            "local sweep with nothing beside it.",
        )
    ]


def _machines(study: Study) -> list[Doubt]:
    """Another processor or other hosts at some W than at others."""
    groups = by_world_size(study.runs)
    for kind in ("cpu", "gpu"):
        models = {w: {_models(run, kind) for run in runs} for w, runs in groups.items()}
        known = {w: {text for text in texts if text} for w, texts in models.items()}
        if apart := _apart(known):
            w, other = apart
            here, there = " or ".join(sorted(known[w])), " or ".join(sorted(known[other]))
            what = "another processor" if kind == "cpu" else "another accelerator"
            return [
                Doubt(
                    "processor",
                    f"W={other} ran on {what} ({there}) than W={w} ({here}): a difference between them may be that of "
                    "the machines, and causes cannot be told apart.",
                    f"{_capital(_AGAIN)} on one kind of machine, for example with "
                    "hydra.launcher.additional_parameters={constraint: <model>}.",
                )
            ]
    # Hosts: only if all seeds of a W had the same ones. Otherwise the spread over seeds has the hosts' share in it.
    places = {w: {frozenset(_hosts(run)) for run in runs} for w, runs in groups.items()}
    fixed = {w: set(next(iter(found))) for w, found in places.items() if len(found) == 1 and all(found)}
    if len(fixed) == len(groups) and (apart := _apart(fixed)):
        w, other = apart
        here, there = (", ".join(sorted(fixed[x])[:3]) for x in (w, other))
        return [
            Doubt(
                "hosts",
                f"Every run of W={other} was on {there} and every run of W={w} on {here}: a difference between them "
                "may be that of the hosts, and causes cannot be told apart.",
                f"{_capital(_AGAIN)} on the same hosts, for example with "
                f"hydra.launcher.additional_parameters={{nodelist: {sorted(fixed[w])[0]}}}.",
            )
        ]
    return []


def _apart(found: dict[int, set[str]]) -> tuple[int, int] | None:
    """Return the first two W with sets that have nothing in common."""
    pairs = combinations(sorted(found), 2)
    return next(((a, b) for a, b in pairs if found[a] and found[b] and not found[a] & found[b]), None)


def _order(study: Study) -> list[Doubt]:
    """A machine that became slower or faster from run to run, where the order of runs goes with W."""
    if not in_blocks(study):
        return []
    total = drift([(run, span) for run in study.runs if (span := _span(run))])
    if total is None or abs(total) < math.log1p(_DRIFT):
        return []
    change = "slower" if total > 0 else "faster"
    return [
        Doubt(
            "order",
            f"The runs of each W followed one another, and meanwhile the machine became {change}: by about "
            f"{percent(abs(math.expm1(total)))} from the first run to the last, as runs of equal W tell. So the order "
            "of the runs and W cannot be told apart.",
            f"{_capital(_AGAIN)} in one command (dist.world_size={','.join(map(str, study.world_sizes))} "
            "seed=0,1,2), in which the seeds take turns over W, with nothing else on the machine.",
        )
    ]


def in_blocks(study: Study) -> bool | None:
    """Return whether all runs of a W were started before those of the next W; None if starts are unknown.

    Where seeds take turns over W instead, a drift of the machine is in the spread over seeds and favours no W.
    """
    groups = by_world_size(study.runs)
    spans = {w: [s for run in runs if (s := _span(run))] for w, runs in groups.items()}
    if any(len(spans[w]) < len(runs) for w, runs in groups.items()):
        return None
    ordered = sorted((min(a for a, _ in of_w), max(a for a, _ in of_w)) for of_w in spans.values())
    return all(before[1] < after[0] for before, after in pairwise(ordered))


# -- What the runs themselves show.


def _pace(study: Study, found: Sequence[Change]) -> list[Doubt]:
    """Runs with iterations that changed their pace, where those of other runs kept it."""
    if not found:
        return []
    by_w: dict[int, list[Change]] = {}
    for each in found:
        by_w.setdefault(each.run.world_size, []).append(each)
    worst = max(found, key=lambda each: each.factor)
    listed = ", ".join(f"{len(some)} of {len(study.runs_at(w))} at W={w}" for w, some in sorted(by_w.items()))
    return [
        Doubt(
            "pace",
            f"Iterations changed their pace within runs ({listed}): {worst}. Something besides training slowed them "
            "down, or training itself changed; speedups compare unlike stretches.",
            f"Run {_these(each.run for each in found)} again, with nothing else on the machine.",
        )
    ]


def odd_runs(study: Study) -> list[Run]:
    """Return the runs that are far from the others of their W, the furthest first; of two far seeds, both.

    A run is far by a factor of 2; or by 10 %, and further than one of so many would be by chance in 1 % of studies.
    """
    # The usual deviation of a run from the median of its W: pooled over W, without the furthest run of each.
    usual: list[float] = []
    for row in study.rows:
        usual += sorted(_off(row))[1:-1]
    # A few others that happen to agree make no run far.
    least = math.inf
    if usual:
        deviations = t_quantile(1 - _ODD_CHANCE / 2 / len(study.runs), len(usual))
        least = max(math.log1p(_ODD), deviations * _OF_MIDDLE * float(np.median(usual)))
    odd: list[tuple[float, Run]] = []
    for row in study.rows:
        if len(row.seeds) == 2:
            logs = [math.log(fps) for fps in row.fps.values]
            off, far = [abs(logs[1] - logs[0])] * 2, math.log(_APART)
        else:  # one seed is its own median
            off, far = _off(row), min(least, math.log(_APART))
        odd += [(x, run) for x, run in zip(off, study.runs_at(row.world_size), strict=True) if x > far]
    return [run for _, run in sorted(odd, key=lambda each: -each[0])]


def _odd(study: Study, known: Sequence[Run]) -> list[Doubt]:
    """Runs that are far from the others of their W. Runs with a reason already, in `known`, are left out."""
    odd = [run for run in odd_runs(study) if all(run is not each for each in known)]
    if not odd:
        return []
    told: list[str] = []
    for run in odd:
        others = sorted(each.fps for each in study.runs_at(run.world_size) if each is not run)
        among = " to ".join(dict.fromkeys(f"{x:,.0f}" for x in (others[0], others[-1])))
        seeds = "seeds" if len(others) > 1 else "seed"
        if len(others) > 1 or not any(text.startswith(f"W={run.world_size},") for text in told):
            told.append(f"{_named(run)} made {run.fps:,.0f} steps/s where its other {seeds} made {among}")
    more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
    return [
        Doubt(
            "run",
            f"{'; '.join(told[:3])}{more}.",
            f"Run {_these(odd)} again and find what differed.",
        )
    ]


def _off(row: SpeedupRow) -> list[float]:
    return [abs(math.log(fps / row.fps.median)) for fps in row.fps.values]


def _base(study: Study) -> list[Doubt]:
    """An efficiency above 1 that has no cause, or a base that is slower than the other W let expect."""
    # Of other topologies a larger W has a larger part of ranks that act.
    if not all(run.ranks_are_alike for run in study.runs):
        return []
    base = study.rows[0]
    above = [row for row in study.rows[1:] if _is_above(row) and not _gain_is_seen(study, row)]
    again = f"Run W={base.world_size} again (dist.world_size={base.world_size}), with nothing else on the machine."
    if above:
        row = max(above, key=lambda row: row.efficiency.median)
        return [
            Doubt(
                "base",
                f"W={row.world_size} has an efficiency of {percent(row.efficiency.median)}, more than ideal, and no "
                f"single part of its iterations explains that: the runs of W={base.world_size}, the base of all "
                "speedups, were probably disturbed.",
                again,
            )
        ]
    slower = _slower_than_others(study)
    if slower is None:
        return []
    return [
        Doubt(
            "base",
            f"W={base.world_size}, the base of all speedups, acts and learns {slower:.2g} times as slowly as the other "
            "W let expect: its runs were probably disturbed, and then all speedups are too large.",
            again,
        )
    ]


def _slower_than_others(study: Study) -> float | None:
    """Return how many times slower the smallest W acts and learns than a line through the other W; None if it is not.

    Acting and learning of a rank take a + b / W under strong scaling, a + b W under weak scaling, also with fixed costs
    and with contention. A disturbed base is above both lines; one that lacks a gain (a cache) is above one of them.
    """
    base, *others = [row for row in study.rows if row.oversubscription <= study.rows[0].oversubscription]
    runs = [study.runs_at(row.world_size)[0].origin for row in (base, *others)]
    alike = len({(origin.env_backend, origin.threads_per_rank, origin.device) for origin in runs}) == 1
    if len(others) < 3 or base is not study.rows[0] or not alike or not all(r.ranks for r in (base, *others)):
        return None
    ratios = []
    for phase in PHASES:
        # The median over ranks, so that slow ranks do not count.
        y = np.array(
            [np.median([rank.times.get(phase, np.nan) for rank in row.ranks]) for row in (base, *others)]
        )
        x = np.array([row.world_size for row in (base, *others)], dtype=float) ** (
            -1 if study.rule == "strong" else 1
        )
        if not (y > 0).all():
            return None
        slope, start = np.polyfit(x[1:], y[1:], 1, w=1 / y[1:])
        line = start + slope * x
        if line[0] <= 0 or np.abs(line[1:] / y[1:] - 1).max() > _OF_ONE_PHASE:
            return None  # no line
        ratios.append(float(y[0] / line[0]))
    return min(ratios) if min(ratios) > _BASE_SLOWER else None


def _is_above(row: SpeedupRow) -> bool:
    e = row.efficiency
    return e.median > _BASE_ABOVE and not e.low < 1


def _gain_is_seen(study: Study, row: SpeedupRow) -> bool:
    """Return whether the gain is in one of acting and learning alone, as of smaller batches that fit the cache."""
    base, phases = study.rows[0], ("t_rollout", "t_learn")
    if row.oversubscription < base.oversubscription or row.threads > base.threads:
        return True  # fewer threads on a core, or more threads
    if any(not (row.parts.get(p, 0) > 0 and base.parts.get(p, 0) > 0) for p in phases):
        return False
    g = work(row.steps_per_iter, row.world_size, base)
    ratios = [row.parts[p] / (g * base.parts[p]) for p in phases]
    return max(ratios) > 1 - _OF_ONE_PHASE


# -- Words.


def _named(run: Run) -> str:
    return f"W={run.world_size}, seed {run.seed}"


def _these(runs: Iterable[Run]) -> str:
    """Return runs by W and seeds, as overrides."""
    seeds: dict[int, list[int]] = {}
    for run in runs:
        seeds.setdefault(run.world_size, []).append(run.seed)
    each = [f"dist.world_size={w} seed={','.join(map(str, sorted(s)))}" for w, s in sorted(seeds.items())]
    return " and ".join(each)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- Time and place of a run.


def _span(run: Run) -> tuple[float, float] | None:
    """Return the start and the end of a run in seconds; None if unknown, or if the run was resumed after a pause."""
    try:
        start, end = (
            datetime.fromisoformat(text).timestamp()
            for text in (run.origin.started_at, run.origin.finished_at)
        )
    except ValueError:
        return None
    return (start, end) if end > start and not run.others else None


def _hosts(run: Run) -> Sequence[str]:
    return run.origin.hosts or ((run.origin.hostname,) if run.origin.hostname else ())


def _shared_host(one: Run, other: Run) -> str:
    shared = set(_hosts(one)) & set(_hosts(other))
    return min(shared) if shared else ""


def _models(run: Run, kind: str) -> str:
    return " and ".join(sorted({getattr(machine, kind) for machine in run.origin.machines} - {""}))
