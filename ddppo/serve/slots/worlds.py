"""Starting and ending the processes of slots. Each has its own folder, and leaves no process and no file behind."""

import json
import logging
import math
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ddppo.config.settings import EnvConfig
from ddppo.errors import ConfigError
from ddppo.processes.forking import ForkedProcess, ForkServer, ForkServerLost
from ddppo.serve.limits import Confinement, variables
from ddppo.serve.protocol import plain_spec
from ddppo.serve.slots.line import READY, TASK, framed, read_frame
from ddppo.spaces import EnvSpec

CLOSE_S = 3.5  # for a process to close an environment that needs it, before it is killed
_LOOK_S = 0.02  # interval of checks of processes that close their environments
_ANSWER_S = 1.0  # for a process to complete an answer that it has begun to send

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Slot:
    """A slot and its current process."""

    index: int  # of the slot in the pool
    number: int  # of the process, counted over the life of the pool
    server: ForkServer  # from which the process was forked
    process: ForkedProcess
    line: socket.socket  # the server's end
    folder: Path
    begun: float = field(default_factory=time.monotonic)

    @property
    def lives(self) -> bool:
        """Whether the process holds its end of the line. Only for a process that has no request to answer."""
        try:
            return bool(self.line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False


class Worlds:
    """Starts and ends processes with one environment each. Used by a single thread.

    Args:
        modules: imported in the parent of all processes, so that a fork has them at once.
        keep_env: environment variables that processes see, besides those that programs need to run.
        prints: processes print where this process prints; else their output is dropped.
    """

    def __init__(
        self, env: EnvConfig, spec: EnvSpec, confinement: Confinement, *,
        modules: Sequence[str] = (), keep_env: Sequence[str] = (), prints: bool = False,
    ) -> None:  # fmt: skip
        self.num_begun = 0
        self.num_orphans = 0  # processes started by worlds that outlived them, and were killed
        # The task is the same for all processes, except for the slot and its folder.
        self._task = {"env": asdict(env), "spec": plain_spec(spec), "confinement": asdict(confinement)}
        self._first_uid = confinement.first_uid
        needed = (
            "ddppo.serve.limits",
            "ddppo.serve.slots.world",
            "ddppo.envs.backends.pool_memory",
        )
        self._modules = [*needed, *modules]
        self._keep_env = tuple(keep_env)
        self._prints = prints
        self._server: ForkServer | None = None
        self._closes = spec.needs_close
        self._ending: list[Slot] = []  # killed, or closing, and not yet gone
        self._closing: dict[
            int, float
        ] = {}  # number of a process that closes its environment: when it is killed
        self._folder = _folder_for_all(self._first_uid)
        self._remover = ThreadPoolExecutor(1, "folders")  # removes folders, which may hold very many files

    def start(self, index: int) -> Slot:
        """Start the process of a slot, without waiting for its environment. Raises OSError, ForkServerLost."""
        # 1. A folder that only this world uses.
        server = self._usable_server()
        self.num_begun += 1  # even if no process starts: folders need different names
        number = self.num_begun
        folder = self._folder / str(number)
        folder.mkdir(0o700)
        if self._first_uid is not None:
            os.chown(folder, self._first_uid + index, self._first_uid + index)
        # 2. The process, with its end of the line as standard input.
        ours, theirs = socket.socketpair()
        with theirs:
            stdio = (theirs.fileno(), 1, 2) if self._prints else (theirs.fileno(), -1, -1)
            try:
                process = server.start(
                    "ddppo.serve.slots.backend", [], variables(os.environ, self._keep_env, str(folder)),
                    title=f"ddppo slot {index}", stdio=stdio,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        # 3. Its task.
        of_slot = {"slot": index, "folder": str(folder), "started_in": os.getcwd()}
        with suppress(OSError):  # the process has ended already: `trouble` will see it
            ours.sendall(framed(TASK, json.dumps(self._task | of_slot).encode()))
        return Slot(index, number, server, process, ours, folder)

    def trouble(self, slot: Slot) -> str:
        """Read the first answer of a process: return why its environment could not be made, "" if it was."""
        slot.line.settimeout(_ANSWER_S)
        try:
            what, content = read_frame(slot.line)
        except (EOFError, OSError) as e:
            return f"its process ended while the environment was made ({type(e).__name__})"
        slot.line.settimeout(None)
        return "" if what == READY else content.decode(errors="replace")

    def end(self, slot: Slot) -> None:
        """End the process of a slot. `gone` returns the slot when nothing of the process is left.

        It is killed, at once, or CLOSE_S later if its environment needs to be closed.
        """
        with suppress(OSError):
            slot.line.close()
        if self._closes:
            self._closing[slot.number] = time.monotonic() + CLOSE_S
        else:
            self._kill(slot)
        self._ending.append(slot)

    def _kill(self, slot: Slot) -> None:
        if slot.server is self._server:
            with suppress(ForkServerLost):
                slot.process.kill()

    def gone(self) -> list[Slot]:
        """Return the slots that have lost their process, and all processes started by it, since the last call."""
        for slot in self._ending:
            if self._closing.get(slot.number, math.inf) < time.monotonic():
                log.warning("the world of slot %d was not closed within %g s: killed", slot.index, CLOSE_S)
                del self._closing[slot.number]
                self._kill(slot)
        if self.fds and self._server is not None:
            with suppress(ForkServerLost):
                while self._server.receive(0.0) is not None:
                    pass
        gone = [slot for slot in self._ending if slot.process.returncode is not None]
        for slot in gone:
            self._ending.remove(slot)
            self._closing.pop(slot.number, None)
            if number := slot.process.num_orphans:
                self.num_orphans += number
                log.warning("the world of slot %d left %d processes behind: ended", slot.index, number)
            self._remover.submit(_remove, slot.folder)
        return gone

    @property
    def fds(self) -> list[int]:
        """File descriptors that are readable when a process has ended."""
        if self._server is not None and not self._server.is_usable:
            self._server.close()  # all its processes have ended with it
            self._server = None
            log.warning("the process that slots are forked from was lost, and all slots with it")
        return [] if self._server is None else [self._server.fileno()]

    def close(self) -> None:
        """End all processes and remove the folder, within about 5 s, and CLOSE_S more if they need to be closed."""
        while self._closing and self.fds:
            self.gone()
            time.sleep(_LOOK_S)
        if self._server is not None:
            self._server.close()
        self._remover.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _usable_server(self) -> ForkServer:
        # The parent of all processes is started when it is first needed, and again if it was lost.
        if not self.fds:
            self._server = ForkServer.started(variables(os.environ, self._keep_env, str(self._folder)))
            self._server.take_in_orphans(str(self._folder))
            self._server.have_imported(self._modules)
        assert self._server is not None
        return self._server


def _folder_for_all(first_uid: int | None) -> Path:
    """Return a new folder for the folders of all worlds. Raises ConfigError if their users could not enter it."""
    below = Path(tempfile.gettempdir())
    if first_uid is None:
        return Path(tempfile.mkdtemp(prefix="ddppo-serve-"))
    # Users of worlds need the x permission on every folder above.
    if closed := [folder for folder in (below, *below.parents) if not folder.stat().st_mode & stat.S_IXOTH]:
        raise ConfigError(
            f"first_uid={first_uid}: other users cannot enter {closed[0]}: set TMPDIR to a folder that they can"
        )
    folder = Path(tempfile.mkdtemp(prefix="ddppo-serve-"))
    folder.chmod(0o711)
    return folder


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass  # `close` has removed the folder of all
    except (OSError, RecursionError) as e:
        log.warning("%s could not be removed: %s: %s", folder, type(e).__name__, e)
