"""Everything rank 0 writes and shows: metrics.jsonl, TensorBoard, the terminal, summary.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddppo.config import Config
from ddppo.run.display import closing, header, make_display
from ddppo.run.metrics import IterationReport
from ddppo.run.summary import SummaryBuilder
from ddppo.run.writers import (
    JsonlWriter,
    RunWriter,
    TensorBoardWriter,
    Writers,
    drop_after,
    keep_earlier,
    read_reports,
    write_json,
)
from ddppo.scaling.batch import BatchShape


class NullRecorder:
    """What the other ranks hold."""

    def record(self, report: IterationReport, *, is_last: bool) -> None:
        pass

    def conclude(self, report: IterationReport) -> None:
        pass

    def close(
        self, status: str, *, params_hash: str, best: dict[str, float], target: dict[str, float]
    ) -> None:
        pass


class Recorder:
    """Opens the run folder's records, continuing those of a run resumed at an iteration without doubled steps.

    `derived` holds what only the process knows: num_parameters, device, threads.
    """

    def __init__(
        self,
        config: Config,
        shape: BatchShape,
        run_dir: Path,
        derived: Mapping[str, Any],
        *,
        iteration: int,
        env_steps: int,
        wall_s: float,
    ) -> None:
        self.config = config
        self.run_dir = run_dir
        resumed = iteration > 0
        self.summary = SummaryBuilder(config, shape, derived, config.log.warmup_iterations)
        metrics_path = run_dir / "metrics.jsonl"
        if resumed:
            drop_after(metrics_path, iteration)
            if metrics_path.exists():
                self.summary.restore(read_reports(metrics_path))
            keep_earlier(run_dir / "summary.json")
        writers: list[RunWriter] = [JsonlWriter(metrics_path)]
        if config.log.tensorboard:
            writers.append(
                TensorBoardWriter(
                    run_dir / "tensorboard",
                    config,
                    shape.world_size,
                    resumed_at_steps=env_steps if resumed else None,
                    resumed_at_wall_s=wall_s,
                )
            )
        self.writers = Writers(*writers)
        self.final_eval: dict[str, float] | None = None
        self.quiet = config.log.progress == "none"
        self.display = make_display(config.log.progress, config.ppo.total_steps)
        if not self.quiet:
            print(header(config, shape, {**derived, "run_dir": run_dir}), flush=True)
        self.display.start()

    def record(self, report: IterationReport, *, is_last: bool) -> None:
        """Write and show one iteration; `is_last` makes its evaluation the final one."""
        self.summary.add(report)
        self.writers.write(report)
        self.display.update(report)
        if is_last:
            self.conclude(report)

    def conclude(self, report: IterationReport) -> None:
        """Make the report's evaluation, if it has one, the final one."""
        scores = {k: v for k, v in report.global_metrics.items() if k.startswith("eval/")}
        self.final_eval = scores or None

    def close(
        self, status: str, *, params_hash: str, best: dict[str, float], target: dict[str, float]
    ) -> None:
        """Close the files and write summary.json; status is completed, stopped or failed.

        `best` are the best evaluation's scores, `target` when target_return was reached; empty where there is none.
        """
        self.display.close()
        self.writers.close(self.final_eval, completed=status == "completed")
        reached = None
        if self.config.target_return is not None:
            nothing = {"time_to_target_s": None, "steps_to_target": None}
            reached = {"return": self.config.target_return, "reached": bool(target), **(target or nothing)}
        summary = self.summary.build(
            status=status,
            params_hash=params_hash,
            final_eval=self.final_eval,
            best_eval=best or None,
            target=reached,
        )
        write_json(self.run_dir / "summary.json", summary)
        if not self.quiet:
            print(closing(summary, self.run_dir), flush=True)
