"""Run the doors as a user does: in processes of their own, from the checkout, never longer than a limit."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
RANKS = {"ddppo.run.rank", "ddppo.run.worker"}  # started by our launcher, by torchrun
TINY = ("eval.final_episodes=0", "log.progress=none", "log.tensorboard=false")  # first: later overrides win


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    stdout: str
    stderr: str
    run_dir: Path


def door(
    *arguments: str, run_dir: Path, module: str = "ddppo.train", timeout_s: float = 120, **environ: str
) -> Finished:
    """Run `python -m <module> <arguments>` with `run_dir` as Hydra's and return what came of it."""
    where = () if module != "ddppo.train" else (f"hydra.run.dir={run_dir}",)
    return run([sys.executable, "-m", module, *arguments, *where], run_dir, timeout_s, **environ)


def run(command: list[str], run_dir: Path, timeout_s: float = 120, **environ: str) -> Finished:
    with started(command, **environ) as process:
        stdout, stderr = process.communicate(timeout=timeout_s)
    return Finished(process.returncode, stdout, stderr, run_dir)


@contextmanager
def started(command: list[str], **environ: str):
    """Start a command as the leader of a process group of its own; nothing of the group outlives the block."""
    process = subprocess.Popen(
        command,
        cwd=CHECKOUT,
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts background jobs with Ctrl-C ignored, and what they start would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        for pid in (process.pid, *descendants(run_id(process))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def run_id(process: subprocess.Popen) -> str:
    """Return what the command lines of a run's ranks hold and no other process's does: its run folder."""
    arguments = [a for a in process.args if a.startswith(("hydra.run.dir=", "resume="))]
    return arguments[-1].partition("=")[2] if arguments else f"no folder of process {process.pid}"


def descendants(folder: str) -> list[int]:
    """Return the processes that run a worker on `folder`, whoever their parent is by now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:  # it ended meanwhile
                continue
            if state != "Z" and RANKS.intersection(arguments) and folder in arguments:
                found.append(int(entry.name))
    return found


def rank_of(pid: int) -> int:
    environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return next(int(e.removeprefix("RANK=")) for e in environ if e.startswith("RANK="))


def lines(run_dir: Path, name: str = "metrics.jsonl") -> list[dict]:
    """Return the whole lines of a run's metrics, oldest first; [] before there are any."""
    path = run_dir / name
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def summary(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text())


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> float:
    """Wait for a condition and return how many seconds that took; fail, naming `what`, after the limit."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s, f"no {what} within {timeout_s} s"
        time.sleep(0.02)
    return time.monotonic() - start
