"""Experiment trackers (Weights & Biases, MLflow): they receive the scalars that TensorBoard shows.

Read `open_tracker` first, then one class per service. By default a tracker writes files into the run folder and needs
no network. trackers.json in the run folder keeps the run's ID at each service, so that a resumed run is continued
there as the same run. Neither service lets a number be taken back: iterations that a resumed run repeats are skipped.
"""

import importlib.util
import json
import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ddppo.config.settings import Config
from ddppo.config.stored import in_effect
from ddppo.errors import ConfigError
from ddppo.files import write_json
from ddppo.package import install_command
from ddppo.records.jsonl import last_superseded
from ddppo.records.metrics import IterationReport

PROJECT = "ddppo"
_IDS = "trackers.json"


class Tracker(Protocol):
    """One run at one service."""

    id: str  # identifies the run at the service; stored in trackers.json
    last_step: int  # env_steps of the last iteration that the service already has

    def write(self, report: IterationReport) -> None:
        """Log the scalars of an iteration, unless the service has it already."""

    def close(self, summary: Mapping[str, Any]) -> None:
        """Log the results of summary.json and end the run at the service."""


# -- Open a tracker.


def check_installed(names: Sequence[str]) -> None:
    """Raise ConfigError with the commands to type if the package of a tracker is not installed."""
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        commands = "; ".join(f"{name} by {install_command(name)}" for name in missing)
        raise ConfigError(
            f"log.trackers=[{','.join(names)}] needs packages that are not installed: {commands}"
        )


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    # A folder ./wandb, which wandb itself leaves behind, is found too, but has no origin.
    return spec is not None and spec.origin is not None


def open_tracker(name: str, config: Config, run_dir: Path, *, resumed: bool) -> Tracker:
    """Return the tracker `name`; if `resumed`, continue the run that trackers.json names.

    Raises any exception of the service's package.
    """
    ids = _read_ids(run_dir)
    known_id = ids.get(name) if resumed else None
    tracker: Tracker
    if name == "wandb":
        last_step = last_superseded(run_dir / "metrics.jsonl") if known_id is not None else 0
        tracker = WandbTracker(config, run_dir, known_id, last_step)
    else:
        tracker = MlflowTracker(config, run_dir, known_id)
    write_json(run_dir / _IDS, {**ids, name: tracker.id})
    return tracker


def _read_ids(run_dir: Path) -> dict[str, str]:
    """Return trackers.json; {} if it is missing or damaged, and then the run begins anew at the service."""
    with suppress(OSError, ValueError):
        found = json.loads((run_dir / _IDS).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {name: run_id for name, run_id in found.items() if isinstance(run_id, str)}
    return {}


# -- Name, settings and results of a run: the same for all services.


def _run_name(config: Config, run_dir: Path) -> str:
    return f"{config.env.id} {run_dir.name}"


def _flat_settings(config: Config) -> dict[str, Any]:
    """Return all settings under dotted names ("ppo.gamma")."""
    return _flattened(in_effect(config), "")


def _flattened(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flattened(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _results(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the results in summary.json that are numbers: final/return_mean, best/return_mean, fps, ..."""
    scores = {
        f"{which}/{name}": value
        for which in ("final", "best")
        for name, value in (summary["eval"][which] or {}).items()
    }
    results = scores | {name: summary[name] for name in ("fps", "wall_s", "env_steps", "restarts")}
    return {name: float(value) for name, value in results.items() if isinstance(value, (int, float))}


# -- Weights & Biases.


class WandbTracker:
    """A Weights & Biases run: offline in the run folder's wandb/, unless WANDB_MODE says otherwise.

    The x-axis of every chart is env_steps. wandb's own step counter cannot serve: after a resume it continues from
    iterations that were lost. An offline run cannot be read back, so the caller passes `last_step`.
    """

    def __init__(self, config: Config, run_dir: Path, run_id: str | None, last_step: int) -> None:
        import wandb

        self.last_step = last_step
        self.id = run_id or uuid.uuid4().hex[:8]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.id,
            name=_run_name(config, run_dir),
            dir=str(run_dir),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            config=_flat_settings(config),
            # The terminal belongs to the progress display.
            settings=wandb.Settings(console="off", silent=True),
        )
        # All charts over env_steps.
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, report: IterationReport) -> None:
        if report.env_steps > self.last_step:
            self._run.log({"env_steps": report.env_steps, "wall_s": report.wall_s, **report.scalars()})

    def close(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update({"status": summary["status"], **_results(summary)})
        self._run.finish(exit_code=1 if summary["status"] == "failed" else 0)


# -- MLflow.


_CLOCK = "wall_s"  # a metric that every iteration has: its history says which iterations MLflow has
_WRITE_INTERVAL_S = 5.0  # between writes; each one opens files or a connection
_MAX_METRICS = 1000  # in one batch; MLflow's limit
_MAX_PARAMS = 100  # in one batch; MLflow's limit
_MAX_PARAM_LENGTH = 500  # characters; MLflow's limit
_STATUS = {"completed": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowTracker:
    """An MLflow run: files in the run folder's mlflow/, unless MLFLOW_TRACKING_URI names another store.

    The step of every metric is env_steps.
    """

    def __init__(self, config: Config, run_dir: Path, run_id: str | None) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            uri = (run_dir.resolve() / "mlflow").as_uri()
            # Newer versions of MLflow refuse a store of files without this.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        import mlflow
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._pending: list[Any] = []
        self._written_at = time.monotonic()
        self.last_step = 0
        if run_id is not None:
            # A resumed run: MLflow knows its settings, and which iterations it has.
            self._client.update_run(run_id, status="RUNNING")
            self.id = run_id
            history = self._client.get_metric_history(run_id, _CLOCK)
            self.last_step = max((point.step for point in history), default=0)
            return
        # A new run: create the experiment if it is missing, then log the settings in batches.
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = self._client.create_experiment(PROJECT) if found is None else found.experiment_id
        run = self._client.create_run(experiment, run_name=_run_name(config, run_dir))
        self.id = str(run.info.run_id)
        settings = _flat_settings(config)
        params = [Param(name, str(value)[:_MAX_PARAM_LENGTH]) for name, value in settings.items()]
        for first in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self.id, params=params[first : first + _MAX_PARAMS])

    def write(self, report: IterationReport) -> None:
        if report.env_steps <= self.last_step:
            return
        # Collect, and write every few seconds.
        self._append({_CLOCK: report.wall_s, **report.scalars()}, report.env_steps)
        is_due = time.monotonic() - self._written_at > _WRITE_INTERVAL_S
        if is_due or len(self._pending) >= _MAX_METRICS:
            self._flush()

    def close(self, summary: Mapping[str, Any]) -> None:
        results = {f"summary/{name}": value for name, value in _results(summary).items()}
        self._append(results, summary["env_steps"])
        self._flush()
        self._client.set_terminated(self.id, status=_STATUS[summary["status"]])

    def _append(self, scalars: Mapping[str, float], step: int) -> None:
        """Keep scalars for the next write; NaN and infinity are left out, because stores of files refuse them."""
        now_ms = round(1000 * time.time())
        self._pending += (
            self._metric(name, value, now_ms, step) for name, value in scalars.items() if math.isfinite(value)
        )

    def _flush(self) -> None:
        for first in range(0, len(self._pending), _MAX_METRICS):
            self._client.log_batch(self.id, metrics=self._pending[first : first + _MAX_METRICS])
        self._pending = []
        self._written_at = time.monotonic()
