"""`python -m ddppo.predict`: how fast would other W be? Its options, and the text that it prints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.config.fields import setting
from ddppo.errors import ConfigError, RunFolderError
from ddppo.options import whole_numbers
from ddppo.study.columns import aligned, whole
from ddppo.study.measure.belief import doubts
from ddppo.study.measure.growth import not_faster, perhaps_slower
from ddppo.study.measure.pace import steady
from ddppo.study.measure.speedup import study as compute_study
from ddppo.study.predict.intervals import Prediction
from ddppo.study.predict.model import FittedModel, WhatIf, fit
from ddppo.study.predict.outlook import fps_of, held_out, judged, outlook
from ddppo.study.predict.usl import of_published_point
from ddppo.study.read.fields import FieldError, as_number, as_whole
from ddppo.study.read.record import PARTS, Run
from ddppo.study.read.run_folders import read_runs
from ddppo.study.read.selection import one_study, with_target

_LARGEST = 1024  # W that is predicted without world_sizes=
_MOST_WORKERS = 10**9
_WHICH = "Which W, of the system as measured: "
_MAX_REASONS = 6  # in the error that no run is left


@dataclass(slots=True)
class PredictConfig:
    folder: str | None = setting(None, "the sweep folder; also as a word of its own")
    world_sizes: Any = setting(None, f"W to predict, e.g. 1,2,4; null: the measured and 2^k to {_LARGEST}")
    env: str | None = setting(None, "task to fit, by its id, if the folder has several")
    fit_rule: str | None = setting(
        None, "scaling rule to fit, if the folder has strong and weak runs", choices=("strong", "weak")
    )
    fit_on: Any = setting(
        None, "fit on these W only, e.g. 1,2,4, and compare at the others: shows how good the model is"
    )
    target_return: float | None = setting(None, "return for time to target; null is the runs' own")
    efficiency_floor: float = setting(0.7, "least efficiency of a recommended W", low=0, high=1)
    price_per_worker_hour: float | None = setting(
        None, "price of a worker for an hour; null: cost is the workers' time", low=0
    )
    published: Any = setting(None, '"{world_size: 128, speedup: 107}": implications of one published point')


def predict(options: PredictConfig, what_if: WhatIf) -> str:
    """Return the text to print. Raises ConfigError for a folder without usable runs, or an impossible W."""
    if options.published is not None:
        return of_published_point(*_published_point(options.published))
    assert options.folder is not None
    if not Path(options.folder).is_dir():
        raise RunFolderError(f"{options.folder}: not a folder")
    # 1. Read one study.
    found = read_runs(Path(options.folder))
    other = "env= and fit_rule= choose another"
    reading = one_study(found, env=options.env, rule=options.fit_rule, remedy=other)
    if not reading.runs:
        reasons = "; ".join(map(str, reading.left_out[:_MAX_REASONS])) or "it holds none"
        if len(reading.left_out) > _MAX_REASONS:
            reasons += f"; and {len(reading.left_out) - _MAX_REASONS} more"
        raise RunFolderError(f"{options.folder}: no usable run ({reasons})")
    runs, about_target = with_target(reading.runs, options.target_return)
    runs, left_out = steady(runs)
    study = compute_study(runs)
    doubted = doubts(study)
    # 2. Fit and predict.
    model = fit(_fitted_to(runs, options.fit_on))
    sizes = _world_sizes(options.world_sizes, runs, model, what_if)
    predictions = model.predict(sizes, what_if)
    notes = [*map(str, reading.left_out), *reading.remarks, *about_target, *left_out, *model.notes]
    # 3. Compare: with the measured FPS, or with the system without the changes.
    beside = {w: float(np.median(x)) for w, x in fps_of(runs).items()}
    if what_if.changes:
        beside = {p.world_size: p.fps for p in model.predict([w for w in sizes if model.divides(w)])}
    # 4. How good the model is, and which W to use.
    if options.fit_on is None:
        ahead = outlook(
            study,
            what_if={},
            predict_to=None,
            cores_per_worker=None,
            efficiency_floor=options.efficiency_floor,
            price_per_worker_hour=options.price_per_worker_hour,
            refused=not_faster(study),
            unsure=perhaps_slower(study),
        )
        last = list(ahead.quality[1:])
        if ahead.recommendation is not None:
            last.append(_WHICH + ahead.recommendation.text())
    else:
        last = [f"{each}." for each in held_out(model, runs)]
    if doubted:  # then no W is recommended
        last = [text for text in last if not text.startswith(_WHICH)]
    blocks = [
        "\n".join(f"CANNOT BE BELIEVED: {doubt}" for doubt in doubted),
        _heading(model, what_if),
        _table(predictions, beside, what_if),
        "\n".join(f"note: {n}" for n in notes),
        "\n".join(last),
    ]
    return "\n\n".join(b for b in blocks if b)


def _fitted_to(runs: list[Run], fit_on: Any) -> list[Run]:
    """Return the runs with the W in `fit_on`; all runs without it."""
    if fit_on is None:
        return runs
    # fit_on must name measured W and leave at least one out.
    wanted = whole_numbers("fit_on", fit_on)
    measured = sorted({run.world_size for run in runs})
    listed = ", ".join(map(str, measured))
    if missing := [w for w in wanted if w not in measured]:
        raise ConfigError(f"fit_on={fit_on}: W={missing[0]} was not measured; there are {listed}")
    if set(wanted) == set(measured):
        raise ConfigError(
            f"fit_on={fit_on} names every W measured ({listed}): leave out the one to compare at"
        )
    return [run for run in runs if run.world_size in wanted]


def _heading(model: FittedModel, what_if: WhatIf) -> str:
    """Return the fitted costs, in a few lines."""
    p, run = model.parameters, model.base.run
    sleep = f", asleep {1e3 * p.env_sleep_s:.3g} ms per environment" if p.env_sleep_s else ""
    lines = [
        f"{run.env_id}, {what_if.rule or run.rule} scaling. {judged(model.errors.relative)}.",
        f"vectorised step {1e3 * p.step.fixed_s:.3g} + {1e3 * p.step.unit_s:.3g} E ms{sleep}; minibatch "
        f"{1e3 * p.minibatch.fixed_s:.3g} ms + {1e6 * p.minibatch.unit_s:.3g} n us; collective {1e3 * p.call_s:.3g} "
        f"ms, latency {1e3 * p.latency_s:.3g} ms a message, {1 / p.byte_s / 1e9 if p.byte_s else float('inf'):.3g} "
        f"GB/s, {1e3 * p.turn_s:.3g} ms for each further rank on a core; of two ranks the later ends its rollout "
        f"{100 * (0.564 * p.late_light + 0.32 * p.late_heavy):.1f} % after their mean",
    ]
    if what_if.cores_per_worker is None:
        lines.append(model.cores_rule)
    if what_if.changes:
        lines.append("changed: " + ", ".join(f"{k}={v}" for k, v in what_if.changes.items()))
    return "\n".join(lines)


def _table(predictions: list[Prediction], beside: dict[int, float], what_if: WhatIf) -> str:
    """Return one line per W, with the FPS `beside`: without the changes, or measured, and then the error too."""
    names = [p.removeprefix("t_") for p in PARTS]
    head = ["W", "FPS", "95 % interval", "S", "E", "t_iter ms", *names]
    head += ["as it is"] if what_if.changes else ["measured", "off"]
    widths = [5, 10, 22, 9, 7, 11, *[9] * len(names), 10, 9][: len(head)]
    lines = [head]
    for p in predictions:
        cells = [str(p.world_size), whole(p.fps), f"{whole(p.fps_low)} to {whole(p.fps_high)}"]
        cells += [f"{p.speedup:.2f}", f"{p.efficiency:.3f}", f"{1e3 * p.t_iter:.2f}"]
        cells += [f"{1e3 * p.parts[n]:.2f}" for n in PARTS]
        fps = beside.get(p.world_size)
        cells.append("" if fps is None else whole(fps))
        if not what_if.changes:
            cells.append("" if fps is None else f"{100 * (p.fps / fps - 1):+.1f} %")
        lines.append(cells)
    return "\n".join(aligned(lines, widths))


def _world_sizes(given: Any, runs: list[Run], model: FittedModel, what_if: WhatIf) -> list[int]:
    if given is not None:
        return whole_numbers("world_sizes", given)
    # Without a list: the measured W and powers of 2 that divide the batch.
    measured = {run.world_size for run in runs}
    candidates = sorted(measured | {2**i for i in range(_LARGEST.bit_length())})
    return [w for w in candidates if model.divides(w, what_if)]


def _published_point(given: Any) -> tuple[int, float]:
    usage = 'e.g. published="{world_size: 128, speedup: 107}"'
    if not isinstance(given, dict) or set(given) != {"world_size", "speedup"}:
        raise ConfigError(f"published={given}: needs world_size and speedup, {usage}")
    try:
        world_size = as_whole("world_size", given["world_size"], low=1, high=_MOST_WORKERS)
        speedup = as_number("speedup", given["speedup"], above=0)
    except FieldError as e:
        raise ConfigError(f"published: {e}; both are numbers, {usage}") from e
    return world_size, speedup
