"""End the runs of a sweep that fall behind: a callback for any sweeper and launcher.

    python -m ddppo.train -m experiment=tune/cartpole
    python -m ddppo.train -m ... eval.every_steps=10000 'run.callbacks=[ddppo.records.pruning:StopBelowMedian]'

After each evaluation a run compares itself with the other runs of its sweep folder, by their metrics.jsonl. So it needs
no server: runs of joblib or of a cluster compare themselves through the folder that they share.
"""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

from ddppo.errors import ConfigError
from ddppo.records.callbacks import LiveRun

SCORE = "eval/return_mean"


class StopBelowMedian:
    """The median stopping rule (Golovin et al. 2017, doi:10.1145/3097983.3098043, section 3.2.2, on best values).

    A run ends, with its final evaluation, if its best mean return so far is lower than the median, over the other runs,
    of their best mean return until the same number of steps.

    Args:
        min_runs: other runs that must have come so far before the rule counts.
        after_steps: environment steps before which no run ends.
    """

    def __init__(self, min_runs: int = 4, after_steps: int = 0) -> None:
        if min_runs < 1 or after_steps < 0:
            raise ConfigError(
                f"StopBelowMedian: min_runs={min_runs} must be at least 1, and after_steps={after_steps} at least 0"
            )
        self.min_runs, self.after_steps = min_runs, after_steps

    def on_evaluation(self, run: LiveRun) -> None:
        """Stop the run if it is below the median. The final evaluation comes too late to save anything."""
        if not self.after_steps <= run.env_steps < run.total_steps or SCORE not in run.metrics:
            return
        # Its own earlier evaluations are in its records; the present one may not be yet.
        earlier = [score for steps, score in _evaluations(run.folder) if steps < run.env_steps]
        best = max([*earlier, run.metrics[SCORE]])
        others = _others(run.folder, run.env_steps)
        if len(others) >= self.min_runs and best < (median := statistics.median(others)):
            run.stop(
                f"its best mean return {best:.2f} is below {median:.2f}, the median of {len(others)} other runs at "
                f"{run.env_steps:,} steps"
            )


def _others(folder: Path, env_steps: int) -> list[float]:
    """Return the best score until `env_steps` of each other run of the sweep that has been evaluated there or later."""
    sweep = folder.resolve().parent
    if not (sweep / "sweep.jsonl").is_file():  # no sweep, or one of which no run has ended
        return []
    found = []
    for records in sorted(sweep.glob("*/metrics.jsonl")):
        if records.parent == folder.resolve():
            continue
        evaluations = list(_evaluations(records.parent))
        if evaluations and evaluations[-1][0] >= env_steps:
            found.append(max((score for steps, score in evaluations if steps <= env_steps), default=None))
    return [score for score in found if score is not None]


def _evaluations(folder: Path) -> Iterator[tuple[int, float]]:
    """Yield the steps and the mean return of each evaluation in a run's records, a half-written line left out."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if f'"{SCORE}"' in line and line.endswith("\n"):
                row = json.loads(line)
                yield row["env_steps"], row[SCORE]
