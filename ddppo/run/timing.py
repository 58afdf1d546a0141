"""Where an iteration's time went, in exclusive parts that sum to t_iter.

t_rollout and t_learn are phases less the collectives inside them; t_other is what no phase covers. Collectives are
split into waiting and communication from the records of all ranks: a rank waited until the last one had arrived,
and what remained of the collective was communication. The barrier that follows the rollout is all waiting.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from ddppo.collectives import Group


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """One rank's iteration in seconds, before waiting and communication are told apart.

    stamps `[C, 2]` are the starts and ends of its C collectives; is_barrier has one entry per collective.
    """

    t_iter: float
    t_rollout: float
    t_learn: float
    hidden_comm: float
    stamps: np.ndarray
    is_barrier: tuple[bool, ...]


class IterationClock:
    """Times consecutive iterations of one rank without gaps; `excluded` sections are on nobody's account.

    `around` is entered around every phase, with its name: a profiler's.
    """

    def __init__(
        self,
        group: Group,
        device: torch.device,
        around: Callable[[str], AbstractContextManager] = nullcontext,
    ) -> None:
        self.group = group
        self._cuda = device if device.type == "cuda" else None
        self._around = around
        self.elapsed = 0.0
        self._start = time.perf_counter()
        self._phases = {"rollout": 0.0, "learn": 0.0}
        group.records.clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Book the enclosed time, less its collectives, to `name`: "rollout" or "learn"."""
        first = len(self.group.records)
        start = time.perf_counter()
        with self._around(name):
            yield
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)
        elapsed = time.perf_counter() - start
        self._phases[name] += elapsed - sum(r.end - r.start for r in self.group.records[first:])

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Keep the enclosed time and collectives out of every account (evaluation has its own clock)."""
        first = len(self.group.records)
        start = time.perf_counter()
        yield
        del self.group.records[first:]
        self._start += time.perf_counter() - start

    def lap(self) -> LocalTimes:
        """End the iteration and begin the next one at the same instant."""
        now = time.perf_counter()
        records = self.group.records
        # Ranks on one host share a monotonic clock; ranks on several count from when the barrier let them go.
        origin = 0.0
        if not self.group.clocks_shared:
            origin = next((r.end for r in records if r.is_barrier), 0.0)
        stamps = np.array([(r.start - origin, r.end - origin) for r in records])
        times = LocalTimes(
            t_iter=now - self._start,
            t_rollout=self._phases["rollout"],
            t_learn=self._phases["learn"],
            hidden_comm=sum(r.hidden for r in records),
            stamps=stamps.reshape(-1, 2),
            is_barrier=tuple(r.is_barrier for r in records),
        )
        self.elapsed += times.t_iter
        self._start = now
        self._phases = dict.fromkeys(self._phases, 0.0)
        records.clear()
        return times


def split_waiting(stamps: np.ndarray, is_barrier: tuple[bool, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds waited and seconds communicated `[W]` in collectives with stamps `[W, C, 2]`.

    wait = min(max over ranks of start - own start, own duration); communication = own duration - wait.
    """
    starts, ends = stamps[..., 0], stamps[..., 1]
    durations = ends - starts
    waits = np.minimum(starts.max(axis=0, initial=-np.inf) - starts, durations)
    waits = np.where(is_barrier, durations, waits) if is_barrier else waits
    return waits.sum(axis=-1), (durations - waits).sum(axis=-1)
