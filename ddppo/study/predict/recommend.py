"""Which W should be used? The fastest one with enough efficiency; beside it the fastest and the cheapest of all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isnan

import numpy as np

from ddppo.statistics import median
from ddppo.study.columns import duration
from ddppo.study.predict.intervals import Prediction
from ddppo.study.read.record import Run, by_world_size

_AS_FAST = 0.03  # a larger W must be faster by more than this to be worth its workers


@dataclass(frozen=True, slots=True)
class RecommendedW:
    """One W that may be used."""

    world_size: int
    fps: float
    fps_low: float  # over the seeds of a measured W, or the interval of a predicted one
    fps_high: float
    efficiency: float  # by throughput, relative to the smallest W measured
    seconds: float  # to the target or, without a target, for equally many environment steps
    cost: float | None  # of W workers for these seconds; None without a price
    measured: bool

    @property
    def worker_seconds(self) -> float:
        return self.world_size * self.seconds


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended W. A W is None if none qualifies."""

    chosen: RecommendedW | None  # the fastest with the efficiency floor, or of all if none keeps it
    fastest: RecommendedW | None
    cheapest: RecommendedW | None
    reasons: tuple[str, ...]  # sentences
    table: tuple[RecommendedW, ...]  # all W that were compared
    basis: str  # the meaning of `seconds`
    doubt: str = ""  # a sentence if the chosen W may be slower than the smallest

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
    refused: Collection[int] = (),
    unsure: Collection[int] = (),
) -> Recommendation:
    """Choose among the measured W and, if predictions are `trusted`, the predicted ones above the smallest W.

    Args:
        times: {W: seconds to the target, inf if most seeds never reached it}. A measured time decides over throughput.
        refused: W that are not recommended, because they are certainly no faster than a smaller W, or learn less.
        unsure: W that may be slower than the smallest one. Such a W may be chosen, and then it is said.

    A predicted W is assumed to need as many environment steps as the nearest measured one. Under strong scaling that
    holds by construction; under weak scaling it does not, so only measured W are compared if there is a target. A
    predicted W is chosen only if its whole interval is above the measured W that it would replace; and beyond the
    largest measured W only if that is the fastest of them, and not refused. Of W that are equally fast, within 3 %, the
    smallest is chosen.
    """
    times = {w: t for w, t in times.items() if not isnan(t)}
    table = _table(runs, times, predictions, price_per_worker_hour)
    # Candidates, and those that keep the efficiency floor (a predicted one with the low end of its interval).
    measured = [c for c in table if c.measured]
    grows = measured[-1].world_size not in refused and measured[-1].fps == max(c.fps for c in measured)
    ahead = [
        c for c in table if not c.measured and trusted and (grows or c.world_size < measured[-1].world_size)
    ]
    allowed = {c.world_size for c in measured if c.world_size not in refused or c is measured[0]}
    reaching = [c for c in table if isfinite(c.seconds) and (c.world_size in allowed or c in ahead)]
    relative = {c.world_size: (c.fps if c.measured else c.fps_low) / c.fps * c.efficiency for c in reaching}
    efficient = [c for c in reaching if relative[c.world_size] >= efficiency_floor]
    # The fastest of all, and of the efficient ones.
    fastest, kept = (_best(some, lambda c: c.seconds) for some in (reaching, efficient))
    chosen = _smallest_as_fast(kept or fastest, efficient if kept else reaching)
    made = Recommendation(
        chosen=chosen,
        fastest=fastest,
        cheapest=_best(reaching, lambda c: c.worker_seconds),
        reasons=(),
        table=tuple(table),
        basis="to the target (median over seeds)" if times else f"for {_steps(runs):,} environment steps",
    )
    if chosen is not None and chosen.world_size in unsure:
        base = f"W={measured[0].world_size}"
        made = replace(
            made,
            doubt=f"It may be slower than {base}: run more seeds before you use it.",
        )
    # The reasons.
    floor = f"an efficiency of {100 * efficiency_floor:g} %"
    why = f"is the fastest that keeps {floor}" if kept else f"is the fastest; no W keeps {floor}"
    best = kept or fastest
    if chosen is not best and best is not None:
        why = f"is as fast as W={best.world_size}, within {100 * _AS_FAST:g} %"
    reasons = _reasons(made, why, trusted=trusted and grows, by_throughput=not times)
    if made.doubt:
        reasons.insert(1, made.doubt)
    if refused:
        listed = ", ".join(map(str, sorted(refused)))
        reasons.append(
            f"Not considered: W={listed}, certainly no faster than a smaller W, or worse at learning."
        )
    return replace(made, reasons=tuple(reasons))


