"""The processes of slots: forked from a warm parent, confined to a folder of their own, ended without a trace."""

import json
import logging
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
from ddppo.serve.slots.line import READY, TASK, framed, hear
from ddppo.spaces import EnvSpec

_SAY_S = 1.0  # for a process that has begun to say how it is

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Slot:
    """index: of the pool. number: of its process, counted over the pool's life."""

    index: int
    number: int
    server: ForkServer
    process: ForkedProcess
    line: socket.socket
    folder: Path
    begun: float = field(default_factory=time.monotonic)

    @property
    def lives(self) -> bool:
        """Whether the process holds its end of the line; for one that was asked nothing."""
        try:
            return bool(self.line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False


class Worlds:
    """Starts and ends processes of one task. One thread uses it.

    modules: what they need imported. keep_env: environment variables that they see, besides those every program needs.
    prints: whether what they print goes where this process prints.
    """

    def __init__(
        self, env: EnvConfig, spec: EnvSpec, confinement: Confinement, *,
        modules: Sequence[str] = (), keep_env: Sequence[str] = (), prints: bool = False,
    ) -> None:  # fmt: skip
        self.num_begun = 0
        self.num_orphans = 0  # processes that worlds left behind, and that were ended
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
        self._ending: list[Slot] = []
        self._folder = _folder_for_all(self._first_uid)
        self._remover = ThreadPoolExecutor(1, "folders")  # a world may have written a great many files

    def begun(self, index: int) -> Slot:
        """Start a process for a slot, without waiting until its world is made. Raises OSError, ForkServerLost."""
        server = self._usable_server()
        self.num_begun += 1  # also where no process starts: the next needs a folder of another name
        number = self.num_begun
        folder = self._folder / str(number)
        folder.mkdir(0o700)
        if self._first_uid is not None:
            os.chown(folder, self._first_uid + index, self._first_uid + index)
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
        of_slot = {"slot": index, "folder": str(folder), "started_in": os.getcwd()}
        with suppress(OSError):  # it has ended: the reader of the line sees its end
            ours.sendall(framed(TASK, json.dumps(self._task | of_slot).encode()))
        return Slot(index, number, server, process, ours, folder)

    def trouble(self, slot: Slot) -> str:
        """Return why the world of a slot that has something to say could not be made; empty where it was."""
        slot.line.settimeout(_SAY_S)
        try:
            what, content = hear(slot.line)
        except (EOFError, OSError) as e:
            return f"its process ended while the environment was made ({type(e).__name__})"
        slot.line.settimeout(None)
        return "" if what == READY else content.decode(errors="replace")

    def end(self, slot: Slot) -> None:
        """Kill a slot's process; `gone` returns it when nothing of it is left."""
        with suppress(OSError):
            slot.line.close()
        if slot.server is self._server:
            with suppress(ForkServerLost):
                slot.process.kill()
        self._ending.append(slot)

    def gone(self) -> list[Slot]:
        """Return the slots that have lost their processes, with all that these had started, since the last call."""
        if self.heard_from and self._server is not None:
            with suppress(ForkServerLost):
                while self._server.receive(0.0) is not None:
                    pass
        gone = [slot for slot in self._ending if slot.process.returncode is not None]
        for slot in gone:
            self._ending.remove(slot)
            if number := slot.process.num_orphans:
                self.num_orphans += number
                log.warning("the world of slot %d left %d processes behind: ended", slot.index, number)
            self._remover.submit(_remove, slot.folder)
        return gone

    @property
    def heard_from(self) -> list[int]:
        """What is readable when a process has ended."""
        if self._server is not None and not self._server.is_usable:
            self._server.close()  # all its processes have ended with it
            self._server = None
            log.warning("the process that slots fork from was lost, and they with it")
        return [] if self._server is None else [self._server.fileno()]

    def close(self) -> None:
        """End all processes and remove the folder, within about 5 s."""
        if self._server is not None:
            self._server.close()
        self._remover.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _usable_server(self) -> ForkServer:
        if not self.heard_from:
            self._server = ForkServer.started(variables(os.environ, self._keep_env, str(self._folder)))
            self._server.take_in_orphans(str(self._folder))
            self._server.have_imported(self._modules)
        assert self._server is not None
        return self._server


def _folder_for_all(first_uid: int | None) -> Path:
    below = Path(tempfile.gettempdir())
    if first_uid is None:
        return Path(tempfile.mkdtemp(prefix="ddppo-serve-"))
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
        pass  # the whole folder went meanwhile
    except (OSError, RecursionError) as e:
        log.warning("%s could not be removed: %s: %s", folder, type(e).__name__, e)
