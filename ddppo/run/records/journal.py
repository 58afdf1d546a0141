"""The journal of a task whose environments publish, as rank 0 keeps it: a user's own code, so answers are checked."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.vec_env import explained, make_journal
from ddppo.errors import ConfigError, EnvOutputError, TrainingError, near
from ddppo.run.records.metrics import OF_TASK, IterationReport

T = TypeVar("T")


class TaskJournal:
    """Raises EnvError, which names the journal, where it raises or returns what it should not."""

    def __init__(self, env: EnvConfig, path: str, run_dir: Path) -> None:
        self._name = f"the journal {path}"
        self._journal = self._explained("when it was made", lambda: make_journal(env, path, run_dir))

    def noted(self, report: IterationReport, news: list[bytes]) -> IterationReport:
        """Have the journal note the news of an iteration; return its report with task/* added."""
        metrics = self._explained(
            "from note()", lambda: self._journal.note(news, report.env_steps, report.wall_s)
        )
        self._check(metrics)
        named = {OF_TASK + name: float(value) for name, value in metrics.items()}
        return dataclasses.replace(report, global_metrics={**report.global_metrics, **named})

    def pictures(self) -> dict[str, np.ndarray]:
        pictures = self._explained("from pictures()", self._journal.pictures)
        for name, picture in pictures.items():
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise self._wrong(
                    f"{picture.dtype} {picture.shape} as the picture {name}",
                    "it must be uint8 [height, width, 3]",
                )
        return pictures

    def before(self) -> list[bytes]:
        news = self._explained("from before()", self._journal.before)
        if not (isinstance(news, list) and all(isinstance(each, bytes) for each in news)):
            raise self._wrong(
                f"{news!r:.60} from before()", "it must be a list of bytes, [] where it knows nothing"
            )
        return news

    def summary(self) -> dict[str, Any]:
        summary = self._explained("from summary()", self._journal.summary)
        if not (isinstance(summary, dict) and isinstance(summary.get("said", {}), dict)):
            raise self._wrong(
                f"{summary!r:.60} from summary()", 'it must be a dict, and so must "said" in it'
            )
        return summary

    def _check(self, metrics: dict[str, float]) -> None:
        if not isinstance(metrics, dict):
            raise self._wrong(f"{metrics!r:.60} from note()", "it must be a dict of numbers, {} for none")
        listed = self._journal.metrics
        for name, value in metrics.items():
            if name not in listed and name.partition("/")[0] not in listed:
                raise self._wrong(
                    f"the metric {name}", f"which its table `metrics` does not list{near(name, list(listed))}"
                )
            if not isinstance(value, int | float | np.number):
                raise self._wrong(f"{value!r} as the metric {name}", "it must be a number")

    def _explained(self, when: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except (ConfigError, TrainingError):  # says what it is of
            raise
        except Exception as e:
            raise explained(self._name, when, e) from e

    def _wrong(self, found: str, wanted: str) -> EnvOutputError:
        return EnvOutputError(f"{self._name} returned {found}: {wanted}")
