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
from dataclasses import dataclass

from ddppo.study.measure.speedup import Row, Study
from ddppo.study.runs import Run

CAUSES = {
    "communication": "communication",
    "waiting": "waiting for the slowest rank",
    "stragglers": "slow ranks' own extra time",
    "acting": "acting",
    "learning": "learning",
    "cores": "oversubscribed cores",
    "other": "records and the rest (t_other)",
    "unexplained": "unexplained",
}
_COMPUTED = ("acting", "learning")
NEGLIGIBLE_LOSS = 0.02


@dataclass(frozen=True, slots=True)
class Account:
    """The loss at one W. shares: by key of CAUSES, parts of the iteration's time; they add up to `loss` = 1 - E(W)."""

    world_size: int
    efficiency: float
    wall_per_iter: float
    shares: dict[str, float]

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
    extra = scale * row.straggler_extra
    return {
        "communication": parts.get("t_comm", 0.0),
        "waiting": parts.get("t_sync", 0.0),
        "stragglers": extra,
        "acting": parts.get("t_rollout", 0.0) - extra,
        "learning": parts.get("t_learn", 0.0),
        "other": parts.get("t_other", 0.0),
    }


# -- in words --------------------------------------------------------------------------------------------------------


def in_words(study: Study) -> str:
    """Return one paragraph: what is lost at the largest W, the main cause, and what would help."""
    found = accounts(study)
    if len(study.rows) == 1:
        return f"Only W={study.baseline} was measured: there is nothing to compare it with."
    if not found:
        return "The runs do not say where their time went (no t_comm, t_sync, ...), so the loss cannot be explained."
    last, base = found[-1], study.rows[0]
    row = study.row(last.world_size)
    against = "" if base.world_size == 1 else f" (against W={base.world_size}; W=1 is missing)"
    ideal = last.wall_per_iter * last.efficiency
    opening = (
        f"{_setting(study)} At W={row.world_size} an iteration takes {_ms(last.wall_per_iter)} where {_ms(ideal)} "
        f"would be ideal: efficiency {_percent(last.efficiency)}{against}."
    )
    if last.loss < NEGLIGIBLE_LOSS:
        gain = "more than ideal" if last.loss < 0 else "next to nothing is lost"
        return f"{opening} There is nothing to explain: {gain}."
    ordered = sorted(last.shares.items(), key=lambda item: -item[1])
    (main, share), rest = ordered[0], ordered[1:]
    sentences = [
        opening,
        f"{_percent(share / last.loss)} of the loss at W={row.world_size} is {_described(main, row, study)} "
        f"({_ms(share * last.wall_per_iter)} per iteration).",
    ]
    others = [
        f"{cause_name(cause, study.rule)} {_percent(s / last.loss)}"
        for cause, s in rest
        if abs(s / last.loss) >= 0.05
    ]
    if others:
        sentences.append(
            f"Then: {', '.join(others)}{' (negative: a gain)' if '-' in ''.join(others) else ''}."
        )
    if share < 1:
        sentences.append(
            f"With the main cause gone, efficiency would be about {_percent(last.efficiency / (1 - share))}."
        )
    sentences.append(_remedy(main, row, study))
    if main != "cores" and row.oversubscription > 1:
        sentences.append(
            f"At W={row.world_size} the {row.cores} cores of the machine are oversubscribed, and workers that take "
            "turns on a core also wait longer, for each other and in collectives: on more cores this would look better."
        )
    return " ".join(sentences)


def _setting(study: Study) -> str:
    batch = study.rows[-1].steps_per_iter
    if study.rule == "weak":
        return (
            f"Weak scaling: each worker keeps its batch of {batch / study.rows[-1].world_size:.0f} steps, so an ideal "
            "iteration takes as long with W workers as with one and collects W times the steps."
        )
    return f"Strong scaling: W workers share one batch of {batch:.0f} steps, so an ideal iteration is W times shorter."


