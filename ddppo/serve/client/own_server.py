"""A server that a rank starts for its own environments, on loopback, known to nobody else, and ended with the rank."""

import json
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import asdict, replace

from ddppo.config import EnvConfig
from ddppo.envs.faults import EnvNames
from ddppo.errors import EnvError
from ddppo.processes.forking import ForkedProcess, ForkServer, ForkServerLost
from ddppo.serve.client.connection import EnvServerLost
from ddppo.serve.client.messages import plain_spec
from ddppo.spaces import EnvSpec

READY, FAILED = b".", b"!"  # the reason follows
_CLOSE_S = 8.0
_IMPORTS = ("ddppo.serve.server",)


class OwnServer:
    """Serves as many environments as `names` has. Raises EnvError where that cannot be.

    The rank listens and the server answers: one that takes the place of a lost one has the same address.
    """

    def __init__(self, env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> None:
        self._names = names
        self._timeout_s = timeout_s
        self.token = secrets.token_urlsafe(24)
        task = {
            "env": asdict(replace(env, backend="sync", urls=[], token_file=None)),
            "spec": plain_spec(spec),
            "pool": len(names.indices),
            "token": self.token,
            "step_s": timeout_s,
        }
        self._task = json.dumps(task).encode()
        self._process: ForkedProcess | None = None
        self._line: socket.socket | None = None  # whose end tells the server to end
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        host, port = self._listener.getsockname()
        self.url = f"ws://{host}:{port}"
        self._fork_server = ForkServer.forked() or ForkServer.started()
        try:
            self._fork_server.have_imported(_IMPORTS)
            self.revive()
        except BaseException:
            self.close()
            raise

    def revive(self) -> None:
        """Start the server unless it runs, and wait until it serves. Raises EnvError."""
        try:
            if self._process is None or self._process.poll() is not None:
                self._start()
        except ForkServerLost as e:
            raise EnvServerLost(
                f"the process that the server of {self._names.all()} is forked from {e}"
            ) from e

    def close(self) -> None:
        """End the server and all that it started; a second time does nothing."""
        if self._line is not None:
            self._line.close()
        with suppress(ForkServerLost):
            if self._process is not None:
                self._process.wait(_CLOSE_S)
        self._fork_server.close()
        self._listener.close()

    def _start(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = self._fork_server.start(
                "ddppo.serve.own", [], os.environ, title=f"ddppo server of {self._names.all()}",
                stdio=(theirs.fileno(), 1, 2),
            )  # fmt: skip
        said = bytearray()
        with suppress(OSError):  # it has ended
            socket.send_fds(self._line, [len(self._task).to_bytes(8, "big")], [self._listener.fileno()])
            self._line.sendall(self._task)
            self._line.settimeout(self._timeout_s)
            while said != READY and (part := self._line.recv(4096)):
                said += part
        if said != READY:
            why = said.removeprefix(FAILED).decode(errors="replace") or "it ended, or gave no answer in time"
            raise EnvError(f"{self._names.all()} cannot be served: {why}")
