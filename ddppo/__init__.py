"""Decentralised, synchronous, data-parallel PPO."""

import gc
import importlib
import os
import signal
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # before an import of what Windows lacks: fcntl, os.fork
    sys.exit("error: ddppo needs Linux or macOS (on Windows: WSL 2)")

if TYPE_CHECKING:
    from ddppo.policies.acting import load_policy

__all__ = ["load_policy"]
__version__ = "0.1.0"

# `ddppo.load_policy` for users' programs. Its module imports torch, so it is imported when it is used.
_FROM = {"load_policy": "ddppo.policies.acting"}
_COMMANDS = ("evaluate", "train")  # modules here, functions of the same names in ddppo.api


class Command(ModuleType):
    """The module of a command. Called like a function, it is the function of that name in ddppo.api."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module("ddppo.api"), name)(*args, **kwargs)


# Whether the program is `python -m ddppo.train`, with or without options of Python such as -u, or `ddppo-train`.
_is_train = os.path.basename(sys.argv[0]) == "ddppo-train" or (
    sys.argv[0] == "-m" and sys.orig_argv[-len(sys.argv)] == "ddppo.train"
)
# While ddppo.train imports and composes, next to nothing becomes garbage, and looking for it takes a tenth of the time.
_collector_is_off = _is_train
if _collector_is_off:
    gc.disable()
# While ddppo.train imports its modules, Ctrl-C ends it without a traceback. Its main() makes Ctrl-C an exception again.
if _is_train and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def __getattr__(name: str) -> Any:
    if name in _COMMANDS:
        return importlib.import_module(f"ddppo.{name}")
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def imports_are_done() -> None:
    """Turn the garbage collector on again if this module turned it off: before a task's or a model's code runs."""
    global _collector_is_off
    if _collector_is_off:
        _collector_is_off = False
        gc.freeze()  # the collector need not look at what the imports made
        gc.enable()