def _described(cause: str, row: Row, study: Study) -> str:
    if cause == "waiting":
        return _waiting(row)
    if cause == "cores":
        return f"oversubscribed cores: {row.world_size * row.threads} compute threads take turns on {row.cores} cores"
    return cause_name(cause, study.rule)


def _waiting(row: Row) -> str:
    if row.stragglers:
        slowest_first = sorted(row.stragglers, key=lambda rank: -rank.ratio)
        names = " and ".join(f"rank {rank.rank}" for rank in slowest_first[:3])
        up_to = "" if len(slowest_first) == 1 else "up to "
        return f"waiting for {names}, whose rollouts take {up_to}{slowest_first[0].ratio:.2g} times the median rank's"
    last = max(row.ranks, key=lambda rank: rank.blame, default=None)
    if last is None:
        return "waiting for the slowest rank"
    if last.blame >= 0.5:
        return f"waiting for rank {last.rank}, which is last for {_percent(last.blame)} of the time waited"
    return (
        f"waiting, for no rank in particular: ranks are late in turn (rank {last.rank} most, for "
        f"{_percent(last.blame)} of the time waited)"
    )


def _remedy(cause: str, row: Row, study: Study) -> str:
    if cause == "communication":
        run = study.runs_at(row.world_size)[0]
        updates = run.num_epochs * run.num_minibatches
        each = f" ({updates} gradient exchanges of {run.num_parameters:,} numbers each)" if updates else ""
        return (
            f"What would help: {_other_ways(run)}fewer exchanges per iteration{each} by fewer minibatches or epochs, "
            "or a larger batch."
        )
    if cause in ("waiting", "stragglers"):
        if row.stragglers:
            ranks = ", ".join(str(r.rank) for r in row.stragglers)
            return (
                f"What would help: look at what else runs where rank {ranks} does, or let its rollouts end early "
                "(preemption)."
            )
        return (
            "What would help: more environments or longer rollouts per worker, which even out the differences between "
            "them, or ending rollouts early for the last ones (preemption)."
        )
    if cause == "cores":
        return f"What would help: more cores, or no more workers than the {row.cores} there are."
    if cause == "acting":
        if study.rule == "weak":
            return (
                "What would help: find what the workers share (cores, memory, disk, an environment server)."
            )
        return (
            f"What would help: a larger batch. At W={row.world_size} each worker steps "
            f"{row.num_envs // row.world_size} of {row.num_envs} environments, and a call of the policy costs about "
            "the same however few there are."
        )
    if cause == "learning":
        if study.rule == "weak":
            return "What would help: find what the workers share when they compute (cores, memory bandwidth)."
        base = study.rows[0]
        threads = (
            f" (part of it: a worker has {row.threads} compute threads, at W={base.world_size} it had {base.threads})"
            if row.threads < base.threads
            else ""
        )
        return (
            "What would help: fewer, larger minibatches, or a larger batch: every update has a cost that does not "
            f"depend on its samples{threads}."
        )
    if cause == "other":
        return "What would help: rarer checkpoints (checkpoint.every_steps) and log.tensorboard=false."
    return (
        "The parts of the iteration do not cover its wall-clock time: look for work outside the trainer's clock, or "
        "seeds that differ widely."
    )


def _other_ways(run: Run) -> str:
    """Return what would make an exchange cheaper, as the beginning of a list; "" where nothing is known to."""
    within = "shared memory between ranks of one machine (dist.collective=shm), "
    network, overlap = "a faster network, ", "exchanges that overlap with backward (dist.grad_sync=ddp), "
    by = run.origin.collective
    if by == "gloo":
        return within + (network if run.origin.num_hosts > 1 else "")
    return {"shm": "", "shm+gloo": network}.get(by, network + overlap)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if abs(fraction) >= 0.1 or fraction == 0 else f"{100 * fraction:.1f} %"


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if abs(seconds) >= 1 else f"{1000 * seconds:.3g} ms"
