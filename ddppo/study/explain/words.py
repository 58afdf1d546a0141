"""Why E(W) is below 1 in plain words: what is lost at a W, the main cause, what would help."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddppo.study.explain.accounting import Account, cause_name
from ddppo.study.measure.speedup import Row, Study
from ddppo.study.runs import Run

NEGLIGIBLE_LOSS = 0.02


@dataclass(frozen=True, slots=True)
class Explained:
    """What is said of one W. main: the key of the main cause in CAUSES, None where there is none to name."""

    world_size: int
    sentences: tuple[str, ...]
    main: str | None = None
    remedy: str = ""

    def __str__(self) -> str:
        return " ".join([*self.sentences, self.remedy]).strip()


def explained(study: Study, accounts: Sequence[Account], world_sizes: Sequence[int]) -> list[Explained]:
    """Explain each of these W; the smallest, or one without an account, is said to have none."""
    of = {account.world_size: account for account in accounts}
    return [_explained(study, of[w]) if w in of else _without_account(study, w) for w in world_sizes]


def _without_account(study: Study, world_size: int) -> Explained:
    if len(study.rows) == 1:
        return Explained(
            world_size, (f"Only W={study.baseline} was measured: there is nothing to compare it with.",)
        )
    if world_size == study.baseline:
        return Explained(world_size, (f"W={world_size} is what the others are compared with.",))
    said = (
        f"The runs do not say where their time went at W={world_size} (no t_comm, t_sync, ...), so the loss "
    )
    return Explained(world_size, (said + "cannot be explained.",))


def _explained(study: Study, last: Account) -> Explained:
    base = study.rows[0]
    row = study.row(last.world_size)
    against = "" if base.world_size == 1 else f" (against W={base.world_size}; W=1 is missing)"
    ideal = last.wall_per_iter * last.efficiency
    opening = (
        f"{_setting(study)} At W={row.world_size} an iteration takes {_ms(last.wall_per_iter)} where {_ms(ideal)} "
        f"would be ideal: efficiency {_percent(last.efficiency)}{against}."
    )
    if last.loss < NEGLIGIBLE_LOSS:
        gain = "more than ideal" if last.loss < 0 else "next to nothing is lost"
        return Explained(row.world_size, (opening, f"There is nothing to explain: {gain}."))
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
    if main != "cores" and row.oversubscription > 1:
        sentences.append(
            f"At W={row.world_size} the {row.cores} cores of the machine are oversubscribed, and workers that take "
            "turns on a core also wait longer, for each other and in collectives: on more cores this would look better."
        )
    return Explained(row.world_size, tuple(sentences), main, _remedy(main, row, study))


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
    if row.slow_ranks:
        slowest_first = sorted(row.slow_ranks, key=lambda rank: -rank.ratio)
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
    if cause in ("waiting", "slow"):
        if row.slow_ranks:
            ranks = ", ".join(str(r.rank) for r in row.slow_ranks)
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
