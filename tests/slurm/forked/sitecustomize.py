"""Ranks that srun starts are forked from a process that has torch already, which saves 2 s of a core each.

A job whose PYTHONPATH begins with this folder has Python import this file at its start. In a rank the interpreter that
srun started then goes no further: it asks the server at the socket DDPPO_TEST_RANKS to fork the rank, with its own
files, environment and folder, passes signals on, and ends as the rank ends. A rank ends with it, even after kill -9.

The server: python -m tests.slurm.forked.sitecustomize <socket>.
"""

import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

RANK = "ddppo.cluster.rank"


def be_a_forked_rank(arguments: list[str]) -> NoReturn:
    """Have the rank forked, and stand for it before SLURM until it ends."""
    from ddppo.processes.fork_server import STDIO, receive, send

    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["DDPPO_TEST_RANKS"])
    request = {"module": RANK, "arguments": arguments, "environ": dict(os.environ), "cwd": os.getcwd()}
    send(connection, request | {"title": f"{RANK} {' '.join(arguments)}"}, STDIO)
    started, _ = receive(connection)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: send(connection, {"signal": n, "pid": started["started"]}))
    ended, _ = receive(connection)
    if ended["code"] < 0:
        signal.signal(-ended["code"], signal.SIG_DFL)
        os.kill(os.getpid(), -ended["code"])
    os._exit(ended["code"])


def serve_ranks(path: Path) -> NoReturn:
    """Import what a rank imports; then, for each connection, fork a server whose forks are ranks."""
    import ddppo.launch.mpi
    import ddppo.loop.rank  # noqa: F401
    from ddppo.processes.fork_server import serve
    from ddppo.processes.signals import die_with_parent

    die_with_parent()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{path}.new")
    listening.listen(64)
    os.replace(f"{path}.new", path)  # it is there once it answers
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            serve(connection)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    serve_ranks(Path(sys.argv[1]))
elif sys.orig_argv[1:3] == ["-m", RANK] and "DDPPO_TEST_RANKS" in os.environ:
    try:
        be_a_forked_rank(sys.orig_argv[3:])
    except BaseException:  # at which Python would go on and be the rank itself
        traceback.print_exc()
        os._exit(1)
