"""The part of a report that looks ahead: predictions for W not measured, and which W to use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddppo.errors import ConfigError
from ddppo.options import filled
from ddppo.study.measure.speedup import Study
from ddppo.study.predict.held_out import TOLERANCE, HeldOut, each_held_out, fps_of, judged
from ddppo.study.predict.model import FittedModel, Prediction, WhatIf, fit
from ddppo.study.predict.recommend import Recommendation, recommend
from ddppo.study.predict.usl import Usl, fit_usl


@dataclass(frozen=True, slots=True)
class Outlook:
    """Predictions of the system as measured and with `changes`; remarks say what is missing and why.

    misfit: {W: predicted / measured - 1} where the model was fitted; checks: at each W that was held out, ascending.
    trusted: whether a W that nobody measured may be recommended: all of them are within the tolerance, and the largest
    W was held out. usl: the baseline, and all that a table of W and FPS allows. cores_rule: a sentence about which
    cores W ranks are given.
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
    efficiency_floor: float,
    price_per_worker_hour: float | None,
) -> Outlook:
    """Fit the model and recommend. Raises ConfigError for a what_if that has no meaning or no effect."""
    changes = _what_if(what_if)
    model: FittedModel | None = None
    checks: tuple[HeldOut, ...] = ()
    usl: Usl | None = None
    remarks: list[str] = []
    try:
        usl = fit_usl(fps_of(study.runs))
        model = fit(study.runs)
        remarks += model.notes
    except ConfigError as e:
        remarks.append(f"No predictions: {e}.")
        if changes.changes:
            raise ConfigError(f"what_if={dict(what_if)} has no effect: {e}") from e
    if model is not None:
        try:
            checks = each_held_out(study.runs)
        except ConfigError as e:
            remarks.append(f"The model cannot be checked without the largest W: {e}.")
    largest = predict_to or min(1024, max(64, 4 * study.world_sizes[-1]))
    as_measured = _predictions(study, model, largest, WhatIf())
    changed = _predictions(study, model, largest, changes) if changes.changes else ()
    times = {row.world_size: row.time_to_target.median for row in study.rows if row.time_to_target.count}
    misfit = {} if model is None else model.misfit
    trusted = (
        bool(checks) and all(c.within for c in checks) and all(abs(m) <= TOLERANCE for m in misfit.values())
    )
    recommendation = None
    if len(study.rows) > 1:
        recommendation = recommend(
            study.runs,
            times,
            [p for p in as_measured if p.world_size <= 2 * study.world_sizes[-1]],
            trusted=trusted,
            efficiency_floor=efficiency_floor,
            price_per_worker_hour=price_per_worker_hour,
        )
    cores_rule = "" if model is None else model.cores_rule
    return Outlook(
        as_measured,
        changed,
        changes.changes,
        misfit,
        checks,
        trusted,
        usl,
        cores_rule,
        recommendation,
        tuple(remarks),
    )


def _what_if(given: Mapping[str, Any]) -> WhatIf:
    try:
        return filled(WhatIf, given)
    except ConfigError as e:
        raise ConfigError(f"what_if: {e}") from e


def _predictions(
    study: Study, model: FittedModel | None, largest: int, what_if: WhatIf
) -> tuple[Prediction, ...]:
    if model is None:
        return ()
    powers = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
    asked = sorted({*study.world_sizes, *powers})
    return tuple(model.predict([w for w in asked if model.divides(w, what_if)], what_if))
