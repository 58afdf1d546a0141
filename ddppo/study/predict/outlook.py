"""How fast would other W be, and which W should be used? The part of a report with predictions.

A law is judged where it can be checked: it is fitted without a W, and its prediction for that W is compared with the
measurement.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from ddppo.errors import ConfigError
from ddppo.options import filled
from ddppo.statistics import median
from ddppo.study.measure.speedup import Study
from ddppo.study.predict.intervals import Prediction
from ddppo.study.predict.model import FittedModel, WhatIf, fit
from ddppo.study.predict.recommend import Recommendation, recommend
from ddppo.study.predict.usl import FittedUsl, Usl, fit_usl, fit_usl_with_errors
from ddppo.study.read.record import Run, by_world_size

_SAYS_NOTHING = 4.0  # the high end of an interval / the low end
TOLERANCE = 0.15  # relative error of a prediction that can be trusted


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A check: the prediction for a W that the law was not fitted to."""

    fitted_on: tuple[int, ...]  # W
    world_size: int
    fps: float  # predicted, with its interval
    fps_low: float
    fps_high: float
    measured_fps: float  # median over seeds
    usl_fps: float  # by the universal scalability law fitted to the same W; NaN if it needs more W

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.fps / self.measured_fps - 1

    @property
    def usl_error(self) -> float:
        """The same for the universal scalability law."""
        return self.usl_fps / self.measured_fps - 1

    @property
    def within(self) -> bool:
        return abs(self.error) <= TOLERANCE

    def __str__(self) -> str:
        verdict = "within" if self.within else "NOT within"
        alone = isnan(self.usl_fps) or self.usl_fps == self.fps
        law = "" if alone else f" (the universal scalability law by {100 * self.usl_error:+.1f} %)"
        return (
            f"Held out: fitted on W={', '.join(map(str, self.fitted_on))}, {self.fps:,.0f} steps/s "
            f"({self.fps_low:,.0f} to {self.fps_high:,.0f}) are predicted at W={self.world_size}, where "
            f"{self.measured_fps:,.0f} were measured: off by {100 * self.error:+.1f} %{law}, {verdict} "
            f"{100 * TOLERANCE:.0f} %"
        )


def fps_of(runs: Sequence[Run]) -> dict[int, list[float]]:
    """Return {W: FPS of its runs}, W ascending."""
    return {w: [run.fps for run in same] for w, same in by_world_size(runs).items()}


def held_out(law: FittedModel | FittedUsl, runs: Sequence[Run]) -> list[HeldOut]:
    """Compare a law with `runs` at each W that it was not fitted to."""
    fps, fitted_on = fps_of(runs), tuple(sorted(law.fps))
    # The baseline: the scalability law fitted to the same W.
    seen = {w: fps[w] for w in fitted_on if w in fps}
    besides = law.usl.besides if isinstance(law, FittedUsl) else 0
    usl = fit_usl(seen, besides) if len(seen) > 1 else None
    checks = []
    for p in law.predict([w for w in fps if w not in fitted_on]):
        measured, simple = median(fps[p.world_size]), nan if usl is None else usl.fps(p.world_size)
        checks.append(HeldOut(fitted_on, p.world_size, p.fps, p.fps_low, p.fps_high, measured, simple))
    return checks


def each_held_out(law: FittedModel | FittedUsl, runs: Sequence[Run]) -> tuple[HeldOut, ...]:
    """Hold out each W above the smallest in turn: fit to the others, and compare. () for fewer than three W."""
    sizes = sorted(law.fps)
    known, left = [run for run in runs if run.world_size in sizes], sizes[1:] if len(sizes) > 2 else []
    return tuple(check for w in left for check in held_out(law.without(w), known))


