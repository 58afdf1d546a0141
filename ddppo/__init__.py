"""Decentralised, synchronous, data-parallel PPO."""

import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # before an import of what Windows lacks: fcntl, os.fork
    sys.exit("error: ddppo needs Linux or macOS (on Windows: WSL 2)")

if TYPE_CHECKING:
    from ddppo.api import evaluate, train
    from ddppo.policies import load_policy

__all__ = ["evaluate", "load_policy", "train"]
__version__ = "0.1.0"

# Names for users' programs, whose modules import torch; doors are modules that can be called (ddppo/calling.py).
_FROM = {"load_policy": "ddppo.policies"}
_DOORS = ("evaluate", "train")

# While the command imports, Ctrl-C ends it without a traceback; its main() makes it an exception again.
_is_train = sys.orig_argv[1:3] == ["-m", "ddppo.train"] or os.path.basename(sys.argv[0]) == "ddppo-train"
if _is_train and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def __getattr__(name: str) -> Any:
    if name in _DOORS:
        return importlib.import_module(f"ddppo.{name}")
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
