"""Did a study succeed? Two criteria: throughput rises with W, and returns do not suffer."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ddppo.statistics import CONFIDENCE, LEAST_SEEDS
from ddppo.study.columns import percent
from ddppo.study.measure.growth import LEAST_DF, growth
from ddppo.study.measure.speedup import Study
from ddppo.study.measure.statistics import difference, t_probability, t_quantile
from ddppo.study.read.record import Run

PASS, FAIL, UNCERTAIN, UNKNOWN = "PASS", "FAIL", "NOT CERTAIN", "NOT MEASURED"
_TELLS_NOTHING = math.log(10)  # width of an interval of log FPS
_LEAST_INCREASE = 0.01  # of FPS from one W to the next
_MOST_SEEDS = 200  # more are not asked for


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of the verdict."""

    name: str
    result: str  # PASS, FAIL, NOT CERTAIN or NOT MEASURED
    reason: str


def doubted(criterion: Criterion) -> Criterion:
    """Return the criterion for speeds that cannot be believed: neither PASS nor FAIL."""
    if criterion.result == UNKNOWN:
        return criterion
    return replace(
        criterion, result=UNCERTAIN, reason="the speeds of these runs cannot be believed, see above"
    )


def speedup_increases(study: Study) -> Criterion:
    """PASS if FPS certainly grows by more than 1 % from each W to the next; FAIL if it certainly does not grow at one.

    Certainty is by Welch's intervals of log FPS over seeds, which all hold at once in 95 % of studies (Bonferroni).
    With one or two seeds it is as in `growth`.
    """
    name = "S(W) increases"
    if len(study.rows) < 2:
        return Criterion(name, UNKNOWN, f"only W={study.baseline} was measured")
    reason = ", ".join(f"S({row.world_size})={row.speedup.median:.3g}" for row in study.rows)
    # Bonferroni: all intervals hold at once.
    confidence = 1 - (1 - CONFIDENCE) / (len(study.rows) - 1)
    # Each W against the one before.
    unsure = []
    for before, row in pairwise(study.rows):
        low, high = growth(study, before.world_size, row.world_size, confidence)
        if high <= 0:
            crowd = f"{row.oversubscription:.3g} compute threads on each of {row.cores} cores"
            crowd = f" (W={row.world_size} puts {crowd})" if row.oversubscription > 1 else ""
            reason += f": W={row.world_size} is no faster than W={before.world_size}{crowd}"
            return Criterion(name, FAIL, reason)
        if low < math.log1p(_LEAST_INCREASE):
            between = f"{math.exp(low):.3g} to {math.exp(min(high, 700)):.3g} times as fast as W={before.world_size}"
            told = (
                f"is {between}"
                if high - low < _TELLS_NOTHING
                else f"cannot be told from W={before.world_size}"
            )
            unsure.append(f"W={row.world_size} {told}")
    if not unsure:
        return Criterion(name, PASS, reason)
    together = ", with intervals that all hold at once" if len(study.rows) > 2 else ""
    return Criterion(name, UNCERTAIN, f"{reason}: {'; '.join(unsure)}{together}; more seeds would tell")


def returns_agree(study: Study, *, relative: float, absolute: float | None = None) -> Criterion:
    """PASS if no W learns worse than W_1 by more than the tolerance, FAIL if one certainly does, else NOT CERTAIN.

    The criterion is one-sided: a W that learns better is no failure. With R the mean final return and tolerance =
    relative * |R_1|, or `absolute` if given, it is PASS if the interval of R_W - R_1 lies above -tolerance at every W,
    and FAIL if one lies below. The intervals are Welch's, and hold at all W at once in 95 % of studies (Bonferroni).
    Returns that are equal in every seed (strong scaling repeats a run) have an interval of no width. With one seed it
    is NOT CERTAIN.
    """
    name = "returns do not fall (R_W - R_1 above -tolerance)"
    # Final returns by W.
    groups = {w: _finals(study.runs_at(w)) for w in study.world_sizes}
    base = groups[study.baseline]
    others = {w: values for w, values in groups.items() if w != study.baseline and values}
    if not base or not others:
        return Criterion(name, UNKNOWN, "the runs have no final return at two W (eval.final_episodes)")
    reference = sum(base) / len(base)
    tolerance = relative * abs(reference) if absolute is None else absolute
    confidence = 1 - (1 - CONFIDENCE) / len(others)
    # Sort the differences by how they lie to the tolerance. The worst kind decides.
    differences: dict[str, list[str]] = defaultdict(list)
    for w, values in others.items():
        apart = sum(values) / len(values) - reference
        low, high = (
            (apart, apart) if _equal(study, w) else _loss(values, base, list(groups.values()), confidence)
        )
        # below: certain. beyond: by the mean only. reaching: within by the mean, but not the interval.
        kind = "below" if high < -tolerance else "beyond" if apart < -tolerance else "within"
        kind = "reaching" if kind == "within" and low < -tolerance else kind
        seeds = "" if math.isnan(low) else f" [{low:+.3g}, {high:+.3g}]"
        seeds = " in every seed" if low == high else seeds
        better = ", better" if low > tolerance else ""
        text = f"R_{w} - R_{study.baseline} = {apart:+.3g}{seeds}{better}"
        differences[kind if seeds else "alone"].append(text)
    allowed = f"tolerance {tolerance:.3g} below R_{study.baseline} = {reference:.4g}"
    hint = "" if tolerance else "; give return_tolerance_abs, 5 % of 0 is 0"
    power = _power_in_words(groups, tolerance, confidence)
    endings = {  # the worst first
        "below": (FAIL, f"below the {allowed}{hint}"),
        "beyond": (UNCERTAIN, f"beyond the {allowed}, but not clearly{power}"),
        "alone": (UNCERTAIN, f"{allowed}: one seed does not show how much returns differ by chance"),
        "reaching": (UNCERTAIN, f"{allowed}, but the interval reaches beyond it{power}"),
        "within": (PASS, f"within the {allowed}"),
    }
    kind, (result, ending) = next(item for item in endings.items() if item[0] in differences)
    return Criterion(name, result, f"{'; '.join(differences[kind])}, {ending}")


