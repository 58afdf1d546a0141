"""ddppo from Python, in programs and notebooks.

    from ddppo.api import train, evaluate

    run = train(["env=cartpole", "ppo.total_steps=1e5"])
    run.plot()
    evaluate(run, episodes=100)["return_mean"]

A run is a process of its own, and so are its ranks. So `train` changes no threads, signals or random states of the
program that calls it. It may be called in any thread, inside an event loop, and without `if __name__ == "__main__"`.

The caller writes the overrides into a file and starts `python -m ddppo.api <file>` (`main`, at the end), which runs the
command `ddppo.train` and replaces the file by its answer. The caller shows the output meanwhile, then returns the
summary or raises the error.
"""

import codecs
import json
import os
import select
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ddppo.config.settings import CALLER
from ddppo.config.stored import escaped
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
from ddppo.options import filled
from ddppo.processes import limits
from ddppo.processes.forking import ForkedProcess, ForkServer, ForkServerLost, how_ended
from ddppo.processes.signals import ends_without_waiting, stop_signals_raise
from ddppo.records.progress_display import FRAME_BEGINS, FRAMES
from ddppo.result import Summary
from ddppo.terminal import unbroken_streams

if TYPE_CHECKING:
    from ddppo.records.callbacks import CallbackServer

__all__ = ["Summary", "evaluate", "train"]


RunFolder = str | os.PathLike[str]  # a Summary is one


def train(overrides: Sequence[str] = (), *, callbacks: Sequence[Any] = ()) -> Summary:
    """Train as `python -m ddppo.train <overrides>` does, show its output, and return its summary,
    which has the run's policy, metrics, plot() and enjoy() too.

    callbacks: objects with methods on_iteration, on_evaluation, on_checkpoint or on_end, or functions, which are called
    after every iteration. They stay in this program, and get a ddppo.records.callbacks.LiveRun (docs/callbacks.md).

    Raises ConfigError for a mistake, before anything starts; TrainingError if the run fails; KeyboardInterrupt if it is
    interrupted, once the iteration under way is saved.
    """
    if isinstance(overrides, str) or not all(isinstance(word, str) for word in overrides):
        raise ConfigError('overrides are a list of texts: train(["env=cartpole", "ppo.total_steps=1e5"])')
    for word in overrides:
        if word.startswith("-"):
            raise ConfigError(f"{word}: train takes settings, key=value; flags are for python -m ddppo.train")
        if word.partition("=")[0].lstrip("+") == "hydra.mode":
            raise ConfigError(f"{word}: train starts one run; python -m ddppo.train -m starts several")
    if not callbacks:
        return Summary.read(_run_folder_of(list(overrides)))
    from ddppo.records.callbacks import CallbackServer

    with closing(CallbackServer(callbacks)) as called:
        return Summary.read(_run_folder_of(list(overrides), called))


def evaluate(run: RunFolder | Sequence[RunFolder], **options: Any) -> dict[str, Any]:
    """Play the policy of a run folder, or of several, and return its scores, as `python -m ddppo.evaluate` has them.

    options: episodes, seed, checkpoint and the others that its --help lists. Raises ConfigError.
    """
    from ddppo.evaluate import EvaluateConfig, evaluate

    runs = [run] if isinstance(run, (str, os.PathLike)) else list(run)
    if not runs:
        raise ConfigError("evaluate takes a run folder, or several, and none is given")
    first, *others = [escaped(os.fspath(each)) for each in runs]
    given = {"run": first, **({"others": others} if others else {}), **options, "json": True}
    found: dict[str, Any] = json.loads(evaluate(filled(EvaluateConfig, given)))
    return found


# -- The caller's side: start the process, follow it, and turn its answer into a result or an exception.

