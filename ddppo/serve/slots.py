"""A pool of slots. A slot is a process with one environment; whoever acquires it has it alone until it is released.

    pool = SlotPool(env, spec, size=8)
    slot = pool.acquire(timeout_s=10.0)      # PoolExhausted where all 8 are held
    pool.release(slot)                       # its process is ended, another takes its place

A released process is never lent again, so nothing of one holder's world is there for the next. Any thread may acquire
and release. One thread of the pool's own starts and ends processes: they live no longer than the thread that started
the server they fork from.
"""

import json
import logging
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field

from ddppo.config import EnvConfig
from ddppo.envs.remote.messages import plain_spec
from ddppo.errors import TrainingError
from ddppo.forking import ForkedProcess, ForkServer, ForkServerLost
from ddppo.serve.line import READY, TASK, framed, hear
from ddppo.spaces import EnvSpec

_LOOK_S = 0.1  # between two looks at processes that nobody holds
_JOIN_S = 5.0
_PAUSE_S = 1.0  # before a world that could not be made is tried again

log = logging.getLogger(__name__)


class PoolExhausted(TrainingError):
    """All slots are held."""

    def __init__(self, num_held: int, size: int) -> None:
        super().__init__(f"all {size} slots are held ({num_held} sessions): try again when one has ended")
        self.num_held = num_held
        self.size = size


class SlotNotReady(TrainingError):
    """A slot is free, but its process is not ready in time, or never will be."""


@dataclass(eq=False, slots=True)
class Slot:
    """index: of `size`. number: of its process, counted over the pool's life."""

    index: int
    number: int
    server: ForkServer
    process: ForkedProcess
    line: socket.socket
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


