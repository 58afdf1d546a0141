"""One synchronous iteration of W ranks: what it is made of, and the expected seconds of its parts.

rollout:  every rank makes T vectorised steps; the slowest decides              t_rollout, t_sync
barrier
learn:    K * M minibatches, each a segment of computing and a gradient sum      t_learn, t_sync, t_comm
report:   one gather; then rank 0 writes while the others run into the barrier   t_other, t_sync
"""

from dataclasses import dataclass, field

from ddppo.study.predict.order_statistics import Noise, lognormal, normal_expected_max
from ddppo.study.runs import PARTS


@dataclass(frozen=True, slots=True)
class System:
    """W ranks and what an iteration of them takes; durations in seconds.

    batch_size: environment steps of all ranks. rollout_s: mean of a rank's rollout. noise: factor on it, anew for every
    rank and iteration. late: {rank: seconds that its rollout always takes
    longer}. segment_s: computing between two gradient sums, num_segments = K * M of them; jitter_s its standard
    deviation over ranks; late_segments: {rank: part of segment_s that it always takes longer}. queue_s: waiting of an
    iteration because ranks take turns on too few cores. comm_s: all collectives, once all ranks are there. other_s:
    what no phase covers; writer_s: what rank 0 needs more.
    """

    world_size: int
    batch_size: float
    rollout_s: float
    num_segments: float
    segment_s: float
    comm_s: float = 0.0
    other_s: float = 0.0
    writer_s: float = 0.0
    jitter_s: float = 0.0
    queue_s: float = 0.0
    noise: Noise = field(default_factory=lambda: lognormal(0.0))
    late: dict[int, float] = field(default_factory=dict)
    late_segments: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Iteration:
    """Expected seconds by part (means over ranks; they add up to t_iter) and environment steps of all ranks."""

    parts: dict[str, float]
    steps: float

    @property
    def t_iter(self) -> float:
        return sum(self.parts.values())

    @property
    def fps(self) -> float:
        return self.steps / self.t_iter


def expected(system: System) -> Iteration:
    """Return the expected iteration, by formula.

    With m = rollout_s, noise X, C = K * M, s = segment_s and g(W) = E[max of W standard normals]; rank r comes to the
    barrier d_r later than others for being slow (late) or for writing (writer_s, rank 0), and l_r s later to each sum:
        t_rollout = m + sum(late) / W,     t_learn = C s (1 + sum(l) / W),     t_other = other_s + writer_s / W
        t_sync    = E[max over r of (m X_r + d_r)] - mean over r of (m + d_r)
                    + C (s (max(l) - sum(l) / W) + jitter_s g(W)) + queue_s
    """
    world_size, mean = system.world_size, system.rollout_s
    late, slower = dict(system.late), system.late_segments
    learning = system.num_segments * system.segment_s
    parts = dict.fromkeys(PARTS, 0.0)
    parts["t_rollout"] = mean + sum(late.values()) / world_size
    parts["t_learn"] = learning * (1 + sum(slower.values()) / world_size)
    parts["t_other"] = system.other_s + system.writer_s / world_size
    if world_size > 1:
        late[0] = late.get(0, 0.0) + system.writer_s
        if mean > 0.0:
            last = mean * system.noise.expected_max_with_late(world_size, [d / mean for d in late.values()])
        else:
            last = max(late.values())
        waiting = max(0.0, last - mean - sum(late.values()) / world_size)
        waiting += learning * (max(slower.values(), default=0.0) - sum(slower.values()) / world_size)
        jitter = system.num_segments * system.jitter_s * normal_expected_max(world_size)
        parts["t_sync"] = waiting + jitter + system.queue_s
        parts["t_comm"] = system.comm_s
    return Iteration(parts, system.batch_size)
