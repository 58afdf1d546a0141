"""Run the doors as a user does: in processes of their own, from the checkout, never longer than a limit.

What `python -m ddppo.<door>` would be forks from a process that has torch already, which saves seconds each; a door can
tell by its parent only. So do torchrun's agent and modules of the tests. `Program` is the interpreter started anew.
"""

import functools
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from ddppo.processes.forking import ForkServer

CHECKOUT = Path(__file__).resolve().parents[1]
IMPORTED = (
    "hydra",
    "tensorboard.compat.proto.event_pb2",
    "torch._dynamo",
    "ddppo.loop.rank",
    "ddppo.launch.checks",
    "ddppo.launch.sweep_runs",
)
FORKED = ("ddppo.", "tests.", "torch.distributed.run")
# The limit of every wait, in seconds: it ends what hangs and nothing that is slow, before pytest's limit of a test
# (600, Makefile) ends the process with all it knows. No test expects it to pass, and what a test expects to be late is
# held up for good, frozen or asleep, never for a time that a loaded machine also takes.
PATIENCE_S = 400.0
NEVER_S = 86_400.0  # a limit of the program's that no test reaches: something else ends what it limits
_ports = itertools.count(16 * os.getpid())
TINY = ("eval.final_episodes=0", "log.progress=none", "log.tensorboard=false")  # first: later overrides win


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    stdout: str
    stderr: str
    run_dir: Path


def door(
    *arguments: str, run_dir: Path, module: str = "ddppo.train", timeout_s: float = PATIENCE_S, **environ: str
) -> Finished:
    """Run `python -m <module> <arguments>` with `run_dir` as Hydra's and return what came of it."""
    where = () if module != "ddppo.train" else (f"hydra.run.dir={run_dir}",)
    return run([sys.executable, "-m", module, *arguments, *where], run_dir, timeout_s, **environ)


def run(command: list[str], run_dir: Path, timeout_s: float = PATIENCE_S, **environ: str) -> Finished:
    with started(command, **environ) as process:
        stdout, stderr = process.communicate(timeout=timeout_s)
    return Finished(process.returncode, stdout, stderr, run_dir)


class Program(list):
    """A command that is to be a program of its own whatever it is."""


class Fork(subprocess.Popen):
    """What subprocess.Popen makes of `python -m <module> <arguments>`, forked, in a session of its own."""

    server = staticmethod(lambda: warm_server())  # what it is forked from

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        # startupinfo, creationflags, shell, and both ends of three pipes; -1 for what is inherited
        theirs = (others[3], others[6], others[8])
        stdio = [fd if fd >= 0 else number for number, fd in enumerate(theirs)]
        self._fork = self.server().start(
            args[2], args[3:], env or os.environ, title=" ".join(args[1:]), cwd=str(cwd), stdio=stdio
        )
        self.pid = self._fork.pid
        self._child_created = True
        self._close_pipe_fds(*others[3:9])

    def _internal_poll(self, _deadstate=None):
        if self.returncode is None:
            self.returncode = self._fork.poll()
        return self.returncode

    def _wait(self, timeout):
        self.returncode = self._fork.wait(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode


def process_of(command: list[str], Popen=subprocess.Popen, **more) -> subprocess.Popen:
    """Return what subprocess.Popen does, a fork where that may be; tests may put this in its place."""
    forks = command[:2] == [sys.executable, "-m"] and command[2].startswith(FORKED)
    if forks and "env=cloud" in command:
        have_read_tasks_of_the_cloud()
    return (Fork if forks and not isinstance(command, Program) else Popen)(command, **more)


@functools.cache
def warm_server() -> ForkServer:
    """Return this test process's server of doors; it ends with the tests."""
    # The door would set this before it imports torch, which reads it then.
    with chdir(CHECKOUT), mock.patch.dict(os.environ, GOMP_SPINCOUNT="1000", TORCH_CPP_LOG_LEVEL="ERROR"):
        server = ForkServer.started()
    server.have_imported((*IMPORTED, "tests.composed_before"))
    return server


@functools.cache
def have_read_tasks_of_the_cloud() -> None:
    """Have the server read the tasks of env=cloud, which takes each process of a run a second."""
    warm_server().have_imported(("tests.domains.cloud.read_before",))


@contextmanager
def started(command: list[str], **environ: str):
    """Start a command as the leader of a process group of its own; nothing of the group outlives the block."""
    process = process_of(
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
        # Not the number of a process that was waited for: another may have it by now.
        alive = [process.pid] if process.poll() is None else []
        for pid in (*alive, *descendants(run_id(process))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def run_id(process: subprocess.Popen) -> str:
    """Return what the titles of a run's ranks hold and no other process's does: its run folder."""
    arguments = [a for a in process.args if a.startswith(("hydra.run.dir=", "resume="))]
    return arguments[-1].partition("=")[2] if arguments else f"no folder of process {process.pid}"


def descendants(folder: str) -> list[int]:
    """Return the processes that are ranks of the run in `folder`, whoever their parent is by now."""
    return processes(f"ddppo.launch.rank {folder} rank ")


def processes(title: str) -> list[int]:
    """Return the processes whose title, as `ps` shows it, begins so."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and title_of(int(entry.name)).startswith(title):
                    found.append(int(entry.name))
            except OSError:  # it ended meanwhile
                continue
    return found


def title_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").rstrip()


def rank_of(pid: int) -> int:
    return int(re.search(r" rank (\d+) of \d+$", title_of(pid))[1])


def lines(run_dir: Path, name: str = "metrics.jsonl") -> list[dict]:
    """Return the whole lines of a run's metrics, oldest first; [] before there are any."""
    path = run_dir / name
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def summary(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text())


def free_port() -> int:
    """Return a port on which no program listens, another one in each call and in each process of the tests.

    It is below those that the system gives to a program that asks for any (32768 and above), or else another test could
    get it before it is used.
    """
    while True:
        port = 20_000 + next(_ports) % 10_000
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def wait_until(condition: Callable[[], bool], what: str = "end", timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition; fail, naming `what`, after the limit."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"no {what} within {timeout_s} s"
        time.sleep(0.02)
