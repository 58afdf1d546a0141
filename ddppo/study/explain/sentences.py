"""Why is the efficiency below 1, in sentences? For a W: the time that is lost, the main cause, and a remedy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddppo.statistics import median
from ddppo.study.columns import duration, percent
from ddppo.study.explain.accounting import CAUSES, Account, cause_name
from ddppo.study.measure.belief import doubts, in_blocks
from ddppo.study.measure.speedup import MeasuredRank, SpeedupRow, Study
from ddppo.study.read.record import Run

NEGLIGIBLE_LOSS = 0.02  # needs no explanation
_OVERLAP_FROM = (
    250_000  # numbers of a gradient, 1 MB; the time of a smaller one is latency, which cannot overlap
)
_PHASES = {"t_rollout": "rollouts", "t_learn": "learning"}
_LEARNT = "this changes what is learnt"
_REMEDIES = {
    "waiting": "more environments or longer rollouts per worker, which even out the differences between them",
    "cores": "more cores",
    "acting strong": f"a larger batch ({_LEARNT}), as a step costs about as much for few environments as for many",
    "acting weak": "find what the workers share when they act (cores, memory, disk, an environment server)",
    "learning strong": f"fewer, larger minibatches, or a larger batch ({_LEARNT}), as an update has a cost of its own",
    "learning weak": "find what the workers share when they compute (cores, memory bandwidth)",
    "other": "rarer checkpoints (checkpoint.every_steps) and log.tensorboard=false",
    "unexplained": "look for work outside the trainer's clock, which the parts do not cover",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """The explanation of one W."""

    world_size: int
    sentences: tuple[str, ...]
    main: str | None = None  # the main cause, a key of CAUSES; None if there is none to name
    remedy: str = ""

    def __str__(self) -> str:
        return " ".join([*self.sentences, self.remedy]).strip()


def explained(study: Study, accounts: Sequence[Account], world_sizes: Sequence[int]) -> list[Explained]:
    """Explain each of these W. A W without an account gets the reason; if none has one, only the last W does."""
    by_w = {account.world_size: account for account in accounts}
    done = {w: _explained(study, by_w[w], first=w == world_sizes[0]) for w in world_sizes if w in by_w}
    return [done.get(w) or _without_account(study, w) for w in (world_sizes if by_w else world_sizes[-1:])]


def covered(study: Study) -> list[str]:
    """Return a sentence on what the intervals over seeds cover; none if the runs cannot be believed."""
    if len(study.rows) < 2 or all(math.isnan(row.speedup.low) for row in study.rows) or doubts(study):
        return []
    covers = "Intervals of 95 % are over repeats of these runs on this machine, this day"
    blocks = in_blocks(study)
    if blocks is None:
        return [f"{covers}."]
    if not blocks:
        return [f"{covers}; the seeds took turns over W, so that a drift of the machine is in them."]
    return [
        f"{covers}. The runs of each W followed one another: a shift of the machine from one W to the next is in no "
        "interval. In one sweep of all W and seeds (dist.world_size=1,2,4 seed=0,1,2) the seeds take turns over W."
    ]


def outside_training(study: Study) -> list[str]:
    """Return a sentence if evaluation took longer than training: no speed has it in."""
    times = {}
    for row in study.rows:
        runs = study.runs_at(row.world_size)
        training, evaluation = (median([getattr(r, n) for r in runs]) for n in ("wall_s", "eval_s"))
        if evaluation > training > 0:
            times[row.world_size] = training, evaluation
    if not times:
        return []
    each = [
        f"at W={w} {evaluation / training:.2g} times as long ({duration(evaluation)} beside {duration(training)} of "
        "training)"
        for w, (training, evaluation) in times.items()
    ]
    listed = ", ".join(each[-3:])
    return [
        f"Evaluation took longer than training, {listed}, and is in no speed here: a run as a whole gains less from "
        "more workers. eval.every_steps and eval.final_episodes make it shorter."
    ]


def _without_account(study: Study, world_size: int) -> Explained:
    sentence = f"W={world_size} is the baseline: the other W are compared with it."
    if len(study.rows) == 1:
        sentence = f"Only W={study.baseline} was measured: there is nothing to compare it with."
    elif not all(run.ranks_are_in_step for run in study.runs):
        sentence = "Ranks at their own pace share no iteration, so that the loss has no causes by part."
    elif world_size != study.baseline:
        where = f"at W={world_size} or at W={study.baseline} (no t_comm, t_sync, ...)"
        sentence = f"The runs do not record where their time went {where}, so the loss cannot be explained."
    return Explained(world_size, (sentence,))


def _explained(study: Study, account: Account, *, first: bool) -> Explained:
    """Explain one W that has an account; `first` adds the meaning of the scaling rule."""
    # The main cause is the one with the largest share.
    row, base, main = study.row(account.world_size), study.rows[0], account.main
    share = account.shares[main]
    against = "" if base.world_size == 1 else f" (against W={base.world_size}; W=1 is missing)"
    sentences = [_setting(study)] if first else []
    # 1. Measured against ideal.
    took, ideal = (duration(account.wall_per_iter * part) for part in (1, account.efficiency))
    sentences.append(
        f"At W={row.world_size} an iteration takes {took} where {ideal} would be ideal: efficiency "
        f"{percent(account.efficiency)}{against}."
    )
    # Nothing is lost: no cause, no remedy.
    if account.loss < NEGLIGIBLE_LOSS:
        gain = "more than ideal" if account.loss < 0 else "next to nothing is lost"
        return Explained(row.world_size, (*sentences, f"There is nothing to explain: {gain}."))
    # 2. The main cause, then the others.
    seconds = duration(share * account.wall_per_iter)
    between = _between(account.between[main])
    sentences.append(
        f"{percent(share)}{between} of the iteration ({seconds}) goes to {_described(main, row, study)}."
    )
    sentences += _others(account, study.rule)
    # 3. Efficiency without the main cause. Other causes overlap (threads that take turns on a core show as waiting, for
    # example), so that removing one would change another.
    cured = account.efficiency / max(1 - share, 1e-9)
    if main in ("slow", "communication") and row.oversubscription <= base.oversubscription and cured < 1.05:
        sentences.append(f"Without that loss, efficiency would be about {percent(cured)}.")
    sentences += _unknown(account, row)
    if not account.is_certain(main):
        named = cause_name(main, study.rule)
        sentences.append(
            f"The interval of {named} reaches 0, so that no remedy is named: more seeds would tell."
        )
        return Explained(row.world_size, tuple(sentences), main)
    return Explained(row.world_size, tuple(sentences), main, f"Remedy: {_remedy(main, row, study)}.")


def _setting(study: Study) -> str:
    last = study.rows[-1]
    batch = last.steps_per_iter
    if study.rule == "weak":
        return (
            f"Weak scaling: each worker keeps its batch of {batch / last.world_size:.0f} steps, so an ideal iteration "
            "takes as long with W workers as with one and collects W times the steps."
        )
    return f"Strong scaling: W workers share one batch of {batch:.0f} steps, so an ideal iteration is W times shorter."


def _between(interval: tuple[float, float]) -> str:
    low, high = interval
    return f" [{percent(low)}, {percent(high)}]" if high - low >= 0.02 else ""


def _others(account: Account, rule: str) -> list[str]:
    """Return the other causes that matter, and the parts that take less than ideal."""
    # Causes of at least 1 % of the iteration and 5 % of the loss.
    least = max(0.01, 0.05 * account.loss)
    ordered = sorted(account.shares.items(), key=lambda item: -abs(item[1]))
    lost = [f"{cause_name(c, rule)} {percent(s)}" for c, s in ordered if c != account.main and s >= least]
    gained = [f"{CAUSES[c]} {percent(-s)}" for c, s in ordered if s <= -least]
    sentences = [f"Then: {', '.join(lost)}."] if lost else []
    return sentences + ([f"Less than ideal, a gain: {', '.join(gained)}."] if gained else [])


def _unknown(account: Account, row: SpeedupRow) -> list[str]:
    """Return what the account does not know: the share of crowded cores, and parts that are not recorded."""
    sentences = []
    if account.cores_between is not None:
        low, high = account.cores_between
        sentences.append(
            f"{row.world_size * row.threads} compute threads share {row.cores} cores, and no W above 1 with a core for "
            "each was measured: the cost of the parts and the cost of taking turns cannot be told apart, and the "
            f"cores may take from {percent(low)} to {percent(high)} of the iteration."
        )
    if account.missing:
        parts = ", ".join(account.missing)
        sentences.append(f"The runs do not record {parts}: that time is in the unexplained rest.")
    return sentences


def _described(cause: str, row: SpeedupRow, study: Study) -> str:
    """Return the cause, with the rank or the number of threads that it is about."""
    if cause == "waiting":
        return _waiting(row)
    if cause == "slow":
        return _slow(row, study.runs_at(row.world_size)[0])
    named, threads = cause_name(cause, study.rule), row.world_size * row.threads
    return (
        f"{named}: {threads} compute threads take turns on {row.cores} cores" if cause == "cores" else named
    )


def _waiting(row: SpeedupRow) -> str:
    if (one := _last(row)) is not None:
        return f"waiting for rank {one.rank}, which is last for {percent(one.blame)} of the time waited"
    last = max(row.ranks, key=lambda rank: rank.blame, default=None)
    if last is None:
        return "waiting for the slowest rank"
    most = f"rank {last.rank} most, for {percent(last.blame)} of the time waited"
    return f"waiting, for no rank in particular: ranks are late in turn ({most})"


def _last(row: SpeedupRow) -> MeasuredRank | None:
    """Return the rank that is last most of the time; None if ranks are late in turn."""
    last = max(row.ranks, key=lambda rank: rank.blame, default=None)
    return last if last is not None and last.blame >= 0.5 and row.world_size > 2 else None


def _slow(row: SpeedupRow, run: Run) -> str:
    ranks = row.slow_ranks
    if not ranks:
        return "ranks that are slower than the others, not the same ones in every seed"
    phases = [name for phase, name in _PHASES.items() if any(phase in rank.slow for rank in ranks)]
    most = max(times for rank in ranks for times in rank.slow.values())
    up_to, what = "up to " if len(ranks) * len(phases) > 1 else "", " and ".join(phases)
    return f"waiting for {_place(row, run)}, whose {what} took {up_to}{most:.2g} times as long as the others'"


def _place(row: SpeedupRow, run: Run) -> str:
    """Return the slow ranks, and their node if there are several nodes and only this one has slow ranks."""
    ranks = [rank.rank for rank in row.slow_ranks]
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    named = f"rank{'s' if len(ranks) > 1 else ''} {listed}"
    # If one node has all slow ranks, the node is the better name.
    hosts = run.origin.hosts
    slow_hosts = {hosts[rank] for rank in ranks} if len(hosts) == run.world_size else set()
    if len(slow_hosts) != 1 or len(set(hosts)) == 1:
        return named
    (host,) = slow_hosts
    whole = [i for i, one in enumerate(hosts) if one == host] == ranks
    return f"node {host} ({named})" if whole else f"{named} on node {host}"


def _remedy(cause: str, row: SpeedupRow, study: Study) -> str:
    """Return the remedy, as text after a colon."""
    run, first = study.runs_at(row.world_size)[0], study.rows[0]
    if cause == "waiting" and (last := _last(row)) is not None:
        return f"find why rank {last.rank} is late (its environments, its host, what else runs there)"
    if cause == "communication":
        # A larger W with as many exchanges that loses much less shows that their number is not the reason.
        same = [
            r
            for r in study.rows
            if r.world_size > row.world_size
            and r.rho_comm < 0.5 * row.rho_comm
            and (other := study.runs_at(r.world_size)[0]).num_epochs * other.num_minibatches
            >= run.num_epochs * run.num_minibatches
        ]
        if same:
            return (
                f"find what slowed communication at W={row.world_size} (hosts, network, other programs): "
                f"W={same[0].world_size} has as many exchanges, and they take {percent(same[0].rho_comm)} of its "
                "iterations"
            )
        # Cheaper or fewer gradient exchanges.
        updates = run.num_epochs * run.num_minibatches
        each = f" ({updates} gradient exchanges of {run.num_parameters:,} numbers each)" if updates else ""
        fewer = f"fewer exchanges per iteration{each}"
        return f"{_cheaper(run)}{fewer} by fewer minibatches or epochs, or a larger batch ({_LEARNT})"
    if cause == "slow":
        # Slow in the rollout only: look at environments; otherwise at cores and memory.
        phases = {phase for rank in row.slow_ranks for phase in rank.slow}
        where = _place(row, run) if phases else "the slow ranks"
        what = "its environments" if phases == {"t_rollout"} else "its cores and memory"
        return f"find what slows {where} (other programs, {what}), or go without"
    # The general remedy of a cause, with numbers if there are any.
    remedy = _REMEDIES.get(cause) or _REMEDIES[f"{cause} {study.rule}"]
    if cause == "acting" and row.num_envs and study.rule == "strong":
        most = -(-row.num_envs // row.world_size)
        return f"{remedy}, at W={row.world_size} {most} of {row.num_envs}"
    if cause == "learning" and row.threads < first.threads:
        threads = (
            f"a worker has {row.threads} compute threads, at W={first.world_size} it had {first.threads}"
        )
        return f"{remedy}; and {threads}"
    # With crowded cores fewer workers may be as fast.
    best = max((r for r in study.rows if r.world_size < row.world_size), key=lambda r: r.fps.median)
    if cause == "cores" and best.fps.median >= row.fps.median:
        faster = f"W={best.world_size} is {best.fps.median / row.fps.median:.2g} times as fast"
        return f"{remedy}, or fewer workers: {faster}"
    return remedy


def _cheaper(run: Run) -> str:
    """Return changes that make a gradient exchange cheaper, as the beginning of a list; "" if none is known."""
    by, ways = run.origin.collective, []
    if by == "gloo":
        ways.append("shared memory between ranks of one machine (dist.collective=shm)")
    if run.origin.num_hosts > 1 or len(set(run.origin.hosts)) > 1:
        ways.append("a faster network")
    if by == "nccl" and run.num_parameters >= _OVERLAP_FROM and run.origin.grad_sync != "ddp":
        ways.append("exchanges that overlap with backward (dist.grad_sync=ddp)")
    return "".join(f"{way}, " for way in ways)
