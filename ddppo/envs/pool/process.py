"""One process of a pool as its rank sees it: the line to it, what it steps, and how far it is."""

import os
import socket
import struct

from ddppo.envs.faults import EnvNames, when_reset, when_stepped
from ddppo.forking import ForkedProcess, ForkServer


class Worker:
    """A process of a pool and the environments that it steps: those at `part` of the batch, called `names`.

    replaces: what another was doing, RESET or STEP, that was lost and has this one for it; None once it has answered.
    is_made: whether it has said so.
    """

    replaces: bytes | None = None
    is_made = True
    num_steps = -1  # since the reset

    def __init__(self, server: ForkServer, names: EnvNames, part: slice, look_s: float) -> None:
        self.part = part
        self.names = EnvNames(names.indices[part], names.rank)
        self.line, theirs = socket.socketpair()
        # The kernel's own receive timeout: polling before every answer would cost microseconds each.
        interval = struct.pack("ll", int(look_s), int(look_s % 1 * 1e6))
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        with theirs:
            self.process: ForkedProcess = server.start(
                "ddppo.envs.pool.worker", [], os.environ, title=f"ddppo {self.names.all()}",
                stdio=(theirs.fileno(), 1, 2),
            )  # fmt: skip

    @property
    def when(self) -> str:
        if self.num_steps < 0:
            return "when they were made"
        return when_stepped(self.num_steps) if self.num_steps else when_reset(0)
