"""What was found, for a terminal: tables of probes, how sure the choice is, what it will cost. Pure arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddppo.advice.race import ROUNDS_TO_TELL, Entrant, is_slower, ratio
from ddppo.errors import ConfigError
from ddppo.run.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.columns import aligned
from ddppo.study.predict.usl import fit_usl

_HEAD = ("", "steps/s", "low to high", "rounds", "times as fast", "low to high", "E")


@dataclass(frozen=True, slots=True)
class Bill:
    """What is to be paid for: environment steps, in words too, and the price of a worker-hour if it is known."""

    steps: float
    of_what: str
    price: float | None = None

    @property
    def head(self) -> list[str]:
        return [self.of_what, "worker-hours", *([] if self.price is None else ["cost"])]

    def cells(self, fps: float, world_size: int) -> list[str]:
        hours = self.steps / fps / 3600
        cost = [] if self.price is None else [f"{self.price * world_size * hours:,.4g}"]
        return [duration(3600 * hours), f"{world_size * hours:,.3g}", *cost]


def table(entrants: Sequence[Entrant], chosen: Entrant, bill: Bill, ahead: Mapping[int, float]) -> str:
    """Return a line for each that was measured, relative to the smallest W; {W: steps/s} ahead; who was not tried."""
    measured = sorted((e for e in entrants if e.rounds), key=lambda e: e.candidate.world_size)
    base, base_w = measured[0], measured[0].candidate.world_size
    rows = [[*_HEAD, *(f"{part.removeprefix('t_')} %" for part in EXCLUSIVE_PARTS), *bill.head]]
    for each in measured:
        w, fps, found = each.candidate.world_size, speed(each, chosen), ratio(each, base)
        seen = [each_round.fps for each_round in each.rounds.values()]
        gain = ["", "", ""]
        if found is not None and each is not base:
            gain = [
                f"{found.estimate:.2f}",
                _range(found.low, found.high),
                f"{found.estimate * base_w / w:.2f}",
            ]
        rows.append(
            [
                f"{'-> ' if each is chosen else ''}{each.candidate.name}",
                *(f"{fps:,.0f}", f"{min(seen):,.0f} to {max(seen):,.0f}", str(len(seen)), *gain),
                *(f"{100 * each.parts()[part]:.0f}" for part in EXCLUSIVE_PARTS),
                *bill.cells(fps, w),
            ]
        )
    for w, x in ahead.items():
        times = x / speed(base, chosen)
        gain = [f"{times:.2f}", "", f"{times * base_w / w:.2f}"]
        rows.append(
            [f"W={w}", f"{x:,.0f}", "predicted", "", *gain, *[""] * len(EXCLUSIVE_PARTS), *bill.cells(x, w)]
        )
    untried = [f"{e.candidate.name}: {e.out}" for e in entrants if not e.rounds and e.out]
    return "\n".join([*aligned(rows, [0] * len(rows[0])), *untried])


def speed(one: Entrant, chosen: Entrant) -> float:
    """Return steps/s in the rounds of the chosen one: a shared machine is another every minute."""
    found = ratio(one, chosen)
    return one.fps if found is None else chosen.fps * found.estimate


def sureness(entrants: Sequence[Entrant], chosen: Entrant, tolerance: float) -> list[str]:
    """Return a sentence on every other that was measured: slower, or equal as far as the rounds tell."""
    lines = []
    for each in sorted(entrants, key=lambda e: e.candidate.world_size):
        found = ratio(each, chosen)
        if each is chosen or found is None:
            continue
        kind = f"90 % interval of {found.count} rounds"
        if found.count < ROUNDS_TO_TELL:
            kind = f"all of {found.count} rounds, {ROUNDS_TO_TELL} have an interval"
        verdict = "slower"
        if not is_slower(found, tolerance):
            fewer = each.candidate.world_size > chosen.candidate.world_size
            verdict = (
                f"as fast, but for {100 * tolerance:g} % or noise{', so fewer workers' if fewer else ''}"
            )
        times = f"{found.estimate:.2f} times as fast, {_range(found.low, found.high)}"
        lines.append(f"{each.candidate.name} against {chosen.candidate.name}: {verdict} ({times}; {kind}).")
    return lines


def predicted(
    entrants: Sequence[Entrant], chosen: Entrant, world_sizes: Sequence[int], cores: int | None
) -> tuple[dict[int, float], str]:
    """Return {W: steps/s} of the chosen settings at W not measured, by the scalability law, and what it rests on.

    It is fitted to W with a core for each worker; cores: None where all have one.
    """
    like = [e for e in entrants if e.rounds and e.candidate.others == chosen.candidate.others]
    fps = {e.candidate.world_size: [speed(e, chosen)] for e in like}
    fps = {w: x for w, x in sorted(fps.items()) if cores is None or w <= cores}
    wanted = [w for w in world_sizes if w not in fps]
    if not wanted:
        return {}, ""
    try:
        law = fit_usl(fps)
    except ConfigError as e:
        return {}, f"No predictions: {e}."
    listed = ", ".join(map(str, fps))
    return {
        w: law.fps(w) for w in wanted
    }, f"{law}; it is fitted to W={listed}, as if others had cores like these."


def duration(seconds: float) -> str:
    """Return seconds in the unit that fits them."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"


def _range(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"
