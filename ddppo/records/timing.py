"""The clock of an iteration: where the seconds of each rank went.

Five parts exclude each other and sum to the iteration. On every rank, in seconds:

    t_iter    = t_rollout + t_learn + t_sync + t_comm + t_other

    t_rollout = duration of the phase "rollout" - collectives and waits inside it
    t_learn   = duration of the phase "learn"   - collectives and waits inside it
    t_sync    = sum of wait(c) over the iteration's collectives c + waits outside collectives
    t_comm    = sum of duration(c) - wait(c) over the iteration's collectives c
    t_other   = t_iter - t_rollout - t_learn - t_sync - t_comm

    wait(c)   = duration(c)                                                        if c is a barrier
              = min(max over ranks of start(c) - start(c) on this rank, duration(c))       otherwise

So a rank waits in a collective until the last rank has entered it; the remainder of the collective is communication.

`IterationClock` measures t_iter, t_rollout and t_learn and keeps the stamps of collectives. wait(c) needs the stamps
of all ranks: records/reporting.py gathers them and calls `split_waiting`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from ddppo.collectives.group import CollectiveTiming, Group
from ddppo.device import synchronize

# -- The clock of one rank.


@dataclass(frozen=True, slots=True)
class CollectiveStamps:
    """This rank's C collectives of one group, in order."""

    stamps: np.ndarray  # [C, 2], start and end in seconds
    is_barrier: tuple[bool, ...]  # [C]


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """One iteration of one rank in seconds, before collectives are split into waiting and communication."""

    t_iter: float
    t_rollout: float
    t_learn: float
    t_checkpoint: float  # part of t_other
    hidden_comm: float  # communication that ran while this rank computed; in no part
    collectives: tuple[CollectiveStamps, ...]  # one entry per group of the clock
    waits: dict[str, float]  # outside collectives, by the role waited for
    num_messages: int  # collectives and sends in which this rank handed over bytes
    num_bytes: int  # handed over in them


