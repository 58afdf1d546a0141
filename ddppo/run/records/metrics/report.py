"""One iteration in numbers."""

from dataclasses import dataclass

from ddppo.run.records.metrics.table import check_names

_SAID_BY_GLOBAL = {"rollout/local_steps", "rollout/local_fps"}  # rollout/steps and rollout/fps


@dataclass(frozen=True, slots=True)
class IterationReport:
    """Everything known about one iteration, on rank 0. Raises KeyError for a metric that the table lacks."""

    iteration: int
    """Counted from 1."""
    env_steps: int
    """Of all ranks, since the start of training, this iteration included."""
    wall_s: float
    """Seconds of training so far: evaluation excluded, continuing across resumes."""
    rank_metrics: tuple[dict[str, float], ...]
    """One dict per rank, with the metrics that are per rank."""
    global_metrics: dict[str, float]
    resumed: bool = False
    """Whether a resumed run began with it; known of what is read from metrics.jsonl."""

    def __post_init__(self) -> None:
        assert self.rank_metrics, f"iteration {self.iteration} reports no rank"
        for metrics in self.rank_metrics:
            check_names(metrics, per_rank=True)
        check_names(self.global_metrics, per_rank=False)

    def rank_mean(self, name: str) -> float | None:
        """Return the mean over ranks of a per-rank metric, or None if no rank has it."""
        values = [metrics[name] for metrics in self.rank_metrics if name in metrics]
        return sum(values) / len(values) if values else None

    def scalars(self) -> dict[str, float]:
        """Return the global metrics, and of those per rank that these do not say the means over ranks."""
        names = {name for metrics in self.rank_metrics for name in metrics if name not in _SAID_BY_GLOBAL}
        return self.global_metrics | {name: self.rank_mean(name) or 0.0 for name in names}
