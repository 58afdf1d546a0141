"""Whether a study succeeded: throughput rises, learning is unharmed, and the loss is explained."""

import math
from dataclasses import dataclass
from itertools import pairwise

from ddppo.statistics import difference as welch
from ddppo.study.explain.accounting import Account
from ddppo.study.measure.speedup import Study
from ddppo.study.runs import Run

PASS, FAIL, UNCERTAIN, UNKNOWN = "PASS", "FAIL", "NOT CERTAIN", "NOT MEASURED"
# A loss below this is as good as none, and 5 % of it is noise.
_SMALL_LOSS = 0.1


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of the verdict: result is PASS, FAIL, NOT CERTAIN or NOT MEASURED."""

    name: str
    result: str
    reason: str


def speedup_increases(study: Study) -> Criterion:
    """PASS if the median S(W) is larger at every W measured than at the one before."""
    name = "S(W) increases"
    if len(study.rows) < 2:
        return Criterion(name, UNKNOWN, f"only W={study.baseline} was measured")
    values = [(row.world_size, row.speedup.median) for row in study.rows]
    listed = ", ".join(f"S({w})={s:.3g}" for w, s in values)
    drops = [(a, b) for a, b in pairwise(values) if not b[1] > a[1]]
    if not drops:
        return Criterion(name, PASS, listed)
    (before, _), (after, _) = drops[0]
    reason = f"{listed}: W={after} is no faster than W={before}"
    row = study.row(after)
    if row.oversubscription > 1:
        reason += f" (W={after} puts {row.oversubscription:.3g} compute threads on each of {row.cores} cores)"
    return Criterion(name, FAIL, reason)


def returns_agree(study: Study, *, relative: float, absolute: float | None = None) -> Criterion:
    """PASS if at every W |mean R_W - mean R_1| <= tolerance, FAIL if the 95 % interval lies outside at one of them.

    Between the two it is NOT CERTAIN. tolerance = relative * |mean R_1|, or `absolute` if given. With one seed per W
    the interval is the difference.
    """
    name = "|R_W - R_1| within tolerance"
    groups = {w: _finals(study.runs_at(w)) for w in study.world_sizes}
    base = groups[study.baseline]
    others = {w: values for w, values in groups.items() if w != study.baseline and values}
    if not base or not others:
        return Criterion(name, UNKNOWN, "the runs have no final return at two W (eval.final_episodes)")
    reference = sum(base) / len(base)
    tolerance = relative * abs(reference) if absolute is None else absolute
    outside, uncertain, reaching = [], [], []
    for w, values in others.items():
        difference = sum(values) / len(values) - reference
        low, high = welch(values, base)
        low, high = (difference, difference) if math.isnan(low) else (low, high)
        text = f"R_{w} - R_{study.baseline} = {difference:+.3g} [{low:+.3g}, {high:+.3g}]"
        if low > tolerance or high < -tolerance:
            outside.append(text)
        elif abs(difference) > tolerance:
            uncertain.append(text)
        elif low < -tolerance or high > tolerance:
            reaching.append(text)
    allowed = f"tolerance {tolerance:.3g} around R_{study.baseline} = {reference:.4g}"
    if outside:
        hint = "" if tolerance else "; give return_tolerance_abs, 5 % of 0 is 0"
        return Criterion(name, FAIL, f"{'; '.join(outside)}, outside the {allowed}{hint}")
    if uncertain:
        reason = f"{'; '.join(uncertain)}, beyond the {allowed}, but not clearly: more seeds would tell"
        return Criterion(name, UNCERTAIN, reason)
    if reaching:
        return Criterion(
            name, PASS, f"{'; '.join(reaching)}, {allowed}, though the interval reaches beyond it"
        )
    seeds = (
        ""
        if all(len(v) > 1 for v in (base, *others.values()))
        else "; one seed at some W, so no interval there"
    )
    return Criterion(name, PASS, f"all intervals lie within the {allowed}{seeds}")


def loss_explained(found: list[Account], *, tolerance: float) -> Criterion:
    """PASS if |unexplained(W)| < tolerance * max(|1 - E(W)|, 0.1) at every W."""
    name = f"the accounting explains the loss (unexplained under {100 * tolerance:g} %)"
    if not found:
        return Criterion(name, UNKNOWN, "the runs do not say where their time went, or there is only one W")
    worst = max(found, key=lambda a: _unexplained(a))
    fraction = _unexplained(worst)
    text = f"at most {100 * fraction:.2g} % of the loss is unexplained, at W={worst.world_size}"
    return Criterion(name, PASS if fraction < tolerance else FAIL, text)


def _unexplained(account: Account) -> float:
    return abs(account.unexplained) / max(abs(account.loss), _SMALL_LOSS)


def _finals(runs: list[Run]) -> list[float]:
    return [run.final_return for run in runs if not math.isnan(run.final_return)]
