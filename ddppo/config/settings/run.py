"""What goes on around training: evaluation, checkpoints, the end, records."""

from dataclasses import dataclass

from ddppo.config.fields import setting


@dataclass(slots=True)
class EvalConfig:
    every_steps: int = setting(
        0, "environment steps between evaluations during training; 0 is only the last", low=0
    )
    episodes: int = setting(
        20,
        "episodes of an evaluation during training; of text the next multiple of the number of tasks, if it tells them",
        low=1,
    )
    final_episodes: int = setting(100, "episodes of the evaluation at the end; 0 is none", low=0)


@dataclass(slots=True)
class CheckpointConfig:
    every_steps: int = setting(50_000, "environment steps between checkpoints; 0 is only at the end", low=0)
    every_minutes: float = setting(
        0.0, "minutes of training between checkpoints, by rank 0's clock; 0 is never", low=0, high=1_000_000
    )
    environments: bool = setting(
        True,
        "hold what every environment is in the midst of, so that a resumed run is the one that was not interrupted; "
        "megabytes of each of circuits. false: they start new episodes, and hear what the run folder knows",
    )
    keep: int = setting(2, "how many of the newest checkpoints stay, besides the best", low=1)


@dataclass(slots=True)
class RunConfig:
    max_minutes: float | None = setting(
        None,
        "minutes since the command began after which all ranks finish the iteration, save it and end, to be started "
        "again; null is no limit",
        above=0,
        high=10_000_000,
    )
    requeue_exit_code: int = setting(
        75,
        "exit code of a command that SIGTERM, SIGUSR1, SIGUSR2 or run.max_minutes ended and that saved what to go on "
        "from: start it again (docs/faults.md)",
        low=0,
        high=255,
    )


@dataclass(slots=True)
class LogConfig:
    tensorboard: bool = setting(True, "write TensorBoard event files")
    trackers: list[str] = setting(
        meaning="services that are told the same numbers, in files of the run folder: wandb, mlflow",
        factory=list,
    )
    metrics: list[str] = setting(
        meaning="import paths of metrics of your own, functions of what each rank collected, which are reduced over "
        "ranks by count: [my_pkg.metrics:pushed_left] (docs/guide/metric.md)",
        factory=list,
    )
    progress: str = setting(
        "auto",
        "live display (rich), one line every few seconds (plain), nothing (none), by terminal (auto)",
        choices=("auto", "rich", "plain", "none"),
    )
    episode_window: int = setting(100, "episodes in the mean of rollout/return_mean", low=1)
    warmup_iterations: int = setting(
        2, "iterations left out of the means and percentiles in summary.json", low=0
    )
    profile_iterations: int = setting(
        0,
        "after warm-up, iterations of rank 0 to trace and then to profile, into the run folder's profile/; 0 is none",
        low=0,
        high=1000,
    )
