"""The process of a slot: one environment, for one session, forked from a warm parent, confined, ended with its session.

Its line to the server comes as standard input. Only here is parsed what a client sent: what breaks a parser breaks the
client's own world.
"""

import atexit
import json
import os
import socket
from contextlib import suppress

from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.pool_memory import leave_signals_to_the_rank
from ddppo.envs.guard import leave_alone
from ddppo.serve.limits import Confinement, confine
from ddppo.serve.openenv import answered_once
from ddppo.serve.protocol import JSON, MSGPACK
from ddppo.serve.slots.line import FAILED, READY, framed, hear
from ddppo.serve.slots.world import ServedWorld


def main() -> None:
    """Make the environment and answer until the line ends."""
    leave_signals_to_the_rank()
    leave_alone()
    atexit._clear()  # what the process that this one forked from had registered is not its to do
    line = socket.socket(fileno=os.dup(0))
    hole = os.open(os.devnull, os.O_RDONLY)
    os.dup2(hole, 0)
    os.close(hole)
    with line, suppress(EOFError, ConnectionError):
        _, content = hear(line)
        task = json.loads(content)
        confine(Confinement(**task["confinement"]), task["slot"])
        try:
            world = ServedWorld(EnvConfig(**task["env"]), task["spec"])
        except Exception as e:  # a task may raise anything
            line.sendall(framed(FAILED, f"{type(e).__name__}: {e}".encode()))
            return
        # Not before: files that its settings name are found where the server was started. Nor where it chose another.
        if os.getcwd() == task["started_in"]:
            os.chdir(task["folder"])
        line.sendall(framed(READY, b""))
        while True:
            kind, content = hear(line)
            if kind in (JSON, MSGPACK):
                line.sendall(framed(*world.answer(kind, content)))
            else:
                line.sendall(framed(*answered_once(world.answer, kind, content)))


if __name__ == "__main__":
    main()
