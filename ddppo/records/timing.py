"""Where an iteration's time went, in exclusive parts that sum to t_iter.

t_rollout and t_learn are phases less the collectives inside them; t_other is what no phase covers. Collectives are
split into waiting and communication from the records of all ranks: a rank waited until the last one had arrived,
and what remained of the collective was communication. The barrier that follows the rollout is all waiting. Waiting is
told apart by the role of the rank that came last.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from ddppo.collectives.group import Group, Record


@dataclass(frozen=True, slots=True)
class Collectives:
    """This rank's C collectives of one group: starts and ends `[C, 2]` in seconds, and which are barriers `[C]`."""

    stamps: np.ndarray
    is_barrier: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """One rank's iteration in seconds, before waiting and communication are told apart.

    collectives: of each of the clock's groups. waits: outside collectives, by the role waited for. num_bytes: handed
    over in num_messages collectives and sends.
    """

    t_iter: float
    t_rollout: float
    t_learn: float
    t_checkpoint: float
    hidden_comm: float
    collectives: tuple[Collectives, ...]
    waits: dict[str, float]
    num_messages: int
    num_bytes: int


class IterationClock:
    """Times consecutive iterations of one rank without gaps; `excluded` sections are on nobody's account.

    groups: all those whose collectives the rank takes part in. `around` is entered around every phase, with its name:
    a profiler's.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        device: torch.device,
        around: Callable[[str], AbstractContextManager] = nullcontext,
    ) -> None:
        self.groups = groups
        self._cuda = device if device.type == "cuda" else None
        self._around = around
        self.elapsed = 0.0
        self._start = time.perf_counter()
        self._phases = {"rollout": 0.0, "learn": 0.0}
        self._t_checkpoint = 0.0
        self._forget()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Book the enclosed time, less its collectives and waits, to `name`: "rollout" or "learn"."""
        noted = self._noted()
        start = time.perf_counter()
        with self._around(name):
            yield
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)
        elapsed = time.perf_counter() - start
        since = [r for notes, first in zip(self._timed(), noted, strict=False) for r in notes[first:]]
        self._phases[name] += elapsed - sum(r.end - r.start for r in since)

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Book the enclosed time, less its collectives, to saving, which is a part of what no phase covers."""
        start, before = time.perf_counter(), sum(map(_seconds, self._timed()))
        yield
        after = sum(map(_seconds, self._timed()))
        self._t_checkpoint += time.perf_counter() - start - (after - before)

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Keep the enclosed time and collectives out of every account (evaluation has its own clock)."""
        noted = self._noted()
        start = time.perf_counter()
        yield
        for notes, first in zip(self._notes(), noted, strict=True):
            del notes[first:]
        self._start += time.perf_counter() - start

    def lap(self) -> LocalTimes:
        """End the iteration and begin the next one at the same instant."""
        now = time.perf_counter()
        records = [record for group in self.groups for record in group.records]
        given = [record.num_bytes for record in records if record.num_bytes is not None]
        given += [num_bytes for group in self.groups for num_bytes in group.sends]
        # Ranks on one host share a monotonic clock; ranks on several count from when the barrier let them go.
        origin = 0.0
        if not self.groups[0].clocks_shared:
            origin = next((r.end for r in records if r.is_barrier), 0.0)
        waits: dict[str, float] = {}
        for wait in (wait for group in self.groups for wait in group.waits):
            waits[wait.role] = waits.get(wait.role, 0.0) + wait.end - wait.start
        times = LocalTimes(
            t_iter=now - self._start,
            t_rollout=self._phases["rollout"],
            t_learn=self._phases["learn"],
            t_checkpoint=self._t_checkpoint,
            hidden_comm=sum(r.hidden for r in records),
            collectives=tuple(_collectives(group.records, origin) for group in self.groups),
            waits=waits,
            num_messages=len(given),
            num_bytes=sum(given),
        )
        self.elapsed += times.t_iter
        self._start = now
        self._phases = dict.fromkeys(self._phases, 0.0)
        self._t_checkpoint = 0.0
        self._forget()
        return times

    def _timed(self) -> list[list]:
        return [notes for group in self.groups for notes in (group.records, group.waits)]

    def _notes(self) -> list[list]:
        """Return what every group has noted since the iteration began, which goes on in the same lists."""
        return [*self._timed(), *(group.sends for group in self.groups)]

    def _noted(self) -> list[int]:
        return list(map(len, self._notes()))

    def _forget(self) -> None:
        for notes in self._notes():
            notes.clear()


def _seconds(notes: Sequence) -> float:
    return sum(note.end - note.start for note in notes)


def _collectives(records: Sequence[Record], origin: float) -> Collectives:
    stamps = np.array([(r.start - origin, r.end - origin) for r in records])
    return Collectives(stamps.reshape(-1, 2), tuple(r.is_barrier for r in records))


def split_waiting(
    stamps: np.ndarray, is_barrier: tuple[bool, ...], roles: Sequence[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return seconds waited for each role, and seconds communicated, `[W]` in collectives with stamps `[W, C, 2]`.

    wait = min(max over ranks of start - own start, own duration); communication = own duration - wait. Who came last
    was waited for. roles: one of each rank.
    """
    starts, ends = stamps[..., 0], stamps[..., 1]
    durations = ends - starts
    waits = np.minimum(starts.max(axis=0, initial=-np.inf) - starts, durations)
    waits = np.where(is_barrier, durations, waits) if is_barrier else waits
    communicated = (durations - waits).sum(axis=-1)
    if len(set(roles)) == 1:
        return {roles[0]: waits.sum(axis=-1)}, communicated
    last = np.array(roles)[starts.argmax(axis=0)]
    return {role: waits[:, last == role].sum(axis=-1) for role in dict.fromkeys(roles)}, communicated
