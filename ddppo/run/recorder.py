"""Everything rank 0 writes and shows: metrics.jsonl, TensorBoard, the terminal, summary.json."""

from pathlib import Path
from typing import TYPE_CHECKING

from ddppo.run.display import closing, header, make_display
from ddppo.run.metrics import IterationReport
from ddppo.run.summary import SummaryBuilder
from ddppo.run.writers import (
    JsonlWriter,
    RunWriter,
    TensorBoardWriter,
    Writers,
    drop_after,
    read_reports,
    write_json,
)

if TYPE_CHECKING:
    from ddppo.run.worker import Worker


class NullRecorder:
    """What the other ranks hold."""

    def record(self, report: IterationReport, *, is_last: bool) -> None:
        pass

    def close(self, status: str) -> None:
        pass


class Recorder:
    """Opens the run folder's records, continuing those of a resumed run without doubled steps."""

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        config, run_dir = worker.config, worker.run_dir
        resumed = worker.iteration > 0
        self.summary = SummaryBuilder(config, worker.shape, worker.derived, config.log.warmup_iterations)
        metrics_path = run_dir / "metrics.jsonl"
        if resumed:
            drop_after(metrics_path, worker.iteration)
            if metrics_path.exists():
                self.summary.restore(read_reports(metrics_path))
            _keep_earlier(run_dir / "summary.json")
        writers: list[RunWriter] = [JsonlWriter(metrics_path)]
        if config.log.tensorboard:
            writers.append(
                TensorBoardWriter(
                    run_dir / "tensorboard",
                    config,
                    worker.shape.world_size,
                    resumed_at_steps=worker.env_steps if resumed else None,
                    resumed_at_wall_s=worker.wall_before,
                )
            )
        self.writers = Writers(*writers)
        self.final_eval: dict[str, float] | None = None
        self.quiet = config.log.progress == "none"
        self.display = make_display(config.log.progress, config.ppo.total_steps)
        if not self.quiet:
            print(header(config, worker.shape, {**worker.derived, "run_dir": run_dir}), flush=True)
        self.display.start()

    def record(self, report: IterationReport, *, is_last: bool) -> None:
        """Write and show one iteration; `is_last` makes its evaluation the final one."""
        self.summary.add(report)
        self.writers.write(report)
        self.display.update(report)
        if is_last:
            scores = {k: v for k, v in report.global_metrics.items() if k.startswith("eval/")}
            self.final_eval = scores or None

    def close(self, status: str) -> None:
        """Close the files and write summary.json; status is completed, stopped or failed."""
        worker, target_return = self.worker, self.worker.config.target_return
        self.display.close()
        self.writers.close(self.final_eval, completed=status == "completed")
        target = None
        if target_return is not None:
            nothing = {"time_to_target_s": None, "steps_to_target": None}
            target = {"return": target_return, "reached": bool(worker.target), **(worker.target or nothing)}
        summary = self.summary.build(
            status=status,
            params_hash=worker.parameters.digest(),
            final_eval=self.final_eval,
            best_eval=worker.best or None,
            target=target,
        )
        write_json(worker.run_dir / "summary.json", summary)
        if not self.quiet:
            print(closing(summary, worker.run_dir), flush=True)


def _keep_earlier(path: Path) -> None:
    """Move a file that is about to be written anew to the first free numbered name beside it."""
    if path.exists():
        number = 1
        while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
            number += 1
        path.rename(kept)
