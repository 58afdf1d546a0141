"""A process that has imported what takes long and computes nothing, and processes that fork from it.

    server = ForkServer.forked() or ForkServer.started()
    server.have_imported(["ddppo.run.worker"])
    process = server.start("ddppo.run.rank", [str(run_dir)], environ, title="rank 0")    # as `python -m` would
    process.poll()

A forked process is a session of its own and ends with its server, which ends with the process that made it: nobody of
them outlives a kill -9 of those above. Imports no torch.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from setproctitle import setproctitle

from ddppo.signals import die_with_parent

_SIZE = struct.Struct("!I")
_STDIO = (0, 1, 2)


class ForkServerLost(Exception):
    """The server ended, and with it what it had forked; `code` is its exit code, or minus a signal's number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ForkedProcess:
    """A process that a server forked, with the part of subprocess.Popen's methods that starting ranks needs."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
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

    @classmethod
    def forked(cls) -> "ForkServer | None":
        """Fork the server off this process; None if this process has threads.

        What a fork finds locked by a thread stays locked in it for ever.
        """
        ours, theirs = socket.socketpair()
        _flush()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                ours.close()
                _serve(theirs)
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
    def started(cls) -> "ForkServer":
        """Start the server as a program of its own."""
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        command = [sys.executable, "-m", "ddppo.forking", str(theirs.fileno()), str(os.getpid())]
        pid = os.posix_spawn(sys.executable, command, os.environ)
        theirs.close()
        return cls(pid, ours)

    @property
    def is_usable(self) -> bool:
        """Whether it lives and is this process's."""
        return self._owner == os.getpid() and not self._ended()

    def have_imported(self, modules: Sequence[str]) -> None:
        """Have the server import `modules`, without waiting for it. Raises ForkServerLost."""
        self.tell({"modules": list(modules)})

    def start(
        self, module: str, arguments: Sequence[str], environ: Mapping[str, str], *,
        title: str, cwd: str | None = None, stdio: Sequence[int] = _STDIO,
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
            self.tell(request, [fd if _is_open(fd) else hole for fd in stdio])
        finally:
            os.close(hole)
        while (reply := self.hear(None)) is None or "started" not in reply:
            if reply is not None and "refused" in reply:
                raise OSError(reply["refused"], os.strerror(reply["refused"]))
        self._processes[reply["started"]] = process = ForkedProcess(self, reply["started"])
        return process

    def tell(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message. Raises ForkServerLost."""
        try:
            _send(self._connection, message, fds)
        except OSError:
            self._lost()

    def hear(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Take one message within a time, if there is one, and note whose end it tells. Raises ForkServerLost."""
        if not select.select([self._connection], [], [], timeout_s)[0]:
            return None
        try:
            message, _ = _receive(self._connection)
        except OSError:
            message = None
        if message is None:
            self._lost()
        if "ended" in message:
            self._processes.pop(message["ended"]).returncode = message["code"]
        return message

    def close(self) -> None:
        """End the server and all that it forked, at once."""
        if self._owner != os.getpid():
            return
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
        end = time.monotonic() + 5.0
        while any(map(_runs, self._processes)) and time.monotonic() < end:
            time.sleep(0.01)
        return self._code

    def _lost(self) -> NoReturn:
        if not self._ended():
            os.kill(self.pid, signal.SIGKILL)  # it does not speak any more
        code = self._wait()
        self.close()
        raise ForkServerLost(code)


def num_threads() -> int:
    """Return how many threads this process has, those of libraries included where the system tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait long for whoever inherited it to take its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _send(connection: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    content = json.dumps(message).encode()
    socket.send_fds(connection, [_SIZE.pack(len(content))], fds)
    connection.sendall(content)


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message and the files that came with it; None where the other side has ended."""
    head, fds, _, _ = socket.recv_fds(connection, _SIZE.size, len(_STDIO), socket.MSG_WAITALL)
    if len(head) < _SIZE.size:
        return None, []
    content = bytearray()
    while len(content) < _SIZE.unpack(head)[0]:
        part = connection.recv(_SIZE.unpack(head)[0] - len(content))
        if not part:
            return None, fds
        content += part
    return json.loads(content), list(fds)


# -- in the server ---------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket) -> NoReturn:
    """Import and fork what is asked for and tell how it ends, until the other side has ended."""
    with suppress(PermissionError):  # it is a session's leader already
        os.setsid()
    _default_signals()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    setproctitle(f"ddppo.forking for {os.getppid()}")
    _let_go_of_files(connection.fileno())
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([connection.fileno(), woken], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _tell_ends(connection, running)
        if connection.fileno() in ready:
            message, fds = _receive(connection)
            if message is None:
                os._exit(0)  # what it forked ends with it
            if "modules" in message:
                _import(message["modules"])
            elif "signal" in message:
                if message["pid"] in running:
                    os.kill(message["pid"], message["signal"])
            else:
                _fork(connection, message, fds, [woken, wake], running)
                for fd in fds:
                    os.close(fd)


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        with suppress(Exception):  # whoever needs it meets the same, and can say so
            import_module(module)
    gc.collect()
    gc.freeze()  # else the collector would write to, and so copy, what processes share


def _tell_ends(connection: socket.socket, running: set[int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        running.remove(pid)
        _send(connection, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _fork(
    connection: socket.socket, request: dict[str, Any], fds: list[int], ours: list[int], running: set[int]
) -> None:
    server = os.getpid()
    try:
        pid = os.fork()
    except OSError as e:
        _send(connection, {"refused": e.errno})
        return
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            die_with_parent(server)
            connection.close()
            for fd in ours:
                os.close(fd)
            _become(request, fds)
            _run(request["module"])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    running.add(pid)
    _send(connection, {"started": pid})


def _default_signals() -> None:
    """Have signals do what they do in a program that just started: what is ignored stays ignored (nohup)."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCHLD,
    ):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _let_go_of_files(kept: int) -> None:
    """Hold none of the other files that were open: locks, pipes whose reader waits for their end, the caller's output.

    Their numbers stay taken, since objects may still close them.
    """
    hole = os.open(os.devnull, os.O_RDWR)
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    for fd in [int(entry.name) for entry in folder.iterdir()]:
        if fd not in (kept, hole) and _is_open(fd):
            os.dup2(hole, fd, inheritable=fd in _STDIO)
    os.close(hole)


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Make this fork the program that was asked for, as far as a program can tell."""
    os.setsid()
    for fd, its_number in zip(fds, _STDIO, strict=True):
        os.dup2(fd, its_number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environ"])
    setproctitle(request["title"])
    os.chdir(request["cwd"])
    _default_signals()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _text_stream(number)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = [request["module"], *request["arguments"]]
    tempfile.tempdir = None
    if numpy_random := sys.modules.get("numpy.random"):  # Python's own does so by itself
        numpy_random.seed()


def _text_stream(number: int) -> Any:
    like = (sys.__stdin__, sys.__stdout__, sys.__stderr__)[number]
    encoding = like.encoding if like is not None else "utf-8"
    errors = like.errors if like is not None else "replace"
    return open(
        number, "r" if number == 0 else "w", encoding=encoding, errors=errors,
        buffering=1 if number == 2 or os.isatty(number) else -1, closefd=False,
    )  # fmt: skip


def _run(module: str) -> NoReturn:
    """Run a module as the program and end as Python ends one."""
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as e:
        if isinstance(e.code, int) or e.code is None:
            code = e.code or 0
        else:
            print(e.code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        _flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    os._exit(code & 0xFF)


def main() -> None:
    """Be the server that ForkServer.started starts: `python -m ddppo.forking <socket> <parent>`."""
    die_with_parent(int(sys.argv[2]))
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    _serve(connection)


if __name__ == "__main__":
    main()
