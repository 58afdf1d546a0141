"""The folder of a run, for commands that start, resume, queue or list runs. Imports no torch.

`RunFolder` answers questions about a run and makes its folder ready for a start; `with_restarts` starts a run again
when it loses a rank; `held` locks the folder. docs/usage.md, "What a run leaves behind", lists the files in it.
"""

import dataclasses
import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from ddppo.config.rules import validate
from ddppo.config.settings import Config
from ddppo.config.stored import load_config, to_yaml
from ddppo.errors import ConfigError, RankLost, RunFolderError
from ddppo.files import keep_copy, move_aside, remove_leftovers, stored, write_text
from ddppo.records import checkpoint
from ddppo.records.jsonl import drop_after
from ddppo.terminal import warn

SCHEMA_VERSION = 1  # of summary.json
_RESTARTS = "restarts.jsonl"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that holds a run, or will hold one."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def is_empty(self) -> bool:
        """Whether the folder is missing, or has hidden files only, such as the lock."""
        return not self.path.is_dir() or all(path.name.startswith(".") for path in self.path.iterdir())

    @property
    def has_checkpoint(self) -> bool:
        return checkpoint.last(self.checkpoints) is not None

    @property
    def last_iteration(self) -> int:
        """The iteration of the last checkpoint; 0 if there is none."""
        last = checkpoint.last(self.checkpoints)
        return checkpoint.iteration_of(last) if last else 0

    @property
    def num_restarts(self) -> int:
        """How often ranks were started again after one was lost, over all starts of the run: a line for each."""
        path = self.path / _RESTARTS
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0

    def note_restart(self, lost: str, *, goes_on_from: int | None, world_size: int | None = None) -> None:
        """Append a restart to restarts.jsonl."""
        line = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "lost": lost,  # the rank, or the processes
            "goes_on_from": goes_on_from,  # iteration of the checkpoint; None: the other ranks went on meanwhile
            "world_size": world_size,  # from now on; None: as before
        }
        with stored(self.path / _RESTARTS), (self.path / _RESTARTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def config(self) -> Config:
        """Read config.yaml. Raises ConfigError."""
        return load_config(self.path / "config.yaml")

    def summary(self) -> dict[str, Any] | None:
        """Return summary.json if the run is complete, else None.

        If ppo.total_steps was raised since, the run is not complete any more, unless it ended early by a rule that
        holds.
        """
        found = self._written_summary()
        whole = found.get("schema_version") == SCHEMA_VERSION and found.get("status") == "completed"
        if not whole:
            return None
        try:
            config = self.config()  # takes 40 ms to read: last
        except ConfigError:
            return None
        is_trained = found.get("env_steps", 0) >= config.training.total_steps
        return found if is_trained or ending_holds(config, ending_of(found)) else None

    def _written_summary(self) -> dict[str, Any]:
        """Return what summary.json holds, of a complete run or not; {} if it cannot be read."""
        try:
            found = json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def is_complete(self) -> bool:
        return self.summary() is not None

    @property
    def failed_after_training(self) -> str:
        """The steps after training that failed in a complete run, and the commands that repeat them; "" if none did."""
        if not self._written_summary().get("failed_after_training"):
            return ""
        steps = (self.summary() or {}).get("failed_after_training", [])
        return "; ".join(f"{s['step']} failed: {s['why']}; repeat it by: {s['command']}" for s in steps)

    def is_trained(self, total_steps: int) -> bool:
        """Whether the last checkpoint was saved at the end of training, even if the final evaluation then failed."""
        path, _ = checkpoint.last_whole(self.checkpoints)
        if path is None:
            return False
        state = checkpoint.load(path)
        return bool(state["env_steps"] >= total_steps or state.get("ended"))

    @property
    def lacks_evaluation(self) -> bool:
        """Whether the run was stopped in its final evaluation, after all its steps."""
        try:
            found = json.loads((self.path / "summary.json").read_text())
            done, total = int(found["env_steps"]), self.config().training.total_steps
            is_trained = done >= total or (found.get("ended") or {}).get("by") in ENDINGS
        except (OSError, ValueError, TypeError, KeyError, ConfigError):
            return False
        return found.get("status") == "stopped" and is_trained

    def begin(self, config: Config) -> Config:
        """Make the folder ready for ranks, and return `config` with `resume` set as the ranks will read it.

        The ranks resume from the last whole checkpoint. Without a checkpoint they begin anew, and files of earlier
        starts get other names, so that no step counts twice. Damaged checkpoints get other names too, with a warning.
        config.yaml is whole at every instant; an earlier one with other settings is kept under a number.

        Call it while the folder is locked (`held`). Raises StorageError.
        """
        with stored(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.tidy()
        # 1. Find the checkpoint to resume from.
        damaged = checkpoint.set_damaged_aside(self.checkpoints)
        last = checkpoint.last(self.checkpoints)
        for kept in damaged:
            warn(
                f"a damaged checkpoint is kept as {kept}; the last whole one is {last.name if last else 'none'}"
            )
        # 2. Without one, move everything that the new start will write out of the way.
        if last is None:
            drop_after(self.path / "metrics.jsonl", 0)
            names = (
                "summary.json",
                "tensorboard",
                "checkpoints/best.pt",
                "checkpoints/best.previous.pt",
                "best",
                "rollouts",
            )
            if aside := [path.name for name in names if (path := move_aside(self.path / name))]:
                warn(
                    f"{self.path} has no checkpoint: the run begins anew, and {', '.join(aside)} keeps what was there"
                )
        # 3. Ranks read their settings, and whether to resume, from config.yaml.
        config = dataclasses.replace(config, resume=str(self.path) if last else None)
        self._write(config)
        return config

    def tidy(self) -> None:
        """Remove the temporary files of processes that were killed. Call it while the folder is locked (`held`)."""
        for folder in (self.path, self.checkpoints, self.path / "tensorboard"):
            remove_leftovers(folder)

    def _write(self, config: Config) -> None:
        path, text = self.path / "config.yaml", to_yaml(config)
        if path.exists():
            if path.read_text() == text:
                return
            # Keep the earlier settings, unless only `resume` differs.
            if not self._differs_in_resume_alone(config):
                keep_copy(path)
        write_text(path, text)

    def _differs_in_resume_alone(self, config: Config) -> bool:
        try:
            return dataclasses.replace(self.config(), resume=config.resume) == config
        except ConfigError:
            return False


# -- A run that loses a rank: it ends, or restarts from its last checkpoint (dist.on_lost=restart).


_T = TypeVar("_T")


def with_restarts(folder: RunFolder, config: Config, run: Callable[[Config], _T]) -> _T:
    """Return run(config); if it raises RankLost, resume from the last checkpoint, at most dist.max_restarts times.

    If a rank is lost twice without a new checkpoint in between, the run continues on fewer ranks, provided that
    dist.min_workers allows it: a machine may be gone for good. Call it while the folder is locked (`held`).

    Raises RankLost with dist.on_lost=stop or after too many restarts, and any other exception of `run`.
    """
    before, most = folder.num_restarts, config.dist.max_restarts
    resumed_from: int | None = None  # the iteration that the last restart resumed from
    while True:
        try:
            return run(config)
        except RankLost as e:
            if config.dist.on_lost == "stop":
                raise
            # Count, and give up after too many.
            number = folder.num_restarts - before + 1  # restarts of single ranks count too
            if number > most:
                raise RankLost(f"{e}. That was after dist.max_restarts={most} restarts") from None
            config = folder.begin(config)
            last = folder.last_iteration
            goes_on = (
                f"going on from iteration {last}" if last else "beginning anew, for there is no checkpoint"
            )
            # The second loss since the same checkpoint: try with fewer ranks.
            if resumed_from == last and (smaller := on_fewer_ranks(config)) is not None:
                config = folder.begin(smaller)
                goes_on += f", on {config.dist.world_size} ranks"
            resumed_from = last
            folder.note_restart(e.lost, goes_on_from=last, world_size=config.dist.world_size)
            warn(f"{e.lost}; {goes_on} (restart {number} of {most})")


def on_fewer_ranks(config: Config) -> Config | None:
    """Return the same run on the largest number of ranks below W that keeps its batch.

    None if that number is below dist.min_workers.
    """
    dist, sizes = config.dist, validate(config)
    for world_size in range(dist.world_size - 1, (dist.min_workers or dist.world_size) - 1, -1):
        smaller = replace(config, dist=replace(dist, world_size=world_size))
        with suppress(ConfigError):
            # Fewer ranks must not change the batch, or the run would learn something else.
            found = validate(smaller)
            if (found.num_envs, found.batch_size) == (sizes.num_envs, sizes.batch_size):
                return smaller
    return None


# -- The lock: one process at a time in a folder.


_RETRY_INTERVAL_S = 0.2


@contextmanager
def held(folder: Path, *, patience_s: float = 0.0) -> Iterator[None]:
    """Lock the folder of a run or sweep: two processes that write into one folder would ruin it.

    The operating system releases the lock when the process ends, however it ends. Raises RunFolderError if another
    process still has the lock after `patience_s` seconds (on any machine, if the file system locks across machines),
    and StorageError if the folder cannot be made.
    """
    end = time.monotonic() + patience_s
    with stored(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a+")
    with lock as file:
        # Try until the lock is free or the time is over.
        while not _take(file, folder):
            if time.monotonic() >= end:
                raise RunFolderError(f"{folder} is in use by another process: let that end first")
            time.sleep(_RETRY_INTERVAL_S)
        yield


def _take(file: IO[str], folder: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        warn(
            f"{folder}: the file system has no locks ({e.strerror}): nothing keeps a second command out of it"
        )
    return True


# -- Why a run is complete before total_steps: its target, no improvement, a callback, or its task ended it.
#
# An ending is a dict of plain values, {"by": ..., "why": ...}, and {} while there is none. Checkpoints and summary.json
# keep it, so that a resumed run does not train on. It holds as long as the settings that caused it: resume= with others
# goes on.

Ending = dict[str, Any]
ENDINGS = ("target", "patience", "callback", "task")  # by a rule of the run; max_minutes only interrupts it


def ending_by_evaluation(config: Config, mean_return: float, evals_without_best: int) -> Ending:
    """Return the ending that an evaluation causes; {} if it causes none. All ranks know the same numbers."""
    run, target = config.run, config.target_return
    if run.stop_at_target and target is not None and mean_return >= target:
        why = f"the evaluation return {mean_return:.2f} has reached target_return={target:g}"
        return {"by": "target", "target": target, "why": why}
    if run.patience is not None and evals_without_best >= run.patience:
        why = f"{evals_without_best} evaluations in a row brought no new best mean return (run.patience={run.patience})"
        return {"by": "patience", "evals": evals_without_best, "why": why}
    return {}


def ending_by_callback(why: str) -> Ending:
    return {"by": "callback", "why": f"a callback ended it{': ' + why if why else ''}"}


def ending_by_task(config: Config) -> Ending:
    """Return the ending that a task's journal asks for; what is left to gain, its part of the summary says."""
    why = "its task asks for no more steps"
    return {"by": "task", "total_steps": config.training.total_steps, "why": why}


def ending_holds(config: Config, ending: Ending) -> bool:
    """Return whether the settings of a resumed run still ask for the ending of before."""
    run = config.run
    match ending.get("by"):
        case "target":
            target = config.target_return
            return run.stop_at_target and target is not None and target <= ending["target"]
        case "patience":
            return run.patience is not None and run.patience <= ending["evals"]
        case "callback":
            return run.has_callbacks
        case "task":
            return config.training.total_steps <= ending["total_steps"]
    return False


def ending_of(summary: Mapping[str, Any] | None) -> Ending:
    """Return the ending in the summary of a complete run; {} if it trained to total_steps, or is not complete."""
    if summary is None or summary.get("status") != "completed":
        return {}
    return dict(summary.get("ended") or {})


def how_to_go_on(ending: Ending) -> str:
    """Return the settings with which resume= trains on."""
    return {
        "target": "run.stop_at_target=false, or a higher target_return",
        "patience": "run.patience=null, or a larger one",
        "callback": "run.callbacks=[]",
        "task": "a larger total_steps",
    }[ending["by"]]
