"""What was found, for a terminal: tables of probes, how sure the choice is, what it will cost, and stragglers.

Those are ranks that others wait for at every rollout, and what could be done about it. Pure arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddppo.distributed.topologies.settings import PreemptSettings
from ddppo.errors import ConfigError
from ddppo.package import command
from ddppo.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.advise.candidates import Question
from ddppo.study.advise.race import BUSY, ROUNDS_TO_TELL, Entrant, is_slower, ratio
from ddppo.study.columns import aligned, duration
from ddppo.study.predict.usl import fit_usl

_HEAD = ("", "steps/s", "low to high", "rounds", "times as fast", "low to high", "E")
_SLOWER = 1.5  # times as long a rollout as the median of all ranks
_PAYS_FROM = (
    0.2  # of an iteration, waited: experiments/stragglers gains where it is .4 and more, little below
)


@dataclass(frozen=True, slots=True)
class Bill:
    """What is to be paid for: so many environment steps, by the price of a worker-hour if it is known."""

    steps: float
    price: float | None = None

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
    """Return a line for each that was measured, relative to the smallest W; {W: steps/s} ahead; what was not tried."""
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
    for w, fps in ahead.items():
        times = fps / speed(base, chosen)
        gain = ["predicted", "", f"{times:.2f}", "", f"{times * base.world_size / w:.2f}"]
        rows.append([f"W={w}", f"{fps:,.0f}", *gain, *[""] * len(EXCLUSIVE_PARTS), *bill.cells(fps, w)])
    untried = [f"{each.candidate.name}: {each.out}" for each in entrants if not each.rounds and each.out]
    return "\n".join([*aligned(rows, [0] * len(rows[0])), *untried])


def speed(one: Entrant, chosen: Entrant) -> float:
    """Return steps/s in the rounds of the chosen one: a shared machine is another every minute."""
    found = ratio(one, chosen)
    return one.fps if found is None else chosen.fps * found.estimate


def sureness(entrants: Sequence[Entrant], chosen: Entrant, tolerance: float) -> list[str]:
    """Return a sentence on every other that was measured: slower, or equal as far as the rounds tell."""
    lines = []
    for each in sorted(entrants, key=lambda each: each.world_size):
        found = ratio(each, chosen)
        if each is chosen or found is None:
            continue
        kind = f"90 % interval of {found.count} rounds"
        if found.count < ROUNDS_TO_TELL:
            kind = f"all of {found.count} rounds, {ROUNDS_TO_TELL} have an interval"
        verdict = "slower"
        if not is_slower(found, tolerance):
            fewer = ", so fewer workers" if each.world_size > chosen.world_size else ""
            verdict = f"as fast, but for {100 * tolerance:g} % or noise{fewer}"
        times = f"{found.estimate:.2f} times as fast, {found.low:.2f} to {found.high:.2f}"
        lines.append(f"{each.candidate.name} against {chosen.candidate.name}: {verdict} ({times}; {kind}).")
    return lines


def company(entrants: Sequence[Entrant]) -> str:
    """Return what others used of the cores, if that was enough to matter."""
    used = max((each.others for each in entrants if each.rounds), default=0.0)
    if used <= BUSY:
        return ""
    return (
        f"Others used up to {100 * used:.0f} % of the cores meanwhile: more workers than cores, which may win by the "
        "turns that others lose, are not recommended, and alone on the machine all are faster."
    )


def predicted(
    entrants: Sequence[Entrant], chosen: Entrant, world_sizes: Sequence[int], cores: float
) -> tuple[dict[int, float], str]:
    """Return {W: steps/s} of the chosen settings at W not measured, by the scalability law, and what it rests on.

    It is fitted to W with a core for each worker.
    """
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
    said = f"{law}; it is fitted to W={fitted_to}, as if the others had cores like these."
    return {w: law.fps(w) for w in wanted}, said


def stragglers(chosen: Entrant, asked: Question) -> str:
    """Return which ranks are slow at every rollout, and how to try ending these early; "" where none is.

    It is told from medians over rounds: a rank that is slow by itself, not one that is late now and then, against which
    experiments/stragglers found little to gain.
    """
    rollouts, dist = chosen.rollouts(), chosen.candidate.config.dist
    if dist.topology != "ddp" or len(rollouts) < 2 or chosen.parts()["t_sync"] < _PAYS_FROM:
        return ""
    others = median(sorted(rollouts)[:-1])
    slow = [rank for rank, seconds in enumerate(rollouts) if seconds > _SLOWER * others]
    if not slow:
        return ""
    alone = PreemptSettings(world_size=dist.world_size).awaited_ranks > len(rollouts) - len(slow)
    # Where it would wait for a slow one all the same it needs another rule, which ddp refuses.
    topologies = "ddp_preempt dist.preempt_rule=throughput" if alone else "ddp,ddp_preempt"
    settings = [o for o in (*asked.fixed, *chosen.candidate.overrides) if not o.startswith("distributed=")]
    return (
        f"Others wait {100 * chosen.parts()['t_sync']:.0f} % of an iteration for rank{'s' * (len(slow) > 1)} "
        f"{', '.join(map(str, slow))}, whose rollouts take up to {max(rollouts) / others:,.1f} times as long. "
        "distributed=ddp_preempt ends these early: iterations are shorter, with fewer samples of what is slow, and no "
        "run can be repeated to the bit (docs/topologies.md). To try it: "
        f"{command('ddppo.advise', *settings)} distributed={topologies}"
    )
