"""Weights & Biases: offline in the run folder's wandb/, unless WANDB_MODE says otherwise."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddppo.config.settings import Config
from ddppo.records.metrics import IterationReport
from ddppo.records.trackers.told import PROJECT, name_of, results_of, settings_of


class WandbTracker:
    """A run of wandb. What it shows is against env_steps: its own count of steps goes on from what was lost.

    last_step: of iterations told before; offline it knows of none itself.
    """

    def __init__(self, config: Config, run_dir: Path, run_id: str | None, last_step: int) -> None:
        import wandb

        self.last_step = last_step
        self.id = run_id or uuid.uuid4().hex[:8]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.id,
            name=name_of(config, run_dir),
            dir=str(run_dir),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            config=settings_of(config),
            settings=wandb.Settings(console="off", silent=True),  # a run's output is the display's
        )
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, report: IterationReport) -> None:
        if report.env_steps > self.last_step:
            self._run.log({"env_steps": report.env_steps, "wall_s": report.wall_s, **report.scalars()})

    def close(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update({"status": summary["status"], **results_of(summary)})
        self._run.finish(exit_code=1 if summary["status"] == "failed" else 0)
