"""A pool of slots. A slot is a process with one environment; one session has it alone until that releases it.

    pool = SlotPool(env, spec, size=8)
    slot = pool.acquire(timeout_s=10.0)      # PoolExhausted where all 8 are held
    pool.release(slot)                       # its process is ended, another takes its place

A released process is never lent again, and another takes its place when nothing of it is left: processes that it had
started, its folder's name. Any thread may acquire and release; one of the pool's own starts and ends processes.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

from ddppo.config.settings import EnvConfig
from ddppo.errors import TrainingError
from ddppo.processes.forking import ForkServerLost
from ddppo.serve.limits import Confinement
from ddppo.serve.slots.worlds import Slot, Worlds
from ddppo.spaces import EnvSpec

_LOOK_S = 0.1  # between two looks at processes that nobody holds
_JOIN_S = 5.0
_STUCK_S = 60.0  # the keeper has been waiting for the process that slots fork from
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


class SlotPool:
    """`worlds`: as Worlds takes them. making_s: an environment that takes longer to be made is given up."""

    def __init__(
        self, env: EnvConfig, spec: EnvSpec, size: int, *,
        making_s: float = 60.0, confinement: Confinement | None = None, **worlds: Any,
    ) -> None:  # fmt: skip
        self.size = size
        self.num_replaced = 0  # processes that took the place of one released or lost
        self.num_lost = 0  # processes that ended while nobody held them
        self._worlds = Worlds(env, spec, confinement or Confinement(), **worlds)
        self._making_s = making_s
        self._making: dict[int, Slot] = {}  # the keeper's, by their lines' numbers
        self._changed = threading.Condition()  # its lock guards all below
        self._free: deque[Slot] = deque()
        self._held: set[Slot] = set()
        self._num_waiting = 0  # have a claim to a slot that is being made
        self._left: deque[Slot] = deque()  # released, to be ended
        self._why_not = ""  # the last world could not be made
        self._is_closed = False
        self._looked_at = time.monotonic()
        self._pipe: tuple[int, ...] = os.pipe()  # its ends' numbers are others' once it is closed
        self._woken = self._pipe[0]
        os.set_blocking(self._pipe[1], False)
        self._keeper = threading.Thread(target=self._kept, name="slots", daemon=True)
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
        """Why the last world could not be made, or none has been looked after for long; empty where all is well."""
        if time.monotonic() - self._looked_at > _STUCK_S:
            return f"no slot has been looked after for {_STUCK_S:g} s"
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
        if self._keeper.is_alive():
            return
        with self._changed:
            pipe, self._pipe = self._pipe, ()
        for fd in pipe:
            os.close(fd)

    def _leave(self, slot: Slot) -> None:
        self._left.append(slot)
        self._rouse()

    def _rouse(self) -> None:
        with self._changed, suppress(BlockingIOError):
            if self._pipe:
                os.write(self._pipe[1], b".")

    @property
    def num_orphans(self) -> int:
        """Processes that worlds left behind, and that were ended."""
        return self._worlds.num_orphans

    # -- the keeper's thread; it alone talks to the fork server ------------------------------------------------------

    def _kept(self) -> None:
        try:
            self._keep()
        except BaseException as e:
            log.critical("the pool makes no more worlds", exc_info=True)
            self._could_not(f"the pool makes no more worlds: {type(e).__name__}: {e}")
        finally:
            with self._changed:
                slots = [*self._making.values(), *self._free, *self._held, *self._left]
            for slot in slots:
                self._worlds.end(slot)
            self._worlds.close()

    def _keep(self) -> None:
        making = self._making
        missing: deque[int] = deque(range(self.size))
        not_before = 0.0
        while not self._is_closed:
            self._looked_at = time.monotonic()
            try:
                while missing and time.monotonic() >= not_before and not self._is_closed:
                    slot = self._worlds.begun(missing[0])
                    making[slot.line.fileno()] = slot
                    missing.popleft()
            except (OSError, ForkServerLost) as e:
                self._could_not(f"no process can be started: {type(e).__name__}: {e}")
                not_before = time.monotonic() + _PAUSE_S
            ready = wait([self._woken, *self._worlds.heard_from, *making], _LOOK_S)
            if self._woken in ready:
                os.read(self._woken, 4096)
            late = time.monotonic() - self._making_s
            for fd, slot in list(making.items()):
                if fd in ready:
                    trouble = self._worlds.trouble(slot)
                elif slot.begun < late:
                    trouble = f"an environment was not made within {self._making_s:g} s"
                else:
                    continue
                del making[fd]
                if trouble:
                    self._could_not(trouble)
                    not_before = time.monotonic() + _PAUSE_S
                    self._worlds.end(slot)
                else:
                    self._add(slot)
            for slot in self._taken_out():
                self._worlds.end(slot)
                self.num_replaced += 1
            missing.extend(slot.index for slot in self._worlds.gone())

    def _add(self, slot: Slot) -> None:
        with self._changed:
            self._why_not = ""
            self._free.append(slot)
            self._changed.notify_all()

    def _could_not(self, why: str) -> None:
        log.error("a slot could not be made: %s", why)
        with self._changed:
            self._why_not = why
            self._changed.notify_all()

    def _taken_out(self) -> list[Slot]:
        """Return the slots that are to be ended: released ones, and free ones whose process was lost."""
        with self._changed:
            lost = [slot for slot in self._free if not slot.lives]
            for slot in lost:
                log.warning("the process of slot %d ended while nobody held it: replaced", slot.index)
                self._free.remove(slot)
                self.num_lost += 1
            out = [*self._left, *lost]
            self._left.clear()
        return out
