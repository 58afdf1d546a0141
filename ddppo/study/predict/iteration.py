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
class Preemption:
    """Once `share` of the ranks have ended their rollout, the others stop theirs, but not before `min_share` of it.

    Steps done until then count. Source: DD-PPO, arXiv:1911.00357, section 3 (share 0.6); min_share as in
    habitat_baselines/rl/ppo/ppo_trainer.py, should_end_early.
    """

    share: float = 0.6
    min_share: float = 0.25

    def __post_init__(self) -> None:
        if not (0.0 < self.share <= 1.0 and 0.0 <= self.min_share <= 1.0):
            raise ValueError(
                f"preemption={self.share:g} (at least {self.min_share:g} of a rollout): both are shares, the first "
                "above 0 and at most 1; 0.6 is DD-PPO's"
            )


@dataclass(frozen=True, slots=True)
class System:
    """W ranks and what their work takes; durations in seconds.

    step_s: mean of a vectorised step of local_num_envs environments, acting included. noise: factor on a rank's
    rollout, anew for every rank and iteration. common_cv: of a factor that all ranks share. step_cv: of independent
    noise on every vectorised step. slow_step_s: {rank: seconds that it needs more, every vectorised step}. segment_s:
    computing between two gradient sums, num_segments = K * M of them; jitter_s its standard deviation over ranks;
    queue_s what is lost per segment because ranks take turns on too few cores. sum_s: one gradient sum once all are
    there; gathers_s: the other collectives of the iteration. other_s: what no phase covers; writer_s what rank 0
    needs more.
    """

    world_size: int
    rollout_steps: int
    local_num_envs: float
    step_s: float
    num_segments: int
    segment_s: float
    sum_s: float = 0.0
    gathers_s: float = 0.0
    other_s: float = 0.0
    writer_s: float = 0.0
    jitter_s: float = 0.0
    queue_s: float = 0.0
    noise: Noise = field(default_factory=lambda: lognormal(0.0))
    common_cv: float = 0.0
    step_cv: float = 0.0
    slow_step_s: dict[int, float] = field(default_factory=dict)
    preemption: Preemption | None = None

    @property
    def batch_size(self) -> float:
        """Environment steps of all ranks in an iteration that nobody cuts short."""
        return self.world_size * self.local_num_envs * self.rollout_steps


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
    """Return the expected iteration, by formula. Raises ValueError under preemption, which only `simulate` can do.

    With m = T * step_s, noise X, C = K * M and g(W) = E[max of W standard normals]; rank r comes to the barrier d_r
    later than others for being slow (T * slow_step_s) or for writing (writer_s, rank 0):
        t_rollout = m E[X] + sum(T * slow_step_s) / W,     t_other = other_s + writer_s / W
        t_sync    = E[max over r of (m X_r + d_r)] - mean over r of (m E[X] + d_r) + C (jitter_s g(W) + queue_s)
        t_learn   = C segment_s,     t_comm = C sum_s + gathers_s
    """
    if system.preemption is not None:
        raise ValueError("a preempted iteration has no formula here: simulate it")
    world_size = system.world_size
    mean_rollout = system.rollout_steps * system.step_s
    late = {rank: system.rollout_steps * seconds for rank, seconds in system.slow_step_s.items()}
    noise = rollout_noise(system)
    own = mean_rollout * noise.expected_max(1)
    parts = dict.fromkeys(PARTS, 0.0)
    parts["t_rollout"] = own + sum(late.values()) / world_size
    parts["t_learn"] = system.num_segments * system.segment_s
    parts["t_other"] = system.other_s + system.writer_s / world_size
    if world_size > 1:
        late[0] = late.get(0, 0.0) + system.writer_s
        if mean_rollout > 0.0:
            lateness = [seconds / mean_rollout for seconds in late.values()]
            last = mean_rollout * noise.expected_max_with_late(world_size, lateness)
        else:
            last = max(late.values())
        waiting = max(0.0, last - own - sum(late.values()) / world_size)
        jitter = system.jitter_s * normal_expected_max(world_size)
        parts["t_sync"] = waiting + system.num_segments * (jitter + system.queue_s)
        parts["t_comm"] = system.num_segments * system.sum_s + system.gathers_s
    return Iteration(parts, system.batch_size)


def rollout_noise(system: System) -> Noise:
    """Return the noise of a whole rollout: variances of the rank and of T independent steps, cv^2 + step_cv^2 / T."""
    if system.step_cv == 0.0:
        return system.noise
    total = (system.noise.cv**2 + system.step_cv**2 / system.rollout_steps) ** 0.5
    return system.noise.with_cv(total)
