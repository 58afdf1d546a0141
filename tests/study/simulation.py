"""The oracle of `Parameters.expected`: iterations played rank by rank, segment by segment, draw by draw."""

from dataclasses import dataclass

import numpy as np

from ddppo.study.predict.parameters import Iteration
from ddppo.study.read.record import PARTS


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


def simulate(parameters, load, iterations, seed=0, common_cv=0.0):
    """Return iterations of W ranks; the same seed gives the same ones.

    A rank's rollout varies by late_light (late_heavy is not played). common_cv: of a factor on rollouts that all ranks
    share, for which nobody waits.
    """
    rng = np.random.default_rng(seed)
    w, many = load.world_size, load.world_size > 1
    rollout_s, segment_s = parameters.rollout_s(load), parameters.segment_s(load)
    times = {name: np.zeros((iterations, w)) for name in ("t_iter", *PARTS)}
    other, late, slower = (np.zeros(w) for _ in range(3))
    other += parameters.other_s
    other[0] += parameters.writer_s
    for rank, (seconds, acting, learning) in parameters.slow.items():
        if rank < w:
            late[rank] = load.rollout_steps * seconds + acting * rollout_s
            slower[rank] = learning
    turns = load.num_calls * (load.crowded - 1)
    queue = parameters.queueing * parameters.run_through_s(load) + turns * parameters.waiting_turn_s
    messages = load.messages.seconds(parameters.latency_s, parameters.byte_s)
    comm = load.num_calls * parameters.call_s + turns * parameters.turn_s + messages
    for i in range(iterations):
        common = 1 + common_cv * rng.standard_normal()
        noise = parameters.late_light * rng.standard_normal(w) if many else np.zeros(w)
        rollout = rollout_s * (common + noise) + late
        # Others were done with the last iteration while rank 0 still wrote: it comes to the barrier later by that.
        arrival = other + rollout
        waited = arrival.max() - arrival
        learn = np.zeros(w)
        for _ in range(round(load.num_segments)):
            segment = segment_s * (1 + slower)
            if many:  # not cut at 0: means are exact, and what counts is the sum over segments
                segment = segment + parameters.jitter_s * rng.standard_normal(w)
                waited += segment.max() - segment
            learn += segment
        row = (rollout, learn, waited + queue * many, np.full(w, comm * many), other)
        for name, values in zip(PARTS, row, strict=True):
            times[name][i] = values
        times["t_iter"][i] = sum(row)
    return Simulated(times, np.full(iterations, w * load.local_batch_size))
