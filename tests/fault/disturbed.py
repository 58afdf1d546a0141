"""A run that is disturbed, and started again whenever its command ended, by its parent: this process."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.support import CHECKOUT, title_of, wait_until

DISK_MB = 96


class DisturbedRun:
    """A run in `run_dir` and what strikes it. wrong: what should not have been; faults: a row each."""

    def __init__(
        self, run_dir: Path, arguments: list[str], log: Path, drawn: random.Random, *, is_own_disk: bool
    ) -> None:
        self.run_dir, self.arguments, self.log, self.drawn = run_dir, arguments, log, drawn
        self.is_own_disk = is_own_disk
        self.wrong: list[str] = []
        self.faults: list[dict] = []
        self.starts = 0
        self.is_complete = False
        self._began = time.monotonic()
        self._ended: float | None = None
        self._command: subprocess.Popen | None = None
        self._said_from = 0  # where the log of this start begins
        self._struck = True  # since this start
        self._open: dict | None = None  # the last fault's row, until the run is past where it struck
        self._struck_at, self._lost_before = 0.0, 0

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._began

    # -- going on ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Give the command that starts the run or goes on with it."""
        self._said_from = self.log.stat().st_size if self.log.exists() else 0
        arguments = [*self.arguments, "resume=auto", f"hydra.run.dir={self.run_dir}"]
        with self.log.open("a") as log:
            self._command = subprocess.Popen(
                [sys.executable, "-m", "ddppo.train", *arguments],
                cwd=CHECKOUT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.starts += 1
        self._struck = False

    def keep_going(self) -> bool:
        """Look after the run once: start it again where its command ended. Returns False."""
        assert self._command is not None
        self._close_fault()
        code = self._command.poll()
        if code is None or self.is_complete:
            return False
        self._no_process_left()
        said = self.log.read_bytes()[self._said_from :].decode(errors="replace")
        if code == 0:
            self.is_complete, self._ended = True, time.monotonic()
            return False
        if "Traceback" in said or not self._struck or code not in (1, -signal.SIGKILL):
            self.wrong.append(f"start {self.starts} ended with {code}: {said[-3000:]!r}")
        self.start()
        return False

    def reach(self, iteration: int | None, for_s: float = 0.0) -> None:
        """Have the run go on until an iteration is done, or for some seconds, whatever ends its command."""
        end = time.monotonic() + for_s
        done = (
            (lambda: time.monotonic() > end) if iteration is None else lambda: self.iteration() >= iteration
        )
        wait_until(lambda: self.keep_going() or self.is_complete or done(), f"iteration {iteration}")

    def iteration(self) -> int:
        """Return the last iteration in metrics.jsonl, 0 for none."""
        return max((line["iteration"] for line in self._tail()), default=0)

    def _tail(self) -> list[dict]:
        lines = []
        with suppress(OSError), (self.run_dir / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            for line in file.read().splitlines(keepends=True):
                with suppress(ValueError):
                    lines.append(json.loads(line))
        return [line for line in lines if isinstance(line, dict) and "iteration" in line]

    # -- what strikes -----------------------------------------------------------------------------------------------

    def strike(self, kind: str) -> None:
        """Do one kind of harm."""
        self._close_fault(at_once=True)
        self._lost_before, self._struck_at, self._struck = self.iterations_lost(), time.monotonic(), True
        {
            "rank": lambda: self._kill(self._one("ddppo.launch.rank ")),
            "environments": lambda: self._kill(self._one("ddppo environment")),
            "server": lambda: self._kill(self._one("ddppo.processes.forking for ")),
            "command": self._kill_command,
            "freeze": self._freeze,
            "checkpoint": self._truncate,
            "disk": self._fill_disk if self.is_own_disk else self._forbid_writing,
        }[kind]()
        time.sleep(0.1)  # who still could write has written
        self._open = {"fault": kind, "iteration": self.iteration(), "iterations_lost": 0, "seconds": 0.0}
        self.faults.append(self._open)

    def _one(self, title: str | tuple[str, ...]) -> int | None:
        """Return one of the processes whose title begins so; None if none comes to life, as where the run is over."""
        found: list[int] = []

        def come() -> bool:
            self.keep_going()
            found[:] = [pid for pid in self._living() if _title(pid).startswith(title)]
            return bool(found) or self.is_complete

        wait_until(come, f"process {title}")
        return self.drawn.choice(sorted(found)) if found else None

    def _kill(self, pid: int | None) -> None:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _kill_command(self) -> None:
        assert self._command is not None
        self._command.kill()
        wait_until(lambda: self._command.poll() is not None, "end of the command")

    def _freeze(self) -> None:
        pid = self._one(("ddppo.launch.rank ", "ddppo environment"))
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def _truncate(self) -> None:
        """Kill the command, and cut what looks like its newest checkpoint."""
        self._kill_command()
        self._no_process_left()
        newest = max((self.run_dir / "checkpoints").glob("iteration_*.pt"), default=None)
        if newest is not None:
            os.truncate(newest, int(self.drawn.random() * newest.stat().st_size))

    def _fill_disk(self) -> None:
        """Leave no byte free until the command has ended, or has gone on for long without a byte."""
        ballast = self.run_dir.parent / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1 << 9, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))
        self._wait_for_its_end()
        ballast.unlink()

    def _forbid_writing(self) -> None:
        """Without a disk of its own: neither metrics.jsonl nor a larger file may grow until the command has ended."""
        import resource

        metrics = self.run_dir / "metrics.jsonl"
        most = max(metrics.stat().st_size if metrics.exists() else 0, self.log.stat().st_size + 2**16)
        for pid in self._living():
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))
        self._wait_for_its_end()

    def _wait_for_its_end(self) -> None:
        assert self._command is not None
        wait_until(lambda: self._command.poll() is not None, "end of a run that cannot write")
        self._no_process_left()

    # -- what is left -------------------------------------------------------------------------------------------------

    def look_for_leftovers(self) -> None:
        """Note every process and named memory of the run that is still there."""
        self._no_process_left()
        if self.is_own_disk:  # and so /dev/shm and semaphores are ours alone
            self.wrong += [f"/dev/shm/{name} is left" for name in os.listdir("/dev/shm")]
            for kind in ("shm", "sem", "msg"):
                table = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
                self.wrong += [f"a segment is left in /proc/sysvipc/{kind}: {line}" for line in table]
        self.wrong += [f"{path} is left" for path in self.run_dir.rglob(".*.tmp")]

    def end_all(self) -> None:
        for pid in self._living():
            self._kill(pid)

    def _no_process_left(self) -> None:
        try:
            wait_until(lambda: not self._living(), "end of all processes")
        except AssertionError:
            left = [f"{pid} ({_title(pid)})" for pid in self._living()]
            self.wrong.append(f"start {self.starts} ended, still there are: {', '.join(left)}")
            self.end_all()
        self._reap()

    def _living(self) -> list[int]:
        """Return what this process started, and all that came of it, whoever its parent is by now."""
        parents, own = {}, os.getpid()
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.name.isdigit():
                    parents[int(entry.name)] = (int(parent), state)
        found, layer = [], {own}
        while layer := {pid for pid, (parent, _) in parents.items() if parent in layer}:
            found += [pid for pid in layer if parents[pid][1] not in "ZX"]
        return found

    def _reap(self) -> None:
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                pid = int(entry.name)
                if state == "Z" and int(parent) == os.getpid() and pid != self._command.pid:
                    os.waitpid(pid, os.WNOHANG)

    def _close_fault(self, *, at_once: bool = False) -> None:
        """Write down what the last fault cost, once the run is past where it struck or another strikes."""
        if self._open is not None and (at_once or self.iteration() > self._open["iteration"]):
            self._open["iterations_lost"] = self.iterations_lost() - self._lost_before
            self._open["seconds"] = round(time.monotonic() - self._struck_at, 2)
            self._open = None

    def iterations_lost(self) -> int:
        """Return how many iterations were done and had to be done again."""
        lines = [line for path in self.run_dir.glob("metrics.superseded*.jsonl") for line in path.open("rb")]
        return sum(b'"rank": 0,' in line for line in lines)


def _title(pid: int) -> str:
    try:
        return title_of(pid)
    except OSError:
        return ""
