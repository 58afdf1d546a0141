"""A discrete-event simulation of iterations, for what `iteration.expected` cannot do and to check what it can.

Ranks are simulated one vectorised step, one minibatch and one collective at a time. Between collectives a rank depends
on nobody, except under preemption, so that the times of its events are sums; a collective of all ranks ends at
max(arrivals) + cost for each of them (a ring of W - 1 steps or more passes the latest arrival to everybody:
tests/study/test_prediction_limits.py shows it step by step).
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from ddppo.study.predict.iteration import Iteration, Preemption, System
from ddppo.study.predict.order_statistics import lognormal
from ddppo.study.runs import PARTS


@dataclass(frozen=True, slots=True)
class Simulated:
    """times: "t_iter" and PARTS in seconds `[iterations, W]`, as in Run; steps of all ranks `[iterations]`."""

    times: dict[str, np.ndarray]
    steps: np.ndarray

    @property
    def fps(self) -> float:
        """All steps / all time."""
        return float(self.steps.sum() / self.times["t_iter"].mean(axis=1).sum())

    @property
    def mean(self) -> Iteration:
        return Iteration({p: float(self.times[p].mean()) for p in PARTS}, float(self.steps.mean()))


def simulate(system: System, iterations: int, seed: int = 0) -> Simulated:
    """Return `iterations` iterations of the system; the same seed gives the same ones."""
    rng = np.random.default_rng(seed)
    world_size = system.world_size
    times = {name: np.zeros((iterations, world_size)) for name in ("t_iter", *PARTS)}
    steps = np.zeros(iterations)
    other = np.full(world_size, system.other_s)
    other[0] += system.writer_s
    for i in range(iterations):
        ends = _step_ends(system, rng)  # [T, W]
        num_steps = stop_steps(ends, system.preemption)
        rollout = ends[num_steps - 1, np.arange(world_size)]
        steps[i] = num_steps.sum() * system.local_num_envs
        # Others were done with the last iteration while rank 0 still wrote: it comes to the barrier later by that.
        arrival = other + rollout
        now = arrival.max()
        waited = now - arrival
        learn = np.zeros(world_size)
        comm = 0.0
        for _ in range(system.num_segments):
            segment = np.full(world_size, system.segment_s)
            if world_size > 1:  # not cut at 0: means are exact, and what counts is the sum over segments
                segment += system.jitter_s * rng.standard_normal(world_size)
                waited += segment.max() - segment + system.queue_s
                comm += system.sum_s
            learn += segment
        comm += system.gathers_s if world_size > 1 else 0.0
        row = (rollout, learn, waited, np.full(world_size, comm), other)
        for name, values in zip(PARTS, row, strict=True):
            times[name][i] = values
        times["t_iter"][i] = sum(row)
    return Simulated(times, steps)


def stop_steps(ends: np.ndarray, preemption: Preemption | None) -> np.ndarray:
    """Return how many steps each rank makes `[W]`, given when each of its T steps would end, `ends` `[T, W]`.

    A rank looks at the end of every step: it stops there if it has made min_share of its T steps and share * W ranks
    have stopped before or at that instant. Stopping early counts as having stopped.
    """
    rollout_steps, world_size = ends.shape
    full = np.full(world_size, rollout_steps)
    if preemption is None or world_size == 1:
        return full
    needed = ceil(preemption.share * world_size - 1e-9)
    least = max(1, ceil(preemption.min_share * rollout_steps - 1e-9))
    # Until `needed` ranks have stopped none stops early, so those are the ones that end all their steps first.
    signal = np.sort(ends[-1])[needed - 1]
    # The first step that ends at the signal or after it.
    first = 1 + (ends < signal).sum(axis=0)
    return np.minimum(full, np.maximum(first, least))


def _step_ends(system: System, rng: np.random.Generator) -> np.ndarray:
    """Return when each vectorised step of each rank ends, in seconds from the start of its rollout `[T, W]`."""
    size = (system.rollout_steps, system.world_size)
    common = lognormal(system.common_cv).sample(rng, (1,))
    factor = system.noise.sample(rng, (system.world_size,))
    durations = np.broadcast_to(system.step_s * common * factor, size).copy()
    if system.step_cv:
        durations *= lognormal(system.step_cv).sample(rng, size)
    for rank, seconds in system.slow_step_s.items():
        durations[:, rank] += seconds
    return np.cumsum(durations, axis=0)
