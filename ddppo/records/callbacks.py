"""Callbacks (run.callbacks): a user's own code that is called while a run trains, and may steer it.

class Early:                                  # run.callbacks=[{path: my_pkg.early:Early, rate: 0.99}]
    def __init__(self, rate): self.rate = rate
    def on_evaluation(self, run):
        if run.metrics["eval/success_rate"] >= self.rate:
            run.stop("it succeeds")

Rank 0 alone calls them (`Callbacks.call`). What they ask for is then sent to all ranks, so that all stop, save or
change a coefficient after the same iteration. docs/callbacks.md is the user's guide.

`train(..., callbacks=[object])` of ddppo.api keeps the objects in the calling program: rank 0 sends each call through a
socket (`Caller`), and the program answers (`CallbackServer`). Nothing is pickled. Imports torch only on ranks.
"""

import inspect
import json
import math
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddppo.config.settings import CALLER, Config
from ddppo.errors import ConfigError, TrainingError, in_one_line, own_traceback
from ddppo.plugins import imported

if TYPE_CHECKING:
    from ddppo.collectives.group import Group

HOOKS = ("on_iteration", "on_evaluation", "on_checkpoint", "on_end")
_RULE = f"it must be a function of a run, or have a method {', '.join(HOOKS[:-1])} or {HOOKS[-1]}"


class LiveRun:
    """A run under way, as a callback sees it. Its methods are requests, which all ranks follow after the call."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.folder = Path(facts["folder"])
        self.iteration: int = facts["iteration"]  # counted from 1
        self.env_steps: int = facts["env_steps"]  # of all ranks so far
        self.total_steps: int = facts["total_steps"]
        self.wall_s: float = facts["wall_s"]  # of training, without evaluations
        self.world_size: int = facts["world_size"]
        # running; in on_end completed or stopped.
        self.status: str = facts["status"]
        # The numbers of this iteration, as TensorBoard shows them; after an evaluation eval/* too.
        self.metrics: dict[str, float] = dict(facts["metrics"])
        # The coefficients that `set` changes, by the names of their settings, as the iteration had them.
        self.coefficients: dict[str, float] = dict(facts["coefficients"])
        # The checkpoint that is on the disk, in on_checkpoint; else None.
        self.checkpoint = Path(facts["checkpoint"]) if facts["checkpoint"] else None
        self.asked: dict[str, Any] = {}

    @property
    def config(self) -> Config:
        """All settings of the run."""
        from ddppo.config.stored import load_config

        return load_config(self.folder / "config.yaml")

    def stop(self, why: str = "") -> None:
        """Complete the run after this iteration: final evaluation, checkpoint, summary.json, which says why."""
        self.asked["stop"] = str(why)

    def save(self) -> None:
        """Save a checkpoint after this iteration."""
        self.asked["save"] = True

    def set(self, name: str, value: float) -> None:
        """Let a coefficient have this value from the next iteration on, in place of its schedule; a resumed run too.

        name: learning_rate, clip_coef, entropy_coef or target_kl of PPO and GRPO; learning_rate of other algorithms.
        """
        if name not in self.coefficients:
            raise ValueError(
                f"set({name!r}): coefficients of this run are {', '.join(self.coefficients) or 'none'}"
            )
        number = float(value)
        if not 0 <= number < math.inf or (number == 0 and name != "entropy_coef"):
            bound = "at least 0" if name == "entropy_coef" else "greater than 0"
            raise ValueError(f"set({name!r}, {value}): must be a finite number {bound}")
        self.asked.setdefault("set", {})[name] = number


# -- Objects with hooks, from import paths or from a program.


def import_callbacks(given: Sequence[Any]) -> list[tuple[str, Any, dict[str, Any]]]:
    """Import what run.callbacks names: (name for messages, function or class, arguments). Raises ConfigError."""
    found = []
    for each in given:
        arguments = {key: x for key, x in each.items() if key != "path"} if isinstance(each, dict) else {}
        path = each["path"] if isinstance(each, dict) else each
        name = f"run.callbacks=[{path}]"
        try:
            callback = imported(path)
        except (Exception, SystemExit) as e:  # a user's module may raise anything
            raise ConfigError(f"{name}: cannot be imported: {in_one_line(e)}") from e
        _check_hooks(name, callback)
        is_class = isinstance(callback, type)
        if not is_class and _hooks_of(callback):
            if arguments:
                raise ConfigError(
                    f"{name} is an object, which takes no arguments: name its class, or leave them out"
                )
        else:
            try:
                inspect.signature(callback).bind(*(() if is_class else (None,)), **arguments)
            except (TypeError, ValueError) as e:
                what = "arguments" if is_class else "arguments behind the run"
                raise ConfigError(f"{name}: {e}; its {what} here: {', '.join(arguments) or 'nothing'}") from e
        found.append((name, callback, arguments))
    return found


def _check_hooks(name: str, callback: Any) -> None:
    """Raise ConfigError unless a callback is a function, or has a hook; for a misspelt one too."""
    own = _hooks_of(callback)
    if wrong := [attribute for attribute in own if attribute not in HOOKS]:
        raise ConfigError(f"{name} has {wrong[0]}, which nothing calls: hooks are {', '.join(HOOKS)}")
    if not own and (isinstance(callback, type) or not callable(callback)):
        raise ConfigError(f"{name}: {_RULE}")


def _hooks_of(callback: Any) -> list[str]:
    return [attribute for attribute in dir(callback) if attribute.startswith("on_")]


def made(given: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the callbacks of run.callbacks by name, with instances of classes. Raises ConfigError."""
    found = []
    for name, callback, arguments in import_callbacks(given):
        if isinstance(callback, type):
            try:
                callback = callback(**arguments)
            except Exception as e:  # a user's class may raise anything
                raise ConfigError(f"{name}: cannot be made: {in_one_line(e)}") from e
        elif arguments:
            callback = partial(callback, **arguments)
        found.append((name, callback))
    return found


