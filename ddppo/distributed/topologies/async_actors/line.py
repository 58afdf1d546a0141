"""What travels between a learner and its actors at their own pace: a socket for each, and messages of known sizes.

Unlike a process group it lets an actor that ended come back. Nothing that comes over it is unpickled.
"""

import hmac
import json
import secrets
import select
import socket
import struct
import sys
import time
from contextlib import suppress

import torch.distributed as dist

_HELLO = struct.Struct("<32sq")  # the run's word, rank
_HELLO_S = 5.0  # in which who has connected must have said it
_ADDRESS = "ddppo/learner/address"


class Wire:
    """One end of a connection. Every wait has a limit, and is told apart from moving bytes.

    waited_s, moved_s, num_sends and num_bytes (sent) add up until their owner takes them.
    """

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        connection.setblocking(False)
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._timeout_s = timeout_s
        self._poll = select.poll()
        self.forget()

    def forget(self) -> None:
        """Count from now on."""
        self.waited_s = self.moved_s = 0.0
        self.num_sends = self.num_bytes = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *parts: memoryview | bytes) -> None:
        """Send a message. Raises ConnectionError where the other end is gone, TimeoutError where it takes nothing."""
        start, waited_s = time.perf_counter(), self.waited_s
        for part in parts:
            left = memoryview(part).cast("B")
            self.num_bytes += len(left)
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    self._wait(select.POLLOUT)
        self.num_sends += 1
        self.moved_s += time.perf_counter() - start - (self.waited_s - waited_s)

    def receive(self, into: memoryview) -> None:
        """Fill `into` with what comes. Raises ConnectionError, TimeoutError."""
        start, waited_s = time.perf_counter(), self.waited_s
        left = into.cast("B") if into.nbytes else into
        while left.nbytes:
            try:
                number = self._socket.recv_into(left)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            if not number:
                raise ConnectionResetError("the other end is closed")
            left = left[number:]
        self.moved_s += time.perf_counter() - start - (self.waited_s - waited_s)

    def unpack(self, layout: struct.Struct) -> tuple:
        """Receive what `layout` describes."""
        room = bytearray(layout.size)
        self.receive(memoryview(room))
        return layout.unpack(room)

    def drain(self) -> bool:
        """Throw away what has come; return whether the other end is closed."""
        try:
            while self._socket.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self._socket.close()

    def _wait(self, event: int) -> None:
        start = time.perf_counter()
        self._poll.register(self._socket, event)
        ready = self._poll.poll(1000 * self._timeout_s)
        self.waited_s += time.perf_counter() - start
        if not ready:
            raise TimeoutError(f"no word for {self._timeout_s:g} s")


class Door:
    """Where a learner lets its actors in; its address, and the word that they must know, are in the launcher's store.

    machine: the name by which others reach this one; None where all ranks are on it.
    """

    def __init__(self, store: dist.Store, machine: str | None, timeout_s: float) -> None:
        self._word, self._timeout_s = secrets.token_hex(16), timeout_s
        where: str | int
        if machine is None and sys.platform == "linux":
            # Of no file, so that nothing is left behind.
            self._socket, where = socket.socket(socket.AF_UNIX), f"\0ddppo-{secrets.token_hex(16)}"
            self._socket.bind(where)
        else:
            machine = machine or "127.0.0.1"
            self._socket = socket.create_server(("127.0.0.1" if machine == "127.0.0.1" else "", 0))
            where = self._socket.getsockname()[1]
        self._socket.listen(1024)
        store.set(_ADDRESS, json.dumps([self._word, machine, where]))

    def fileno(self) -> int:
        return self._socket.fileno()

    def let_in(self) -> tuple[int, Wire] | None:
        """Return the rank that has connected; None for who does not know the word, or says none."""
        connection, _ = self._socket.accept()
        connection.settimeout(_HELLO_S)
        with suppress(OSError):
            said = connection.recv(_HELLO.size, socket.MSG_WAITALL)
            if len(said) == _HELLO.size:
                word, rank = _HELLO.unpack(said)
                if hmac.compare_digest(word, self._word.encode()):
                    return rank, Wire(connection, self._timeout_s)
        connection.close()
        return None

    def close(self) -> None:
        self._socket.close()


def connect(store: dist.Store, rank: int, timeout_s: float) -> Wire:
    """Return the wire to the learner. Raises OSError where it cannot be reached, DistError where it is not there."""
    word, machine, where = json.loads(store.get(_ADDRESS))
    if isinstance(where, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        connection.connect(where)
    else:
        connection = socket.create_connection((machine, where), timeout_s)
    connection.sendall(_HELLO.pack(word.encode(), rank))
    return Wire(connection, timeout_s)
