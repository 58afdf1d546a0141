"""The door `python -m ddppo.predict`: FPS, speedup and efficiency at W that nobody has run.

From the runs of a sweep, or from one published point.
"""

import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.config import check_fields, near, setting
from ddppo.errors import ConfigError, RunFolderError
from ddppo.scaling import published
from ddppo.scaling.model import FittedModel, Prediction, WhatIf, fit
from ddppo.scaling.recommend import Study, recommend
from ddppo.scaling.runs import PARTS, read_runs
from ddppo.scaling.selection import one_study
from ddppo.scaling.simulate import simulate
from ddppo.scaling.time_to_target import time_to_target

_LARGEST = 1024


@dataclass(slots=True)
class PredictConfig:
    folder: str | None = setting(None, "the sweep folder; also as the first word")
    world_sizes: Any = setting(None, f"W to predict, e.g. 1,2,4; null: the measured and 2^k to {_LARGEST}")
    env: str | None = setting(None, "of several tasks in the folder, this one")
    simulate: int = setting(0, "also simulate so many iterations at each W, beside the formula", low=0)
    efficiency_floor: float = setting(0.7, "least efficiency of the W that is recommended", low=0, high=1)
    price_per_worker_hour: float = setting(1.0, "cost of one worker for one hour", low=0)
    published: Any = setting(None, '"{world_size: 128, speedup: 107}": what a published point alone implies')


def main() -> None:
    """Run the command line; exit code 0, or 2 for a mistake in the command."""
    if any(a in ("-h", "--help") for a in sys.argv[1:]):
        print(_help())
        return
    try:
        options, what_if = _parsed(sys.argv[1:])
        print(predict(options, what_if))
    except ConfigError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)


