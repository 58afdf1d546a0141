"""The runs in a sweep's folder, so that a sweep can be repeated. Sweeps in this process and in SLURM jobs share this.

`enter` looks at a run's folder: a complete run is skipped, a run with a checkpoint is resumed, any other begins anew.
Nothing is deleted: a folder that is in the way moves to `<sweep>/.earlier/`. `list_run` writes the overrides of each
folder into `<sweep>/runs.csv`, and `note` a line for each outcome into the journal `<sweep>/sweep.jsonl`; `in_words`
prints the list of them at the end of a command.
"""

import csv
import io
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

from ddppo.config.compose import SHORT_NAME
from ddppo.config.rank_rules import is_ordered
from ddppo.config.settings import Config
from ddppo.config.stored import in_effect
from ddppo.errors import ConfigError, RunFolderError, StorageError
from ddppo.files import stored
from ddppo.records import checkpoint
from ddppo.records.run_folder import RunFolder
from ddppo.terminal import warn

# Two runs that differ in these settings only are the same run.
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
_TABLE = "runs.csv"
_RESULTS = "optimization_results.yaml"  # written by sweepers that optimise


@dataclass(frozen=True, slots=True)
class Entry:
    """How a run of a sweep begins."""

    completed: bool = False  # nothing is left to do
    remark: str = ""  # why it is skipped, resumed or begun anew; "" for a run in an empty folder


def enter(run_dir: Path, config: Config) -> Entry:
    """Return how the run in `run_dir` begins; move contents away that can be neither kept nor resumed."""
    folder = RunFolder(run_dir)
    # 1. Is it empty, or another run?
    if folder.is_empty:
        return Entry()
    try:
        different = differences(folder.config(), config)
    except ConfigError as e:
        return Entry(remark=_set_aside(run_dir, str(e)))
    if different:
        return Entry(remark=_set_aside(run_dir, f"its settings differ: {', '.join(different[:3])}"))
    # 2. Is the run complete?
    if folder.is_complete:
        failed = folder.failed_after_training
        return Entry(completed=True, remark=f"complete already{', but ' + failed if failed else ''}")
    # 3. Does it have a checkpoint that can be read?
    path, damaged = checkpoint.last_whole(folder.checkpoints)
    if path is None:
        why = "its only checkpoint is damaged" if damaged else "it ended without a checkpoint"
        return Entry(remark=_set_aside(run_dir, why))
    try:
        state = checkpoint.load(path)
    except RunFolderError as e:
        return Entry(remark=_set_aside(run_dir, str(e)))
    env_steps, other_versions = state["env_steps"], checkpoint.made_elsewhere(state)
    remark = f"goes on at {env_steps:,} of {config.training.total_steps:,} steps"
    if env_steps >= config.training.total_steps:
        remark = "trained to its end already; its summary is written"
    return Entry(remark=f"{remark}; {other_versions}" if other_versions else remark)


def is_complete(run_dir: Path, config: Config) -> bool:
    """Return whether `run_dir` holds the complete run that `config` describes."""
    folder = RunFolder(run_dir)
    return folder.is_complete and not differences(folder.config(), config)


def differences(one: Config, other: Config) -> list[str]:
    """Return the settings in which two configurations describe different runs, as `key=before, now after`."""
    before, after = (
        # What dist.reduction=auto came to: older runs know fast and ordered only.
        _flat(in_effect(config)) | {"dist.reduction": "ordered" if is_ordered(config) else "fast"}
        for config in (one, other)
    )
    keys = sorted((before.keys() | after.keys()) - _OF_NO_ACCOUNT)
    return [
        f"{key}={before.get(key)}, now {after.get(key)}" for key in keys if before.get(key) != after.get(key)
    ]


def objective(summary: dict[str, Any], name: str) -> float | None:
    """Return the number that a sweeper optimises: final mean return, or seconds to the target (inf if not reached)."""
    if name == "time_to_target":
        seconds = (summary["target"] or {}).get("time_to_target_s")
        return math.inf if seconds is None else float(seconds)
    final = summary["eval"]["final"]
    return final["return_mean"] if final else None


# -- The journal of a sweep.


@dataclass(frozen=True, slots=True)
class RunResult:
    """A line of the journal: how one run of a sweep ended."""

    run: str  # its folder, relative to the sweep's
    outcome: str  # completed, skipped, submitted or failed
    why: str = ""  # the reason, or the remark of `Entry`
    at: float = 0.0  # seconds since 1970, for readers only: the order of lines is the order of outcomes
    after: str = ""  # the step after training that failed, and the command that repeats it; "" if none did


# Outcomes that this process could not write: a full disk ends runs, but neither the sweep nor the list at its end.
_UNWRITTEN: list[tuple[Path, RunResult]] = []


