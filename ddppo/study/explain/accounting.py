"""Why E(W) is below 1: the loss 1 - E(W) as a sum of causes, and the main one in plain words.

Let tau(W) = (steps per iteration) / FPS(W) be the wall-clock time of an iteration (median over seeds), and p(W) the
seconds of it in part p: the mean over ranks, in the proportion in which all seeds spent their time. The work of an
iteration relative to the smallest W measured, W_1, is

    g = (steps per iteration at W / at W_1) * W_1 / W        (1/W under strong scaling, 1 under weak scaling).

The ideal iteration takes g * tau(W_1), hence

    1 - E(W) = (tau(W) - g * tau(W_1)) / tau(W) = sum over p of (p(W) - g * p(W_1)) / tau(W) + unexplained,

where the unexplained rest is time in tau(W) that no part covers, less g times that at W_1. A negative share is a
gain. What slow ranks act longer than the median rank, as a mean over all ranks, is a cause of its own and not acting.

Oversubscribed cores: with f = compute threads per core at W over that at W_1, above 1, taking turns stretches computing
by up to f. Of the excess x of acting and of learning, what the largest W that was not oversubscribed already lost
(seconds per iteration) is left to the part itself; of the rest, up to p(W) * (1 - 1/f) is charged to the cores.
"""

import math
from dataclasses import dataclass, field

from ddppo.study.measure.speedup import Row, Study

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
_COMPUTED = ("acting", "learning")


@dataclass(frozen=True, slots=True)
class Account:
    """The loss at one W. shares: by key of CAUSES, parts of the iteration's time; they add up to `loss` = 1 - E(W).

    by_seed: the share of each cause in the account of every seed, in the order of the seeds.
    """

    world_size: int
    efficiency: float
    wall_per_iter: float
    shares: dict[str, float]
    by_seed: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        return 1 - self.efficiency

    @property
    def unexplained(self) -> float:
        return self.shares["unexplained"]


def cause_name(cause: str, rule: str) -> str:
    """Return what a cause is called under a scaling rule."""
    if cause == "acting":
        return "slower acting on smaller batches" if rule == "strong" else "slower acting"
    if cause == "learning":
        return "learning that does not shrink" if rule == "strong" else "slower learning"
    return CAUSES[cause]


def accounts(study: Study) -> list[Account]:
    """Return the account of every W above the smallest; none where the runs say nothing about their time."""
    base, rows = study.rows[0], study.rows[1:]
    return [account(row, base, rows) for row in rows if row.parts and base.parts]


def account(row: Row, base: Row, rows: tuple[Row, ...] = ()) -> Account:
    """Split the loss of `row` against `base`; `rows` are all of the study, to tell cores from the parts' own cost."""
    tau = row.steps_per_iter / row.fps.median
    seconds = _excess(row, base)
    seconds["cores"] = 0.0
    turns = row.oversubscription / base.oversubscription
    if turns > 1:
        unhurried = [r for r in rows if r.oversubscription <= base.oversubscription and r.parts]
        before = _excess(unhurried[-1], base) if unhurried else {}
        for cause in _COMPUTED:
            own = max(before.get(cause, 0.0), 0.0)
            charged = min(max(seconds[cause] - own, 0.0), _seconds(row)[cause] * (1 - 1 / turns))
            seconds["cores"] += charged
            seconds[cause] -= charged
    loss = 1 - row.efficiency.median
    shares = {cause: seconds.get(cause, 0.0) / tau for cause in CAUSES if cause != "unexplained"}
    shares["unexplained"] = loss - math.fsum(shares.values())
    return Account(row.world_size, row.efficiency.median, tau, shares)


def _excess(row: Row, base: Row) -> dict[str, float]:
    """Return seconds per iteration above the ideal, p(W) - g * p(W_1), by cause."""
    work = (row.steps_per_iter / base.steps_per_iter) * base.world_size / row.world_size
    ideal = _seconds(base)
    return {cause: seconds - work * ideal[cause] for cause, seconds in _seconds(row).items()}


def _seconds(row: Row) -> dict[str, float]:
    """Return p(W) by cause: the part's proportion of all seeds' wall-clock time, of the median iteration time."""
    scale = row.steps_per_iter / row.fps.median / row.wall_per_iter
    parts = {part: scale * seconds for part, seconds in row.parts.items()}
    extra = scale * row.slow_extra
    return {
        "communication": parts.get("t_comm", 0.0),
        "waiting": parts.get("t_sync", 0.0),
        "slow": extra,
        "acting": parts.get("t_rollout", 0.0) - extra,
        "learning": parts.get("t_learn", 0.0),
        "other": parts.get("t_other", 0.0),
    }