def predict(options: PredictConfig, what_if: WhatIf) -> str:
    """Return what to print. Raises ConfigError for a folder without usable runs or W that cannot be."""
    if options.published is not None:
        return published.text(_published_point(options.published))
    assert options.folder is not None
    if not Path(options.folder).is_dir():
        raise RunFolderError(f"{options.folder}: not a folder")
    reading = one_study(read_runs(Path(options.folder)), env=options.env)
    if not reading.runs:
        reasons = "; ".join(map(str, reading.left_out)) or "it holds none"
        raise RunFolderError(f"{options.folder}: no usable run ({reasons})")
    model = fit(reading.runs)
    world_sizes = _world_sizes(options.world_sizes, model, what_if)
    predictions = model.predict(world_sizes, what_if)
    times: dict[int, list[float]] = {}
    for run in reading.runs:
        times.setdefault(run.world_size, []).append(time_to_target(run))
    study = Study(reading.runs, {w: sorted(t)[len(t) // 2] for w, t in times.items()})
    chosen = recommend(
        study,
        model,
        efficiency_floor=options.efficiency_floor,
        price_per_worker_hour=options.price_per_worker_hour,
    )
    blocks = [
        _heading(model, what_if),
        _table(predictions, model, what_if, options.simulate),
        "\n".join(f"note: {n}" for n in (*map(str, reading.left_out), *reading.remarks, *model.notes)),
        "Which W, of the system as measured:\n" + chosen.text(),
    ]
    return "\n\n".join(b for b in blocks if b)


def _heading(model: FittedModel, what_if: WhatIf) -> str:
    p, run = model.parameters, model.base.run
    off = ", ".join(f"W={w} {100 * m:+.1f} %" for w, m in model.misfit.items())
    sleep = f", asleep {1e3 * p.env_sleep_s:.3g} ms per environment" if p.env_sleep_s else ""
    lines = [
        f"{run.env_id}, {what_if.rule or run.rule} scaling; fitted t_iter is off by {off}",
        f"vectorised step {1e3 * p.acting_s:.3g} + {1e3 * p.per_env_s:.3g} E ms{sleep}; minibatch "
        f"{1e3 * p.minibatch_s:.3g} ms + {1e6 * p.sample_s:.3g} n us; collective {1e3 * p.call_s:.3g} ms, latency "
        f"{1e3 * p.latency_s:.3g} ms a message, {1 / p.byte_s / 1e9 if p.byte_s else float('inf'):.3g} GB/s; "
        f"rollouts spread by {100 * model.system(run.world_size).noise.cv:.1f} % over ranks",
    ]
    if what_if.cores_per_worker is None:
        cores = run.cores
        lines.append(
            f"all ranks on one machine of {cores} cores, as measured; cores_per_worker=1 gives each its own"
        )
    if what_if.changes:
        lines.append("changed: " + ", ".join(f"{k}={v}" for k, v in what_if.changes.items()))
    return "\n".join(lines)


def _table(predictions: list[Prediction], model: FittedModel, what_if: WhatIf, iterations: int) -> str:
    """Return one line per W. Beside it: the FPS without preemption, or without any change, or as measured."""
    names = [p.removeprefix("t_") for p in PARTS]
    preempted = what_if.preemption is not None
    last = "without" if preempted else "as it is" if what_if.changes else "measured"
    unchanged = replace(what_if, preemption=None) if preempted else WhatIf()
    head = f"{'W':>5}{'FPS':>10}{'95 % interval':>22}{'S':>9}{'E':>7}{'t_iter ms':>11}"
    head += "".join(f"{n:>9}" for n in names) + f"{last:>10}" + (f"{'simulated':>11}" if iterations else "")
    lines = [head]
    for p in predictions:
        interval = f"{p.fps_low:,.0f} to {p.fps_high:,.0f}"
        line = f"{p.world_size:>5}{p.fps:>10,.0f}{interval:>22}{p.speedup:>9.2f}{p.efficiency:>7.3f}"
        line += f"{1e3 * p.t_iter:>11.2f}" + "".join(f"{1e3 * p.parts[n]:>9.2f}" for n in PARTS)
        beside = p.measured_fps
        if what_if.changes and model.divides(p.world_size, unchanged):
            beside = model.predict([p.world_size], unchanged)[0].fps
        line += f"{beside:>10,.0f}" if beside == beside else f"{'':>10}"
        if iterations:
            line += f"{_simulated_fps(model, p.world_size, what_if, iterations):>11,.0f}"
        lines.append(line)
    return "\n".join(lines)


def _simulated_fps(model: FittedModel, world_size: int, what_if: WhatIf, iterations: int) -> float:
    return simulate(model.system(world_size, what_if), iterations).fps


def _world_sizes(given: Any, model: FittedModel, what_if: WhatIf) -> list[int]:
    if given is None:
        measured = {p.run.world_size for p in model.points}
        candidates = sorted(measured | {2**i for i in range(_LARGEST.bit_length())})
        return [w for w in candidates if model.divides(w, what_if)]
    try:
        values = [int(w) for w in (given if isinstance(given, list) else str(given).split(","))]
    except ValueError as e:
        raise ConfigError(f"world_sizes={given}: numbers of workers, e.g. world_sizes=1,2,4") from e
    if not values or min(values) < 1:
        raise ConfigError(f"world_sizes={given}: every number of workers must be at least 1")
    return values


def _published_point(given: Any) -> published.PublishedPoint:
    usage = 'e.g. published="{world_size: 128, speedup: 107}"'
    if not isinstance(given, dict) or set(given) != {"world_size", "speedup"}:
        raise ConfigError(f"published={given}: needs world_size and speedup, {usage}")
    try:
        return published.PublishedPoint(int(given["world_size"]), float(given["speedup"]))
    except (TypeError, ValueError) as e:
        if isinstance(e, ConfigError):
            raise
        raise ConfigError(f"published={given}: world_size and speedup are numbers, {usage}") from e


def _parsed(arguments: list[str]) -> tuple[PredictConfig, WhatIf]:
    if arguments and "=" not in arguments[0]:
        arguments = [f"folder={arguments[0]}", *arguments[1:]]
    own = [f.name for f in fields(PredictConfig)]
    changes = [f.name for f in fields(WhatIf)]
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        if not equals or key not in own + changes:
            raise ConfigError(
                f"{argument}: not a setting of predict{near(key, own + changes)}; --help lists them"
            )
    options = _typed(PredictConfig, [a for a in arguments if a.partition("=")[0] in own])
    what_if = _typed(WhatIf, [a for a in arguments if a.partition("=")[0] in changes])
    assert isinstance(options, PredictConfig)
    assert isinstance(what_if, WhatIf)
    check_fields(options)
    if (options.folder is None) == (options.published is None):
        raise ConfigError(
            "give a sweep folder or a published point, one of them: python -m ddppo.predict <sweep folder>, or "
            '"published={world_size: 128, speedup: 107}"'
        )
    if options.published is not None and len(arguments) > 1:
        raise ConfigError(
            "published= goes alone: a point has no parts that other settings could change; give a sweep folder"
        )
    return options, what_if


def _typed(section: type, arguments: list[str]) -> Any:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(section), OmegaConf.from_dotlist(arguments))
        return OmegaConf.to_object(merged)
    except OmegaConfBaseException as e:
        raise ConfigError(f"{e.full_key}: {str(e).splitlines()[0]}") from e


def _help() -> str:
    rows = ["python -m ddppo.predict <sweep folder> [world_sizes=1,2,...] [change=value] ...", ""]
    rows += [f"  {f.name:<23}{f.metadata['meaning']}" for f in fields(PredictConfig)]
    rows += ["", "changes to the measured system:", ""]
    rows += [f"  {f.name:<23}{f.metadata['meaning']}" for f in fields(WhatIf)]
    return "\n".join(rows)


if __name__ == "__main__":
    main()
