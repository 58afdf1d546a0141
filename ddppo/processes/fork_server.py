"""The server from which other processes are forked, and how a fork becomes the program that was asked for.

The other side of the connection is forking.py. The server computes nothing and starts no thread: a lock that a thread
holds during a fork stays locked in the copy forever. It imports torch only if it is asked to.
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
    leave_signals_to_the_rank,
    live_on,
    take_in_orphans,
    threads_left,
)


def exactly(connection: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes. Raises EOFError if the other side has ended."""
    content = bytearray()
    while len(content) < size:
        part = connection.recv(size - len(content))
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
    """Import modules, fork processes and report their ends, until the other side has ended.

    A fault of the server itself is a message to the other side: the server has no stderr.
    """
    try:
        _serve(connection)
    except BaseException as e:
        place = traceback.extract_tb(e.__traceback__)[-1]
        fault = f"{type(e).__name__}: {e}, in {place.name} ({Path(place.filename).name}:{place.lineno})"
        with suppress(OSError):
            send(connection, {"failed": limits.met(e) or fault})
    os._exit(1)


def _serve(connection: socket.socket) -> NoReturn:
    # 1. Become independent of the caller: a session of its own, default signals, none of its files.
    with suppress(PermissionError):  # it leads a session already
        os.setsid()
    _default_signals()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    setproctitle(f"ddppo.processes.forking for {os.getppid()}")
    _let_go_of_files(connection.fileno())
    # 2. Wake for messages, and for the end of a process: SIGCHLD writes into a pipe.
    woken, wake = os.pipe()
    poll = select.poll()  # unlike select(), for descriptors of any number
    for each in (connection.fileno(), woken):
        poll.register(each, select.POLLIN)
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: set[int] = set()
    folder: str | None = None  # to be removed at the end, of a server that ends orphans
    # 3. Serve.
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _report_ends(connection, running, folder is not None)
        if connection.fileno() in ready:
            message, fds = receive(connection)
            if message is None:  # the other side has ended
                if folder is not None:
                    end_children()
                    shutil.rmtree(folder, ignore_errors=True)
                for pid in running:  # Linux would end them with this process
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            # One key of a message names what to do; a message without any of them starts a process.
            if "modules" in message:
                _import(message["modules"])
            elif "leave_signals" in message:
                leave_signals_to_the_rank()
            elif "orphans" in message:
                folder = message["orphans"]
                take_in_orphans()
                live_on()  # this process ends after its cleanup, when the connection ends
            elif "signal" in message:
                if message["pid"] in running:
                    os.kill(message["pid"], message["signal"])
            else:
                _fork(connection, message, fds, [woken, wake], running)
                for fd in fds:
                    os.close(fd)


_moved_to: str | None = (
    None  # the working directory if an imported module changed it, for the forked processes
)


def _import(modules: Iterable[str]) -> None:
    global _moved_to
    # An import leaves next to no garbage, and looking for it would take longer than most imports. Forked processes turn
    # the collector on again (`_become`).
    gc.disable()
    # A task's module may change the working directory, on which its processes may rely.
    before = os.getcwd()
    for module in modules if FORKS else ():
        # The process that needs the module meets the same error, and reports it.
        with suppress(Exception, SystemExit):
            import_module(module)
    if os.getcwd() != before:
        _moved_to = os.getcwd()
    gc.freeze()  # else the collector would write to pages that processes share, and so copy them


def _report_ends(connection: socket.socket, running: set[int], takes_in_orphans: bool) -> None:
    """Report each process that ended, and the number of orphans that it left, after ending these.

    Every child that this process did not fork is an orphan of a process that ended: while that ran, it was the parent.
    """
    # One SIGCHLD may stand for several ends.
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid not in running:
            continue
        running.remove(pid)
        num_orphans = end_children(running) if takes_in_orphans else 0
        code = os.waitstatus_to_exitcode(status)
        with suppress(ConnectionError):  # the other side has ended: the loop notices it next
            send(connection, {"ended": pid, "code": code, "orphans": num_orphans})


def _fork(
    connection: socket.socket, request: dict[str, Any], fds: list[int], ours: list[int], running: set[int]
) -> None:
    """Fork a process and report its id, or the number of the error for which the system refused."""
    server = os.getpid()
    if len(fds) < len(STDIO):  # this process may open no more files
        send(connection, {"refused": errno.EMFILE})
        return
    try:
        pid = os.fork() if FORKS else _program(request, fds)
    except OSError as e:
        send(connection, {"refused": e.errno})
        return
    if pid == 0:  # the new process: let go of the server's files, take the caller's, become the program
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
    """Start a new interpreter that becomes the program (`main`), with the import path of this one."""
    # The environment itself travels as such; its PYTHONPATH is put back by the new program (main).
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
    """Reset signals as in a program that just started. A signal that is ignored stays ignored (nohup)."""
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
    """Replace all inherited files but one by the null device: locks, pipes that a reader waits on, the caller's output.

    Their numbers stay in use, since objects may still close them.
    """
    # dup2 onto each number keeps it in use; closing it would let a later file have it.
    hole = os.open(os.devnull, os.O_RDWR)
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    for fd in [int(entry.name) for entry in folder.iterdir()]:
        if fd not in (kept, hole) and is_open(fd):
            try:
                os.dup2(hole, fd, inheritable=fd in STDIO)
            except OSError:  # the limit of open files was lowered since, and no new file can have this number
                os.close(fd)
    os.close(hole)


def _become(request: Mapping[str, Any]) -> None:
    """Make this process look like a program that just started: session, environment, title, folder, streams."""
    # Session, environment and title.
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environ"])
    setproctitle(request["title"])
    os.chdir(_moved_to or request["cwd"])
    _default_signals()
    # The standard streams: new objects for the caller's files.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _text_stream(number)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = [request["module"], *request["arguments"]]
    # State of modules that a program finds fresh.
    gc.enable()  # ddppo.train may have forked the server while it imported
    tempfile.tempdir = None
    socket.setdefaulttimeout(None)  # an imported module may have set one
    if numpy_random := sys.modules.get("numpy.random"):  # Python seeds its own generator after a fork
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
    """Run a module as the program, and end as Python ends a program."""
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
        # As Python does: print, then end by the signal itself, so that the parent sees it.
        traceback.print_exc()
        flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    # Python would wait for processes and threads that a task left, perhaps forever.
    end_processes_left()
    if not threads_left():
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush()
    os._exit(code & 0xFF)


# -- Messages, for both sides: the size, then JSON. Open files travel with the size.


def send(connection: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    content = json.dumps(message).encode()
    socket.send_fds(connection, [_SIZE.pack(len(content))], fds)
    connection.sendall(content)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message and the files that came with it; None if the other side has ended."""
    try:
        head, fds, _, _ = socket.recv_fds(connection, _SIZE.size, len(STDIO), socket.MSG_WAITALL)
    except ConnectionError:  # it ended with unread messages
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
    """Be the server: `python -m ddppo.processes.fork_server <socket> <parent>`, as ForkServer.started starts it.

    On systems without forks it is also each program: the JSON of a request then takes the place of the socket.
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
