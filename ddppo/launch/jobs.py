"""Sweeps that can be repeated: what is complete is skipped, what has a checkpoint goes on, the rest starts anew.

Nothing is deleted: what stands in the way moves to `<sweep>/.earlier/`. `<sweep>/sweep.jsonl` has a line for each
outcome.
"""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

from ddppo.config.settings import Config
from ddppo.errors import ConfigError, RunFolderError, StorageError
from ddppo.files import stored
from ddppo.records import checkpoint
from ddppo.records.run_folder import RunFolder
from ddppo.terminal import warn

# Settings that change nothing about what a run is.
_OF_NO_ACCOUNT = frozenset(
    [
        "resume",
        "resume_state",
        "other_spaces",
        "sweep",
        "objective",
        "log.progress",
        "log.tensorboard",
        "dist.timeout_s",
        "dist.oversubscribe",
        "dist.on_lost",
        "dist.max_restarts",
        "dist.min_workers",
        "run.max_minutes",
        "run.requeue_exit_code",
    ]
)
_EARLIER = ".earlier"
_JOURNAL = "sweep.jsonl"
_RESULTS = "optimization_results.yaml"  # a sweeper's


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of a sweep as it is entered."""

    completed: bool = False
    remark: str = ""


def enter(run_dir: Path, config: Config) -> Entry:
    """Look at what `run_dir` holds and say how its run begins; move aside what can be neither kept nor continued."""
    folder = RunFolder(run_dir)
    if folder.is_empty:
        return Entry()
    try:
        different = differences(folder.config(), config)
    except ConfigError as e:
        return Entry(remark=_set_aside(run_dir, str(e)))
    if different:
        return Entry(remark=_set_aside(run_dir, f"its settings differ: {', '.join(different[:3])}"))
    if folder.is_complete:
        failed = folder.failed_after_training
        return Entry(completed=True, remark=f"complete already{', but ' + failed if failed else ''}")
    path, damaged = checkpoint.last_whole(folder.checkpoints)
    if path is None:
        why = "its only checkpoint is damaged" if damaged else "it ended without a checkpoint"
        return Entry(remark=_set_aside(run_dir, why))
    try:
        state = checkpoint.load(path)
    except RunFolderError as e:
        return Entry(remark=_set_aside(run_dir, str(e)))
    env_steps, told = state["env_steps"], checkpoint.made_elsewhere(state)
    remark = f"goes on at {env_steps:,} of {config.ppo.total_steps:,} steps"
    if env_steps >= config.ppo.total_steps:
        remark = "trained to its end already; its summary is written"
    return Entry(remark=f"{remark}; {told}" if told else remark)


def is_complete(run_dir: Path, config: Config) -> bool:
    """Return whether `run_dir` holds the whole of the run that `config` describes."""
    folder = RunFolder(run_dir)
    return folder.is_complete and not differences(folder.config(), config)


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
class RunResult:
    """What became of one run of a sweep: completed, skipped, submitted or failed, and why.

    after: what failed after the training of one that is complete, and the command that repeats it.
    """

    run: str
    outcome: str
    why: str = ""
    at: float = 0.0
    after: str = ""


# What this process could not write into a journal: a full disk ends runs, but not the sweep, nor the list at its end.
_UNWRITTEN: list[tuple[Path, RunResult]] = []


def note(sweep_dir: Path, run_dir: Path, outcome: str, why: str = "", after: str = "") -> None:
    """Append an outcome to the sweep's journal; a line is one write, so runs side by side do not mix theirs.

    Where the disk refuses, the outcome is remembered for `outcomes` in this process, and a warning says so.
    """
    name = os.path.relpath(run_dir, sweep_dir)
    entry = RunResult(name, outcome, " ".join(why.split()), time.time(), " ".join(after.split()))
    journal = sweep_dir / _JOURNAL
    try:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        with journal.open("ab+", buffering=0) as file:
            file.write(f"{_after_a_fragment(file)}{json.dumps(asdict(entry))}\n".encode())
    except OSError as e:
        _UNWRITTEN.append((sweep_dir, entry))
        warn(str(StorageError.of(journal, e)))


def _after_a_fragment(file: IO[bytes]) -> str:
    """Return what ends the line that a kill or a full disk has cut short, if the file ends in one."""
    if file.seek(0, os.SEEK_END) == 0:
        return ""
    file.seek(-1, os.SEEK_END)
    return "" if file.read(1) == b"\n" else "\n"


@dataclass(frozen=True, slots=True)
class Before:
    """What a sweep's folder held when a command began: the number of outcomes, and which results of a sweeper."""

    num_outcomes: int = 0
    results: tuple[int, ...] = ()

    @classmethod
    def of(cls, sweep_dir: Path) -> "Before":
        return cls(len(list(_lines(sweep_dir / _JOURNAL))), _identity(sweep_dir / _RESULTS))


def outcomes(sweep_dir: Path, since: Before) -> list[RunResult]:
    """Return what was noted after `since`, whatever the clock said, the last word on each run."""
    noted = list(_lines(sweep_dir / _JOURNAL))[since.num_outcomes :]
    unwritten = [entry for folder, entry in _UNWRITTEN if folder == sweep_dir]
    return list({entry.run: entry for entry in [*noted, *unwritten]}.values())


def _identity(path: Path) -> tuple[int, ...]:
    """Return what tells a file from what takes its place, () if there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def in_words(found: list[RunResult], sweep_dir: Path, since: Before) -> str:
    """Return how a sweep ended: how many runs came to what, each that failed with the reason, and a sweeper's best."""
    counts = Counter(outcome.outcome for outcome in found)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    text = [f"sweep {sweep_dir}: {len(found)} run{'s' * (len(found) != 1)}, {told}"]
    failed = [outcome for outcome in found if outcome.outcome == "failed"]
    text += [f"  {outcome.run}: {outcome.why}" for outcome in failed]
    text += [f"  {outcome.run}: complete, but {outcome.after}" for outcome in found if outcome.after]
    if failed:
        text.append(f"  the same command with sweep={sweep_dir} goes on with these and skips the complete")
    results = sweep_dir / _RESULTS
    if _identity(results) not in ((), since.results):
        best = OmegaConf.load(results)
        if "best_value" in best:  # several objectives have no best
            settings = " ".join(f"{key}={value}" for key, value in best.best_params.items())
            text.append(f"  best: {best.best_value} by {settings}")
    return "\n".join(text)


def _lines(path: Path) -> Iterator[RunResult]:
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            yield RunResult(**json.loads(line))
        except (ValueError, TypeError):  # a line cut short by a full disk
            continue


def _set_aside(run_dir: Path, why: str) -> str:
    folder = run_dir.parent / _EARLIER
    number = 1
    while (kept := folder / f"{run_dir.name}.{number}").exists():
        number += 1
    RunFolder(run_dir).tidy()
    with stored(kept):
        kept.mkdir(parents=True)
        # config.yaml last: until then the rest is a run's, and the next look moves it too.
        for path in sorted(run_dir.iterdir(), key=lambda path: path.name == "config.yaml"):
            if path.name != ".lock":  # which this process holds
                path.rename(kept / path.name)
    return f"{why}; moved to {_EARLIER}/{kept.name}"


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found
