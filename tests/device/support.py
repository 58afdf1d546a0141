"""Run programs and functions in processes that have the stand-in accelerator (standin.py).

    on_standin("ddppo.train", "env=cartpole", "device=auto", run_dir=tmp_path)    # a door, as tests.support.door
    called_on_standin(checks.losses, "sim")                                       # a function, and what it returns

Each is forked from one server that has torch and the stand-in, so it begins in milliseconds and pytest has neither.
"""

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest import mock

from ddppo.processes.forking import ForkServer
from tests.support import CHECKOUT, IMPORTED, Finished, Fork, door

_RESULT = "result: "


@functools.cache
def _server() -> ForkServer:
    with chdir(CHECKOUT), mock.patch.dict(os.environ, GOMP_SPINCOUNT="1000", TORCH_CPP_LOG_LEVEL="ERROR"):
        server = ForkServer.started()
    server.have_imported(
        (*IMPORTED, "tests.composed_before", "tests.device.installed", "tests.device.checks")
    )
    return server


class _Fork(Fork):
    server = staticmethod(_server)


def on_standin(module: str, *arguments: str, run_dir: Path, **environ: str) -> Finished:
    """Run `python -m <module> <arguments>` as tests.support.door does, in a process that has the stand-in."""
    with mock.patch("tests.support.process_of", _Fork):
        return door(*arguments, run_dir=run_dir, module=module, **environ)


def called_on_standin(function: Callable, *arguments: Any, **environ: str) -> Any:
    """Call a function of a module of the tests in a process that has the stand-in; return its result, through JSON."""
    call = json.dumps([function.__module__, function.__qualname__, arguments])
    done = on_standin("tests.device.support", call, run_dir=CHECKOUT, **environ)
    assert done.code == 0, done.stdout + done.stderr
    return json.loads(done.stdout.rpartition(_RESULT)[2])


if __name__ == "__main__":
    module, name, given = json.loads(sys.argv[1])
    result = getattr(importlib.import_module(module), name)(*given)
    print(f"\n{_RESULT}{json.dumps(result)}", flush=True)
