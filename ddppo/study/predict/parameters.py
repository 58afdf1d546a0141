"""What an iteration's parts cost, and the expected iteration of W ranks that follows.

rollout:  every rank makes T vectorised steps; the slowest decides              t_rollout, t_sync
barrier
learn:    K * M minibatches, each a segment of computing and a gradient sum      t_learn, t_sync, t_comm
report:   one gather; then rank 0 writes while the others run into the barrier   t_other, t_sync
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache

from ddppo.study.predict.points import Load
from ddppo.study.read.record import PARTS

HEAVIEST = 0.4  # E[max of W] grows as W^0.4 at most: a heavier tail has no finite variance of the maximum

_COMPUTING = 0.25  # of a step beyond its sleep, as 16 ranks of a core had it; the rest is waking late
_TIME_SLICE_S = 3e-3  # Linux: base_slice_ns, 3 ms on 8 or more cores, fewer on fewer


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of computing on n things by one of W ranks: fixed_s + (unit_s + contention_s (W - 1)) n.

    contention: of memory and caches, by every other rank, also one that takes turns with it. Ranks that share a core
    take turns of a scheduler's slice: a piece of work longer than that is interrupted and itself takes longer; a
    shorter one runs through, and its rank waited before it, the others after it (t_sync). interrupted: however short.
    """

    fixed_s: float
    unit_s: float
    contention_s: float = 0.0
    interrupted: bool = False

    def seconds(self, size: float, world_size: int) -> float:
        return self.fixed_s + (self.unit_s + self.contention_s * (world_size - 1)) * size

    def stretched(self, piece_s: float, crowded: float) -> float:
        """Return how many times longer a piece takes on a crowded core: 1 + (crowded - 1) max(0, 1 - slice / piece)."""
        share = 1.0 if self.interrupted else max(0.0, 1.0 - _TIME_SLICE_S / piece_s) if piece_s > 0 else 0.0
        return 1 + share * (crowded - 1)


@dataclass(frozen=True, slots=True)
class CostParameters:
    """What an iteration's parts cost, in seconds. docs/prediction.md has the formulas.

    step: a vectorised step, of E environments. env_sleep_s: which also sleep so long each, env_processes of them at
    once. minibatch: of n local samples. call_s, latency_s, byte_s: a collective takes call_s + alpha-beta, and turn_s
    more for every further rank on a core. late_light, late_heavy: how much later the last of W ranks ends its rollout,
    as parts of it / E[max of W standard normals] and / (W^0.4 - 1). jitter_s: likewise at every gradient sum. queueing:
    how much of the work that runs through is waited for, in turns on a core; waiting_turn_s: and so long at each
    collective. slow: {rank: (seconds a vectorised step, parts of a rollout, parts of learning)} that it takes longer.
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
    late_light: float = 0.0
    late_heavy: float = 0.0
    jitter_s: float = 0.0
    queueing: float = 1.0
    waiting_turn_s: float = 0.0
    slow: dict[int, tuple[float, float, float]] = field(default_factory=dict)

    def rollout_s(self, load: Load) -> float:
        """Return a rollout's mean seconds, T steps; of environments that sleep T max(c + s, crowded c / 4).

        A rank's own work c and sleep s, or all ranks wait for cores: asymptotic bounds of a closed queueing network,
        Lazowska et al. 1984, Quantitative System Performance, ch. 5.
        """
        work = self.step.seconds(load.local_num_envs, load.world_size)
        if self.env_sleep_s:
            sleep = self.env_sleep_s * max(1.0, load.local_num_envs / self.env_processes)
            return load.rollout_steps * max(work + sleep, _COMPUTING * load.crowded * work)
        whole = load.rollout_steps * work
        return whole * self.step.stretched(whole, load.crowded)

    def segment_s(self, load: Load) -> float:
        """Return a minibatch's mean seconds."""
        alone = self.minibatch.seconds(load.minibatch_size, load.world_size)
        return alone * self.minibatch.stretched(alone, load.crowded)

    def run_through_s(self, load: Load) -> float:
        """Return seconds of work that ranks sharing a core do not interrupt but wait for, in an iteration."""
        segment = self.minibatch.seconds(load.minibatch_size, load.world_size)
        waited = load.num_segments * (segment * load.crowded - self.segment_s(load))
        if not self.env_sleep_s:
            step = self.step.seconds(load.local_num_envs, load.world_size)
            waited += load.rollout_steps * step * load.crowded - self.rollout_s(load)
        return waited

    def expected(self, load: Load) -> "Iteration":
        """Return the expected iteration.

        With m = rollout_s, C = K * M, s = segment_s, g(W) = E[max of W standard normals]; rank r comes d_r later than
        others to the barrier for being slow or for writing (writer_s, rank 0), and l_r s later to each sum:
            t_rollout = m + sum(slow d) / W,   t_learn = C s (1 + sum(l) / W),   t_other = other_s + writer_s / W
            t_sync    = max(d) - sum(d) / W + C s (max(l) - sum(l) / W) + m (late_light g(W) + late_heavy (W^0.4 - 1))
                        + C jitter_s g(W) + queueing run_through_s + calls (crowded - 1) waiting_turn_s
            t_comm    = calls (call_s + (crowded - 1) turn_s) + messages
        """
        w, more, rollout = load.world_size, load.crowded - 1, self.rollout_s(load)
        learning = load.num_segments * self.segment_s(load)
        slow = {rank: cost for rank, cost in self.slow.items() if rank < w}
        late = {r: load.rollout_steps * s + k * rollout for r, (s, k, _) in slow.items()}
        slower = [k for _, _, k in slow.values()]
        parts = dict.fromkeys(PARTS, 0.0)
        parts["t_rollout"] = rollout + sum(late.values()) / w
        parts["t_learn"] = learning * (1 + sum(slower) / w)
        parts["t_other"] = self.other_s + self.writer_s / w
        if w > 1:
            late[0] = late.get(0, 0.0) + self.writer_s
            chance = self.late_light * normal_expected_max(w) + self.late_heavy * (w**HEAVIEST - 1)
            parts["t_sync"] = (
                max(late.values())
                - sum(late.values()) / w
                + learning * (max(slower, default=0.0) - sum(slower) / w)
                + rollout * chance
                + load.num_segments * self.jitter_s * normal_expected_max(w)
                + self.queueing * self.run_through_s(load)
                + load.num_calls * more * self.waiting_turn_s
            )
            messages = load.messages.seconds(self.latency_s, self.byte_s)
            parts["t_comm"] = load.num_calls * (self.call_s + more * self.turn_s) + messages
        return Iteration(parts, w * load.local_batch_size)


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


@lru_cache
def normal_expected_max(world_size: int) -> float:
    """Return E[max of W standard normals] = integral of z W phi(z) Phi(z)^(W-1) dz: 0, 0.564, 0.846, 1.029, ...

    It is how late the last of W ranks is by chance, where each is late as a normal value. Source: David and Nagaraja
    2003, Order Statistics, doi:10.1002/0471722162.
    """

    from scipy.integrate import quad  # takes half a second
    from scipy.special import log_ndtr

    def density(z: float) -> float:  # of the largest
        return world_size / math.sqrt(2 * math.pi) * math.exp((world_size - 1) * log_ndtr(z) - z * z / 2)

    middle = math.sqrt(2 * math.log(world_size))  # where most of it is
    return float(quad(lambda z: z * density(z), -8.0, 8.0, points=(middle,), limit=200)[0])
