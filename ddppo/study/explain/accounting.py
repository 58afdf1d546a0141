"""Why is the efficiency E(W) below 1? The loss 1 - E(W) as a sum of causes.

Let tau = (steps per iteration) / FPS be the time of an iteration of a run, p the seconds of it in part p (mean over
ranks), and g the work of an iteration relative to the smallest W, W_1 (`speedup.work`). Then

    1 - E(W) = (tau(W) - g tau(W_1)) / tau(W) = sum over p of (p(W) - g p(W_1)) / tau(W) + unexplained.

A negative share is a gain. The account of a W is that of its seed with the median FPS. docs/report.md, "Why: the loss
by cause", has the formulas for slow ranks and crowded cores, with their reasons.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddppo.statistics import LEAST_SEEDS
from ddppo.study.measure.slow import Slowness
from ddppo.study.measure.speedup import SpeedupRow, Study, work
from ddppo.study.measure.statistics import difference
from ddppo.study.predict.collective_cost import own_sum
from ddppo.study.predict.parameters import normal_expected_max
from ddppo.study.read.record import PARTS, Run

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
_PARTS = dict(zip(("acting", "learning", "waiting", "communication", "other"), PARTS, strict=True))
# Assumed seconds per byte through shared memory, and through anything else.
_MEMORY_BYTE_S, _BYTE_S = (
    1e-10,
    1e-9,
)

_RESOLVED = 0.001  # of the iteration: an account resolves no smaller share ...
_OF_CORES = 0.01  # ... and this part of the share of crowded cores, which is estimated from another W


@dataclass(frozen=True, slots=True)
class Account:
    """The loss at one W, by cause."""

    world_size: int
    efficiency: float
    wall_per_iter: float  # seconds
    shares: dict[str, float]  # of each of CAUSES in the iteration's time; they add up to the loss, 1 - E(W)
    by_seed: dict[str, tuple[float, ...]]  # the same in the account of each seed, in the order of the seeds
    between: dict[
        str, tuple[float, float]
    ]  # 95 % interval of each share, with the noise of W_1; NaN below 3 seeds
    missing: tuple[str, ...] = ()  # parts that the runs do not record; their time is unexplained
    cores_between: tuple[float, float] | None = (
        None  # bounds of the share of crowded cores, if it is uncertain
    )

    @property
    def loss(self) -> float:
        return 1 - self.efficiency

    @property
    def unexplained(self) -> float:
        return self.shares["unexplained"]

    @property
    def main(self) -> str:
        """The cause with the largest share."""
        return max(self.shares, key=lambda cause: self.shares[cause])

    def is_certain(self, cause: str) -> bool:
        """Whether the share of a cause is above 0 with its whole interval; without an interval there is no doubt."""
        low, _ = self.between[cause]
        return not low <= 0


@dataclass(frozen=True, slots=True)
class Spent:
    """An iteration of one run, or of the median seed."""

    world_size: int
    steps: float  # environment steps of all ranks
    fps: float
    seconds: dict[str, float]  # by cause; NaN if unknown

    @property
    def tau(self) -> float:
        """Seconds of the iteration, by throughput."""
        return self.steps / self.fps


def cause_name(cause: str, rule: str) -> str:
    """Return the name of a cause under a scaling rule."""
    if cause == "acting":
        return "slower acting on smaller batches" if rule == "strong" else "slower acting"
    if cause == "learning":
        return "learning that does not shrink" if rule == "strong" else "slower learning"
    return CAUSES[cause]


def accounts(study: Study) -> list[Account]:
    """Return the account of every W above the smallest.

    A W with a run that does not record its times has none. Nor has any W if ranks go at their own pace, because their
    times are not parts of one iteration.
    """
    if not all(run.ranks_are_in_step for run in study.runs):
        return []
    base = study.rows[0]
    # Seconds by cause for every run, and the largest W without crowded cores.
    spent: dict[int, list[Spent]] = {}
    calm: Spent | None = None  # the largest W above 1 without crowded cores
    for row in study.rows:
        runs = study.runs_at(row.world_size)
        if all(run.steps.size and any(part in run.times for part in PARTS) for run in runs):
            spent[row.world_size] = [_spent(run, slow) for run, slow in zip(runs, row.slowness, strict=True)]
            if row.oversubscription <= base.oversubscription and row.world_size > 1:
                calm = _middle(spent[row.world_size])
    if study.baseline not in spent:
        return []
    first = _middle(spent[study.baseline])
    rows = [row for row in study.rows[1:] if row.world_size in spent]
    return [_account(study, row, spent[row.world_size], spent[study.baseline], first, calm) for row in rows]


def _spent(run: Run, slow: Slowness) -> Spent:
    """Return the seconds of each cause in a run: means over iterations and ranks.

    The cost of slow ranks is a cause of its own, so it is taken out of acting, learning and waiting.
    """
    means = {c: float(run.times[p].mean()) if p in run.times else math.nan for c, p in _PARTS.items()}
    # A worker alone neither waits nor communicates, even if its run does not record that.
    if run.world_size == 1:
        means |= {c: 0.0 for c in ("waiting", "communication") if math.isnan(means[c])}
    # The waiting that slow ranks cause is their total cost less their own time.
    own = {cause: slow.own.get(_PARTS[cause], 0.0) for cause in ("acting", "learning")}
    means["slow"] = math.fsum(slow.total.values())
    taken = own | {"waiting": means["slow"] - math.fsum(own.values())}
    seconds = {cause: mean - taken.get(cause, 0.0) for cause, mean in means.items()}
    return Spent(run.world_size, float(run.steps.mean()), run.fps, seconds)


def _middle(spent: Sequence[Spent]) -> Spent:
    """Return the run with the median FPS, or the mean of the two in the middle of an even number.

    The mean weights seconds by FPS, so that its tau is (mean steps) / (mean FPS), as in the definition of E(W).
    """
    # The two in the middle; they are the same run for an odd number.
    ordered = sorted(spent, key=lambda one: one.fps)
    a, b = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    weight = a.fps / (a.fps + b.fps)
    seconds = {cause: weight * a.seconds[cause] + (1 - weight) * b.seconds[cause] for cause in a.seconds}
    return Spent(a.world_size, (a.steps + b.steps) / 2, (a.fps + b.fps) / 2, seconds)


def _account(
    study: Study,
    row: SpeedupRow,
    spent: Sequence[Spent],
    bases: Sequence[Spent],
    base: Spent,
    calm: Spent | None,
) -> Account:
    """Return the account of one W: its shares, those of every seed, and the parts that are not recorded.

    bases: the runs of the smallest W, and `base` the one in the middle.
    """
    here = _middle(spent)
    shares, between = _shares(study, row, here, base, calm)
    each = [_shares(study, row, one, base, calm)[0] for one in spent]
    against = [_shares(study, row, here, one, calm)[0] for one in bases]
    # Shares on crowded cores rest on what their time would be with a core for every thread.
    own_error = _RESOLVED + _OF_CORES * max(shares["cores"], 0.0)
    intervals = {
        c: _interval(share, [x[c] for x in each], [x[c] for x in against], own_error)
        for c, share in shares.items()
    }
    # Parts that this W or the smallest W lacks.
    missing = [part for c, part in _PARTS.items() if math.isnan(here.seconds[c] + base.seconds[c])]
    by_seed = {cause: tuple(one[cause] for one in each) for cause in CAUSES}
    e = row.efficiency.median
    return Account(row.world_size, e, here.tau, shares, by_seed, intervals, tuple(missing), between)


def _interval(
    share: float, here: Sequence[float], base: Sequence[float], own_error: float
) -> tuple[float, float]:
    """Return the 95 % interval of a share, in which the noise of W and that of W_1 add up (Welch).

    here: the share in the account of each seed of W, against the middle of W_1. base: in that of the middle of W,
    against each seed of W_1. The interval is around the means over seeds, as that of E(W) is, and has `share` in it.
    It is at least as wide as what the account itself can resolve.
    """
    if min(len(here), len(base)) < LEAST_SEEDS:
        return math.nan, math.nan
    low, high = difference([x - share for x in here], [share - x for x in base])
    middle, half = (low + high) / 2, math.hypot((high - low) / 2, own_error)
    return share + min(middle - half, 0.0), share + max(middle + half, 0.0)


def _shares(
    study: Study, row: SpeedupRow, here: Spent, base: Spent, calm: Spent | None
) -> tuple[dict[str, float], tuple[float, float] | None]:
    """Return the share of every cause, and bounds for the share of crowded cores if it is uncertain."""
    # 1. Seconds of each cause beyond the ideal.
    g = work(here.steps, row.world_size, study.rows[0])
    excess = {cause: _known(seconds - g * base.seconds[cause]) for cause, seconds in here.seconds.items()}
    # 2. Crowded cores (`turns` compute threads share a core): the part of each excess that more cores would save.
    turns, between = row.oversubscription / study.rows[0].oversubscription, None
    cores: dict[str, float] = {}
    if turns > 1:
        alone = _on_cores_of_its_own(study, here, base, calm, turns)
        more = {c: _known(max(here.seconds[c] - own, 0.0)) for c, own in alone.items()}
        cores = {c: min(seconds, max(excess[c], 0.0)) for c, seconds in more.items()}
        if calm is None:
            # No W without crowded cores tells the two apart: from nothing to all of the excess may be the cores'.
            most = cores | {c: max(excess[c], 0.0) for c in ("communication", "waiting")}
            between = 0.0, math.fsum(most.values()) / here.tau
    # 3. Shares of the iteration; the rest is unexplained.
    excess = {cause: seconds - cores.get(cause, 0.0) for cause, seconds in excess.items()}
    excess["cores"] = math.fsum(cores.values())
    shares = {cause: excess[cause] / here.tau for cause in CAUSES if cause != "unexplained"}
    shares["unexplained"] = 1 - g * base.tau / here.tau - math.fsum(shares.values())
    return shares, between


def _on_cores_of_its_own(
    study: Study, here: Spent, base: Spent, calm: Spent | None, turns: float
) -> dict[str, float]:
    """Return the seconds that parts of a W with crowded cores would take with a core for every thread.

    They are estimated from `calm`, the largest W without crowded cores. Acting and learning take at least p / turns,
    because taking turns stretches them at most `turns` times. Without such a W, it is assumed that turns stretch
    g p(W_1), communication and waiting `turns` times.
    """
    g = work(here.steps, here.world_size, study.rows[0])
    ideal = {cause: g * base.seconds[cause] for cause in ("acting", "learning")}
    if calm is None:
        alone = {c: max(own, here.seconds[c] - (turns - 1) * own) for c, own in ideal.items()}
        return alone | {c: here.seconds[c] / turns for c in ("communication", "waiting")}
    # Acting and learning: the ideal, and the part that does not shrink with W, which grows with 1 - g.
    w, seconds = calm.world_size, calm.seconds
    g_calm = work(calm.steps, w, study.rows[0])
    growth = (1 - g) / (1 - g_calm) if g_calm < 1 else float(w > study.baseline)
    fixed = {c: growth * max(seconds[c] - g_calm * base.seconds[c], 0.0) for c in ideal}
    return {c: max(own + fixed[c], here.seconds[c] / turns) for c, own in ideal.items()} | {
        "communication": _communication(study.runs_at(here.world_size)[0], w, seconds["communication"]),
        "waiting": seconds["waiting"] * normal_expected_max(here.world_size) / normal_expected_max(w),
    }


def _communication(run: Run, calm: int, seconds: float) -> float:
    """Return the seconds of communication at the W of a run, from the `seconds` at the W without crowded cores.

    The time of the bytes, at an assumed 10 GB/s of memory (else 1 GB/s), grows as the bytes do. The rest of the seconds
    grows as the number of latencies does.
    """
    # Compare the cost of one sum at both W.
    by, num_bytes = run.origin.collective, run.num_parameters * run.number_bytes
    few, many = (own_sum(w, num_bytes, by, run.origin.num_hosts) for w in (calm, run.world_size))
    # The bytes of all sums cannot take longer than the measured seconds.
    num_sums = max(run.num_epochs * run.num_minibatches, 1)
    of_bytes = min(num_sums * few.num_bytes * (_MEMORY_BYTE_S if by == "shm" else _BYTE_S), seconds)
    grown = many.num_bytes / few.num_bytes if few.num_bytes else 1.0
    return of_bytes * grown + (seconds - of_bytes) * many.num_latencies / few.num_latencies


def _known(seconds: float) -> float:
    return 0.0 if math.isnan(seconds) else seconds