def judged(misfit: Mapping[int, float]) -> str:
    """Return a sentence on the misfit of a law at each fitted W, and whether it is within the tolerance."""
    marks = {w: "" if abs(m) <= TOLERANCE else " (NOT within)" for w, m in misfit.items()}
    off = ", ".join(f"W={w} {100 * m:+.1f} %{marks[w]}" for w, m in misfit.items())
    return f"Predicted against measured, where the law was fitted: {off}; within is {100 * TOLERANCE:.0f} %"


# -- The outlook of a study.


@dataclass(frozen=True, slots=True)
class Outlook:
    """Predictions of a study, and the recommended W."""

    as_measured: tuple[Prediction, ...]  # of the system as it was measured
    changed: tuple[Prediction, ...]  # of the system with `changes`
    changes: dict[str, Any]  # of what_if
    misfit: dict[int, float]  # {fitted W: predicted / measured - 1}
    checks: tuple[HeldOut, ...]  # for each W held out
    trusted: bool  # there are checks, and all are within the tolerance: a W without a run may be recommended
    usl: Usl | None  # the baseline; a table of W and FPS has nothing else
    cores_rule: str  # a sentence about the assumed cores of ranks
    recommendation: Recommendation | None
    remarks: tuple[str, ...]  # missing parts, and the reasons

    @property
    def quality(self) -> tuple[str, ...]:
        """Sentences on how far predictions can be trusted."""
        sentences = [f"{judged(self.misfit)}."] if self.misfit else []
        sentences += [f"{check}." for check in self.checks]
        if self.misfit and any(p.world_size > max(self.misfit) for p in self.as_measured):
            sentences.append(
                f"Predictions and their intervals assume that nothing new begins beyond W={max(self.misfit)}, the "
                "largest measured: no slower network between more hosts, no full memory or disk."
            )
        return (*sentences, *([] if self.usl is None else [f"{self.usl}."]))


def outlook(
    study: Study,
    *,
    what_if: Mapping[str, Any],
    predict_to: int | None,
    cores_per_worker: float | None,
    efficiency_floor: float,
    price_per_worker_hour: float | None,
    refused: Collection[int] = (),
    unsure: Collection[int] = (),
    doubted: bool = False,
) -> Outlook:
    """Fit the model (or, for runs without times, the scalability law), predict, and recommend a W.

    refused: W that are not recommended. unsure: W that may be slower than the smallest one. doubted: the speeds
    cannot be believed, so nothing is predicted, and no W is recommended. Without `predict_to`, W up to twice the
    largest measured are predicted.

    Raises ConfigError for a what_if that has no meaning or no effect.
    """
    # 1. Fit.
    changes, remarks = _what_if(what_if), list[str]()
    if doubted:
        return Outlook((), (), changes.changes, {}, (), False, None, "", None, ())
    model, usl = _laws(study, cores_per_worker, remarks)
    if changes.changes and model is None:
        raise ConfigError(f"what_if={dict(what_if)} has no effect: {remarks[-1]}")
    law: FittedModel | FittedUsl | None = model or usl
    # 2. Check, and predict the measured W and powers of 2.
    checks = () if law is None else each_held_out(law, study.runs)
    # Up to twice the largest W, by default: no run says what begins beyond.
    largest = predict_to or 2 * study.world_sizes[-1]
    sizes = sorted({*study.world_sizes, *(2**i for i in range(largest.bit_length()) if 2**i <= largest)})
    as_measured, changed = list[Prediction](), list[Prediction]()
    if model is not None:
        as_measured = model.predict([w for w in sizes if model.divides(w)])
        if changes.changes:
            changed = model.predict([w for w in sizes if model.divides(w, changes)], changes)
    elif usl is not None:
        as_measured = usl.predict([w for w in sizes if w >= study.baseline])
    as_measured = _sensible(as_measured, study, remarks, own_cores=cores_per_worker is not None)
    # 3. Judge.
    misfit = {} if law is None else law.errors.relative
    # Predictions are trusted only if the fit is good and all checks passed.
    within = [abs(off) <= TOLERANCE for off in misfit.values()]
    trusted = bool(checks) and all(within) and all(check.within for check in checks)
    return Outlook(
        as_measured=tuple(as_measured),
        changed=tuple(changed),
        changes=changes.changes,
        misfit=misfit,
        checks=checks,
        trusted=trusted,
        usl=None if usl is None else usl.usl,
        cores_rule="" if model is None else model.cores_rule,
        recommendation=_recommendation(
            study, as_measured, trusted, efficiency_floor, price_per_worker_hour, refused, unsure
        ),
        remarks=tuple(remarks),
    )


