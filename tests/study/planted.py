"""Made-up studies whose truth is known: W ranks are played step by step, with the causes of lost time planted.

Nothing here comes from ddppo.study but the record of a run. A `Truth` says what everything costs; `play` lets ranks
act, wait, learn and exchange, and keeps the books of where the time of each iteration went, and why:

    cause          what of an iteration it is, in seconds, means over ranks and iterations
    communication  exchanges as they would be with a core for every rank
    cores          all that taking turns on too few cores adds, wherever the clock of a rank shows it
    slow           what the iteration would be shorter by, were the slow ranks like the others
    waiting        the rest of waiting: ranks are late by chance
    acting, learning, other   the rest of these parts
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ddppo.study.read.record import PARTS, Evaluation, Origin, Run

_SLICE_S = 3e-3  # a core is given to another rank after so long; a shorter piece of work runs through
_EXCHANGES = 2  # besides those of gradients


@dataclass(frozen=True)
class Truth:
    """What everything costs, in seconds, and what is planted.

    step_s + env_s * E: a vectorised step of E environments. minibatch_s + sample_s * n: a minibatch of n samples.
    (W - 1) * latency_s + 3 n * byte_s: a sum of n bytes through shared memory. slow: {rank: factor} at every W that has
    the rank, of `slow_phase`. host_size: ranks of a host. turn_s: what an exchange takes longer for each rank more on
    a core. contention: how much longer acting and learning take for each further rank (memory, disk). tail: how heavy
    the distribution of rollouts is, 0 is lognormal. run_cv: how much the speed of whole runs differs.
    stalls: {(W, seed, iteration): seconds} in which one rank does nothing. cores_per_rank, or `cores` for all.
    """

    rule: str = "strong"
    num_envs: int = 64
    rollout_steps: int = 32
    num_epochs: int = 4
    num_minibatches: int = 4
    num_parameters: int = 5000
    iterations: int = 80
    step_s: float = 2e-5
    env_s: float = 2e-5
    minibatch_s: float = 5e-5
    sample_s: float = 4e-6
    other_s: float = 2e-4
    writer_s: float = 0.0
    latency_s: float = 5e-6
    byte_s: float = 1e-10
    collective: str = "shm"
    noise_cv: float = 0.01
    tail: float = 0.0
    run_cv: float = 0.005
    slow: dict[int, float] = field(default_factory=dict)
    slow_phase: str = "rollout"
    host_size: int | None = None
    cores: int | None = None
    cores_per_rank: float = 1.0
    turn_s: float = 2e-5
    contention: tuple[float, float] = (0.0, 0.0)  # of acting, of learning
    contention_power: float = 1.0  # it grows as (W - 1) to this power
    stalls: dict[tuple[int, int, int], float] = field(default_factory=dict)
    unseen_s: float = 0.0  # of an iteration, on no rank's clock
    draw: int = 0  # of what is random: studies of one draw would all be lucky at the same W

    def envs(self, world_size: int) -> float:
        return self.num_envs / world_size if self.rule == "strong" else self.num_envs

    def steps(self, world_size: int) -> int:
        return round(self.envs(world_size) * world_size * self.rollout_steps)

    def crowding(self, world_size: int) -> float:
        """Ranks of a core, at least 1."""
        return max(1.0, world_size / self.num_cores(world_size))

    def num_cores(self, world_size: int) -> int:
        return self.cores or max(1, round(self.cores_per_rank * world_size))


@dataclass(frozen=True)
class Played:
    """times: seconds by part `[iterations, W]`; causes: seconds of an iteration by cause, means; t_iter: mean."""

    times: dict[str, np.ndarray]
    causes: dict[str, float]
    t_iter: float
    wall_s: float


def play(truth: Truth, world_size: int, seed: int, iterations: int | None = None) -> Played:
    """Play the iterations of a run."""
    rng = np.random.default_rng([seed, world_size, truth.draw, 7])
    count = iterations or truth.iterations
    pace = float(np.exp(truth.run_cv * rng.standard_normal()))
    slowness = np.ones(world_size)
    for rank, factor in truth.slow.items():
        if rank < world_size:
            slowness[rank] = factor
    acts = slowness if truth.slow_phase in ("rollout", "both") else np.ones(world_size)
    learns = slowness if truth.slow_phase in ("learn", "both") else np.ones(world_size)
    envs, crowding = truth.envs(world_size), truth.crowding(world_size)
    act = (
        truth.rollout_steps
        * (truth.step_s + truth.env_s * envs)
        * (1 + truth.contention[0] * (world_size - 1) ** truth.contention_power)
    )
    usual_rollout = pace * act * _noise(rng, (count, world_size), truth.noise_cv, truth.tail)
    num_segments = truth.num_epochs * truth.num_minibatches
    samples = envs * truth.rollout_steps / truth.num_minibatches
    segment = (truth.minibatch_s + truth.sample_s * samples) * (
        1 + truth.contention[1] * (world_size - 1) ** truth.contention_power
    )
    usual_segments = pace * segment * _noise(rng, (count, num_segments, world_size), truth.noise_cv / 2, 0.0)
    rollout, segments = usual_rollout * acts, usual_segments * learns
    stalled = np.zeros((count, world_size))
    for (w, s, iteration), seconds in truth.stalls.items():
        if (w, s) == (world_size, seed) and iteration < count:
            stalled[iteration, world_size - 1] = seconds
    rollout = rollout + stalled

    parts = {part: np.zeros((count, world_size)) for part in PARTS}
    first = rollout.copy()
    parts["t_rollout"] += rollout
    parts["t_learn"] += segments.sum(axis=1)
    parts["t_other"] += pace * truth.other_s
    parts["t_other"][:, 0] += truth.writer_s
    first[:, 0] += truth.writer_s  # the others run into the barrier meanwhile
    exchanged = 0.0
    if world_size > 1:
        parts["t_sync"] += first.max(axis=1, keepdims=True) - first
        parts["t_sync"] += (segments.max(axis=2, keepdims=True) - segments).sum(axis=1)
        num_bytes = 4 * truth.num_parameters
        one = (world_size - 1) * truth.latency_s
        exchanged = num_segments * (one + 3 * num_bytes * truth.byte_s) + _EXCHANGES * one
        parts["t_comm"] += exchanged * rng.normal(1, 0.02, (count, 1)).clip(0.5)
    slow_s = float((rollout.max(axis=1) - (usual_rollout + stalled).max(axis=1)).mean())
    slow_s += float((segments.max(axis=2) - usual_segments.max(axis=2)).sum(axis=1).mean())
    cores_s = _take_turns(truth, crowding, parts, num_segments, segment, rng) if world_size > 1 else 0.0
    t_iter = sum(parts.values())
    rounding = t_iter.max(axis=1, keepdims=True) - t_iter
    parts["t_sync"] += rounding  # ranks end an iteration together
    t_iter = t_iter + rounding
    own_extra = float(
        (rollout - usual_rollout - stalled).mean() + (segments - usual_segments).sum(axis=1).mean()
    )
    causes = {
        "communication": float(exchanged),
        "cores": cores_s,
        "slow": slow_s,
        "acting": float((usual_rollout + stalled).mean()),
        "learning": float(usual_segments.sum(axis=1).mean()),
        "other": float(pace * truth.other_s + truth.writer_s / world_size),
    }
    causes["waiting"] = float(t_iter.mean()) - sum(causes.values())
    assert own_extra <= slow_s + 1e-9, (own_extra, slow_s)
    wall_s = float(t_iter.mean(axis=1).sum()) + truth.unseen_s * count
    return Played({**parts, "t_iter": t_iter}, causes, wall_s / count, wall_s)


def _take_turns(truth, crowding, parts, num_segments, segment, rng) -> float:
    """Add to the parts what `crowding` ranks of a core cost, in place; return it in seconds of an iteration."""
    if crowding <= 1:
        return 0.0
    before = sum(float(x.mean()) for x in parts.values())
    more = crowding - 1
    parts["t_rollout"] *= crowding
    if segment > _SLICE_S:
        parts["t_learn"] *= crowding
    else:
        parts["t_sync"] += more * parts["t_learn"].max(axis=1, keepdims=True)
    turns = (num_segments + _EXCHANGES) * truth.turn_s * more
    parts["t_comm"] += turns * rng.normal(1, 0.05, (len(parts["t_comm"]), 1)).clip(0.5)
    parts["t_sync"] *= 1.0
    parts["t_sync"] += 0.5 * turns
    return sum(float(x.mean()) for x in parts.values()) - before


def _noise(rng, shape, cv, tail):
    """Return factors of mean 1: lognormal of that cv, or Pareto where `tail` is its index (above 2)."""
    if tail:
        x = rng.pareto(tail, shape)
        return 1 + cv * (x - 1 / (tail - 1)) / np.sqrt(tail / ((tail - 1) ** 2 * (tail - 2)))
    if cv == 0:
        return np.ones(shape)
    sigma = np.sqrt(np.log1p(cv**2))
    return rng.lognormal(-(sigma**2) / 2, sigma, shape)


# -- runs of it ------------------------------------------------------------------------------------------------------


def run(truth: Truth, world_size: int, seed: int, *, others: dict[int, int] | None = None) -> Run:
    """Return the record of one run."""
    played = play(truth, world_size, seed)
    steps = np.full(truth.iterations, truth.steps(world_size))
    hosts = 1 if truth.host_size is None else -(-world_size // truth.host_size)
    rng = np.random.default_rng([seed, world_size, truth.draw, 11])
    final = float(rng.normal(480, 8))
    return Run(
        path=f"{truth.rule}/W{world_size}-seed{seed}",
        env_id="Planted-v0",
        world_size=world_size,
        seed=seed,
        rule=truth.rule,
        num_envs=round(truth.envs(world_size) * world_size),
        rollout_steps=truth.rollout_steps,
        num_epochs=truth.num_epochs,
        num_minibatches=truth.num_minibatches,
        num_parameters=truth.num_parameters,
        cores=truth.num_cores(world_size),
        env_steps=int(steps.sum()),
        wall_s=played.wall_s,
        fps=float(steps.sum()) / played.wall_s,
        final_return=final,
        target_return=float("nan"),
        times=played.times,
        steps=steps,
        evaluations=(Evaluation(int(steps.sum()), played.wall_s, final),),
        config={
            "ppo": {"target_kl": None},
            "env": {},
            "dist": {"world_size": world_size},
            "dtype": "float32",
        },
        origin=Origin(
            finished_at=f"2026-01-01T00:{world_size:02}:{seed:02}+00:00",
            git_commit="0" * 40,
            hostname="host0",
            env_backend="sync",
            collective="none" if world_size == 1 else truth.collective,
            num_hosts=hosts,
            hosts=tuple(f"host{rank // (truth.host_size or world_size)}" for rank in range(world_size)),
        ),
        others=others or {},
    )


def runs(truth: Truth, world_sizes, seeds) -> list[Run]:
    return [run(truth, w, s) for w in world_sizes for s in range(seeds)]


def true_fps(truth: Truth, world_size: int, num_runs: int = 0) -> float:
    """Return the median steps/s of very many runs: none is faster than another but by chance, nothing stalls.

    That of runs of this length: where some iterations take very long, most runs are faster than their mean.
    """
    num_runs = num_runs or (100 if truth.tail else 25)
    asked = (repr(truth), world_size, num_runs)
    if asked not in _TRUE_FPS:
        even = replace(truth, run_cv=0.0, stalls={})
        seconds = [play(even, world_size, 10**6 + k).t_iter for k in range(num_runs)]
        _TRUE_FPS[asked] = truth.steps(world_size) / float(np.median(seconds))
    return _TRUE_FPS[asked]


_TRUE_FPS: dict[tuple[str, int, int], float] = {}  # a study's judge asks for the same several times


def true_shares(truth: Truth, world_size: int, base: int = 1) -> dict[str, float]:
    """Return the share of each cause of the iteration at W, beyond what W at `base` leaves an ideal one to take."""
    asked = (repr(truth), world_size, base)
    if asked not in _TRUE_SHARES:
        _TRUE_SHARES[asked] = _true_shares(truth, world_size, base)
    return _TRUE_SHARES[asked]


_TRUE_SHARES: dict[tuple[str, int, int], dict[str, float]] = {}


def _true_shares(truth: Truth, world_size: int, base: int) -> dict[str, float]:
    even = replace(truth, run_cv=0.0, stalls={})
    here, there = (play(even, w, 10**6, 6000 if truth.tail else 1000) for w in (world_size, base))
    work = truth.steps(world_size) / truth.steps(base) * base / world_size
    return {cause: (here.causes[cause] - work * there.causes[cause]) / here.t_iter for cause in here.causes}


# -- studies with one main cause -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """A study: its main cause ("" if none is clearly), the truth, and which W and how many seeds were measured.

    disturb changes the runs; `doubts` are the kinds of reasons for which they then cannot be believed. shift: {W: what
    its speed is relative to the truth, as the study means it}; `today`: that is no part of the system, but of the day.
    returns: {W: relative change of the final return}. interleaved: seeds in turn over W. timed: one run after another.
    """

    main: str
    truth: Truth
    world_sizes: tuple[int, ...]
    seeds: int
    kind: str
    disturb: Callable[[list[Run]], list[Run]] | None = None
    doubts: tuple[str, ...] = ()
    shift: dict[int, float] = field(default_factory=dict)
    today: bool = False
    returns: dict[int, float] = field(default_factory=dict)
    interleaved: bool = False
    timed: bool = True

    def runs(self) -> list[Run]:
        from tests.study.disturbed import one_after_another

        found = runs(self.truth, self.world_sizes, self.seeds)
        found = self.disturb(found) if self.disturb else found
        return one_after_another(found, interleaved=self.interleaved) if self.timed else found

    def fps(self, world_size: int) -> float:
        """The true speed at W, of the system that was measured on that day."""
        return true_fps(self.truth, world_size) * self.shift.get(world_size, 1.0)

    def __str__(self) -> str:
        sizes = ",".join(map(str, self.world_sizes))
        return f"{self.kind}, {self.truth.rule}, W={sizes}, {self.seeds} seeds"


def studies(count: int, seed: int | list[int] = 0, kinds: dict[str, Any] | None = None) -> list[Planted]:
    """Return studies that take turns in what is planted, with sizes at random."""
    rng = np.random.default_rng(seed)
    made = list((kinds or KINDS).items())
    return [make(rng, kind) for kind, make in (made[i % len(made)] for i in range(count))]


def _sizes(rng, largest=16, missing_one=0.15):
    sizes = [w for w in (1, 2, 4, 8, 16) if w <= largest]
    if rng.random() < missing_one:
        sizes = sizes[1:]
    return tuple(sizes)


def _plant(rng, kind, main, changes, *, largest=None, missing_one=0.15, rules=("strong", "weak")) -> Planted:
    truth = Truth(
        rule=str(rng.choice(rules)),
        num_envs=64,
        rollout_steps=int(rng.choice([16, 32, 64])),
        num_epochs=int(rng.choice([2, 4])),
        num_minibatches=int(rng.choice([2, 4])),
        num_parameters=int(rng.choice([5_000, 20_000])),
        noise_cv=float(rng.uniform(0.003, 0.02)),
        run_cv=float(rng.uniform(0.001, 0.01)),
        draw=int(rng.integers(2**31)),
    )
    if truth.rule == "weak":
        truth = replace(truth, num_envs=16)
    truth = replace(truth, **(changes(truth) if callable(changes) else changes))
    sizes = _sizes(rng, largest or int(rng.choice([8, 16])), missing_one)
    return Planted(main, truth, sizes, int(rng.integers(1, 9)), kind)


def _ideal(truth: Truth, world_size: int) -> float:
    """Return the seconds of an ideal iteration at W."""
    return play(replace(truth, run_cv=0.0), 1, 0, 50).t_iter * (
        1 / world_size if truth.rule == "strong" else 1
    )


def _latency(rng, kind):
    def changes(t):
        exchanges = t.num_epochs * t.num_minibatches + _EXCHANGES
        return {"latency_s": rng.uniform(0.5, 2) * _ideal(t, 8) / exchanges / 7}

    return _plant(rng, kind, "communication", changes)


def _bandwidth(rng, kind):
    def changes(t):
        num_bytes = 3 * 4 * 1_000_000 * t.num_epochs * t.num_minibatches
        return {"num_parameters": 1_000_000, "byte_s": rng.uniform(0.5, 2) * _ideal(t, 8) / num_bytes}

    return _plant(rng, kind, "communication", changes)


def _slow_rank(rng, kind):
    factor = float(rng.uniform(1.5, 3))
    return _plant(rng, kind, "slow", {"slow": {int(rng.integers(2, 8)): factor}, "env_s": 6e-5})


def _half_slow(rng, kind):
    factor = float(rng.uniform(1.5, 3))
    return _plant(
        rng, kind, "slow", {"slow": dict.fromkeys(range(1, 16, 2), factor), "env_s": 6e-5}, missing_one=0
    )


def _slow_learner(rng, kind):
    factor = float(rng.uniform(1.8, 3))
    return _plant(
        rng,
        kind,
        "slow",
        {"slow": {int(rng.integers(2, 8)): factor}, "slow_phase": "learn", "sample_s": 1.2e-5},
    )


def _slow_node(rng, kind):
    factor = float(rng.uniform(1.5, 3))
    slow = dict.fromkeys(range(4, 8), factor)
    changes = {"slow": slow, "slow_phase": "both", "host_size": 4, "latency_s": 2e-6}
    return _plant(rng, kind, "slow", changes, largest=8)


def _crowded(rng, kind):
    return _plant(rng, kind, "cores", {"cores": int(rng.choice([2, 4])), "latency_s": 2e-6}, missing_one=0)


def _serial(rng, kind):
    def changes(t):
        return {"other_s": rng.uniform(0.3, 1) * _ideal(t, 4)}

    return _plant(rng, kind, "other", changes, rules=("strong",))


def _fixed_learning(rng, kind):
    def changes(t):
        return {"minibatch_s": rng.uniform(0.5, 1.5) * _ideal(t, 4) / (t.num_epochs * t.num_minibatches)}

    return _plant(rng, kind, "learning", changes, rules=("strong",))


def _fixed_acting(rng, kind):
    def changes(t):
        return {"step_s": rng.uniform(0.5, 1.5) * _ideal(t, 4) / t.rollout_steps}

    return _plant(rng, kind, "acting", changes, rules=("strong",))


def _contended(rng, kind):
    share = float(rng.uniform(0.05, 0.2))
    which = int(rng.integers(2))
    contention = (share, 0.0) if which == 0 else (0.0, share)
    costs = {"env_s": 8e-5} if which == 0 else {"sample_s": 1.6e-5}
    main = ("acting", "learning")[which]
    return _plant(rng, kind, main, {"contention": contention, **costs}, rules=("weak",))


def _heavy_tails(rng, kind):
    changes = {"noise_cv": float(rng.uniform(0.3, 0.6)), "tail": 2.5, "env_s": 8e-5, "iterations": 300}
    return _plant(rng, kind, "waiting", changes)


def _stalled(rng, kind):
    """A cause as any, and an iteration of one seed that takes very long; from three seeds on the median tells."""
    planted = _fixed_acting(rng, kind)
    largest = planted.world_sizes[-1]
    seconds = 200 * _ideal(planted.truth, 1)
    truth = replace(planted.truth, stalls={(largest, 0, 40): seconds})
    return replace(planted, truth=truth, seeds=max(3, planted.seeds))


def _mixed(rng, kind):
    """Everything at once, of any size; the main cause is the largest where it is clearly so."""

    def changes(t):
        ideal, exchanges = _ideal(t, 8), t.num_epochs * t.num_minibatches + _EXCHANGES
        some = {
            "latency_s": rng.uniform(0, 0.7) * ideal / exchanges / 7,
            "other_s": rng.uniform(0, 0.3) * ideal,
            "step_s": rng.uniform(0, 0.5) * ideal / t.rollout_steps,
            "minibatch_s": rng.uniform(0, 0.5) * ideal / exchanges,
            "noise_cv": float(rng.uniform(0, 0.1)),
        }
        if rng.random() < 0.4:
            some["slow"] = {int(rng.integers(2, 8)): float(rng.uniform(1.2, 2))}
            some["slow_phase"] = str(rng.choice(["rollout", "learn", "both"]))
        elif rng.random() < 0.4:
            some["cores"] = int(rng.choice([2, 4, 8]))
        if t.rule == "weak":
            some["contention"] = tuple(map(float, rng.uniform(0, 0.05, 2)))
        return some

    planted = _plant(rng, kind, "", changes, missing_one=0)
    if rng.random() < 0.2:  # as little as there can be
        planted = replace(planted, world_sizes=(1, planted.world_sizes[-1]))
        planted = replace(planted, truth=replace(planted.truth, cores=None))
    return with_clear_main(planted)


def with_clear_main(study: Planted) -> Planted:
    """Return the study with the largest cause as its main one, if that is clearly the largest."""
    shares = true_shares(study.truth, study.world_sizes[-1])
    first, second = sorted(shares, key=lambda cause: -shares[cause])[:2]
    clear = shares[first] > 0.1 and shares[first] - shares[second] > 0.05
    return replace(study, main=first if clear else "")


KINDS = {
    "latency": _latency,
    "bandwidth": _bandwidth,
    "slow rank": _slow_rank,
    "half of the ranks slow": _half_slow,
    "slow learner": _slow_learner,
    "slow node": _slow_node,
    "crowded cores": _crowded,
    "serial rest": _serial,
    "learning that does not shrink": _fixed_learning,
    "acting that does not shrink": _fixed_acting,
    "contention": _contended,
    "heavy tails": _heavy_tails,
    "a stall": _stalled,
    "many causes": _mixed,
}