class SlotPool:
    def __init__(
        self,
        env: EnvConfig,
        spec: EnvSpec,
        size: int,
        *,
        making_s: float = 60.0,
        modules: tuple[str, ...] = (),
    ) -> None:
        self.size = size
        self.num_replaced = 0  # processes that took the place of one released or lost
        self.num_lost = 0  # processes that ended while nobody held them
        self._task = json.dumps({"env": asdict(env), "spec": plain_spec(spec)}).encode()
        self._making_s = making_s
        self._modules = ["ddppo.serve.world", "ddppo.envs.pool.fork_server", *modules]
        self._changed = threading.Condition()  # its lock guards all below
        self._free: deque[Slot] = deque()
        self._held: set[Slot] = set()
        self._num_waiting = 0  # have a claim to a slot whose process is being made
        self._left: deque[Slot] = deque()  # released, to be ended
        self._why_not = ""  # the last world could not be made
        self._is_closed = False
        self._server: ForkServer | None = None
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._keeper = threading.Thread(target=self._keep, name="slots", daemon=True)
        self._keeper.start()

    def acquire(self, timeout_s: float = 0.0) -> Slot:
        """Return a slot that is the caller's alone. Raises PoolExhausted at once, SlotNotReady after timeout_s."""
        with self._changed:
            if len(self._held) + self._num_waiting >= self.size:
                raise PoolExhausted(len(self._held), self.size)
            self._num_waiting += 1
            try:
                end = time.monotonic() + timeout_s
                while True:
                    patience_s = max(0.0, end - time.monotonic())
                    self._changed.wait_for(lambda: self._free or self._is_closed, patience_s)
                    if self._is_closed or not self._free:
                        why = "the pool is closed" if self._is_closed else self._why_not or "still starting"
                        raise SlotNotReady(f"no slot is ready: {why}")
                    slot = self._free.popleft()
                    if slot.lives:
                        self._held.add(slot)
                        return slot
                    self.num_lost += 1
                    self._leave(slot)
            finally:
                self._num_waiting -= 1

    def release(self, slot: Slot) -> None:
        """Give a slot back; a second time does nothing."""
        with self._changed:
            if slot in self._held:
                self._held.remove(slot)
                self._leave(slot)

    @contextmanager
    def lent(self, timeout_s: float = 0.0) -> Iterator[Slot]:
        slot = self.acquire(timeout_s)
        try:
            yield slot
        finally:
            self.release(slot)

    @property
    def num_held(self) -> int:
        return len(self._held)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def trouble(self) -> str:
        """Why the last world could not be made; empty where it could."""
        return self._why_not

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until every slot has been made. Raises SlotNotReady with the cause where one cannot be."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._free) + len(self._held) == self.size or self._why_not, timeout_s
            )
            if len(self._free) + len(self._held) < self.size:
                raise SlotNotReady(
                    f"{len(self._free)} of {self.size} slots are ready after {timeout_s:g} s"
                    + (f": {self._why_not}" if self._why_not else "")
                )

    def close(self) -> None:
        """End all processes, within 5 s; slots that are held end too."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._rouse()
        self._keeper.join(_JOIN_S)
        if not self._keeper.is_alive():
            for fd in (self._woken, self._wake):
                with suppress(OSError):
                    os.close(fd)

    def _leave(self, slot: Slot) -> None:
        self._left.append(slot)
        self._rouse()

    def _rouse(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._wake, b".")

    # -- the keeper's thread; it alone talks to the fork server ------------------------------------------------------

    def _keep(self) -> None:
        making: dict[int, Slot] = {}
        missing: deque[int] = deque(range(self.size))
        number, not_before = 0, 0.0
        while not self._is_closed:
            try:
                while missing and time.monotonic() >= not_before and not self._is_closed:
                    number += 1
                    slot = self._begun(missing[0], number)
                    making[slot.line.fileno()] = slot
                    missing.popleft()
            except (OSError, ForkServerLost) as e:
                self._could_not(f"no process can be started: {type(e).__name__}: {e}")
                not_before = time.monotonic() + _PAUSE_S
            ready, _, _ = select.select([self._woken, *making], [], [], _LOOK_S)
            if self._woken in ready:
                os.read(self._woken, 4096)
            for fd in [fd for fd in ready if fd in making]:
                slot = making.pop(fd)
                if not self._is_made(slot):
                    not_before = time.monotonic() + _PAUSE_S
                    self._end(slot)
                    missing.append(slot.index)
            late = time.monotonic() - self._making_s
            for fd, slot in [(fd, slot) for fd, slot in making.items() if slot.begun < late]:
                self._could_not(f"an environment was not made within {self._making_s:g} s")
                del making[fd]
                self._end(slot)
                missing.append(slot.index)
            for slot in self._taken_out():
                self._end(slot)
                self.num_replaced += 1
                missing.append(slot.index)
        for slot in [*making.values(), *self._free, *self._held, *self._left]:
            self._end(slot)
        if self._server is not None:
            self._server.close()

    def _begun(self, index: int, number: int) -> Slot:
        """Start a process for a slot, without waiting until its world is made."""
        if self._server is None or not self._server.is_usable:
            if self._server is not None:
                log.warning("the process that slots fork from was lost, and they with it: started again")
                self._server.close()
            self._server = ForkServer.started()
            self._server.have_imported(self._modules)
        ours, theirs = socket.socketpair()
        with theirs:
            process = self._server.start(
                "ddppo.serve.backend", [], os.environ, title=f"ddppo slot {index}",
                stdio=(theirs.fileno(), 1, 2),
            )  # fmt: skip
        with suppress(OSError):  # it has ended: the keeper sees the end of the line
            ours.sendall(framed(TASK, self._task))
        return Slot(index, number, self._server, process, ours)

    def _is_made(self, slot: Slot) -> bool:
        slot.line.settimeout(1.0)
        try:
            what, content = hear(slot.line)
        except (EOFError, OSError) as e:
            self._could_not(f"its process ended while the environment was made ({type(e).__name__})")
            return False
        slot.line.settimeout(None)
        if what != READY:
            self._could_not(content.decode(errors="replace"))
            return False
        with self._changed:
            self._why_not = ""
            self._free.append(slot)
            self._changed.notify_all()
        return True

    def _could_not(self, why: str) -> None:
        log.error("a slot could not be made: %s", why)
        with self._changed:
            self._why_not = why
            self._changed.notify_all()

    def _taken_out(self) -> list[Slot]:
        """Return the slots whose processes are to be ended: released ones, and free ones whose process was lost."""
        with self._changed:
            lost = [slot for slot in self._free if not slot.lives]
            for slot in lost:
                log.warning("the process of slot %d ended while nobody held it: replaced", slot.index)
                self._free.remove(slot)
                self.num_lost += 1
            out = [*self._left, *lost]
            self._left.clear()
        return out

    def _end(self, slot: Slot) -> None:
        """Kill a slot's process and all that it started in its session."""
        with suppress(OSError):
            slot.line.close()
        if slot.server is self._server and self._server is not None:
            with suppress(ForkServerLost, ProcessLookupError, PermissionError):
                slot.process.poll()
                os.killpg(slot.process.pid, signal.SIGKILL)
