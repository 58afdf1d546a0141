"""What does advice print? The table of probes, how certain the choice is, its cost, predictions, and stragglers.

Stragglers are ranks for which the others wait in every rollout. Pure arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddppo.config.rank_rules import batch_shape
from ddppo.distributed.topologies.settings import PreemptSettings
from ddppo.errors import ConfigError
from ddppo.package import command
from ddppo.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.advise.candidates import Question
from ddppo.study.advise.race import BUSY, ROUNDS_TO_TELL, Entrant, is_slower, ratio
from ddppo.study.columns import aligned, duration
from ddppo.study.predict.usl import fit_usl

_HEAD = ("", "steps/s", "low to high", "rounds", "times as fast", "low to high", "E")
_SLOWER = 1.5  # a straggler's rollout takes more than this many times the median of the others
# Least waiting, as a part of an iteration. experiments/stragglers gains with .4 and more, and little with less.
_PAYS_FROM = 0.2


@dataclass(frozen=True, slots=True)
class Bill:
    """The steps to pay for."""

    steps: float  # environment steps
    price: float | None = None  # of a worker-hour, if known

    @property
    def head(self) -> list[str]:
        return [f"{self.steps:,.0f} steps", "worker-hours", *([] if self.price is None else ["cost"])]

    def cells(self, fps: float, world_size: int) -> list[str]:
        seconds = self.steps / fps
        hours = world_size * seconds / 3600
        return [
            duration(seconds),
            f"{hours:,.3g}",
            *([] if self.price is None else [f"{self.price * hours:,.4g}"]),
        ]


def table(entrants: Sequence[Entrant], chosen: Entrant, bill: Bill, ahead: Mapping[int, float]) -> str:
    """Return the table: a line for each measured candidate, relative to the smallest W, and for each prediction.

    ahead: predictions, {W: steps/s}. Below the table are the candidates that were not tried, with the reasons.
    """
    # By W; the first one is the base of the ratios.
    measured = sorted((each for each in entrants if each.rounds), key=lambda each: each.world_size)
    base = measured[0]
    rows = [[*_HEAD, *(f"{part.removeprefix('t_')} %" for part in EXCLUSIVE_PARTS), *bill.head]]
    for each in measured:
        found, seen = ratio(each, base), [one.fps for one in each.rounds.values()]
        gain = ["", "", ""]
        if found is not None and each is not base:
            efficiency = found.estimate * base.world_size / each.world_size
            gain = [f"{found.estimate:.2f}", f"{found.low:.2f} to {found.high:.2f}", f"{efficiency:.2f}"]
        rows.append(
            [
                f"{'-> ' if each is chosen else ''}{each.candidate.name}",
                *(
                    f"{speed(each, chosen):,.0f}",
                    f"{min(seen):,.0f} to {max(seen):,.0f}",
                    str(len(seen)),
                    *gain,
                ),
                *(f"{100 * part:.0f}" for part in each.parts().values()),
                *bill.cells(speed(each, chosen), each.world_size),
            ]
        )
    # Predictions.
    for w, fps in ahead.items():
        times = fps / speed(base, chosen)
        gain = ["predicted", "", f"{times:.2f}", "", f"{times * base.world_size / w:.2f}"]
        rows.append([f"W={w}", f"{fps:,.0f}", *gain, *[""] * len(EXCLUSIVE_PARTS), *bill.cells(fps, w)])
    # Candidates without a round.
    untried = [f"{each.candidate.name}: {each.out}" for each in entrants if not each.rounds and each.out]
    return "\n".join([*aligned(rows, [0] * len(rows[0])), *untried])


def speed(one: Entrant, chosen: Entrant) -> float:
    """Return steps/s scaled to the rounds of the chosen candidate: a shared machine changes from minute to minute."""
    found = ratio(one, chosen)
    return one.fps if found is None else chosen.fps * found.estimate


def sureness(entrants: Sequence[Entrant], chosen: Entrant, tolerance: float) -> list[str]:
    """Return a sentence on every other measured candidate: it is slower, or equal as far as the rounds can tell."""
    lines = []
    for each in sorted(entrants, key=lambda each: each.world_size):
        found = ratio(each, chosen)
        if each is chosen or found is None:
            continue
        kind = f"90 % interval of {found.count} rounds"
        # Too few rounds for an interval: show the range instead.
        if found.count < ROUNDS_TO_TELL:
            kind = f"all of {found.count} rounds, {ROUNDS_TO_TELL} have an interval"
        verdict = "slower"
        if not is_slower(found, tolerance):
            fewer = ", so fewer workers" if each.world_size > chosen.world_size else ""
            verdict = f"as fast, up to {100 * tolerance:g} % or noise{fewer}"
        times = f"{found.estimate:.2f} times as fast, {found.low:.2f} to {found.high:.2f}"
        lines.append(f"{each.candidate.name} against {chosen.candidate.name}: {verdict} ({times}; {kind}).")
    return lines


def company(entrants: Sequence[Entrant]) -> str:
    """Return a sentence on the use of the cores by other programs, if it was enough to matter."""
    used = max((each.others for each in entrants if each.rounds), default=0.0)
    if used <= BUSY:
        return ""
    return (
        f"Other programs used up to {100 * used:.0f} % of the cores meanwhile. More workers than cores are therefore "
        "not recommended (they take turns away from other programs), and all are faster on an idle machine."
    )


def predicted(
    entrants: Sequence[Entrant], chosen: Entrant, world_sizes: Sequence[int], cores: float
) -> tuple[dict[int, float], str]:
    """Return {W: steps/s} of the chosen settings at W without a probe, by the scalability law, and a sentence on it.

    The law is fitted to the W with a core for each worker.
    """
    # Only candidates with the same other settings are on one curve over W.
    like = [each for each in entrants if each.rounds and each.candidate.others == chosen.candidate.others]
    fps = {each.world_size: [speed(each, chosen)] for each in like if each.world_size <= cores}
    wanted = [w for w in world_sizes if w not in fps]
    if not wanted:
        return {}, ""
    try:
        law = fit_usl(fps)
    except ConfigError as e:
        return {}, f"No predictions: {e}."
    fitted_to = ", ".join(map(str, sorted(fps)))
    text = f"{law}; it is fitted to W={fitted_to}, and assumes equal cores for all other workers."
    return {w: law.fps(w) for w in wanted}, text


def stragglers(chosen: Entrant, asked: Question) -> str:
    """Return a text on the ranks that are slow in every rollout, with a command that ends their rollouts early.

    "" if there are none. The medians over rounds show a rank that is always slow, not one that is late now and then;
    against the latter experiments/stragglers found little to gain.
    """
    rollouts, dist = chosen.rollouts(), chosen.candidate.config.dist
    if dist.topology != "ddp" or len(rollouts) < 2 or chosen.parts()["t_sync"] < _PAYS_FROM:
        return ""
    # Compare each rank with the median of the others.
    others = median(sorted(rollouts)[:-1])
    # A rank with more environments than others may take longer in proportion.
    shape = batch_shape(chosen.candidate.config)
    more = [len(shape.env_indices(rank)) / shape.fewest_envs for rank in range(len(rollouts))]
    slow = [rank for rank, seconds in enumerate(rollouts) if seconds > _SLOWER * others * more[rank]]
    if not slow:
        return ""
    alone = PreemptSettings(world_size=dist.world_size).awaited_ranks > len(rollouts) - len(slow)
    # If the default rule would still wait for a slow rank, another rule is needed, which ddp alone refuses.
    topologies = "ddp_preempt dist.preempt_rule=throughput" if alone else "ddp,ddp_preempt"
    settings = [o for o in (*asked.fixed, *chosen.candidate.overrides) if not o.startswith("distributed=")]
    return (
        f"Others wait {100 * chosen.parts()['t_sync']:.0f} % of an iteration for rank{'s' * (len(slow) > 1)} "
        f"{', '.join(map(str, slow))}, whose rollouts take up to {max(rollouts) / others:,.1f} times as long. "
        "distributed=ddp_preempt ends these early: iterations are shorter, with fewer samples of slow environments, "
        "and no run can be repeated to the bit (docs/topologies.md). To try it: "
        f"{command('ddppo.advise', *settings)} distributed={topologies}"
    )
