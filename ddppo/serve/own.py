"""The server of one rank's environments (ddppo.serve.client.backend), told what to serve over its standard input.

It listens where the rank does, and ends with it.
"""

import json
import logging
import os
import socket
import threading
from contextlib import suppress

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.pool_memory import leave_signals_to_the_rank
from ddppo.processes.fork_server import exactly
from ddppo.processes.signals import live_on
from ddppo.serve.client.backend import FAILED, READY
from ddppo.serve.limits import Limits
from ddppo.serve.protocol import spec_of
from ddppo.serve.server import ServeSettings, listening

_CLOSE_S = 7.0
_NONE = 1e9  # its only client may ask as much and as seldom as it likes


def main() -> None:
    """Serve until killed."""
    leave_signals_to_the_rank()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    line = socket.socket(fileno=os.dup(0))
    hole = os.open(os.devnull, os.O_RDONLY)
    os.dup2(hole, 0)
    os.close(hole)
    live_on()  # a kill would leave the worlds' folder behind; the line ends however the rank ends
    head, (listener, *_), _, _ = socket.recv_fds(line, 8, 1, socket.MSG_WAITALL)
    try:
        task = json.loads(exactly(line, int.from_bytes(head, "big")))
    except EOFError:  # the rank has ended
        raise SystemExit(1) from None
    limits = Limits(
        max_message_bytes=2**26, messages_per_s=_NONE, idle_s=_NONE, step_s=task["step_s"], ready_s=60.0
    )
    settings = ServeSettings(
        EnvConfig(**task["env"]), task["pool"], token=task["token"], limits=limits, spec=spec_of(task["spec"]),
        keep_env=("*",), prints=True,
    )  # fmt: skip
    try:
        with listening(settings, socket.socket(fileno=listener)) as (at, server):
            # Not in the main thread, where it would take signals for its own to mind.
            thread = threading.Thread(target=server.run, args=([at],), name="server", daemon=True)
            thread.start()
            line.sendall(READY)
            line.recv(1)  # nothing: the rank has closed its end, or has ended
            forced = threading.Timer(_CLOSE_S, os._exit, [1])  # what is left ends with this process
            forced.daemon = True
            forced.start()
            server.should_exit = True
            thread.join()
    except Exception as e:  # a task may raise anything; the rank says it
        with suppress(OSError):
            line.sendall(FAILED + f"{type(e).__name__}: {e}".encode())
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