def _loss(
    values: list[float], base: list[float], groups: list[list[float]], confidence: float
) -> tuple[float, float]:
    """Return the interval of mean(values) - mean(base): Welch's, or from a deviation pooled over W for two seeds."""
    low, high = difference(values, base, confidence)
    several = [np.array(of_w) for of_w in groups if len(of_w) > 1]
    df = sum(len(x) - 1 for x in several)
    if math.isnan(low) or min(len(values), len(base)) >= LEAST_SEEDS or df < LEAST_DF:
        return low, high
    pooled = math.sqrt(sum(float(((x - x.mean()) ** 2).sum()) for x in several) / df)
    half = t_quantile(1 - (1 - confidence) / 2, df) * pooled * math.sqrt(1 / len(values) + 1 / len(base))
    return (low + high) / 2 - half, (low + high) / 2 + half


def worse_returns(study: Study, *, relative: float, absolute: float | None = None) -> set[int]:
    """Return the W that certainly learn worse than W_1 by more than the tolerance, each by itself."""
    base = _finals(study.runs_at(study.baseline))
    if not base:
        return set()
    reference = sum(base) / len(base)
    tolerance = relative * abs(reference) if absolute is None else absolute
    finals = {w: _finals(study.runs_at(w)) for w in study.world_sizes[1:]}
    return {w for w, values in finals.items() if values and difference(values, base)[1] < -tolerance}


def _equal(study: Study, world_size: int) -> bool:
    """Return whether every seed has the same return at this W as at W_1, up to rounding."""
    here, there = (
        {run.seed: run.final_return for run in study.runs_at(w)} for w in (world_size, study.baseline)
    )
    same = [math.isclose(r, there[s], rel_tol=1e-6, abs_tol=1e-9) for s, r in here.items() if s in there]
    return len(same) > 1 and all(same) and here.keys() == there.keys()


def _power_in_words(groups: Mapping[int, list[float]], tolerance: float, confidence: float) -> str:
    """Return how likely these seeds find a loss of twice the tolerance, and how many seeds find it in 80 %."""
    several = [np.array(values) for values in groups.values() if len(values) > 1]
    df = sum(len(values) - 1 for values in several)
    if not df or not tolerance:
        return ""
    spread = math.sqrt(sum(float(((x - x.mean()) ** 2).sum()) for x in several) / df)
    seeds = min(len(values) for values in groups.values() if values)
    needed = next((n for n in range(2, _MOST_SEEDS) if _power(tolerance, spread, n, confidence) >= 0.8), None)
    if needed is not None and needed <= seeds:
        return ""
    found = _power(tolerance, spread, seeds, confidence)
    enough = f"{needed} seeds at each W" if needed else f"more than {_MOST_SEEDS} seeds at each W"
    loss = f"a loss of {2 * tolerance:.3g}, twice the tolerance"
    return f": {seeds} seeds find {loss}, in {percent(found)} of studies; {enough} would in 80 %"


def _power(beyond: float, spread: float, seeds: int, confidence: float) -> float:
    """Return the probability of FAIL for a loss that is larger than the tolerance by `beyond`, with so many seeds."""
    if spread == 0:
        return 1.0
    df = 2 * seeds - 2
    if df < 1:
        return 0.0
    error = spread * math.sqrt(2 / seeds)
    return t_probability(beyond / error - t_quantile(1 - (1 - confidence) / 2, df), df)


def _finals(runs: list[Run]) -> list[float]:
    return [run.final_return for run in runs if not math.isnan(run.final_return)]
