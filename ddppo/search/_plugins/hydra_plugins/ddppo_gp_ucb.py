"""hydra/sweeper=gp_ucb: the runs of a sweep are chosen by upper confidence bounds of a Gaussian process.

The same command with the same sweep folder asks for the same runs again, of which those that are complete are skipped
and tell what they told before: so a search goes on, also with more trials.
"""

import csv
import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from ddppo.config.fields import check_fields, is_integer, setting_types
from ddppo.config.settings import config_class
from ddppo.config.variants import type_of
from ddppo.errors import ConfigError
from ddppo.files import write_text
from ddppo.search.settings import GpUcbSweeperConfig

if TYPE_CHECKING:
    from ddppo.search.spaces import Dimension
    from ddppo.search.ucb import Estimate

_TYPES = setting_types(config_class())


class GpUcbSweeper(Sweeper):
    """Asks for n_jobs runs at a time, tells the search what came of them, n_trials in all.

    Writes trials.csv as it goes, and at the end optimization_results.yaml, as Optuna's sweeper does.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._parser = OverridesParser.create(config_loader=hydra_context.config_loader)
        self._folder = Path(config.hydra.sweep.dir)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from ddppo.search.spaces import Space
        from ddppo.search.ucb import UCB

        settings = _checked(self._settings)
        params = [f"{key}={value}" for key, value in (settings.params or {}).items()]
        # What the command says of a setting replaces what params say of it.
        overrides = {o.key_or_group: o for o in self._parser.parse_overrides([*params, *arguments])}
        searched = {
            f"{override.get_key_element()}": dimension(override)
            for override in overrides.values()
            if override.is_sweep_override()
        }
        fixed = [o.input_line for o in overrides.values() if not o.is_sweep_override() and o.input_line]
        if not searched:
            raise ConfigError(
                "hydra/sweeper=gp_ucb has nothing to choose: give a setting an interval or several values, as in "
                "'ppo.learning_rate=tag(log, interval(1e-4, 1e-2))' or ppo.num_epochs=4,10"
            )
        search = UCB(
            Space(list(searched.values())),
            beta=settings.beta,
            seed=settings.seed,
            num_random=settings.num_random,
            repeats=False,
        )
        trials = Trials(self._folder, list(searched), settings.direction)
        while len(trials.values) < settings.n_trials:
            points = search.ask(min(settings.n_jobs, settings.n_trials - len(trials.values)))
            if not points:  # all combinations were tried
                break
            thought = [search.estimate(point) if search.num_values else None for point in points]
            jobs = [[*fixed, *_overrides(searched, point)] for point in points]
            returns = self._launcher.launch(jobs, initial_job_idx=len(trials.values))
            for point, estimate, job in zip(points, thought, returns, strict=True):
                value = _value(job)
                trials.note(point, estimate, value)
                search.tell(point, None if value is None else trials.sign * value)
            trials.write()
        trials.conclude(self._parser)


@dataclass(slots=True)
class Trials:
    """What was tried and what came of it. The search maximises; of what is to be minimised it hears the negative."""

    folder: Path
    names: list[str]
    direction: str
    points: list[tuple[Any, ...]] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def sign(self) -> float:
        return -1.0 if self.direction == "minimize" else 1.0

    def note(self, point: tuple[Any, ...], estimate: "Estimate | None", value: float | None) -> None:
        """Add a trial, with what was thought of it before it was tried (None: nothing yet) and what came of it."""
        thought: dict[str, Any] = dict.fromkeys(("mean", "deviation", "bound"))
        if estimate is not None:
            thought["mean"], thought["deviation"] = self.sign * estimate.mean, estimate.deviation
            thought["bound"] = self.sign * estimate.ucb
        settings = dict(zip(self.names, point, strict=True))
        self.rows.append({"trial": len(self.values), **settings, "value": value, **thought})
        self.points.append(point)
        self.values.append(value)

    def write(self) -> None:
        text = io.StringIO()
        table = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        write_text(self.folder / "trials.csv", text.getvalue())

    def conclude(self, parser: OverridesParser) -> None:
        """Write which trial had the best value, if one had any; Optuna's names."""
        known = [(self.sign * value, -i) for i, value in enumerate(self.values) if value is not None]
        if not known:
            return
        best = -max(known)[1]
        words = [f"{name}={value}" for name, value in zip(self.names, self.points[best], strict=True)]
        params = {o.key_or_group: o.value() for o in parser.parse_overrides(words)}
        results = {"name": "gp_ucb", "best_params": params, "best_value": self.values[best]}
        write_text(self.folder / "optimization_results.yaml", OmegaConf.to_yaml(OmegaConf.create(results)))


def _checked(settings: dict[str, Any]) -> GpUcbSweeperConfig:
    sweeper = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(GpUcbSweeperConfig), settings))
    assert isinstance(sweeper, GpUcbSweeperConfig)
    check_fields(sweeper, "hydra.sweeper.")
    return sweeper


def dimension(override: Override) -> "Dimension":
    """Return what an override lets choose: interval(a, b), its logarithm by tag(log, ...), ranges, values.

    An interval is of whole numbers if its setting is, or where it says int(interval(...)).
    Raises ConfigError for one of which nothing can be chosen.
    """
    from ddppo.search.spaces import Finite, Interval

    sweep = override.value()
    tags = set(getattr(sweep, "tags", ()))
    if tags - {"log"} or (tags and not isinstance(sweep, IntervalSweep | RangeSweep)):
        raise ConfigError(f"{override.input_line}: the only tag is log, of an interval or a range")
    try:
        if isinstance(sweep, IntervalSweep):
            return _interval(override.key_or_group, sweep)
        if isinstance(sweep, RangeSweep):
            values = sorted(sweep.range())
            if len(values) > 1:
                return Interval(values[0], values[-1], log="log" in tags, step=abs(sweep.step))
            return Finite([str(value) for value in values])
        return Finite(list(dict.fromkeys(override.sweep_string_iterator())))
    except ValueError as e:
        raise ConfigError(f"{override.input_line}: {e}") from e


def _interval(key: str, sweep: IntervalSweep) -> "Dimension":
    from ddppo.search.spaces import Interval

    low, high, is_log = sweep.start, sweep.end, "log" in sweep.tags
    assert low is not None
    assert high is not None
    # Of int(interval(1, 4)); else Hydra's grammar makes floats.
    if isinstance(low, int) and isinstance(high, int):
        return Interval(low, high, log=is_log, step=1)
    if not is_integer(type_of(key, _TYPES)):
        return Interval(low, high, log=is_log)
    if int(low) != low or int(high) != high:
        raise ConfigError(f"{key}=interval({low}, {high}): {key} is a whole number, and so must the ends be")
    return Interval(int(low), int(high), log=is_log, step=1)


def _overrides(searched: dict[str, Any], point: tuple[Any, ...]) -> list[str]:
    return [f"{key}={value}" for key, value in zip(searched, point, strict=True)]


def _value(job: JobReturn) -> float | None:
    """Return what a run came to; None where it failed, or to nothing that can be compared (a target never reached)."""
    value = job._return_value if job.status == JobStatus.COMPLETED else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
