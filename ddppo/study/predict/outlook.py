"""The part of a report that looks ahead: predictions for W not measured, and which W to use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddppo.errors import ConfigError
from ddppo.options import filled
from ddppo.study.measure.speedup import Study
from ddppo.study.predict.held_out import TOLERANCE, HeldOut, each_held_out, fps_of, judged
from ddppo.study.predict.intervals import Prediction
from ddppo.study.predict.model import FittedModel, WhatIf, fit
from ddppo.study.predict.recommend import Recommendation, recommend
from ddppo.study.predict.usl import FittedUsl, Usl, fit_usl_with_errors
from ddppo.study.read.record import Run


@dataclass(frozen=True, slots=True)
class Outlook:
    """Predictions of the system as measured and with `changes`; remarks say what is missing and why.

    misfit: {W: predicted / measured - 1} where the law was fitted; checks: at each W that was held out, ascending.
    trusted: whether a W that nobody measured may be recommended: some W was held out, and all of these are within the
    tolerance. usl: the baseline, and all that a table of W and FPS allows. cores_rule: a sentence about which cores W
    ranks are given.
    """

    as_measured: tuple[Prediction, ...]
    changed: tuple[Prediction, ...]
    changes: dict[str, Any]
    misfit: dict[int, float]
    checks: tuple[HeldOut, ...]
    trusted: bool
    usl: Usl | None
    cores_rule: str
    recommendation: Recommendation | None
    remarks: tuple[str, ...]

    @property
    def quality(self) -> tuple[str, ...]:
        """How far predictions can be trusted, in sentences."""
        said = [f"{judged(self.misfit)}."] if self.misfit else []
        said += [f"{check}." for check in self.checks]
        return (*said, *([] if self.usl is None else [f"{self.usl}."]))


def outlook(
    study: Study,
    *,
    what_if: Mapping[str, Any],
    predict_to: int | None,
    cores_per_worker: float | None,
    efficiency_floor: float,
    price_per_worker_hour: float | None,
) -> Outlook:
    """Fit the model, or the simple law where times are not told, and recommend.

    Raises ConfigError for a what_if that has no meaning or no effect.
    """
    changes, remarks = _what_if(what_if), list[str]()
    model, usl = _laws(study, cores_per_worker, remarks)
    if changes.changes and model is None:
        raise ConfigError(f"what_if={dict(what_if)} has no effect: {remarks[-1]}")
    law: FittedModel | FittedUsl | None = model or usl
    checks = () if law is None else each_held_out(law, study.runs)
    largest = predict_to or min(1024, max(64, 4 * study.world_sizes[-1]))
    asked = sorted({*study.world_sizes, *(2**i for i in range(largest.bit_length()) if 2**i <= largest)})
    as_measured, changed = list[Prediction](), list[Prediction]()
    if model is not None:
        as_measured = model.predict([w for w in asked if model.divides(w)])
        if changes.changes:
            changed = model.predict([w for w in asked if model.divides(w, changes)], changes)
    elif usl is not None:
        as_measured = usl.predict([w for w in asked if w >= study.baseline])
    misfit = {} if law is None else law.errors.relative
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
        recommendation=_recommendation(study, as_measured, trusted, efficiency_floor, price_per_worker_hour),
        remarks=tuple(remarks),
    )


def _laws(
    study: Study, cores_per_worker: float | None, remarks: list[str]
) -> tuple[FittedModel | None, FittedUsl | None]:
    """Return both laws, as far as there are runs for them; the remarks say what is missing."""
    try:
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
    """Return how many ranks step no environments, 0 where that is not known or not the same at every W."""
    numbers = {run.world_size - run.num_stepping for run in runs if run.num_stepping}
    return numbers.pop() if len(numbers) == 1 and all(run.num_stepping for run in runs) else 0


def _recommendation(
    study: Study, predictions: Sequence[Prediction], trusted: bool, floor: float, price: float | None
) -> Recommendation | None:
    if len(study.rows) < 2:
        return None
    times = {row.world_size: row.time_to_target.median for row in study.rows if row.time_to_target.count}
    near = [p for p in predictions if p.world_size <= 2 * study.world_sizes[-1]]
    return recommend(
        study.runs, times, near, trusted=trusted, efficiency_floor=floor, price_per_worker_hour=price
    )


def _what_if(given: Mapping[str, Any]) -> WhatIf:
    try:
        return filled(WhatIf, given)
    except ConfigError as e:
        raise ConfigError(f"what_if: {e}") from e
