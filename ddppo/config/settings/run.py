"""What goes on around training: evaluation, checkpoints, the end, records."""

from dataclasses import dataclass

from ddppo.config.fields import setting


@dataclass(slots=True)
class EvalConfig:
    every_steps: int = setting(
        0, "environment steps between evaluations during training; 0: only at the end", low=0
    )
    episodes: int = setting(
        20,
        "episodes of an evaluation during training; for text the next multiple of the number of tasks, if"
        " the environment tells them",
        low=1,
    )
    final_episodes: int = setting(100, "episodes of the evaluation at the end; 0 is none", low=0)
    on_error: str = setting(
        "warn",
        "an evaluation during training that fails, e.g. because the task raises: warn (training goes on without "
        "its scores) or stop (the run ends). At the end of training all is on disk, and only the exit code tells "
        "(docs/faults.md)",
        choices=("warn", "stop"),
    )


@dataclass(slots=True)
class CheckpointConfig:
    every_steps: int = setting(50_000, "environment steps between checkpoints; 0: only at the end", low=0)
    every_minutes: float = setting(
        0.0, "minutes of training between checkpoints, by rank 0's clock; 0 is never", low=0, high=1_000_000
    )
    environments: bool = setting(
        True,
        "store the state of every environment in its episode, so that a resumed run equals one without "
        "interruption; megabytes per circuit. false: environments begin new episodes, and are told what "
        "the run folder knows",
    )
    keep: int = setting(2, "number of newest checkpoints to keep, besides the best", low=1)


@dataclass(slots=True)
class RunConfig:
    max_minutes: float | None = setting(
        None,
        "minutes since the start of the command after which all ranks finish the iteration, save and end,"
        " so that the command can be given again; null is no limit",
        above=0,
        high=10_000_000,
    )
    requeue_exit_code: int = setting(
        75,
        "exit code after SIGTERM, SIGUSR1, SIGUSR2 or run.max_minutes if there is a checkpoint to go on "
        "from; it means: give the command again (docs/faults.md)",
        low=0,
        high=255,
    )


@dataclass(slots=True)
class LogConfig:
    tensorboard: bool = setting(True, "write TensorBoard event files")
    trackers: list[str] = setting(
        meaning="services that also receive the numbers, as files in the run folder: wandb, mlflow",
        factory=list,
    )
    metrics: list[str] = setting(
        meaning="import paths of metrics of your own, functions of each rank's rollout, reduced over ranks by "
        "count: [my_pkg.metrics:pushed_left] (docs/guide/metric.md)",
        factory=list,
    )
    progress: str = setting(
        "auto",
        "display: rich (live), plain (one line every few seconds), none, auto (by terminal)",
        choices=("auto", "rich", "plain", "none"),
    )
    episode_window: int = setting(100, "number of episodes in the mean of rollout/return_mean", low=1)
    warmup_iterations: int = setting(
        2, "iterations left out of the means and percentiles in summary.json", low=0
    )
    profile_iterations: int = setting(
        0,
        "iterations of rank 0 to trace and then to profile, after warm-up, into profile/ of the run "
        "folder; 0 is none",
        low=0,
        high=1000,
    )
