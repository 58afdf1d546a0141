"""Which W: the fastest at an efficiency that is still worth it, the shortest time to target, and the least cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan

import numpy as np

from ddppo.errors import ConfigError
from ddppo.study.columns import duration
from ddppo.study.predict.intervals import Prediction
from ddppo.study.runs import Run


@dataclass(frozen=True, slots=True)
class Choice:
    """One W. seconds until the target, or for the same environment steps where no target is known.

    fps_low to fps_high: over the seeds of a measured W, the interval of a predicted one. efficiency is of throughput,
    against the smallest W measured. cost: of W workers for those seconds, None without a price. pareto: no other W that
    was measured, or may be trusted, is both faster and takes less of the workers' time.
    """

    world_size: int
    fps: float
    fps_low: float
    fps_high: float
    efficiency: float
    seconds: float
    cost: float | None
    measured: bool
    pareto: bool = False

    @property
    def worker_seconds(self) -> float:
        return self.world_size * self.seconds


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The W to use, why in sentences, and all that were compared; None where no W qualifies.

    chosen: the fastest at the efficiency floor, or of all if none keeps it. basis says what seconds are seconds of.
    """

    chosen: Choice | None
    reasons: tuple[str, ...]
    fastest: Choice | None
    cheapest: Choice | None
    efficient: Choice | None
    efficiency_floor: float
    price_per_worker_hour: float | None
    table: tuple[Choice, ...]
    basis: str

    def text(self) -> str:
        return " ".join(self.reasons)


def recommend(
    runs: Sequence[Run],
    times: Mapping[int, float],
    predictions: Sequence[Prediction] = (),
    *,
    trusted: bool = False,
    efficiency_floor: float = 0.7,
    price_per_worker_hour: float | None = None,
) -> Recommendation:
    """Choose among the measured W and, where predictions are `trusted`, the predicted ones beyond the smallest.

    times: {W: seconds until the target, inf: not by most seeds}. Where they are measured they decide. A predicted W
    takes as many environment steps as its measured neighbour: sample efficiency unchanged, which strong scaling gives
    by construction and weak scaling does not; so under weak scaling only measured W are compared once a target is set.
    A predicted W is chosen only where its whole interval is above the measured W that it would replace.
    Raises ConfigError for a floor outside 0 to 1 or a negative price.
    """
    _check(runs, efficiency_floor, price_per_worker_hour)
    times = {w: t for w, t in times.items() if not isnan(t)}
    by_size: dict[int, list[float]] = {}
    for run in sorted(runs, key=lambda r: r.world_size):
        by_size.setdefault(run.world_size, []).append(run.fps)
    fps = {w: (float(np.median(x)), min(x), max(x)) for w, x in by_size.items()}
    if runs[0].rule == "strong" or not times:
        ahead = [p for p in predictions if p.world_size not in fps and p.world_size > min(by_size)]
        fps |= {p.world_size: (p.fps, p.fps_low, p.fps_high) for p in ahead}
    base = fps[min(by_size)][0] / min(by_size)
    seconds = _seconds(runs, {w: x[0] for w, x in fps.items()}, times)
    price = None if price_per_worker_hour is None else price_per_worker_hour / 3600
    table = [
        Choice(
            world_size=w,
            fps=fps[w][0],
            fps_low=fps[w][1],
            fps_high=fps[w][2],
            efficiency=fps[w][0] / (w * base),
            seconds=seconds[w],
            cost=None if price is None else price * w * seconds[w],
            measured=w in by_size,
        )
        for w in sorted(fps)
    ]
    known = [c for c in table if c.measured or trusted]
    table = [replace(c, pareto=c in known and _on_front(c, known)) for c in table]
    reaching = [c for c in table if isfinite(c.seconds) and (c.measured or trusted)]

    def worth_it(c: Choice) -> bool:
        return (c.fps if c.measured else c.fps_low) / (c.world_size * base) >= efficiency_floor

    fastest = _best(reaching, lambda c: c.seconds)
    efficient = _best([c for c in reaching if worth_it(c)], lambda c: c.seconds)
    cheapest = _best(reaching, lambda c: c.worker_seconds)
    steps = _steps(runs)
    made = Recommendation(
        chosen=efficient or fastest,
        reasons=(),
        fastest=fastest,
        cheapest=cheapest,
        efficient=efficient,
        efficiency_floor=efficiency_floor,
        price_per_worker_hour=price_per_worker_hour,
        table=tuple(table),
        basis="to the target (median over seeds)" if times else f"for {steps:,} environment steps",
    )
    return replace(made, reasons=tuple(_reasons(made, trusted=trusted, by_throughput=not times)))