def list_run(sweep_dir: Path, run_dir: Path, overrides: Sequence[str]) -> None:
    """Append a run's folder and its overrides to runs.csv, unless the folder is there: names of folders may be short.

    A line is one write. Raises StorageError.
    """
    path, name = sweep_dir / _TABLE, os.path.relpath(run_dir, sweep_dir)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([name, " ".join(overrides)])
    with stored(path):
        sweep_dir.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            file.seek(0)
            listed = file.read().decode("utf-8", "replace")
            if not listed:
                file.write(b"folder,overrides\n")
            if text.getvalue() not in listed:
                file.write(f"{_after_a_fragment(file)}{text.getvalue()}".encode())


def described(sweep_dir: Path, name: str) -> str:
    """Return a run's folder for a message; with a short name also its overrides that not all listed runs have."""
    if not re.search(SHORT_NAME, name):
        return name
    try:
        with (sweep_dir / _TABLE).open(encoding="utf-8", newline="") as file:
            overrides = {row["folder"]: row["overrides"].split(" ") for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, AttributeError, csv.Error):  # not there, or damaged
        return name
    shared = set.intersection(*map(set, overrides.values())) if overrides else set()
    own = [
        each for each in overrides.get(name, ()) if each not in shared and each.replace("=", "-") not in name
    ]
    told = " ".join(own).replace("\\:", ":")  # as Hydra escapes it
    return f"{name} ({told})" if own else name


def note(sweep_dir: Path, run_dir: Path, outcome: str, why: str = "", after: str = "") -> None:
    """Append an outcome to the sweep's journal. A line is one write, so runs side by side do not mix their lines.

    If the disk refuses, warn, and keep the outcome in memory for `outcomes` in this process.
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
    """Return a newline if a kill or a full disk left the last line of the file unfinished, else nothing."""
    if file.seek(0, os.SEEK_END) == 0:
        return ""
    file.seek(-1, os.SEEK_END)
    return "" if file.read(1) == b"\n" else "\n"


@dataclass(frozen=True, slots=True)
class FolderBefore:
    """The contents of a sweep's folder when a command began, so that it reports its own outcomes only."""

    num_outcomes: int = 0  # lines in the journal
    results: tuple[int, ...] = ()  # identity of the sweeper's results; () if there are none

    @classmethod
    def of(cls, sweep_dir: Path) -> "FolderBefore":
        return cls(len(list(_lines(sweep_dir / _JOURNAL))), _identity(sweep_dir / _RESULTS))


def outcomes(sweep_dir: Path, since: FolderBefore) -> list[RunResult]:
    """Return the last outcome of each run noted after `since`. By position in the journal: clocks may be set back."""
    noted = list(_lines(sweep_dir / _JOURNAL))[since.num_outcomes :]
    unwritten = [entry for folder, entry in _UNWRITTEN if folder == sweep_dir]
    return list({entry.run: entry for entry in [*noted, *unwritten]}.values())


def _identity(path: Path) -> tuple[int, ...]:
    """Return numbers that differ between a file and one that replaces it; () if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def in_words(found: list[RunResult], sweep_dir: Path, since: FolderBefore) -> str:
    """Return how a sweep ended: the number of runs by outcome, the reason of each failure, and a sweeper's best."""
    counts = Counter(outcome.outcome for outcome in found)
    numbers = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    text = [f"sweep {sweep_dir}: {len(found)} run{'s' * (len(found) != 1)}, {numbers}"]
    failed = [outcome for outcome in found if outcome.outcome == "failed"]
    text += [f"  {described(sweep_dir, outcome.run)}: {outcome.why}" for outcome in failed]
    text += [
        f"  {described(sweep_dir, outcome.run)}: complete, but {outcome.after}"
        for outcome in found
        if outcome.after
    ]
    if failed:
        text.append(f"  the same command with sweep={sweep_dir} repeats these and skips complete runs")
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
    """Move the contents of a run's folder to `.earlier/<name>.<number>`, and return `why` with the new place."""
    folder = run_dir.parent / _EARLIER
    number = 1
    while (kept := folder / f"{run_dir.name}.{number}").exists():
        number += 1
    RunFolder(run_dir).tidy()
    with stored(kept):
        kept.mkdir(parents=True)
        # config.yaml last: if this is cut short, the rest still counts as a run, and the next `enter` moves it too.
        for path in sorted(run_dir.iterdir(), key=lambda path: path.name == "config.yaml"):
            if path.name != ".lock":  # this process holds it
                path.rename(kept / path.name)
    return f"{why}; moved to {_EARLIER}/{kept.name}"


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their full keys, e.g. ppo.gamma."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found
