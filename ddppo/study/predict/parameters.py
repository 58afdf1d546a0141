"""What an iteration's parts cost, and the system of W ranks that follows from it."""

from dataclasses import dataclass, field

from ddppo.study.predict.collective_cost import Messages
from ddppo.study.predict.iteration import Preemption, System
from ddppo.study.predict.order_statistics import Noise
from ddppo.study.predict.points import Point

_TIME_SLICE_S = 3e-3  # Linux: base_slice_ns, 3 ms on 8 or more cores, fewer on fewer


@dataclass(frozen=True, slots=True)
class Parameters:
    """What an iteration's parts cost, in seconds. docs/prediction.md has the formulas.

    acting_s, per_env_s: a vectorised step works acting_s + per_env_s * E, of which the share `computing` needs a core;
    env_sleep_s: and sleeps so long per environment, env_processes of them at once. minibatch_s, sample_s:
    a minibatch of n local samples takes minibatch_s + sample_s * n. call_s, latency_s, byte_s: a collective takes
    call_s + alpha-beta; comm_crowding, in 0 to 1: see `fit_communication`. jitter_s: waiting at a collective / E[max
    of W standard normals]. noise_variance: cv^2 of a rank's rollout is the first + the second / local batch size.
    """

    acting_s: float
    per_env_s: float
    computing: float
    env_sleep_s: float
    env_step_s: float | None
    env_processes: float
    minibatch_s: float
    sample_s: float
    call_s: float
    latency_s: float
    byte_s: float
    comm_crowding: float
    jitter_s: float
    other_s: float
    writer_s: float
    noise_variance: tuple[float, float]
    noise_shape: Noise
    common_cv: float
    slow_step_s: dict[int, float] = field(default_factory=dict)

    def noise(self, local_batch_size: float) -> Noise:
        return self.noise_shape.with_cv(
            (self.noise_variance[0] + self.noise_variance[1] / local_batch_size) ** 0.5
        )

    def step_s(self, local_num_envs: float, crowded: float) -> float:
        """Return max(c + s, crowded * computing * c): a rank's own work c and sleep s, or all ranks wait for cores.

        Asymptotic bounds of a closed queueing network: Lazowska et al. 1984, Quantitative System Performance, ch. 5.
        """
        work = self.acting_s + self.per_env_s * local_num_envs
        sleep = self.env_sleep_s * max(1.0, local_num_envs / self.env_processes)
        return max(work + sleep, crowded * self.computing * work)


def sliced(segment_s: float) -> float:
    """Return the share of what crowded cores cost that falls into t_learn: max(0, 1 - slice / segment).

    Ranks that share a core take turns of a scheduler's slice. A minibatch longer than that is interrupted, and itself
    takes longer; a shorter one runs through, and its rank had to wait before it, the others after it: t_sync.
    """
    return max(0.0, 1.0 - _TIME_SLICE_S / segment_s) if segment_s > 0 else 0.0


def build_system(
    fitted: Parameters,
    *,
    world_size: int,
    rollout_steps: int,
    local_num_envs: float,
    num_epochs: float,
    num_minibatches: int,
    num_gathers: int,
    sums: Messages,
    gathers: Messages,
    crowded: float,
    sum_s: float | None = None,
    noise: Noise | None = None,
    preemption: Preemption | None = None,
) -> System:
    """Return the system of W ranks; `sums` and `gathers` are the messages of all its collectives of an iteration.

    sum_s, if given, is what the messages of one gradient sum take (another algorithm's).
    """
    num_segments = max(1, round(num_epochs * num_minibatches))
    local_batch = local_num_envs * rollout_steps
    segment = fitted.minibatch_s + fitted.sample_s * local_batch / num_minibatches
    factor = 1 + fitted.comm_crowding * (crowded - 1)
    if sum_s is None:
        sum_s = factor * sums.seconds(fitted.latency_s, fitted.byte_s) / num_segments
    return System(
        world_size=world_size,
        rollout_steps=rollout_steps,
        local_num_envs=local_num_envs,
        step_s=fitted.step_s(local_num_envs, crowded),
        num_segments=num_segments,
        segment_s=segment * (1 + sliced(segment) * (crowded - 1)),
        queue_s=segment * (1 - sliced(segment)) * (crowded - 1),
        sum_s=fitted.call_s + sum_s,
        gathers_s=num_gathers * fitted.call_s + factor * gathers.seconds(fitted.latency_s, fitted.byte_s),
        other_s=fitted.other_s,
        writer_s=fitted.writer_s,
        jitter_s=fitted.jitter_s * factor,
        noise=noise or fitted.noise(local_batch),
        common_cv=fitted.common_cv,
        slow_step_s={r: s for r, s in fitted.slow_step_s.items() if r < world_size},
        preemption=preemption,
    )


def system_of_point(fitted: Parameters, p: Point) -> System:
    return build_system(
        fitted,
        world_size=p.run.world_size,
        rollout_steps=p.run.rollout_steps,
        local_num_envs=p.local_num_envs,
        num_epochs=p.num_epochs,
        num_minibatches=p.run.num_minibatches,
        num_gathers=p.num_gathers,
        sums=p.sums,
        gathers=p.gathers,
        crowded=p.crowding,
    )
