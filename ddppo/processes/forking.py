"""A process that has imported what takes long and computes nothing, and processes that fork from it.

    server = ForkServer.forked() or ForkServer.started()
    server.have_imported(["ddppo.loop.rank"])
    process = server.start("ddppo.launch.rank", [str(run_dir)], environ, title="rank 0")    # as `python -m` would
    process.poll()

A forked process is a session of its own and ends with its server, which ends with the process that made it: nobody of
them outlives a kill -9 of those above. Imports no torch.
"""

import math
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ddppo.processes.fork_server import FORKS, STDIO, flush, is_open, receive, send, serve
from ddppo.processes.signals import die_with_parent, runs

_END_S = 5.0
_LAST_WORDS_S = 1.0  # for a server that has closed its connection to end


class ForkServerLost(Exception):
    """The server ended, and with it what it had forked.

    code: its exit code, or minus a signal's number. said: what it told of a fault of its own, None where it was killed.
    """

    def __init__(self, code: int, said: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.said = said

    @property
    def was_killed(self) -> bool:
        """Whether another one may have better luck: this one had no fault."""
        return self.code < 0 and self.said is None

    def __str__(self) -> str:
        """Return how it ended, to follow 'the process that ... fork from'."""
        return f"{how_ended(self.code)}, and they with it" if self.said is None else f"failed: {self.said}"


class ForkedProcess:
    """A process that a server forked, with the part of subprocess.Popen's methods that starting ranks needs."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.num_orphans = 0  # processes that it left behind, ended with it
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, minus the number for a signal, or None. Raises ForkServerLost."""
        if self.returncode is None:
            self._server.hear(0.0)
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit code, or None if it has not ended within `timeout_s`. Raises ForkServerLost."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self.returncode is None and (end is None or time.monotonic() < end):
            self._server.hear(None if end is None else max(0.0, end - time.monotonic()))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended: the server knows, and no stranger has its number then."""
        if self.returncode is None:
            self._server.tell({"signal": number, "pid": self.pid})

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that made the server talks to it through this; no other process can."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._owner = os.getpid()
        self._connection = connection
        self._processes: dict[int, ForkedProcess] = {}
        self._code: int | None = None
        self._said: str | None = None  # of a fault of the server's own
        self._takes_in_orphans = False

    def fileno(self) -> int:
        """Return what is readable when there is something to hear."""
        return self._connection.fileno()

    @classmethod
    def forked(cls) -> "ForkServer | None":
        """Fork the server off this process; None if this process has threads, or the system's libraries do not fork.

        What a fork finds locked by a thread stays locked in it for ever.
        """
        if not FORKS:
            return None
        ours, theirs = socket.socketpair()
        flush()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                ours.close()
                serve(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        server = cls(pid, ours)
        if num_threads() > 1:  # counted now: OpenBLAS, whose threads start with numpy, ends them for a fork
            server.close()
            return None
        return server

    @classmethod
    def started(cls, environ: Mapping[str, str] = os.environ) -> "ForkServer":
        """Start the server as a program of its own, which finds the modules that this one finds."""
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        command = [
            sys.executable,
            "-m",
            "ddppo.processes.fork_server",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        paths = (environ.get("PYTHONPATH"), *sys.path)
        environ = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        pid = os.posix_spawn(sys.executable, command, environ)
        theirs.close()
        return cls(pid, ours)

    @property
    def is_usable(self) -> bool:
        """Whether it lives and is this process's."""
        return self._owner == os.getpid() and not self._ended()

    def fault(self) -> str | None:
        """Return what a server that has ended told of a fault of its own, if it did."""
        with suppress(ForkServerLost):
            while self.hear(0.0):
                pass
        return self._said

    def have_imported(self, modules: Sequence[str]) -> None:
        """Have the server import `modules`, without waiting for it. Raises ForkServerLost."""
        self.tell({"modules": list(modules)})

    def take_in_orphans(self, folder: str) -> None:
        """Have it end what a process leaves behind when it ends, in sessions of their own even. Raises ForkServerLost.

        It then ends, and removes `folder`, a moment after the process that made it, not with the thread. Nobody ends
        what is left where it is killed itself.
        """
        self.tell({"orphans": folder})
        self._takes_in_orphans = True

    def start(
        self, module: str, arguments: Sequence[str], environ: Mapping[str, str], *,
        title: str, cwd: str | None = None, stdio: Sequence[int] = STDIO,
    ) -> ForkedProcess:  # fmt: skip
        """Fork a process that does what `python -m <module> <arguments>` does, and appears in `ps` as `title`.

        Raises OSError where the system starts no more processes, ForkServerLost.
        """
        request = {
            "module": module,
            "arguments": list(arguments),
            "environ": dict(environ),
            "title": title,
            "cwd": cwd or os.getcwd(),
        }
        hole = os.open(os.devnull, os.O_RDWR)
        try:
            self.tell(request, [fd if is_open(fd) else hole for fd in stdio])
            while (reply := self.hear(None)) is None or "started" not in reply:
                if reply is not None and "refused" in reply:
                    raise OSError(reply["refused"], os.strerror(reply["refused"]))
        finally:
            os.close(hole)  # not before it has arrived: macOS loses a file that is closed on its way
        self._processes[reply["started"]] = process = ForkedProcess(self, reply["started"])
        return process

    def tell(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message. Raises ForkServerLost."""
        try:
            send(self._connection, message, fds)
        except OSError:
            with suppress(ForkServerLost):
                while self.hear(_LAST_WORDS_S):  # what it told before it ended
                    pass
            self._lost()

    def hear(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Take one message within a time, if there is one, and note whose end it tells. Raises ForkServerLost."""
        if self._connection.fileno() < 0:  # closed
            self._lost()
        told = select.poll()  # unlike select(), for descriptors of any number
        told.register(self._connection, select.POLLIN)
        if not told.poll(None if timeout_s is None else math.ceil(1000 * timeout_s)):
            return None
        try:
            message, _ = receive(self._connection)
        except OSError:
            message = None
        if message is not None and "failed" in message:
            self._said, message = message["failed"], None
        if message is None:
            self._lost()
        if "ended" in message:
            process = self._processes.pop(message["ended"])
            process.returncode, process.num_orphans = message["code"], message["orphans"]
        return message

    def close(self) -> None:
        """End the server and all that it forked, at once; within 5 s where it has to end them itself."""
        if self._owner != os.getpid():
            return
        if self._takes_in_orphans or sys.platform != "linux":
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            end = time.monotonic() + _END_S
            while not self._ended() and time.monotonic() < end:
                time.sleep(0.005)
        if not self._ended():
            os.kill(self.pid, signal.SIGKILL)
            self._wait()
        self._connection.close()
        for process in self._processes.values():
            process.returncode = -signal.SIGKILL
        self._processes.clear()

    def _ended(self) -> bool:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None

    def _wait(self) -> int:
        """Wait for the end of the server and of all that it forked, whom the kernel kills; return its exit code."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        end = time.monotonic() + _END_S
        while any(map(runs, self._processes)) and time.monotonic() < end:
            time.sleep(0.01)
        return self._code

    def _lost(self) -> NoReturn:
        end = time.monotonic() + _LAST_WORDS_S
        while not self._ended() and time.monotonic() < end:  # it has closed the connection: it ends
            time.sleep(0.005)
        if not self._ended():
            os.kill(self.pid, signal.SIGKILL)
            self._said = self._said or "it does not answer"
        code = self._wait()
        self.close()
        raise ForkServerLost(code, self._said)


def how_ended(code: int) -> str:
    """Return how a process ended: `code` is its exit code, or minus a signal's number."""
    return f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}"


def num_threads() -> int:
    """Return how many threads this process has, those of libraries included where the system tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
