"""The server process of a single rank (started by client/backend.py), with its task on standard input.

It serves at a socket that the rank has opened, and ends with the rank.
"""

import json
import logging
import os
import socket
import threading
from contextlib import suppress

from ddppo.config.settings import EnvConfig
from ddppo.processes.fork_server import exactly
from ddppo.processes.signals import leave_signals_to_the_rank, live_on
from ddppo.serve.client.backend import FAILED, READY
from ddppo.serve.limits import Limits
from ddppo.serve.protocol import spec_of
from ddppo.serve.server import ServeSettings, listening

_CLOSE_S = 7.0  # for a clean end, after which the process exits at once
_NONE = 1e9  # no limit: the rank is its only client


def main() -> None:
    """Serve until killed."""
    leave_signals_to_the_rank()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    # 1. The line to the rank is standard input; put /dev/null in its place, so that worlds do not inherit it.
    line = socket.socket(fileno=os.dup(0))
    hole = os.open(os.devnull, os.O_RDONLY)
    os.dup2(hole, 0)
    os.close(hole)
    live_on()  # do not die with the rank at once: the end of the line is the signal, and the folder has to be removed
    # 2. The task, and the socket to listen at.
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
    # 3. Serve until the rank closes its end of the line.
    try:
        with listening(settings, socket.socket(fileno=listener)) as (at, server):
            # In a thread: in the main thread, uvicorn would install signal handlers.
            thread = threading.Thread(target=server.run, args=([at],), name="server", daemon=True)
            thread.start()
            line.sendall(READY)
            line.recv(1)  # returns when the rank has closed its end, or has ended
            forced = threading.Timer(_CLOSE_S, os._exit, [1])  # worlds that are left end with this process
            forced.daemon = True
            forced.start()
            server.should_exit = True
            thread.join()
    except Exception as e:  # a task may raise anything; the rank raises it
        with suppress(OSError):
            line.sendall(FAILED + f"{type(e).__name__}: {e}".encode())
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
