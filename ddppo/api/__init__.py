"""ddppo from Python, in programs and notebooks.

    from ddppo.api import train, evaluate

    summary = train(["env=cartpole", "ppo.total_steps=1e5"])
    evaluate(summary.run_dir, episodes=100)["return_mean"]

A run is a process of its own, and so are its ranks: nothing here changes threads, signals or random states of the
program that calls, and it may be called in any thread, inside an event loop, and without `if __name__ == "__main__"`.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddppo.api.process import started
from ddppo.config.stored import escaped
from ddppo.errors import ConfigError, TrainingError
from ddppo.options import filled

__all__ = ["Summary", "evaluate", "train"]


class Summary(dict[str, Any]):
    """summary.json as a dict with a repr of one line. run_dir: the run folder."""

    run_dir: Path

    @classmethod
    def read(cls, run_dir: Path) -> "Summary":
        """Read a run folder's. Raises TrainingError where there is none."""
        try:
            found = cls(json.loads((run_dir / "summary.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as e:
            raise TrainingError(f"{run_dir} has no summary.json that can be read: {e}") from e
        found.run_dir = run_dir
        return found

    def __repr__(self) -> str:
        final = (self.get("eval") or {}).get("final") or {}
        score = f", return {final['return_mean']:.2f}" if final.get("return_mean") is not None else ""
        return f"<{self['status']}: {self['env_steps']:,} steps{score}, in {self.run_dir}>"


RunFolder = str | os.PathLike[str] | Summary


def train(overrides: Sequence[str] = ()) -> Summary:
    """Train as `python -m ddppo.train <overrides>` does, show it, and return its summary.

    Raises ConfigError for a mistake, before anything starts; TrainingError where the run fails; KeyboardInterrupt
    where it was interrupted, once the iteration under way is saved.
    """
    if isinstance(overrides, str) or not all(isinstance(word, str) for word in overrides):
        raise ConfigError('overrides are a list of texts: train(["env=cartpole", "ppo.total_steps=1e5"])')
    for word in overrides:
        if word.startswith("-"):
            raise ConfigError(f"{word}: train takes settings, key=value; flags are for python -m ddppo.train")
        if word.partition("=")[0].lstrip("+") == "hydra.mode":
            raise ConfigError(f"{word}: train starts one run; python -m ddppo.train -m starts several")
    return Summary.read(started(list(overrides)))


def evaluate(run: RunFolder | Sequence[RunFolder], **options: Any) -> dict[str, Any]:
    """Play the policy of a run folder, or of several, and return its scores, as `python -m ddppo.evaluate` has them.

    options: episodes, seed, checkpoint and the others that its --help lists. Raises ConfigError.
    """
    from ddppo.evaluate import EvaluateConfig, evaluate

    runs = [run] if isinstance(run, (str, os.PathLike, Summary)) else list(run)
    if not runs:
        raise ConfigError("evaluate takes a run folder, or several, and none is given")
    first, *others = [escaped(str(_folder(each))) for each in runs]
    given = {"run": first, **({"others": others} if others else {}), **options, "json": True}
    found: dict[str, Any] = json.loads(evaluate(filled(EvaluateConfig, given)))
    return found


def _folder(run: RunFolder) -> Path:
    return run.run_dir if isinstance(run, Summary) else Path(run)