def _laws(
    study: Study, cores_per_worker: float | None, remarks: list[str]
) -> tuple[FittedModel | None, FittedUsl | None]:
    """Return the model and the scalability law, each if the runs allow it; `remarks` get the reasons if not."""
    try:
        # The law needs W and FPS; the model needs times of parts too.
        usl = fit_usl_with_errors(fps_of(study.runs), _besides(study.runs))
    except ConfigError as e:
        remarks.append(f"No predictions: {e}.")
        return None, None
    try:
        model = fit(study.runs, cores_per_worker=cores_per_worker)
    except ConfigError as e:
        remarks.append(f"Predictions are by the universal scalability law, from W and FPS alone: {e}.")
        return None, usl
    remarks += model.notes
    return model, usl


def _besides(runs: Sequence[Run]) -> int:
    """Return the number of ranks that step no environments; 0 if it is unknown or differs between W."""
    numbers = {run.world_size - run.num_stepping for run in runs if run.num_stepping}
    return numbers.pop() if len(numbers) == 1 and all(run.num_stepping for run in runs) else 0


def _sensible(
    predictions: Sequence[Prediction], study: Study, remarks: list[str], *, own_cores: bool
) -> list[Prediction]:
    """Return the predictions that these W allow; `remarks` get the reasons for the others.

    A W cannot be predicted if its interval says nothing, or if its ranks share cores and those of no measured W did:
    what taking turns costs is then only assumed. own_cores: a number of cores is given for each rank.
    """
    kept, wide, crowded = [], list[int](), list[int]()
    measured = set(study.world_sizes)
    crowds = any(row.oversubscription > 1 for row in study.rows)
    last = study.rows[-1]
    # Cores grow with W if they did so far.
    shared = not own_cores and last.cores and all(row.cores == last.cores for row in study.rows)
    for p in predictions:
        if p.world_size not in measured and p.fps_high > _SAYS_NOTHING * p.fps_low:
            wide.append(p.world_size)
        elif shared and not crowds and p.world_size * last.threads > last.cores:
            crowded.append(p.world_size)
        else:
            kept.append(p)
    if wide:
        listed = ", ".join(map(str, wide))
        remarks.append(f"W={listed} cannot be predicted from these W: the interval would say nothing.")
    if crowded:
        listed = ", ".join(map(str, crowded))
        remarks.append(
            f"W={listed} cannot be predicted from these W: more compute threads than the {last.cores} cores would take "
            "turns, and no measured W had that."
        )
    return kept


def _recommendation(
    study: Study,
    predictions: Sequence[Prediction],
    trusted: bool,
    floor: float,
    price: float | None,
    refused: Collection[int],
    unsure: Collection[int],
) -> Recommendation | None:
    """Recommend a W among the measured ones and predictions up to twice the largest; None for a single W."""
    if len(study.rows) < 2:
        return None
    # Beyond twice the largest W no prediction is good enough to be recommended.
    times = {row.world_size: row.time_to_target.median for row in study.rows if row.time_to_target.count}
    near = [p for p in predictions if p.world_size <= 2 * study.world_sizes[-1]]
    return recommend(
        study.runs,
        times,
        near,
        trusted=trusted,
        efficiency_floor=floor,
        price_per_worker_hour=price,
        refused=refused,
        unsure=unsure,
    )


def _what_if(given: Mapping[str, Any]) -> WhatIf:
    try:
        return filled(WhatIf, given)
    except ConfigError as e:
        raise ConfigError(f"what_if: {e}") from e
