"""Start processes quickly: fork them from a server that has imported the slow modules and computed nothing.

    server = ForkServer.forked() or ForkServer.started()
    server.have_imported(["ddppo.loop.rank"])
    process = server.start("ddppo.launch.rank", [str(run_dir)], environ, title="rank 0")    # as `python -m` would
    process.poll()

This file is the side of the process that makes the server; fork_server.py is the server. A forked process is a session
of its own. It ends with its server, and the server with the process that made it, even after kill -9. Imports no torch.
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
_LAST_WORDS_S = 1.0  # for a server to end after it closed its connection


class ForkServerLost(Exception):
    """The server ended, and with it all processes that it had forked."""

    def __init__(self, code: int, fault: str | None = None) -> None:
        super().__init__(code)
        self.code = code  # its exit code, or minus the number of a signal
        self.fault = fault  # the fault that it reported, None if it was killed

    @property
    def was_killed(self) -> bool:
        """Whether it had no fault of its own, so that another server may do better."""
        return self.code < 0 and self.fault is None

    def __str__(self) -> str:
        """Return how it ended, as the end of a sentence: 'the process that ... are forked from' ..."""
        return f"{how_ended(self.code)}, and they with it" if self.fault is None else f"failed: {self.fault}"


class ForkedProcess:
    """A process that a server forked, with those methods of subprocess.Popen that launchers need."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.num_orphans = 0  # processes that it left behind, which the server ended
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, minus the number for a signal, or None. Raises ForkServerLost."""
        if self.returncode is None:
            self._server.receive(0.0)
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit code, or None if it has not ended within `timeout_s`. Raises ForkServerLost."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self.returncode is None and (end is None or time.monotonic() < end):
            self._server.receive(None if end is None else max(0.0, end - time.monotonic()))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended. The server sends it: it knows that the id is still in use."""
        if self.returncode is None:
            self._server.send({"signal": number, "pid": self.pid})

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The connection to a server, for the process that made it and for no other."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._owner = os.getpid()
        self._connection = connection
        self._processes: dict[int, ForkedProcess] = {}
        self._code: int | None = None
        self._fault: str | None = None  # the server's report about a fault of its own
        self._takes_in_orphans = False

    def fileno(self) -> int:
        """Return a file descriptor that is readable when there is a message, for select()."""
        return self._connection.fileno()

    @classmethod
    def forked(cls) -> "ForkServer | None":
        """Fork the server from this process; None if this process has threads, or the system's libraries cannot fork.

        A fork copies one thread only: a lock that another thread holds stays locked in the copy forever.
        """
        if not FORKS:
            return None
        # Text that is still in a buffer would be printed by both processes.
        ours, theirs = socket.socketpair()
        flush()
        parent, pid = os.getpid(), os.fork()
        # The new process is the server, and never returns from here.
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
        if num_threads() > 1:  # counted after the fork: OpenBLAS ends its threads before one
            server.close()
            return None
        return server

    @classmethod
    def started(cls, environ: Mapping[str, str] = os.environ) -> "ForkServer":
        """Start the server as a program of its own, with the import path of this one."""
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        command = [
            sys.executable,
            "-m",
            "ddppo.processes.fork_server",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        # PYTHONPATH carries sys.path, which the user's program may have changed.
        paths = (environ.get("PYTHONPATH"), *sys.path)
        environ = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        pid = os.posix_spawn(sys.executable, command, environ)
        theirs.close()
        return cls(pid, ours)

    @property
    def is_usable(self) -> bool:
        """Whether it runs, and was made by this process and not by its parent before a fork."""
        return self._owner == os.getpid() and not self._ended()

    def fault(self) -> str | None:
        """Return the fault that a server reported before it ended, if any."""
        with suppress(ForkServerLost):
            while self.receive(0.0):
                pass
        return self._fault

    def have_imported(self, modules: Sequence[str]) -> None:
        """Make the server import `modules`, without waiting for it. Raises ForkServerLost."""
        self.send({"modules": list(modules)})

    def leave_signals(self) -> None:
        """Make the server, and what it forks, do nothing at a signal that asks to stop. Raises ForkServerLost."""
        self.send({"leave_signals": True})

    def take_in_orphans(self, folder: str) -> None:
        """Make the server end the processes that a forked process leaves behind, even in other sessions.

        The server then ends, and removes `folder`, a moment after the process that made it, and not with the thread. If
        the server itself is killed, such processes are left. Raises ForkServerLost.
        """
        self.send({"orphans": folder})
        self._takes_in_orphans = True

    def start(
        self, module: str, arguments: Sequence[str], environ: Mapping[str, str], *,
        title: str, cwd: str | None = None, stdio: Sequence[int] = STDIO,
    ) -> ForkedProcess:  # fmt: skip
        """Fork a process that does the same as `python -m <module> <arguments>`.

        Args:
            environ: its environment variables.
            title: its name in `ps`.
            cwd: its working directory; None is this process's.
            stdio: file descriptors of its stdin, stdout and stderr.

        Raises OSError if the system starts no more processes, ForkServerLost.
        """
        request = {
            "module": module,
            "arguments": list(arguments),
            "environ": dict(environ),
            "title": title,
            "cwd": cwd or os.getcwd(),
        }
        # A closed stream of this process is the null device there.
        hole = os.open(os.devnull, os.O_RDWR)
        try:
            self.send(request, [fd if is_open(fd) else hole for fd in stdio])
            # Ends of other processes may arrive before the answer.
            while (reply := self.receive(None)) is None or "started" not in reply:
                if reply is not None and "refused" in reply:
                    raise OSError(reply["refused"], os.strerror(reply["refused"]))
        finally:
            os.close(hole)  # after its arrival: macOS loses a file that is closed on the way
        self._processes[reply["started"]] = process = ForkedProcess(self, reply["started"])
        return process

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message. Raises ForkServerLost."""
        try:
            send(self._connection, message, fds)
        except OSError:
            # The server has ended. Its last messages may name its fault, and the ends of processes.
            with suppress(ForkServerLost):
                while self.receive(_LAST_WORDS_S):  # messages from before it ended
                    pass
            self._lost()

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return the next message within a time, else None. Notes the end of a process. Raises ForkServerLost."""
        if self._connection.fileno() < 0:  # closed
            self._lost()
        poll = select.poll()  # unlike select(), for descriptors of any number
        poll.register(self._connection, select.POLLIN)
        if not poll.poll(None if timeout_s is None else math.ceil(1000 * timeout_s)):
            return None
        try:
            message, _ = receive(self._connection)
        except OSError:
            message = None
        # A report of the server's own fault is its last message.
        if message is not None and "failed" in message:
            self._fault, message = message["failed"], None
        if message is None:
            self._lost()
        if "ended" in message:
            process = self._processes.pop(message["ended"])
            process.returncode, process.num_orphans = message["code"], message["orphans"]
        return message

    def close(self) -> None:
        """End the server and all processes that it forked, at once; within 5 s if it has to end them itself."""
        if self._owner != os.getpid():
            return
        # A server that ends orphans, or a system that does not, needs the server's own cleanup: close the connection.
        if self._takes_in_orphans or sys.platform != "linux":
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            end = time.monotonic() + _END_S
            while not self._ended() and time.monotonic() < end:
                time.sleep(0.005)
        # Otherwise kill it: the kernel then kills the processes that it forked (die_with_parent).
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
        """Wait for the end of the server and its processes, which the kernel kills; return the server's exit code."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        end = time.monotonic() + _END_S
        while any(map(runs, self._processes)) and time.monotonic() < end:
            time.sleep(0.01)
        return self._code

    def _lost(self) -> NoReturn:
        end = time.monotonic() + _LAST_WORDS_S
        while not self._ended() and time.monotonic() < end:  # it closed the connection, so it is about to end
            time.sleep(0.005)
        if not self._ended():
            os.kill(self.pid, signal.SIGKILL)
            self._fault = self._fault or "it does not answer"
        code = self._wait()
        self.close()
        raise ForkServerLost(code, self._fault)


def how_ended(code: int) -> str:
    """Return how a process ended: `code` is its exit code, or minus a signal's number."""
    return f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}"


def num_threads() -> int:
    """Return the number of threads of this process, on Linux with those of libraries."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