def call_each(callbacks: Sequence[tuple[str, Any]], hook: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Call the hook of every callback that has it; return what they ask for, with "error" if one raised.

    A function is called as on_iteration is.
    """
    run = LiveRun(facts)
    for name, callback in callbacks:
        function = getattr(callback, hook, None)
        if hook == "on_iteration" and not _hooks_of(callback):
            function = callback
        if function is None:
            continue
        try:
            function(run)
        except (Exception, SystemExit) as e:  # the user's code may raise anything
            print(own_traceback(e), file=sys.stderr, flush=True)
            return run.asked | {"error": f"{name}: {hook} raised {in_one_line(e)}"}
    return run.asked


# -- On the ranks.


class Callbacks:
    """The callbacks of a run. All ranks call `call` together; rank 0 has the objects."""

    def __init__(self, config: Config, group: "Group", folder: Path) -> None:
        self._group = group
        self._facts = {
            "folder": str(folder.resolve()),
            "total_steps": config.training.total_steps,
            "world_size": config.dist.world_size,
        }
        self._callbacks: list[tuple[str, Any]] = []
        self._caller: Caller | None = None
        self._error = ""  # that rank 0 tells the others in the first call
        if group.rank == 0:
            try:
                self._callbacks = made(config.run.callbacks)
                if path := os.environ.get(CALLER):
                    self._caller = Caller(path)
            except (ConfigError, TrainingError) as e:
                self._error = str(e)

    def call(self, hook: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Call a hook on rank 0, and return on all ranks what callbacks ask for: stop, save, set, error.

        A rank without callbacks waits for rank 0, for dist.timeout_s at most.
        """
        from ddppo.collectives.group import gather_bytes

        asked: dict[str, Any] = {}
        if self._group.rank == 0:
            asked = {"error": self._error} if self._error else self._call_all(hook, {**self._facts, **facts})
        contents, _ = gather_bytes(self._group, json.dumps(asked).encode() if asked else b"")
        found: dict[str, Any] = json.loads(contents[0]) if contents[0] else {}
        return found

    def _call_all(self, hook: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        asked = call_each(self._callbacks, hook, facts)
        if self._caller is None or "error" in asked:
            return asked
        of_caller = self._caller.call(hook, facts)
        both = {**asked.get("set", {}), **of_caller.get("set", {})}
        return asked | of_caller | ({"set": both} if both else {})


# -- Objects of the program that called train: a line of JSON for each call, and one for its answer.


class Caller:
    """Rank 0's connection to the program that has the objects."""

    def __init__(self, path: str) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        try:
            self._line.connect(path)
        except OSError as e:
            raise TrainingError(f"the program that called train(callbacks=...) does not answer: {e}") from e
        self._answers = self._line.makefile("r", encoding="utf-8")

    def call(self, hook: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self._line.sendall(json.dumps([hook, facts]).encode() + b"\n")
            answer = self._answers.readline()
        except OSError:
            answer = ""
        if not answer:
            return {"error": "the program that called train(callbacks=...) has ended"}
        found: dict[str, Any] = json.loads(answer)
        return found


class CallbackServer:
    """The calling program's side: it calls its objects when rank 0 asks. Closed, it leaves nothing behind."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = []
        for callback in callbacks:
            if isinstance(callback, (str, Mapping)):
                raise ConfigError(
                    f"callbacks=[{callback!r}]: import paths belong into the settings, run.callbacks=[{callback}]"
                )
            name = f"callbacks=[{getattr(callback, '__qualname__', type(callback).__qualname__)}]"
            if isinstance(callback, type):
                raise ConfigError(f"{name} is a class: give an object of it, {callback.__qualname__}(...)")
            _check_hooks(name, callback)
            self._callbacks.append((name, callback))
        self._folder = tempfile.TemporaryDirectory(prefix="ddppo-")
        self.path = str(Path(self._folder.name) / "calls")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.path)
        self._listening.listen()
        self._lines: dict[int, tuple[socket.socket, bytearray]] = {}

    def filenos(self) -> list[int]:
        return [self._listening.fileno(), *self._lines]

    def handle(self, fileno: int) -> None:
        """Accept a connection, or answer a call. Ctrl-C in a callback is raised once rank 0 has its answer."""
        if fileno == self._listening.fileno():
            line, _ = self._listening.accept()
            self._lines[line.fileno()] = line, bytearray()
            return
        line, received = self._lines[fileno]
        try:
            content = line.recv(1 << 16)
        except ConnectionError:
            content = b""
        if not content:
            del self._lines[fileno]
            line.close()
            return
        received += content
        if not received.endswith(b"\n"):
            return
        hook, facts = json.loads(received)
        received.clear()
        asked: dict[str, Any] = {}
        try:
            asked = call_each(self._callbacks, hook, facts)
        finally:
            line.sendall(json.dumps(asked).encode() + b"\n")

    def close(self) -> None:
        for line, _ in self._lines.values():
            line.close()
        self._listening.close()
        self._folder.cleanup()
