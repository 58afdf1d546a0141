"""What an iteration's parts cost, and the system of W ranks that follows from it."""

from dataclasses import dataclass, field

from ddppo.study.predict.iteration import System
from ddppo.study.predict.order_statistics import Noise, lognormal
from ddppo.study.predict.points import Load

_COMPUTING = 0.5  # of what a step takes beyond its sleep: the rest is waking late, which needs no core
_TIME_SLICE_S = 3e-3  # Linux: base_slice_ns, 3 ms on 8 or more cores, fewer on fewer


def sliced(piece_s: float) -> float:
    """Return the share of what crowded cores cost that falls into the work itself: max(0, 1 - slice / piece).

    Ranks that share a core take turns of a scheduler's slice. A piece of work longer than that is interrupted, and
    itself takes longer; a shorter one runs through, and its rank had to wait before it, the others after it: t_sync.
    """
    return max(0.0, 1.0 - _TIME_SLICE_S / piece_s) if piece_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of computing on n things: fixed_s + (unit_s + contention_s * others) n.

    contention: of memory and caches, by every other rank that runs at the same time. interrupted: however short it is,
    ranks that share a core interrupt it.
    """

    fixed_s: float
    unit_s: float
    contention_s: float = 0.0
    interrupted: bool = False

    def seconds(self, size: float, others: float) -> float:
        return self.fixed_s + (self.unit_s + self.contention_s * others) * size

    def stretched(self, piece_s: float, crowded: float) -> float:
        """Return how many times longer a piece takes because ranks share its core."""
        return 1 + (1.0 if self.interrupted else sliced(piece_s)) * (crowded - 1)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What an iteration's parts cost, in seconds. docs/prediction.md has the formulas.

    step: a vectorised step, of E environments. env_sleep_s: which also sleep so long each, env_processes of them at
    once. minibatch: of n local samples. call_s, latency_s, byte_s:
    a collective takes call_s + alpha-beta, and turn_s more for every further rank on a core. jitter_s: waiting at a
    collective / E[max of W standard normals]. queueing: how much of the work that runs through is waited for, in turns
    on a core; waiting_turn_s: and so long at each collective. noise_variance: cv^2 of a rank's rollout is the first +
    the second / local batch size. slow: {rank: (seconds a vectorised step, parts of a rollout, parts of learning)}.
    """

    step: Work
    minibatch: Work
    other_s: float
    writer_s: float = 0.0
    env_sleep_s: float = 0.0
    env_step_s: float | None = None
    env_processes: float = 1.0
    call_s: float = 0.0
    latency_s: float = 0.0
    byte_s: float = 0.0
    turn_s: float = 0.0
    jitter_s: float = 0.0
    queueing: float = 1.0
    waiting_turn_s: float = 0.0
    noise_variance: tuple[float, float] = (0.0, 0.0)
    noise_shape: Noise = field(default_factory=lambda: lognormal(0.1))
    slow: dict[int, tuple[float, float, float]] = field(default_factory=dict)

    def noise(self, local_batch_size: float) -> Noise:
        v0, v1 = self.noise_variance
        return self.noise_shape.with_cv((v0 + v1 / local_batch_size) ** 0.5)

    def rollout_s(self, load: Load) -> float:
        """Return a rollout's mean seconds, T steps; of environments that sleep T max(c + s, crowded c / 2).

        A rank's own work c and sleep s, or all ranks wait for cores: asymptotic bounds of a closed queueing network,
        Lazowska et al. 1984, Quantitative System Performance, ch. 5.
        """
        work = self.step.seconds(load.local_num_envs, load.others)
        if self.env_sleep_s:
            sleep = self.env_sleep_s * max(1.0, load.local_num_envs / self.env_processes)
            return load.rollout_steps * max(work + sleep, _COMPUTING * load.crowded * work)
        whole = load.rollout_steps * work
        return whole * self.step.stretched(whole, load.crowded)

    def segment_s(self, load: Load) -> float:
        alone = self.minibatch.seconds(load.minibatch_size, load.others)
        return alone * self.minibatch.stretched(alone, load.crowded)

    def run_through_s(self, load: Load) -> float:
        """Return seconds of work that ranks sharing a core do not interrupt but wait for, in an iteration."""
        more = load.crowded - 1
        segment = self.minibatch.seconds(load.minibatch_size, load.others)
        waited = load.num_segments * (segment * load.crowded - self.segment_s(load))
        if not self.env_sleep_s:
            work = load.rollout_steps * self.step.seconds(load.local_num_envs, load.others)
            waited += work * load.crowded - self.rollout_s(load)
        return waited if more > 0 else 0.0

    def system(self, load: Load, noise: Noise | None = None) -> System:
        """Return the system of W ranks that has this to do."""
        more = load.crowded - 1
        rollout = self.rollout_s(load)
        slow = {rank: cost for rank, cost in self.slow.items() if rank < load.world_size}
        return System(
            world_size=load.world_size,
            batch_size=load.world_size * load.local_batch_size,
            rollout_s=rollout,
            num_segments=load.num_segments,
            segment_s=self.segment_s(load),
            comm_s=load.num_calls * (self.call_s + more * self.turn_s)
            + load.messages.seconds(self.latency_s, self.byte_s),
            other_s=self.other_s,
            writer_s=self.writer_s,
            jitter_s=self.jitter_s,
            queue_s=self.queueing * self.run_through_s(load) + load.num_calls * more * self.waiting_turn_s,
            noise=noise or self.noise(load.local_batch_size),
            late={r: load.rollout_steps * s + k * rollout for r, (s, k, _) in slow.items()},
            late_segments={r: k for r, (_, _, k) in slow.items() if k > 0},
        )