def _check(runs: Sequence[Run], efficiency_floor: float, price: float | None) -> None:
    if not 0.0 <= efficiency_floor <= 1.0:
        raise ConfigError(f"efficiency_floor={efficiency_floor:g}: must be from 0 to 1")
    if price is not None and price < 0.0:
        raise ConfigError(f"price_per_worker_hour={price:g}: must be at least 0")
    if not runs:
        raise ConfigError("there are no runs to choose from")


def _seconds(runs: Sequence[Run], fps: Mapping[int, float], times: Mapping[int, float]) -> dict[int, float]:
    """Return seconds at every W: as measured, or what the nearest measured W needed in steps, at this one's speed."""
    if not times:
        return {w: _steps(runs) / f for w, f in fps.items()}
    seconds = {}
    for w, f in fps.items():
        nearest = min(times, key=lambda m: (abs(np.log(m / w)), m))
        seconds[w] = times[w] if w in times else times[nearest] * fps[nearest] / f
    return seconds


def _steps(runs: Sequence[Run]) -> int:
    """Return the environment steps to compare W by: those of the longest run, a million if a table tells none."""
    return max(r.env_steps for r in runs) or 1_000_000


def _best(candidates: Sequence[Choice], of: Callable[[Choice], float]) -> Choice | None:
    """Return the least by `of`: the best measured W, unless a predicted one is better with its whole interval."""
    ranked = sorted(candidates, key=lambda c: (of(c), c.world_size))
    measured = next((c for c in ranked if c.measured), None)
    if measured is None:
        return None
    surely = (c for c in ranked if of(c) < of(measured) and of(c) * c.fps / c.fps_low < of(measured))
    return next((c for c in surely if c.fps_low > measured.fps_high), measured)


def _on_front(choice: Choice, others: Sequence[Choice]) -> bool:
    mine = (choice.seconds, choice.worker_seconds)
    theirs = [(o.seconds, o.worker_seconds) for o in others]
    return choice.seconds < inf and not any(o[0] <= mine[0] and o[1] <= mine[1] and o != mine for o in theirs)


def _reasons(made: Recommendation, *, trusted: bool, by_throughput: bool) -> list[str]:
    c, floor = made.chosen, f"{100 * made.efficiency_floor:g} %"
    if c is None:
        return ["No W is known to reach the target: train longer, or lower target_return."]
    if made.efficient is None:
        said = [f"No W keeps an efficiency of {floor}; W={c.world_size} is the fastest: {_said(c)}."]
    else:
        said = [f"W={c.world_size} is the fastest that keeps an efficiency of {floor}: {_said(c)}."]
    said.append(f"Times are {made.basis}.")
    if made.fastest is not None and made.fastest.world_size != c.world_size:
        said.append(f"Shortest time: W={made.fastest.world_size}, {_said(made.fastest)}.")
    if made.cheapest is not None and made.cheapest.world_size != c.world_size:
        said.append(f"Least time of workers: W={made.cheapest.world_size}, {_said(made.cheapest)}.")
    better = [o for o in made.table if not o.measured and o.seconds < c.seconds and o is not made.fastest]
    if better:
        o = min(better, key=lambda o: o.seconds)
        why = (
            "its interval does not lie above what was measured"
            if trusted
            else "the predictions are not confirmed by a W that was held out"
        )
        said.append(
            f"W={o.world_size} is predicted to take {duration(o.seconds)}, but {why}: measure it before using it."
        )
    if by_throughput:
        said.append(
            "No time to target is known: throughput alone decides, as if every W learned as well per step."
        )
    elif any(not o.measured for o in made.table):
        said.append("A predicted W is taken to need as many steps to the target as the nearest measured one.")
    return said


def _said(c: Choice) -> str:
    cost = f"{duration(c.worker_seconds)} of workers" if c.cost is None else f"cost {c.cost:.3g}"
    how = "measured" if c.measured else "predicted"
    return f"{duration(c.seconds)}, {cost}, efficiency {c.efficiency:.2f}, {how}"
