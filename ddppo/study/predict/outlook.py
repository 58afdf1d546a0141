"""The part of a report that looks ahead: predictions for W not measured, and which W to use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddppo.errors import ConfigError
from ddppo.options import filled
from ddppo.study.measure.speedup import Study
from ddppo.study.predict import recommend
from ddppo.study.predict.held_out import HeldOut, without_the_largest
from ddppo.study.predict.model import FittedModel, Prediction, WhatIf, fit
from ddppo.study.predict.recommend import Recommendation


@dataclass(frozen=True, slots=True)
class Outlook:
    """Predictions of the system as measured and with `changes`; remarks say what is missing and why.

    held_out: the largest W against a model that was fitted without it, where at least three W were measured.
    """

    as_measured: tuple[Prediction, ...]
    changed: tuple[Prediction, ...]
    changes: dict[str, Any]
    misfit: dict[int, float]
    held_out: HeldOut | None
    recommendation: Recommendation | None
    remarks: tuple[str, ...]


def outlook(
    study: Study,
    *,
    what_if: Mapping[str, Any],
    predict_to: int | None,
    efficiency_floor: float,
    price_per_worker_hour: float,
) -> Outlook:
    """Fit the model and recommend. Raises ConfigError for a what_if that has no meaning or no effect."""
    changes = _what_if(what_if)
    model: FittedModel | None = None
    check: HeldOut | None = None
    remarks: list[str] = []
    try:
        if len(study.rows) == 1:
            raise ConfigError(
                f"only W={study.baseline} was measured, which does not tell what another W costs; add one to the sweep"
            )
        model = fit(study.runs)
        remarks += model.notes
    except ConfigError as e:
        remarks.append(f"No predictions: {e}.")
        if changes.changes:
            raise ConfigError(f"what_if={dict(what_if)} has no effect: {e}") from e
    if model is not None:
        try:
            check = without_the_largest(study.runs)
        except ConfigError as e:
            remarks.append(f"The model cannot be checked without the largest W: {e}.")
    largest = predict_to or min(1024, max(64, 4 * study.world_sizes[-1]))
    as_measured = _predictions(study, model, largest, WhatIf())
    changed = _predictions(study, model, largest, changes) if changes.changes else ()
    times = {row.world_size: row.time_to_target.median for row in study.rows if row.time_to_target.count}
    recommendation = None
    if len(study.rows) > 1 and (times or any(run.env_steps for run in study.runs)):
        recommendation = recommend.recommend(
            recommend.Study(study.runs, times),
            model,
            efficiency_floor=efficiency_floor,
            price_per_worker_hour=price_per_worker_hour,
        )
    misfit = {} if model is None else model.misfit
    return Outlook(as_measured, changed, changes.changes, misfit, check, recommendation, tuple(remarks))


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
