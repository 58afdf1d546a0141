"""MLflow: a store of files in the run folder's mlflow/, unless MLFLOW_TRACKING_URI names another."""

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddppo.config.settings import Config
from ddppo.records.metrics import IterationReport
from ddppo.records.trackers.told import PROJECT, name_of, results_of, settings_of

_CLOCK = "wall_s"  # which every iteration has
_INTERVAL_S = 5.0  # between two writes, each of which opens files or a connection
_MOST = 1000  # metrics in one; MLflow's limit
_MOST_PARAMS = 100
_LONGEST = 500  # characters of a setting
_STATUS = {"completed": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowTracker:
    """A run of MLflow, whose metrics stand at env_steps."""

    def __init__(self, config: Config, run_dir: Path, run_id: str | None) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            uri = (run_dir.resolve() / "mlflow").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which newer ones ask for
        import mlflow
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._waiting: list[Any] = []
        self._written = time.monotonic()
        self.last_step = 0
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
            self.id = run_id
            told = self._client.get_metric_history(run_id, _CLOCK)
            self.last_step = max((point.step for point in told), default=0)
            return
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = self._client.create_experiment(PROJECT) if found is None else found.experiment_id
        run = self._client.create_run(experiment, run_name=name_of(config, run_dir))
        self.id = str(run.info.run_id)
        params = [Param(name, str(value)[:_LONGEST]) for name, value in settings_of(config).items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self.id, params=params[first : first + _MOST_PARAMS])

    def write(self, report: IterationReport) -> None:
        if report.env_steps <= self.last_step:
            return
        now = round(1000 * time.time())
        self._waiting += (
            self._metric(name, value, now, report.env_steps)
            for name, value in {_CLOCK: report.wall_s, **report.scalars()}.items()
            if math.isfinite(value)
        )
        if time.monotonic() - self._written > _INTERVAL_S or len(self._waiting) >= _MOST:
            self._flush()

    def close(self, summary: Mapping[str, Any]) -> None:
        now = round(1000 * time.time())
        results = {f"summary/{name}": value for name, value in results_of(summary).items()}
        self._waiting += (
            self._metric(name, value, now, summary["env_steps"])
            for name, value in results.items()
            if math.isfinite(value)
        )
        self._flush()
        self._client.set_terminated(self.id, status=_STATUS[summary["status"]])

    def _flush(self) -> None:
        for first in range(0, len(self._waiting), _MOST):
            self._client.log_batch(self.id, metrics=self._waiting[first : first + _MOST])
        self._waiting = []
        self._written = time.monotonic()
