"""Sweeps that can be repeated: what is complete is skipped, what has a checkpoint goes on, the rest starts anew.

Nothing is deleted: what stands in the way moves to `<sweep>/.earlier/`. `<sweep>/sweep.jsonl` has a line for each
outcome.
"""

import dataclasses
import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ddppo import config as configuration
from ddppo.config import Config
from ddppo.errors import ConfigError, RunFolderError
from ddppo.run import checkpoint
from ddppo.run.summary import completed_summary

# Settings that change nothing about what a run is.
_OF_NO_ACCOUNT = frozenset(
    [
        "resume",
        "sweep",
        "objective",
        "log.progress",
        "log.tensorboard",
        "dist.timeout_s",
        "dist.oversubscribe",
    ]
)
_EARLIER = ".earlier"
_JOURNAL = "sweep.jsonl"
_RESULTS = "optimization_results.yaml"  # hydra-optuna-sweeper's


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of a sweep as it is entered: its configuration, with `resume` set where it goes on from a checkpoint."""

    config: Config
    completed: bool = False
    remark: str = ""


def enter(run_dir: Path, config: Config) -> Entry:
    """Look at what `run_dir` holds and say how its run begins; move aside what can be neither kept nor continued."""
    if not _holds_anything(run_dir):
        return Entry(config)
    try:
        different = differences(configuration.load(run_dir / "config.yaml"), config)
    except ConfigError as e:
        return Entry(config, remark=_set_aside(run_dir, str(e)))
    if different:
        return Entry(config, remark=_set_aside(run_dir, f"its settings differ: {', '.join(different[:3])}"))
    if completed_summary(run_dir) is not None:
        return Entry(config, completed=True, remark="complete already")
    path = checkpoint.last(run_dir / "checkpoints")
    if path is None:
        return Entry(config, remark=_set_aside(run_dir, "it ended without a checkpoint"))
    try:
        state = checkpoint.load(path)
    except RunFolderError as e:
        return Entry(config, remark=_set_aside(run_dir, str(e)))
    if state["env_steps"] >= config.ppo.total_steps:
        return Entry(config, remark=_set_aside(run_dir, "it ended before it wrote its summary"))
    remark = f"goes on at {state['env_steps']:,} of {config.ppo.total_steps:,} steps"
    return Entry(dataclasses.replace(config, resume=str(run_dir)), remark=remark)


def is_complete(run_dir: Path, config: Config) -> bool:
    """Return whether `run_dir` holds the whole of the run that `config` describes."""
    try:
        stored = configuration.load(run_dir / "config.yaml")
    except ConfigError:
        return False
    return not differences(stored, config) and completed_summary(run_dir) is not None


def differences(one: Config, other: Config) -> list[str]:
    """Return the settings in which two configurations describe different runs, as `key=before, now after`."""
    before, after = _flat(asdict(one)), _flat(asdict(other))
    keys = sorted((before.keys() | after.keys()) - _OF_NO_ACCOUNT)
    return [
        f"{key}={before.get(key)}, now {after.get(key)}" for key in keys if before.get(key) != after.get(key)
    ]


def objective(summary: dict[str, Any], name: str) -> float | None:
    """Return what a sweeper optimises: the final evaluation's mean return, or seconds to the target, inf if never."""
    if name == "time_to_target":
        seconds = (summary["target"] or {}).get("time_to_target_s")
        return math.inf if seconds is None else float(seconds)
    final = summary["eval"]["final"]
    return final["return_mean"] if final else None


# -- the journal ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run of a sweep: completed, skipped, submitted or failed, and why."""

    run: str
    outcome: str
    why: str = ""
    at: float = 0.0


def note(sweep_dir: Path, run_dir: Path, outcome: str, why: str = "") -> None:
    """Append an outcome to the sweep's journal; a line is one write, so runs side by side do not mix theirs."""
    name = os.path.relpath(run_dir, sweep_dir)
    line = json.dumps(asdict(Outcome(name, outcome, " ".join(why.split()), time.time()))) + "\n"
    sweep_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(sweep_dir / _JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def outcomes(sweep_dir: Path, since: float) -> list[Outcome]:
    """Return what was noted at or after `since` (seconds since the epoch), the last word on each run."""
    last = {entry.run: entry for entry in _lines(sweep_dir / _JOURNAL) if entry.at >= since}
    return list(last.values())


def in_words(found: list[Outcome], sweep_dir: Path, since: float) -> str:
    """Return how a sweep ended: how many runs came to what, each that failed with the reason, and a sweeper's best."""
    counts = Counter(outcome.outcome for outcome in found)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    text = [f"sweep {sweep_dir}: {len(found)} run{'s' * (len(found) != 1)}, {told}"]
    failed = [outcome for outcome in found if outcome.outcome == "failed"]
    text += [f"  {outcome.run}: {outcome.why}" for outcome in failed]
    if failed:
        text.append(f"  the same command with sweep={sweep_dir} goes on with these and skips the complete")
    results = sweep_dir / _RESULTS
    if results.exists() and results.stat().st_mtime >= since:
        best = OmegaConf.load(results)
        if "best_value" in best:  # several objectives have no best
            settings = " ".join(f"{key}={value}" for key, value in best.best_params.items())
            text.append(f"  best: {best.best_value} by {settings}")
    return "\n".join(text)


def _lines(path: Path) -> Iterator[Outcome]:
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            yield Outcome(**json.loads(line))
        except (ValueError, TypeError):  # a line cut short by a full disk
            continue


def _holds_anything(folder: Path) -> bool:
    return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())


def _set_aside(run_dir: Path, why: str) -> str:
    folder = run_dir.parent / _EARLIER
    folder.mkdir(exist_ok=True)
    number = 1
    while (kept := folder / f"{run_dir.name}.{number}").exists():
        number += 1
    kept.mkdir()
    for path in run_dir.iterdir():
        if path.name != ".lock":  # which this process holds
            shutil.move(path, kept)
    return f"{why}; moved to {_EARLIER}/{kept.name}"


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found