class IterationClock:
    """Times consecutive iterations of one rank, without a gap between them.

    Groups note their collectives, waits and sends in lists; the clock reads these lists, and `lap` empties them.
    """

    def __init__(
        self,
        groups: Sequence[Group],  # all groups in which this rank takes part
        device: torch.device,
        profile_phase: Callable[[str], AbstractContextManager] = nullcontext,  # entered around each phase
    ) -> None:
        self.groups = groups
        self._device = device
        self._profile_phase = profile_phase
        self.elapsed = 0.0  # seconds of all iterations so far
        self._start = time.perf_counter()
        self._phases = {"rollout": 0.0, "learn": 0.0}
        self._t_checkpoint = 0.0
        self._clear_notes()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the enclosed time, less its collectives and waits, as the phase "rollout" or "learn"."""
        lengths = self._note_lengths()
        start = time.perf_counter()
        with self._profile_phase(name):
            yield
        # An accelerator works behind the host: without this its kernels would be charged to the next phase.
        synchronize(self._device)
        elapsed = time.perf_counter() - start
        inside = [
            r for notes, first in zip(self._timed_notes(), lengths, strict=False) for r in notes[first:]
        ]
        self._phases[name] += elapsed - sum(r.end - r.start for r in inside)

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Count the enclosed time, less its collectives and waits, as t_checkpoint, which is a part of t_other."""
        start, before = time.perf_counter(), sum(map(_seconds, self._timed_notes()))
        yield
        after = sum(map(_seconds, self._timed_notes()))
        self._t_checkpoint += time.perf_counter() - start - (after - before)

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave the enclosed time and collectives out of the iteration: evaluation is timed as eval/t_eval."""
        lengths = self._note_lengths()
        start = time.perf_counter()
        yield
        for notes, first in zip(self._all_notes(), lengths, strict=True):
            del notes[first:]
        self._start += time.perf_counter() - start

    def lap(self) -> LocalTimes:
        """End the iteration and begin the next one at the same instant."""
        now = time.perf_counter()
        records = [record for group in self.groups for record in group.records]
        # Messages: collectives that count bytes, and sends. A barrier hands over nothing (num_bytes is None).
        bytes_sent = [record.num_bytes for record in records if record.num_bytes is not None]
        bytes_sent += [num_bytes for group in self.groups for num_bytes in group.sends]
        # Ranks on one machine share a monotonic clock. Clocks of several machines differ, so these ranks count from
        # the end of the iteration's first barrier, which releases all of them at nearly the same moment.
        origin = 0.0
        if not self.groups[0].clocks_shared:
            origin = next((r.end for r in records if r.is_barrier), 0.0)
        # Waits outside collectives, by role.
        waits: dict[str, float] = {}
        for wait in (wait for group in self.groups for wait in group.waits):
            waits[wait.role] = waits.get(wait.role, 0.0) + wait.end - wait.start
        times = LocalTimes(
            t_iter=now - self._start,
            t_rollout=self._phases["rollout"],
            t_learn=self._phases["learn"],
            t_checkpoint=self._t_checkpoint,
            hidden_comm=sum(r.hidden for r in records),
            collectives=tuple(_stamps(group.records, origin) for group in self.groups),
            waits=waits,
            num_messages=len(bytes_sent),
            num_bytes=sum(bytes_sent),
        )
        # The next iteration begins.
        self.elapsed += times.t_iter
        self._start = now
        self._phases = dict.fromkeys(self._phases, 0.0)
        self._t_checkpoint = 0.0
        self._clear_notes()
        return times

    def _timed_notes(self) -> list[list]:
        """Return the lists in which groups note collectives and waits, which have a start and an end."""
        return [notes for group in self.groups for notes in (group.records, group.waits)]

    def _all_notes(self) -> list[list]:
        # Timed notes first: `phase` pairs them with the first lengths of _note_lengths().
        return [*self._timed_notes(), *(group.sends for group in self.groups)]

    def _note_lengths(self) -> list[int]:
        return list(map(len, self._all_notes()))

    def _clear_notes(self) -> None:
        for notes in self._all_notes():
            notes.clear()


def _seconds(notes: Sequence) -> float:
    return sum(note.end - note.start for note in notes)


def _stamps(records: Sequence[CollectiveTiming], origin: float) -> CollectiveStamps:
    stamps = np.array([(r.start - origin, r.end - origin) for r in records])
    return CollectiveStamps(stamps.reshape(-1, 2), tuple(r.is_barrier for r in records))


# -- Waiting and communication, from the stamps of all ranks.


def split_waiting(
    stamps: np.ndarray, is_barrier: tuple[bool, ...], roles: Sequence[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Split the collectives of W ranks into waiting and communication, by wait(c) of the module's docstring.

    Args:
        stamps: starts and ends `[W, C, 2]` in seconds, the same C collectives on each rank.
        is_barrier: `[C]`, whether the collective is a barrier.
        roles: the role of each rank; all ranks waited for the one that entered last, so for its role.

    Returns:
        Seconds waited `[W]` by role, and seconds communicated `[W]`.
    """
    starts, ends = stamps[..., 0], stamps[..., 1]
    durations = ends - starts
    # A rank may leave before the last one enters (it sent its part of a broadcast): it waited at most its duration.
    waits = np.minimum(starts.max(axis=0, initial=-np.inf) - starts, durations)
    waits = np.where(is_barrier, durations, waits) if is_barrier else waits
    communicated = (durations - waits).sum(axis=-1)
    if len(set(roles)) == 1:
        return {roles[0]: waits.sum(axis=-1)}, communicated
    last_role = np.array(roles)[starts.argmax(axis=0)]  # [C]
    return {role: waits[:, last_role == role].sum(axis=-1) for role in dict.fromkeys(roles)}, communicated
