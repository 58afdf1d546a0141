"""The main program of a slot's process: one environment for one session, confined, killed when the session ends.

Its line to the server is standard input. Messages of clients are parsed here and not in the server, so that a message
that breaks a parser breaks only the world of its own client.
"""

import atexit
import json
import os
import socket
from contextlib import suppress

from ddppo.config.settings import EnvConfig
from ddppo.envs.guard import leave_alone
from ddppo.processes.signals import leave_signals_to_the_rank
from ddppo.serve.limits import Confinement, confine
from ddppo.serve.openenv import answered_once
from ddppo.serve.protocol import JSON, MSGPACK
from ddppo.serve.slots.line import FAILED, READY, framed, read_frame
from ddppo.serve.slots.world import ServedWorld


def main() -> None:
    """Make the environment and answer until the line ends."""
    leave_signals_to_the_rank()
    leave_alone()
    atexit._clear()  # drop the exit handlers of the parent that this process was forked from
    # 1. The line is standard input; put /dev/null in its place, so that the environment cannot read it.
    line = socket.socket(fileno=os.dup(0))
    hole = os.open(os.devnull, os.O_RDONLY)
    os.dup2(hole, 0)
    os.close(hole)
    with line, suppress(EOFError, ConnectionError):
        # 2. The task. Confine the process before the environment is made.
        _, content = read_frame(line)
        task = json.loads(content)
        confine(Confinement(**task["confinement"]), task["slot"])
        try:
            world = ServedWorld(EnvConfig(**task["env"]), task["spec"])
        except Exception as e:  # a task may raise anything
            line.sendall(framed(FAILED, f"{type(e).__name__}: {e}".encode()))
            return
        # Change to the world's folder only now, because its settings may name files relative to the server's folder;
        # and not if the environment has changed the folder itself.
        if os.getcwd() == task["started_in"]:
            os.chdir(task["folder"])
        line.sendall(framed(READY, b""))
        # 3. Answer requests until the server closes the line.
        try:
            while True:
                kind, content = read_frame(line)
                if kind in (JSON, MSGPACK):
                    line.sendall(framed(*world.answer(kind, content)))
                else:
                    line.sendall(framed(*answered_once(world.answer, kind, content)))
        finally:
            # The server waits for this in Worlds.end; it kills every other process at once.
            if task["spec"]["needs_close"]:
                world.close()


if __name__ == "__main__":
    main()
