"""Why E(W) is below 1: the loss 1 - E(W) as a sum of causes.

Let tau = (steps per iteration) / FPS be the wall-clock time of an iteration of one run, and p the seconds of it in part
p, means over ranks. The account of W is that of its seed with the median FPS (of an even number, of the two in the
middle, weighted by FPS, so that tau is (steps per iteration) / (median FPS)), against that of the smallest W measured,
W_1. With g the work of an iteration (`speedup.work`) the ideal one takes g * tau(W_1), hence

    1 - E(W) = (tau(W) - g * tau(W_1)) / tau(W) = sum over p of (p(W) - g * p(W_1)) / tau(W) + unexplained,

where the unexplained rest is time in tau(W) that no part covers, less g times that at W_1. A negative share is a gain.

Slow ranks are one cause: what the iteration would be shorter by without them (`slow.Slowness`), taken from acting and
learning (their own time) and from waiting (that of the others).

Crowded cores, with f = compute threads per core at W over that at W_1, above 1. Let the calm W be the largest above 1
that is not crowded. What the parts would take at W with a core for every thread is estimated from it,

    acting, learning   g p(W_1) + s (1 - g) / (1 - g'), s = p - g' p(W_1) at the calm W (s alone where g' = 1)
    communication      its latencies and bytes times those of the collective at W / at the calm W
    waiting            that at the calm W, times E[max of W] / E[max of the calm W] of standard normals

and the excess is the cores'; of acting and learning at most p(W) (1 - 1/f), which turns add to what they stretch f
times. Without a calm W s is unknown and taken as 0, the cores take at most (f - 1) g p(W_1) of acting and learning, and
(1 - 1/f) of communication and waiting.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddppo.study.measure.slow import Slowness
from ddppo.study.measure.speedup import Row, Study, work
from ddppo.study.predict.collective_cost import own_sum
from ddppo.study.predict.order_statistics import normal_expected_max
from ddppo.study.runs import PARTS, Run

CAUSES = {
    "communication": "communication",
    "waiting": "waiting for the slowest rank",
    "slow": "slow ranks",
    "acting": "acting",
    "learning": "learning",
    "cores": "oversubscribed cores",
    "other": "records and the rest (t_other)",
    "unexplained": "unexplained",
}
_PART = {
    "acting": "t_rollout",
    "learning": "t_learn",
    "waiting": "t_sync",
    "communication": "t_comm",
    "other": "t_other",
}
_MEMORY_BYTE_S, _BYTE_S = 1e-10, 1e-9  # assumed, of shared memory and of anything else


@dataclass(frozen=True, slots=True)
class Account:
    """The loss at one W. shares: by key of CAUSES, parts of the iteration's time; they add up to `loss` = 1 - E(W).

    by_seed: the share of each cause in the account of every seed, in the order of the seeds. missing: the parts that
    the runs do not tell, which are in the unexplained rest. cores_between: what the cores may take at least and at most
    where no calm W tells them from what the parts cost anyway.
    """

    world_size: int
    efficiency: float
    wall_per_iter: float
    shares: dict[str, float]
    by_seed: dict[str, tuple[float, ...]]
    missing: tuple[str, ...] = ()
    cores_between: tuple[float, float] | None = None

    @property
    def loss(self) -> float:
        return 1 - self.efficiency

    @property
    def unexplained(self) -> float:
        return self.shares["unexplained"]


@dataclass(frozen=True, slots=True)
class Spent:
    """An iteration of one run, or of the median seed: its steps and seconds, those of each cause NaN if unknown."""

    steps: float
    tau: float
    fps: float
    seconds: dict[str, float]


def cause_name(cause: str, rule: str) -> str:
    """Return what a cause is called under a scaling rule."""
    if cause == "acting":
        return "slower acting on smaller batches" if rule == "strong" else "slower acting"
    if cause == "learning":
        return "learning that does not shrink" if rule == "strong" else "slower learning"
    return CAUSES[cause]


def accounts(study: Study) -> list[Account]:
    """Return the account of every W above the smallest; none where the runs say nothing about their time."""
    base = study.rows[0]
    calm = [row for row in study.rows if row.oversubscription <= base.oversubscription and row.world_size > 1]
    spent = {row.world_size: _each(study, row) for row in study.rows}
    found = []
    for row in study.rows[1:]:
        if spent[row.world_size] and spent[study.baseline]:
            quiet = calm[-1] if calm and spent[calm[-1].world_size] else None
            found.append(_account(study, row, quiet, spent))
    return found


def _each(study: Study, row: Row) -> list[Spent]:
    """Return what every seed spent; nothing where one of them does not tell."""
    runs = study.runs_at(row.world_size)
    if not all(run.steps.size and any(part in run.times for part in PARTS) for run in runs):
        return []
    return [spent_by(run, slow) for run, slow in zip(runs, row.slowness, strict=True)]


def spent_by(run: Run, slow: Slowness) -> Spent:
    """Return what an iteration of a run takes, mean over iterations and ranks."""
    means = {part: float(run.times[part].mean()) if part in run.times else math.nan for part in PARTS}
    if run.world_size == 1:
        means = {p: 0.0 if p in ("t_sync", "t_comm") and math.isnan(t) else t for p, t in means.items()}
    seconds = {cause: means[part] for cause, part in _PART.items()}
    seconds["acting"] -= slow.own.get("t_rollout", 0.0)
    seconds["learning"] -= slow.own.get("t_learn", 0.0)
    seconds["slow"] = math.fsum(slow.total.values())
    seconds["waiting"] -= seconds["slow"] - math.fsum(slow.own.values())
    steps = float(run.steps.mean())
    return Spent(steps, steps / run.fps, run.fps, seconds)


def middle(spent: Sequence[Spent]) -> Spent:
    """Return the one of median FPS; of an even number the mean of the two in the middle, weighted by FPS."""
    ordered = sorted(spent, key=lambda one: one.fps)
    two = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    total = two[0].fps + two[1].fps
    seconds = {c: math.fsum(one.fps * one.seconds[c] for one in two) / total for c in two[0].seconds}
    return Spent((two[0].steps + two[1].steps) / 2, (two[0].steps + two[1].steps) / total, total / 2, seconds)


def _account(study: Study, row: Row, calm: Row | None, spent: dict[int, list[Spent]]) -> Account:
    base = study.rows[0]
    of_base = middle(spent[base.world_size])
    quiet = None if calm is None else (calm.world_size, middle(spent[calm.world_size]))
    crowd = _Crowd(row, base, quiet, study.runs_at(row.world_size)[0])
    here = middle(spent[row.world_size])
    shares, between = crowd.shares(here, of_base)
    each = [crowd.shares(one, of_base)[0] for one in spent[row.world_size]]
    missing = tuple(
        part
        for cause, part in _PART.items()
        if math.isnan(here.seconds[cause]) or math.isnan(of_base.seconds[cause])
    )
    return Account(
        world_size=row.world_size,
        efficiency=row.efficiency.median,
        wall_per_iter=here.tau,
        shares=shares,
        by_seed={cause: tuple(one[cause] for one in each) for cause in CAUSES},
        missing=missing,
        cores_between=between,
    )


@dataclass(frozen=True, slots=True)
class _Crowd:
    """How the cores of one W are crowded, with one of its runs; calm: the W above 1 where they are not, if any."""

    row: Row
    base: Row
    calm: tuple[int, Spent] | None
    run: Run

    def shares(self, here: Spent, base: Spent) -> tuple[dict[str, float], tuple[float, float] | None]:
        """Return the shares of every cause, and the bounds of the cores' where they cannot be told."""
        g = here.steps / base.steps * self.base.world_size / self.row.world_size
        excess = {c: _known(s - g * base.seconds[c]) for c, s in here.seconds.items()}
        turns = self.row.oversubscription / self.base.oversubscription
        between = None
        excess["cores"] = 0.0
        if turns > 1:
            charged = self._charged(here, base, g, turns)
            if self.calm is None:
                most = charged | {c: max(excess[c], 0.0) for c in ("communication", "waiting")}
                between = 0.0, math.fsum(most.values()) / here.tau
            for cause, seconds in charged.items():
                excess[cause] -= seconds
            excess["cores"] = math.fsum(charged.values())
        shares = {cause: excess[cause] / here.tau for cause in CAUSES if cause != "unexplained"}
        shares["unexplained"] = 1 - g * base.tau / here.tau - math.fsum(shares.values())
        return shares, between

    def _charged(self, here: Spent, base: Spent, g: float, turns: float) -> dict[str, float]:
        """Return the seconds of each cause that are the cores'."""
        alone = {cause: g * base.seconds[cause] for cause in ("acting", "learning")}
        waits = {cause: here.seconds[cause] / turns for cause in ("communication", "waiting")}
        if self.calm is not None:
            w, calm = self.calm
            g_calm = work(calm.steps, w, self.base)
            growth = (1 - g) / (1 - g_calm) if g_calm < 1 else float(w > self.base.world_size)
            for cause in alone:
                fixed = max(calm.seconds[cause] - g_calm * base.seconds[cause], 0.0)
                alone[cause] += fixed * growth
            grown = normal_expected_max(self.row.world_size) / normal_expected_max(w)
            waits = {
                "communication": self._exchanging(w, calm.seconds["communication"]),
                "waiting": calm.seconds["waiting"] * grown,
            }
        charged = {}
        for cause, own in alone.items():
            most = (turns - 1) * (own if self.calm is None else here.seconds[cause] / turns)
            charged[cause] = min(max(here.seconds[cause] - own, 0.0), most)
        for cause, own in waits.items():
            charged[cause] = max(here.seconds[cause] - max(own, g * base.seconds[cause]), 0.0)
        return {cause: _known(seconds) for cause, seconds in charged.items()}

    def _exchanging(self, calm: int, seconds: float) -> float:
        """Return what exchanging takes at this W on cores of its own, of the seconds that it takes at the calm one.

        What its bytes take at an assumed 10 GB/s of memory (else 1 GB/s) grows as they do, the rest as latencies do.
        """
        run, by = self.run, self.run.origin.collective
        num_bytes = run.num_parameters * (8 if run.config.get("dtype") == "float64" else 4)
        few, many = (own_sum(w, num_bytes, by, run.origin.num_hosts) for w in (calm, self.row.world_size))
        num_sums = max(run.num_epochs * run.num_minibatches, 1)
        of_bytes = min(num_sums * few.num_bytes * (_MEMORY_BYTE_S if by == "shm" else _BYTE_S), seconds)
        grown = many.num_bytes / few.num_bytes if few.num_bytes else 1.0
        return of_bytes * grown + (seconds - of_bytes) * many.num_latencies / few.num_latencies


def _known(seconds: float) -> float:
    return 0.0 if math.isnan(seconds) else seconds