# Modules that the fork server imports once, for all runs. A second run starts without waiting for them.
_IMPORTS = ("ddppo.train", "ddppo.launch.checks", "ddppo.loop.rank")
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
_PATIENCE = 2  # interrupts that are passed on to the run
_TITLE = "ddppo.api.train"  # in `ps`
# Errors that a message alone can make again. Any other TrainingError of the run is a plain TrainingError here.
_REMADE = {
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
_of_thread = threading.local()  # held: the fork server of a thread


def _run_folder_of(overrides: list[str], called: "CallbackServer | None" = None) -> Path:
    """Run the command with these settings to its end and return the run folder. Raises as `train` does."""
    with tempfile.TemporaryDirectory(prefix="ddppo-") as folder:
        # 1. Write the request, and run the process to its end.
        file = Path(folder) / "run.json"
        write_json(file, {"overrides": overrides, "path": [path or os.getcwd() for path in sys.path]})
        shown = view()
        try:
            code = _run_process(file, shown, called)
        except ForkServerLost as e:
            raise TrainingError(f"the process that runs are forked from {e}") from None
        finally:
            shown.close()
        # 2. Read the answer. A process that was killed left the request as it was.
        answer = json.loads(file.read_text(encoding="utf-8"))
    if "overrides" in answer:
        raise TrainingError(
            f"the run's process {how_ended(code)} and left no answer. {limits.after(code)}".rstrip()
        )
    if answer["error"] is not None:
        raise _remade(answer["error"], answer["run_dir"])
    if code != 0 or answer["run_dir"] is None:
        raise TrainingError(f"the run's process {how_ended(code)}; its message is above")
    return Path(answer["run_dir"])


def _run_process(file: Path, shown: "View", called: "CallbackServer | None") -> int:
    """Start the process, follow it and return its exit code. The process does not outlive an exception here."""
    server = _server()
    environ = {name: value for name, value in os.environ.items() if name not in _OF_TORCHRUN} | shown.environ
    if called is not None:
        environ[CALLER] = called.path
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Each stream is a pipe from the run to `shown`, or the terminal itself, which the run then draws on.
    ends = [_end(sys.stdout), _end(sys.stderr)]
    takes = (shown.out, shown.err)
    pipes = {ours: take for (ours, _), take in zip(ends, takes, strict=True) if ours is not None}
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        try:
            stdio = (nothing, *(theirs for _, theirs in ends))
            process = server.start("ddppo.api", [str(file)], environ, title=_TITLE, stdio=stdio)
        finally:
            os.close(nothing)
            for ours, theirs in ends:
                if ours is not None:
                    os.close(theirs)
        return _follow(process, server, dict(pipes), called)
    except BaseException:
        server.close()
        raise
    finally:
        for ours in pipes:
            os.close(ours)


def _follow(
    process: ForkedProcess,
    server: ForkServer,
    pipes: dict[int, Callable[[bytes], None]],
    called: "CallbackServer | None",
) -> int:
    """Show the output of a process, and call the callbacks, until it has ended; return its exit code.

    Interrupts are passed on: the first lets the run save and end, the second ends it, the third is raised here at once.
    """
    interrupts = 0
    while True:
        try:
            calls = [] if called is None else called.filenos()
            waits = [*pipes, *calls, *([server.fileno()] if process.returncode is None else [])]
            ready = select.select(waits, [], [], _POLL_S)[0]
            printed = [fd for fd in ready if fd in pipes]
            if called is not None:
                for fd in set(ready) & set(calls):
                    called.handle(fd)
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
    """Return our end and the run's end of a pipe for its output; None and the terminal if `stream` is one."""
    with suppress(OSError, ValueError, AttributeError):
        if stream.isatty() and os.isatty(stream.fileno()):
            return None, stream.fileno()
    return os.pipe()


class _HeldServer:
    """A fork server that ends with the thread that started it, as Linux ends a process with its parent's thread."""

    def __init__(self) -> None:
        # torch reads this variable when it is imported, so the server sets it as the command would (train.py).
        self.server = ForkServer.started({"GOMP_SPINCOUNT": "1000", **os.environ})
        weakref.finalize(self, self.server.close)
        self.server.have_imported(_IMPORTS)


def _server() -> ForkServer:
    held: _HeldServer | None = getattr(_of_thread, "held", None)
    if held is None or not held.server.is_usable:
        _of_thread.held = held = _HeldServer()
    return held.server


def _remade(error: dict[str, str], run_dir: str | None) -> BaseException:
    """Return the exception that ended a run, of its own class if a message is all that the class takes."""
    kind, message = error["kind"], error["message"]
    if kind in ("Stopped", "KeyboardInterrupt"):
        return KeyboardInterrupt(f"the run was stopped; its folder is {run_dir}" if run_dir else "stopped")
    return _REMADE.get(kind, TrainingError)(message)


# -- The output of a run: copied as it comes, or shown in place in a notebook.

_COLUMNS = 100  # of a notebook's output


class View:
    """Copies the run's output to sys.stdout and sys.stderr."""

    environ: dict[str, str]  # variables that the run's process gets

    def __init__(self) -> None:
        self.environ = {}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decode_out, self._decode_err = decoder("replace").decode, decoder("replace").decode

    def out(self, text: bytes) -> None:
        self._print(self._decode_out(text))

    def err(self, text: bytes) -> None:
        sys.stderr.write(self._decode_err(text))
        sys.stderr.flush()

    def close(self) -> None:
        pass

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class NotebookView(View):
    """Shows the run's progress in place. The run prints it as frames, lines of JSON, among its other output."""

    def __init__(self) -> None:
        super().__init__()
        self.environ = {FRAMES: str(_COLUMNS)}
        self._line = ""  # the last line, which may not be complete yet
        self._handle: Any = None  # IPython's, once a frame was shown

    def out(self, text: bytes) -> None:
        self._line += self._decode_out(text)
        *lines, self._line = self._line.split("\n")
        for line in lines:
            before, begins, frame = line.partition(FRAME_BEGINS)
            if before or not begins:  # a task may print without an end of line, and a frame follows
                self._print(f"{before}\n")
            if begins:
                self._show("\n".join(json.loads(frame)))

    def close(self) -> None:
        if self._line:
            self._print(self._line)

    def _show(self, text: str) -> None:
        from IPython.display import display

        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def view() -> View:
    """Return the view for the place where this program shows its output."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return NotebookView() if hasattr(shell, "kernel") else View()


# -- The run's side: `python -m ddppo.api <file>`.


@ends_without_waiting("ddppo.api")
def main() -> None:
    """Run the command line that the file holds, and replace the file by {"run_dir": ..., "error": ...}."""
    file = Path(sys.argv[1])
    request = json.loads(file.read_text(encoding="utf-8"))
    sys.path[:] = request["path"]
    sys.argv = ["ddppo.train", *request["overrides"]]
    # The fork server may have inherited that SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from ddppo.train import CommandResult, command

    result = CommandResult(exit_code=1)  # of a fault that raises here: its traceback is printed
    try:
        with unbroken_streams(), stop_signals_raise():
            result = command()
        # The caller raises all other errors, and prints none of them.
        if isinstance(result.error, KeyboardInterrupt):
            print(result.message, file=sys.stderr)
    finally:
        error = None
        if result.error is not None:
            error = {"kind": type(result.error).__name__, "message": str(result.error)}
        run_dir = None if result.run_dir is None else str(result.run_dir.resolve())
        write_json(file, {"run_dir": run_dir, "error": error})
    sys.exit(result.exit_code)


if __name__ == "__main__":
    main()