def _smallest_as_fast(chosen: RecommendedW | None, candidates: Sequence[RecommendedW]) -> RecommendedW | None:
    """Return the smallest measured W that takes no more than 3 % longer than the chosen one."""
    if chosen is None:
        return None
    same = [c for c in candidates if c.measured and c.seconds <= (1 + _AS_FAST) * chosen.seconds]
    return min([c for c in same if c.world_size < chosen.world_size] or [chosen], key=lambda c: c.world_size)


def _table(
    runs: Sequence[Run], times: Mapping[int, float], predictions: Sequence[Prediction], price: float | None
) -> list[RecommendedW]:
    """Return all W that are compared, in order."""
    # FPS of measured W and, above the smallest, of predicted ones.
    measured = {w: [run.fps for run in same] for w, same in by_world_size(runs).items()}
    fps = {w: (median(x), min(x), max(x)) for w, x in measured.items()}
    base = min(measured)
    if runs[0].rule == "strong" or not times:
        ahead = [p for p in predictions if p.world_size not in fps and p.world_size > base]
        fps |= {p.world_size: (p.fps, p.fps_low, p.fps_high) for p in ahead}
    choices, steps = [], _steps(runs)
    for w in sorted(fps):
        middle, low, high = fps[w]
        # Measured time to target; or, for a predicted W, the steps of the nearest measured W; or throughput.
        seconds = times[w] if w in times else steps / middle
        if times and w not in times:
            nearest = min(times, key=lambda m: (abs(np.log(m / w)), m))
            seconds = times[nearest] * fps[nearest][0] / middle  # as many steps, at the speed of this W
        cost = None if price is None else price / 3600 * w * seconds
        efficiency = middle / w * base / fps[base][0]
        choices.append(RecommendedW(w, middle, low, high, efficiency, seconds, cost, w in measured))
    return choices


def _steps(runs: Sequence[Run]) -> int:
    """Return the environment steps of the longest run; a million if a table has none."""
    return max(run.env_steps for run in runs) or 1_000_000


def _best(candidates: Sequence[RecommendedW], of: Callable[[RecommendedW], float]) -> RecommendedW | None:
    """Return the W with the smallest `of`: a measured one, unless a predicted one is better with its whole interval."""
    ranked = sorted(candidates, key=lambda c: (of(c), c.world_size))
    measured = next((c for c in ranked if c.measured), None)
    if measured is None:
        return None
    # The whole interval of a prediction must be better, in time and in FPS.
    surely = (c for c in ranked if of(c) < of(measured) and of(c) * c.fps / c.fps_low < of(measured))
    return next((c for c in surely if c.fps_low > measured.fps_high), measured)


def _reasons(made: Recommendation, is_what: str, *, trusted: bool, by_throughput: bool) -> list[str]:
    """Return the sentences of a recommendation: the chosen W, its alternatives, and assumptions."""
    c = made.chosen
    if c is None:
        return ["No W is known to reach the target: train longer, or lower target_return."]
    sentences = [f"W={c.world_size} {is_what}: {_in_words(c)}.", f"Times are {made.basis}."]
    # Alternatives: the fastest and the cheapest, if they differ.
    for other, what in ((made.fastest, "Shortest time"), (made.cheapest, "Least time of workers")):
        if other is not None and other.world_size != c.world_size:
            sentences.append(f"{what}: W={other.world_size}, {_in_words(other)}.")
    # A predicted W that looks faster but was not chosen: say why.
    better = [o for o in made.table if not o.measured and o.seconds < c.seconds and o is not made.fastest]
    if better:
        o = min(better, key=lambda o: o.seconds)
        why = "the predictions are not confirmed by a W that was held out"
        if trusted:
            why = "its interval does not lie above what was measured"
        predicted = f"W={o.world_size} is predicted to take {duration(o.seconds)}"
        sentences.append(f"{predicted}, but {why}: measure it before using it.")
    if by_throughput:
        sentences.append(
            "No time to target is known: throughput alone decides, as if every W learned equally well per step."
        )
    elif any(not o.measured for o in made.table):
        sentences.append(
            "A predicted W is assumed to need as many steps to the target as the nearest measured one."
        )
    return sentences


def _in_words(c: RecommendedW) -> str:
    cost = f"{duration(c.worker_seconds)} of workers" if c.cost is None else f"cost {c.cost:.3g}"
    how = "measured" if c.measured else "predicted"
    return f"{duration(c.seconds)}, {cost}, efficiency {c.efficiency:.2f}, {how}"
