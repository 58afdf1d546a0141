"""The process that others fork from, and what a fork does to be the program it is asked to be. See forking.py.

It computes nothing and starts no thread: what a fork finds locked by a thread stays locked in it for ever. Imports no
torch by itself.
"""

import atexit
import errno
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from setproctitle import setproctitle

from ddppo.processes import limits
from ddppo.processes.signals import (
    die_with_parent,
    end_children,
    end_processes_left,
    live_on,
    take_in_orphans,
    threads_left,
)

# -- Lines between processes.


def exactly(line: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes. Raises EOFError where the other side has ended."""
    content = bytearray()
    while len(content) < size:
        part = line.recv(size - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


STDIO = (0, 1, 2)
_SIZE = struct.Struct("!I")
# Apple's libraries (Accelerate, Objective-C, Metal) are not sound in a fork that starts no other program:
# https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods
FORKS = sys.platform != "darwin"


def serve(connection: socket.socket) -> NoReturn:
    """Import and fork what is asked for and tell how it ends, until the other side has ended.

    A fault of the server itself is told to the other side: the server holds no stderr.
    """
    try:
        _serve(connection)
    except BaseException as e:
        place = traceback.extract_tb(e.__traceback__)[-1]
        said = f"{type(e).__name__}: {e}, in {place.name} ({Path(place.filename).name}:{place.lineno})"
        with suppress(OSError):
            send(connection, {"failed": limits.met(e) or said})
    os._exit(1)


def _serve(connection: socket.socket) -> NoReturn:
    with suppress(PermissionError):  # it is a session's leader already
        os.setsid()
    _default_signals()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    setproctitle(f"ddppo.processes.forking for {os.getppid()}")
    _let_go_of_files(connection.fileno())
    woken, wake = os.pipe()
    told = select.poll()  # unlike select(), for descriptors of any number
    for each in (connection.fileno(), woken):
        told.register(each, select.POLLIN)
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: set[int] = set()
    folder: str | None = None  # of a server that takes in orphans
    while True:
        ready = [fd for fd, _ in told.poll()]
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _tell_ends(connection, running, folder is not None)
        if connection.fileno() in ready:
            message, fds = receive(connection)
            if message is None:
                if folder is not None:
                    end_children()
                    shutil.rmtree(folder, ignore_errors=True)
                for pid in running:  # which end with it, on Linux by themselves
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            if "modules" in message:
                _import(message["modules"])
            elif "orphans" in message:
                folder = message["orphans"]
                take_in_orphans()
                live_on()  # until all have ended, which the end of the connection asks for
            elif "signal" in message:
                if message["pid"] in running:
                    os.kill(message["pid"], message["signal"])
            else:
                _fork(connection, message, fds, [woken, wake], running)
                for fd in fds:
                    os.close(fd)


_moved_to: str | None = None  # the working directory that a task's module chose, which is its processes'


def _import(modules: Iterable[str]) -> None:
    global _moved_to
    before = os.getcwd()
    for module in modules if FORKS else ():
        with suppress(Exception, SystemExit):  # whoever needs it meets the same, and can say so
            import_module(module)
    if os.getcwd() != before:
        _moved_to = os.getcwd()
    gc.collect()
    gc.freeze()  # else the collector would write to, and so copy, what processes share


def _tell_ends(connection: socket.socket, running: set[int], takes_in_orphans: bool) -> None:
    """Tell of each that ended, and how many processes it left behind, when these have ended too.

    Each takes in its own while it lives: whoever this process did not fork is of one that has ended.
    """
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid not in running:
            continue
        running.remove(pid)
        num_orphans = end_children(running) if takes_in_orphans else 0
        code = os.waitstatus_to_exitcode(status)
        with suppress(ConnectionError):  # gone: the next look at the connection says so
            send(connection, {"ended": pid, "code": code, "orphans": num_orphans})


def _fork(
    connection: socket.socket, request: dict[str, Any], fds: list[int], ours: list[int], running: set[int]
) -> None:
    server = os.getpid()
    if len(fds) < len(STDIO):  # the system hands over no more than this process may have open
        send(connection, {"refused": errno.EMFILE})
        return
    try:
        pid = os.fork() if FORKS else _program(request, fds)
    except OSError as e:
        send(connection, {"refused": e.errno})
        return
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            die_with_parent(server)
            connection.close()
            for fd in ours:
                os.close(fd)
            for fd, its_number in zip(fds, STDIO, strict=True):
                os.dup2(fd, its_number)
                os.close(fd)
            _become(request)
            _run(request["module"])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    running.add(pid)
    with suppress(ConnectionError):
        send(connection, {"started": pid})


def _program(request: Mapping[str, Any], fds: Sequence[int]) -> int:
    """Start the interpreter anew to become what was asked for (`main`), with the modules that this one finds."""
    environ = dict(request["environ"])
    rest = {key: value for key, value in request.items() if key != "environ"}
    rest["PYTHONPATH"] = environ.get("PYTHONPATH")
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (rest["PYTHONPATH"], *sys.path)))
    command = [sys.executable, "-m", "ddppo.processes.fork_server", json.dumps(rest), str(os.getpid())]
    files = [(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in zip(fds, STDIO, strict=True)]
    return os.posix_spawn(
        sys.executable, command, environ, file_actions=[*files, *((os.POSIX_SPAWN_CLOSE, fd) for fd in fds)]
    )


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
        if fd not in (kept, hole) and is_open(fd):
            try:
                os.dup2(hole, fd, inheritable=fd in STDIO)
            except (
                OSError
            ):  # beyond a limit of open files that was lowered since: nobody else can get the number
                os.close(fd)
    os.close(hole)


def _become(request: Mapping[str, Any]) -> None:
    """Make this process the program that was asked for, as far as a program can tell."""
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environ"])
    setproctitle(request["title"])
    os.chdir(_moved_to or request["cwd"])
    _default_signals()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _text_stream(number)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = [request["module"], *request["arguments"]]
    tempfile.tempdir = None
    socket.setdefaulttimeout(None)  # a module that this process imported may have set one
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
        flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    end_processes_left()  # and threads of a task would be waited for for ever
    if not threads_left():
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush()
    os._exit(code & 0xFF)


# -- messages, of both sides ----------------------------------------------------------------------------------------


def send(connection: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    content = json.dumps(message).encode()
    socket.send_fds(connection, [_SIZE.pack(len(content))], fds)
    connection.sendall(content)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message and the files that came with it; None where the other side has ended."""
    try:
        head, fds, _, _ = socket.recv_fds(connection, _SIZE.size, len(STDIO), socket.MSG_WAITALL)
    except ConnectionError:  # it ended without hearing all that it was told
        return None, []
    if len(head) < _SIZE.size:
        return None, []
    try:
        return json.loads(exactly(connection, *_SIZE.unpack(head))), list(fds)
    except EOFError:
        return None, fds


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def main() -> None:
    """Be the server that ForkServer.started starts: `python -m ddppo.processes.fork_server <socket> <parent>`.

    Or, where a server does not fork, a program that it started: the request's JSON takes the socket's place.
    """
    die_with_parent(int(sys.argv[2]))
    if not sys.argv[1].isdigit():
        request = json.loads(sys.argv[1])
        path = request["PYTHONPATH"]
        others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        request["environ"] = others if path is None else others | {"PYTHONPATH": path}
        _become(request)
        _run(request["module"])
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    serve(connection)


if __name__ == "__main__":
    main()
