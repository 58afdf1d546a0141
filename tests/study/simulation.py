"""The oracle of `ddppo.study.predict.iteration`: iterations played rank by rank, segment by segment, draw by draw."""

from dataclasses import dataclass

import numpy as np

from ddppo.study.predict.iteration import Iteration, System
from ddppo.study.predict.order_statistics import lognormal
from ddppo.study.runs import PARTS


@dataclass(frozen=True)
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


def simulate(system: System, iterations: int, seed: int = 0, common_cv: float = 0.0) -> Simulated:
    """Return `iterations` iterations of the system; the same seed gives the same ones.

    common_cv: of a factor on rollouts that all ranks share, for which nobody waits.
    """
    rng = np.random.default_rng(seed)
    world_size, num_segments = system.world_size, round(system.num_segments)
    times = {name: np.zeros((iterations, world_size)) for name in ("t_iter", *PARTS)}
    other, late, slower = (np.zeros(world_size) for _ in range(3))
    other += system.other_s
    other[0] += system.writer_s
    for rank, seconds in system.late.items():
        late[rank] = seconds
    for rank, share in system.late_segments.items():
        slower[rank] = share
    for i in range(iterations):
        common = drawn(lognormal(common_cv), rng, 1)
        rollout = system.rollout_s * common * drawn(system.noise, rng, world_size) + late
        # Others were done with the last iteration while rank 0 still wrote: it comes to the barrier later by that.
        arrival = other + rollout
        waited = arrival.max() - arrival
        learn = np.zeros(world_size)
        for _ in range(num_segments):
            segment = system.segment_s * (1 + slower)
            if world_size > 1:  # not cut at 0: means are exact, and what counts is the sum over segments
                segment = segment + system.jitter_s * rng.standard_normal(world_size)
                waited += segment.max() - segment
            learn += segment
        comm = np.full(world_size, system.comm_s if world_size > 1 else 0.0)
        row = (rollout, learn, waited + (system.queue_s if world_size > 1 else 0.0), comm, other)
        for name, values in zip(PARTS, row, strict=True):
            times[name][i] = values
        times["t_iter"][i] = sum(row)
    return Simulated(times, np.full(iterations, system.batch_size))


def drawn(noise, rng, size):
    """Return factors by the inverse of the distribution function, whose quantiles are kept at these normal deviates."""
    return np.interp(rng.standard_normal(size), np.linspace(-6.0, 6.0, 1201), noise.quantiles)
