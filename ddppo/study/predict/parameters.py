"""How long is an iteration of W ranks? The model: costs of the parts, and the expected iteration that follows.

rollout:  every rank makes T vectorised steps; the slowest decides              t_rollout, t_sync
barrier
learn:    K * M minibatches, each a segment of computing and a gradient sum      t_learn, t_sync, t_comm
report:   one gather; then rank 0 writes while the others wait in the barrier    t_other, t_sync
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache

from ddppo.study.predict.points import Load
from ddppo.study.read.record import PARTS

HEAVIEST = 0.4  # E[max of W] grows at most as W^0.4: with a heavier tail the maximum has no finite variance

_COMPUTING = (
    0.25  # part of a step's time beyond its sleep that needs a core, measured with 16 ranks on a core
)
_TIME_SLICE_S = 3e-3  # Linux's base_slice_ns: 3 ms on 8 or more cores, less on fewer


@dataclass(frozen=True, slots=True)
class Work:
    """The time of one of W ranks to compute n things: fixed_s + (unit_s + contention_s (W - 1)) n.

    Ranks that share a core take turns, each for a time slice of the scheduler. A piece of work longer than a slice is
    interrupted and takes longer itself. A shorter piece runs through; then the rank waited before it, and the others
    wait after it, which is t_sync.
    """

    fixed_s: float
    unit_s: float
    contention_s: float = (
        0.0  # for memory and caches, by each other rank, even one that takes turns on the core
    )
    interrupted: bool = False  # whether even a short piece is interrupted

    def seconds(self, size: float, world_size: int) -> float:
        return self.fixed_s + (self.unit_s + self.contention_s * (world_size - 1)) * size

    def stretched(self, piece_s: float, crowded: float) -> float:
        """Return the factor by which a crowded core stretches a piece: 1 + (crowded - 1) max(0, 1 - slice / piece)."""
        share = 1.0 if self.interrupted else max(0.0, 1.0 - _TIME_SLICE_S / piece_s) if piece_s > 0 else 0.0
        return 1 + share * (crowded - 1)


@dataclass(frozen=True, slots=True)
class CostParameters:
    """The costs of an iteration's parts, in seconds. docs/prediction.md has the formulas."""

    # Computing.
    step: Work  # a vectorised step of E environments
    minibatch: Work  # a minibatch of n local samples
    other_s: float  # the rest of an iteration
    writer_s: float = 0.0  # more of it on rank 0, which writes the records
    # Environments that sleep in a step.
    env_sleep_s: float = 0.0  # sleep of each
    env_step_s: float | None = None  # its whole step, if known
    env_processes: float = 1.0  # environments of a rank that sleep at the same time
    # Communication: a collective takes call_s + alpha-beta + turn_s for each further rank on a core.
    call_s: float = 0.0
    latency_s: float = 0.0  # alpha
    byte_s: float = 0.0  # beta
    turn_s: float = 0.0
    # Waiting by chance: the last of W ranks ends its rollout later by these parts of the rollout ...
    late_light: float = 0.0  # ... times E[max of W standard normals] (light tails)
    late_heavy: float = 0.0  # ... times W^0.4 - 1 (heavy tails)
    jitter_s: float = 0.0  # at each gradient sum, times E[max of W standard normals]
    # Waiting for turns on crowded cores.
    queueing: float = 1.0  # fraction of the work that runs through which is waited for
    waiting_turn_s: float = 0.0  # at each collective, for each further rank on a core
    # {rank: extra time as (seconds per vectorised step, part of a rollout, part of the update)}
    slow: dict[int, tuple[float, float, float]] = field(default_factory=dict)

    def rollout_s(self, load: Load) -> float:
        """Return the mean seconds of a rollout of T steps.

        With environments that sleep s in a step and compute c it is T max(c + s, crowded c / 4): either the rank's own
        time or the waiting for cores decides. These are the asymptotic bounds of a closed queueing network; source:
        Lazowska et al. 1984, Quantitative System Performance, ch. 5.
        """
        # Computing of a step; with sleeping environments the core is free meanwhile.
        work = self.step.seconds(load.local_num_envs, load.world_size)
        if self.env_sleep_s:
            sleep = self.env_sleep_s * max(1.0, load.local_num_envs / self.env_processes)
            return load.rollout_steps * max(work + sleep, _COMPUTING * load.crowded * work)
        whole = load.rollout_steps * work
        return whole * self.step.stretched(whole, load.crowded)

    def segment_s(self, load: Load) -> float:
        """Return the mean seconds of a minibatch."""
        alone = self.minibatch.seconds(load.minibatch_size, load.world_size)
        return alone * self.minibatch.stretched(alone, load.crowded)

    def run_through_s(self, load: Load) -> float:
        """Return the seconds of an iteration in which ranks that share a core wait for uninterrupted work of others."""
        # The stretch that a piece would have if it were interrupted, less the stretch that it has.
        segment = self.minibatch.seconds(load.minibatch_size, load.world_size)
        waited = load.num_segments * (segment * load.crowded - self.segment_s(load))
        if not self.env_sleep_s:
            step = self.step.seconds(load.local_num_envs, load.world_size)
            waited += load.rollout_steps * step * load.crowded - self.rollout_s(load)
        return waited

    def expected(self, load: Load) -> "Iteration":
        """Return the expected iteration.

        Let m = rollout_s, C = K * M, s = segment_s and g(W) = E[max of W standard normals]. Rank r enters the barrier
        d_r later than the others, because it is slow or writes (writer_s, rank 0), and each sum l_r s later. Then
            t_rollout = m + sum(slow d) / W,   t_learn = C s (1 + sum(l) / W),   t_other = other_s + writer_s / W
            t_sync    = max(d) - sum(d) / W + C s (max(l) - sum(l) / W) + m (late_light g(W) + late_heavy (W^0.4 - 1))
                        + C jitter_s g(W) + queueing run_through_s + calls (crowded - 1) waiting_turn_s
                        + what the rank with the most environments takes beyond m and C s
            t_comm    = calls (call_s + (crowded - 1) turn_s) + messages
        """
        w, more, rollout = load.world_size, load.crowded - 1, self.rollout_s(load)
        learning = load.num_segments * self.segment_s(load)
        # d_r and l_r of the slow ranks.
        slow = {rank: cost for rank, cost in self.slow.items() if rank < w}
        late = {r: load.rollout_steps * s + k * rollout for r, (s, k, _) in slow.items()}
        slower = [k for _, _, k in slow.values()]
        parts = dict.fromkeys(PARTS, 0.0)
        # Means over ranks: an extra of one rank counts 1 / W.
        parts["t_rollout"] = rollout + sum(late.values()) / w
        parts["t_learn"] = learning * (1 + sum(slower) / w)
        parts["t_other"] = self.other_s + self.writer_s / w
        if w > 1:
            # Several ranks: waiting for the latest, by cause and by chance, and communication.
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
            if load.imbalance > 1:
                most = load.of_largest_share
                parts["t_sync"] += self.rollout_s(most) - rollout
                parts["t_sync"] += most.num_segments * self.segment_s(most) - learning
            messages = load.messages.seconds(self.latency_s, self.byte_s)
            parts["t_comm"] = load.num_calls * (self.call_s + more * self.turn_s) + messages
        return Iteration(parts, w * load.local_batch_size)


@dataclass(frozen=True, slots=True)
class Iteration:
    """An expected iteration."""

    parts: dict[str, float]  # seconds, means over ranks; they sum to t_iter
    steps: float  # environment steps of all ranks

    @property
    def t_iter(self) -> float:
        return sum(self.parts.values())

    @property
    def fps(self) -> float:
        return self.steps / self.t_iter


@lru_cache
def normal_expected_max(world_size: int) -> float:
    """Return E[max of W standard normals] = integral of z W phi(z) Phi(z)^(W-1) dz: 0, 0.564, 0.846, 1.029, ...

    The last of W ranks is late by this much if the lateness of each is a standard normal value. Source: David and
    Nagaraja 2003, Order Statistics, doi:10.1002/0471722162.
    """

    from scipy.integrate import quad  # its import takes half a second
    from scipy.special import log_ndtr

    def density(z: float) -> float:  # of the maximum
        return world_size / math.sqrt(2 * math.pi) * math.exp((world_size - 1) * log_ndtr(z) - z * z / 2)

    middle = math.sqrt(2 * math.log(world_size))  # near the mode, so that the integration finds it
    return float(quad(lambda z: z * density(z), -8.0, 8.0, points=(middle,), limit=200)[0])
