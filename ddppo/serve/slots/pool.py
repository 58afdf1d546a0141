"""A pool of slots. A slot is a process with one environment; one session holds it until it releases it.

    pool = SlotPool(env, spec, size=8)
    slot = pool.acquire(timeout_s=10.0)      # PoolExhausted if all 8 are held
    pool.release(slot)                       # its process is killed and replaced

A released process is never lent again. Its successor starts when nothing of it is left, neither processes that it
started nor its folder. Any thread may acquire and release. A thread of the pool, the keeper, starts and ends
processes.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait

from ddppo.config.settings import EnvConfig
from ddppo.errors import TrainingError
from ddppo.processes.forking import ForkServerLost
from ddppo.serve.limits import Confinement
from ddppo.serve.slots.worlds import Slot, Worlds
from ddppo.spaces import EnvSpec

_LOOK_S = 0.1  # interval of checks of free processes
_JOIN_S = 5.0  # for the keeper to end
_STUCK_S = 60.0  # without a check, after which the pool counts as unhealthy
_PAUSE_S = 1.0  # before another try to make a world

log = logging.getLogger(__name__)


class PoolExhausted(TrainingError):
    """All slots are held."""

    def __init__(self, num_held: int, size: int) -> None:
        super().__init__(f"all {size} slots are held ({num_held} sessions): try again when one has ended")
        self.num_held = num_held
        self.size = size


class SlotNotReady(TrainingError):
    """A slot is free, but its process was not ready in time, or cannot be made."""


class SlotPool:
    """The slots of a server, and the keeper thread.

    Args:
        making_s: seconds after which an environment that is still being made is given up.
        modules, keep_env, prints: of Worlds.
    """

    def __init__(
        self, env: EnvConfig, spec: EnvSpec, size: int, *,
        making_s: float = 60.0, confinement: Confinement | None = None,
        modules: Sequence[str] = (), keep_env: Sequence[str] = (), prints: bool = False,
    ) -> None:  # fmt: skip
        self.size = size
        self.num_replaced = 0  # processes that replaced a released or lost one
        self.num_lost = 0  # processes that ended while no session held them
        self._worlds = Worlds(
            env, spec, confinement or Confinement(), modules=modules, keep_env=keep_env, prints=prints
        )
        self._making_s = making_s
        self._making: dict[int, Slot] = {}  # used by the keeper only; by the file descriptor of the line
        self._changed = threading.Condition()  # its lock guards all attributes below
        self._free: deque[Slot] = deque()
        self._held: set[Slot] = set()
        self._num_waiting = 0  # callers of `acquire` that wait for a slot that is being made
        self._released: deque[Slot] = deque()  # to be killed by the keeper
        self._why_not = ""  # why the last world could not be made; "" if it was
        self._is_closed = False
        self._looked_at = time.monotonic()
        # Writing to the pipe wakes the keeper. () when it is closed: its numbers may then belong to other files.
        self._pipe: tuple[int, ...] = os.pipe()
        self._woken = self._pipe[0]
        os.set_blocking(self._pipe[1], False)
        self._keeper = threading.Thread(target=self._run_keeper, name="slots", daemon=True)
        self._keeper.start()

    def acquire(self, timeout_s: float = 0.0) -> Slot:
        """Return a slot for the caller alone. Raises PoolExhausted at once, SlotNotReady after timeout_s."""
        with self._changed:
            # A waiting caller has a claim: more callers than slots would wait in vain.
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
                    self._give_up(slot)
            finally:
                self._num_waiting -= 1

    def release(self, slot: Slot) -> None:
        """Give a slot back. A second call does nothing."""
        with self._changed:
            if slot in self._held:
                self._held.remove(slot)
                self._give_up(slot)

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
        """Why the last world could not be made, or that the keeper is stuck; "" if all is well."""
        if time.monotonic() - self._looked_at > _STUCK_S:
            return f"no slot has been looked after for {_STUCK_S:g} s"
        return self._why_not

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until every slot has been made. Raises SlotNotReady with the cause if one cannot be made."""
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
        """End all processes within 5 s, also those of held slots."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._wake()
        self._keeper.join(_JOIN_S)
        if self._keeper.is_alive():
            return
        with self._changed:
            pipe, self._pipe = self._pipe, ()
        for fd in pipe:
            os.close(fd)

    def _give_up(self, slot: Slot) -> None:
        self._released.append(slot)
        self._wake()

    def _wake(self) -> None:
        with self._changed, suppress(BlockingIOError):
            if self._pipe:
                os.write(self._pipe[1], b".")

    @property
    def num_orphans(self) -> int:
        """Processes started by worlds that outlived them, and were killed."""
        return self._worlds.num_orphans

    # -- the keeper thread; it alone uses the fork server ------------------------------------------------------------

    def _run_keeper(self) -> None:
        try:
            self._keep()
        except BaseException as e:
            log.critical("the pool makes no more worlds", exc_info=True)
            self._could_not(f"the pool makes no more worlds: {type(e).__name__}: {e}")
        finally:
            with self._changed:
                slots = [*self._making.values(), *self._free, *self._held, *self._released]
            for slot in slots:
                self._worlds.end(slot)
            self._worlds.close()

    def _keep(self) -> None:
        making = self._making
        missing: deque[int] = deque(range(self.size))  # slots without a process
        not_before = 0.0
        while not self._is_closed:
            self._looked_at = time.monotonic()
            # 1. Start a process for each slot that has none. All are made at the same time.
            try:
                while missing and time.monotonic() >= not_before and not self._is_closed:
                    slot = self._worlds.start(missing[0])
                    making[slot.line.fileno()] = slot
                    missing.popleft()
            except (OSError, ForkServerLost) as e:
                self._could_not(f"no process can be started: {type(e).__name__}: {e}")
                not_before = time.monotonic() + _PAUSE_S
            # 2. Wait for a released slot, the end of a process, or the answer of a process that is being made.
            ready = wait([self._woken, *self._worlds.fds, *making], _LOOK_S)
            if self._woken in ready:
                os.read(self._woken, 4096)
            # 3. Add slots that are ready, and drop those that failed or took too long.
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
            # 4. Kill released and lost processes. A slot is missing when its process is gone completely.
            for slot in self._take_out():
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

    def _take_out(self) -> list[Slot]:
        """Remove and return the slots to be killed: released ones, and free ones without a process."""
        with self._changed:
            lost = [slot for slot in self._free if not slot.lives]
            for slot in lost:
                log.warning("the process of slot %d ended while no session held it: replaced", slot.index)
                self._free.remove(slot)
                self.num_lost += 1
            out = [*self._released, *lost]
            self._released.clear()
        return out
