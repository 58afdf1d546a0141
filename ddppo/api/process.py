"""A run as a process that the caller follows: it prints here, in a notebook in place, and ends by an exception here."""

import codecs
import json
import os
import select
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ddppo.errors import (
    AfterTrainingError,
    CollectiveError,
    ConfigError,
    NonFiniteError,
    ReplicaMismatchError,
    RunFolderError,
    StorageError,
    TrainingError,
)
from ddppo.files import write_json
from ddppo.processes import limits
from ddppo.processes.forking import ForkedProcess, ForkServer, ForkServerLost, how_ended
from ddppo.records.progress_display import FRAME_BEGINS, FRAMES

_COLUMNS = 100  # of a notebook's output


class View:
    """Copies the run's output to sys.stdout and sys.stderr as they are. environ: environment variables of the run."""

    environ: dict[str, str]

    def __init__(self) -> None:
        self.environ = {}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._of_out, self._of_err = decoder("replace"), decoder("replace")

    def out(self, text: bytes) -> None:
        self._say(self._of_out.decode(text))

    def err(self, text: bytes) -> None:
        sys.stderr.write(self._of_err.decode(text))
        sys.stderr.flush()

    def close(self) -> None:
        pass

    def _say(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class NotebookView(View):
    """Shows the run's progress in place, by frames that it prints among its other output."""

    def __init__(self) -> None:
        super().__init__()
        self.environ = {FRAMES: str(_COLUMNS)}
        self._line = ""
        self._handle: Any = None

    def out(self, text: bytes) -> None:
        self._line += self._of_out.decode(text)
        *lines, self._line = self._line.split("\n")
        for line in lines:
            before, begins, frame = line.partition(FRAME_BEGINS)
            if before or not begins:  # the former is what a task printed without an end of line
                self._say(f"{before}\n")
            if begins:
                self._show("\n".join(json.loads(frame)))

    def close(self) -> None:
        if self._line:
            self._say(self._line)

    def _show(self, text: str) -> None:
        from IPython.display import display

        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def view() -> View:
    """Return the view for where this program shows its output."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return NotebookView() if hasattr(shell, "kernel") else View()


# -- the process

# What a run needs at once; a second run starts without waiting for it.
_IMPORTS = ("ddppo.train", "ddppo.launch.checks", "ddppo.loop.rank", "torch.utils.tensorboard")
_OF_TORCHRUN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
)
_POLL_S = 0.1
_MOST = 1 << 16  # bytes read at once
_PATIENCE = 2  # interrupts
_TITLE = "ddppo.api.train"
_PLAIN = {
    each.__name__: each
    for each in (
        ConfigError,
        RunFolderError,
        StorageError,
        NonFiniteError,
        ReplicaMismatchError,
        CollectiveError,
        AfterTrainingError,
    )
}
_of_thread = threading.local()


def started(overrides: list[str]) -> Path:
    """Run the door with these settings to its end and return the run folder. Raises what `ddppo.api.train` says."""
    with tempfile.TemporaryDirectory(prefix="ddppo-") as folder:
        file = Path(folder) / "run.json"
        write_json(file, {"overrides": overrides, "path": [path or os.getcwd() for path in sys.path]})
        shown = view()
        try:
            code = _run(file, shown)
        except ForkServerLost as e:
            raise TrainingError(f"the process that runs are forked from {e}") from None
        finally:
            shown.close()
        answer = json.loads(file.read_text(encoding="utf-8"))
    if "overrides" in answer:
        raise TrainingError(
            f"the run's process {how_ended(code)} and left no word. {limits.after(code)}".rstrip()
        )
    if answer["error"] is not None:
        raise _error(answer["error"], answer["run_dir"])
    if code != 0 or answer["run_dir"] is None:
        raise TrainingError(f"the run's process {how_ended(code)}; what it said is above")
    return Path(answer["run_dir"])


def _run(file: Path, shown: View) -> int:
    """Start the process, follow it and return its exit code; it does not outlive an exception."""
    server = _server()
    environ = {name: value for name, value in os.environ.items() if name not in _OF_TORCHRUN} | shown.environ
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ends = [_end(sys.stdout), _end(sys.stderr)]
    takes = (shown.out, shown.err)
    pipes = {ours: take for (ours, _), take in zip(ends, takes, strict=True) if ours is not None}
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        try:
            stdio = (nothing, *(theirs for _, theirs in ends))
            process = server.start("ddppo.api.child", [str(file)], environ, title=_TITLE, stdio=stdio)
        finally:
            os.close(nothing)
            for ours, theirs in ends:
                if ours is not None:
                    os.close(theirs)
        return _followed(process, server, dict(pipes))
    except BaseException:
        server.close()
        raise
    finally:
        for ours in pipes:
            os.close(ours)


def _followed(process: ForkedProcess, server: ForkServer, pipes: dict[int, Callable[[bytes], None]]) -> int:
    """Hand on what a process prints until it has ended; return its exit code.

    An interrupt is handed on: the first lets the run save and end, the second ends it, after the third nobody waits.
    """
    interrupts = 0
    while True:
        try:
            waits = [*pipes, *([server.fileno()] if process.returncode is None else [])]
            ready = select.select(waits, [], [], _POLL_S)[0]
            printed = [fd for fd in ready if fd in pipes]
            for fd in printed:
                if text := os.read(fd, _MOST):
                    pipes[fd](text)
                else:
                    del pipes[fd]
            if (code := process.poll()) is not None and not printed:
                return code
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts > _PATIENCE:
                raise
            process.send_signal(signal.SIGINT)


def _end(stream: IO[str]) -> tuple[int | None, int]:
    """Return our end and the run's of a pipe for its output; None and the terminal where `stream` is one."""
    with suppress(OSError, ValueError, AttributeError):
        if stream.isatty() and os.isatty(stream.fileno()):
            return None, stream.fileno()
    return os.pipe()


class _Held:
    """A server for as long as the thread that made it: Linux ends children with the thread that started them."""

    def __init__(self) -> None:
        # As the door would before it imports torch, which reads it then.
        self.server = ForkServer.started({"GOMP_SPINCOUNT": "1000", **os.environ})
        weakref.finalize(self, self.server.close)
        self.server.have_imported(_IMPORTS)


def _server() -> ForkServer:
    held: _Held | None = getattr(_of_thread, "held", None)
    if held is None or not held.server.is_usable:
        _of_thread.held = held = _Held()
    return held.server


def _error(said: dict[str, str], run_dir: str | None) -> BaseException:
    """Return the exception that ended a run, of its own class where a message is all that this takes."""
    kind, message = said["kind"], said["message"]
    if kind in ("Stopped", "KeyboardInterrupt"):
        return KeyboardInterrupt(f"the run was stopped; its folder is {run_dir}" if run_dir else "stopped")
    return _PLAIN.get(kind, TrainingError)(message)
