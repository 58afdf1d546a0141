"""Made-up studies that were measured badly, or that have two causes: what `planted` makes, and what went wrong after.

A disturbance changes the runs of a study, not its truth: a report should say that the runs cannot be believed, or say
what it would say of the undisturbed ones.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from ddppo.study.read.record import Machine, Run
from tests.study import planted
from tests.study.planted import Planted

_START = datetime(2026, 1, 1, tzinfo=UTC)
_GAP_S = 3.0  # from the end of a run to the start of the next
Disturbance = Callable[[list[Run]], list[Run]]


def slowed(run: Run, factors) -> Run:
    """Return the run with every iteration longer by a factor, on all clocks."""
    factors = np.broadcast_to(np.asarray(factors, float), (len(run.steps),))
    times = {name: t * factors[:, None] for name, t in run.times.items()}
    before, after = float(run.times["t_iter"].mean()), float(times["t_iter"].mean())
    wall_s = run.wall_s * after / before
    return replace(run, times=times, fps=run.fps * before / after, wall_s=wall_s)


def at(runs: list[Run], change: Callable[[Run], Run], *world_sizes: int, seeds=None) -> list[Run]:
    return [
        change(run) if run.world_size in world_sizes and (seeds is None or run.seed in seeds) else run
        for run in runs
    ]


def one_after_another(runs: list[Run], *, interleaved: bool) -> list[Run]:
    """Return the runs with their start and end: seeds in turn over W, or all seeds of a W before the next W."""
    key = (lambda r: (r.seed, r.world_size)) if interleaved else (lambda r: (r.world_size, r.seed))
    now, timed = _START, {}
    for run in sorted(runs, key=key):
        end = now + timedelta(seconds=run.wall_s)
        timed[run.path] = now.isoformat(), end.isoformat()
        now = end + timedelta(seconds=_GAP_S)
    return [
        replace(
            run, origin=replace(run.origin, started_at=timed[run.path][0], finished_at=timed[run.path][1])
        )
        for run in runs
    ]


# -- Kinds: functions of a random generator and the kind's name -------------------------------------------------------


def _like(rng, name: str, **changes) -> Planted:
    """A study of another kind, with changes."""
    return replace(planted.KINDS[name](rng, name), **changes)


_QUIET = ("acting that does not shrink", "learning that does not shrink", "latency", "serial rest")


def _any(rng) -> Planted:
    """A study with an ordinary cause, and W=1."""
    while True:
        found = _like(rng, str(rng.choice(_QUIET)))
        if found.world_sizes[0] == 1:
            return replace(found, seeds=max(3, found.seeds))


def _disturbed(rng, kind, doubts, disturb, study=None) -> Planted:
    study = study or _any(rng)
    return replace(study, kind=kind, doubts=doubts, disturb=disturb)


def _calm(rng, kind):
    return replace(planted._plant(rng, kind, "", {}), kind=kind)


def _cached(rng, kind):
    """Learning gains more than ideal: small minibatches fit the cache. The cause is seen, W=1 is as it should be."""
    study = planted._plant(rng, kind, "", {"sample_s": 1.6e-5}, missing_one=0, rules=("strong",))
    gain = float(rng.uniform(0.45, 0.6))

    def faster(run):
        times = {name: t.copy() for name, t in run.times.items()}
        saved = (1 - gain) * times["t_learn"]
        times["t_learn"] -= saved
        times["t_iter"] -= saved
        before, after = float(run.times["t_iter"].mean()), float(times["t_iter"].mean())
        return replace(run, times=times, fps=run.fps * before / after, wall_s=run.wall_s * after / before)

    many = study.world_sizes[1:]
    speeds = {w: _ratio(faster, planted.run(replace(study.truth, run_cv=0.0), w, 0)) for w in many}
    return replace(study, disturb=lambda runs: at(runs, faster, *many), shift=speeds)


def _ratio(change, run):
    return change(run).fps / run.fps


def _base_in_stretches(rng, kind):
    """W=1 is disturbed in all seeds, for stretches of iterations."""
    factor = float(rng.uniform(1.6, 2.5))

    def jump(run):
        n = len(run.steps)
        start = int(rng.integers(n // 8, n // 3))
        slow = np.ones(n)
        slow[start : start + int(rng.uniform(0.3, 0.5) * n)] = factor
        return slowed(run, slow)

    return _disturbed(rng, kind, ("pace", "base"), lambda runs: at(runs, jump, 1))


def _base_throughout(rng, kind):
    """W=1 is slower in all seeds and iterations: only its efficiency tells, if at all."""
    factor = float(rng.uniform(1.3, 2.0))
    study = replace(planted._plant(rng, kind, "", {}, missing_one=0), seeds=int(rng.integers(3, 9)))
    return _disturbed(rng, kind, ("base",), lambda runs: at(runs, lambda r: slowed(r, factor), 1), study)


def _warm_up(rng, kind, study=None, w=None):
    study = study or _any(rng)
    where = w or int(rng.choice(study.world_sizes))
    part, factor = float(rng.uniform(0.05, 0.25)), float(rng.uniform(1.5, 10))

    def warm(run):
        slow = np.ones(len(run.steps))
        slow[: max(3, int(part * len(slow)))] = factor
        return slowed(run, slow)

    return _disturbed(rng, kind, (), lambda runs: at(runs, warm, where), study)


def _compiled(rng, kind):
    study = _any(rng)
    count, factor = int(rng.integers(1, 4)), float(rng.uniform(20, 400))

    def compiling(run):
        slow = np.ones(len(run.steps))
        slow[:count] = factor
        return slowed(run, slow)

    return _disturbed(rng, kind, (), lambda runs: at(runs, compiling, *study.world_sizes[1:]), study)


def _many_stalls(rng, kind):
    study = _any(rng)
    part = float(rng.uniform(0.05, 0.3))

    def stalling(run):
        return slowed(run, np.where(rng.random(len(run.steps)) < part, 30.0, 1.0))

    return _disturbed(
        rng, kind, ("pace", "run"), lambda runs: at(runs, stalling, study.world_sizes[-1]), study
    )


def _step(rng, kind, study=None):
    study = study or _any(rng)
    w, factor = int(rng.choice(study.world_sizes)), float(rng.uniform(1.3, 2.5))
    seeds = set(rng.permutation(study.seeds)[: int(rng.integers(1, study.seeds + 1))].tolist())
    begins = float(rng.uniform(0.35, 0.75))

    def steps(run):
        n = len(run.steps)
        return slowed(run, np.where(np.arange(n) > begins * n, factor, 1.0))

    return _disturbed(rng, kind, ("pace", "run"), lambda runs: at(runs, steps, w, seeds=seeds), study)


def _trend(rng, kind):
    study = _any(rng)
    w, factor = int(rng.choice(study.world_sizes)), float(rng.uniform(1.4, 2.5))

    def rises(run):
        return slowed(run, np.linspace(1, factor, len(run.steps)))

    return _disturbed(rng, kind, ("pace", "base"), lambda runs: at(runs, rises, w), study)


def _learning_trend(rng, kind):
    """Every run becomes slower in the same way, because episodes change: that is training, not the machine."""
    study, factor = _any(rng), float(rng.uniform(1.2, 1.6))
    every = study.world_sizes
    return _disturbed(
        rng,
        kind,
        (),
        lambda runs: at(
            runs, lambda r: slowed(r, np.linspace(1, factor, len(r.steps)) / (1 + factor) * 2), *every
        ),
        study,
    )


def _processor(rng, kind):
    study = _any(rng)
    w, factor = study.world_sizes[-1], float(rng.uniform(1.1, 1.6))

    def elsewhere(run):
        return slowed(run, factor) if run.world_size == w else run

    def change(runs):
        return [
            replace(
                r,
                origin=replace(
                    r.origin, machines=(Machine("host0", "Xeon" if r.world_size != w else "Atom"),)
                ),
            )
            for r in map(elsewhere, runs)
        ]

    return _disturbed(rng, kind, ("processor",), change, study)


def _other_hosts(rng, kind):
    study = _any(rng)
    w, factor = int(rng.choice(study.world_sizes[1:])), float(rng.uniform(1.1, 1.5))

    def elsewhere(run):
        there = replace(run.origin, hostname="host9", hosts=("host9",) * run.world_size)
        return replace(slowed(run, factor), origin=there)

    return _disturbed(rng, kind, ("hosts",), lambda runs: at(runs, elsewhere, w), study)


def _drifting(rng, kind, study=None):
    """A machine that becomes slower from run to run, in the order of W."""
    study = study or _any(rng)
    total = float(rng.uniform(1.15, 1.5))

    def change(runs):
        timed = one_after_another(runs, interleaved=False)
        starts = {r.path: datetime.fromisoformat(r.origin.started_at).timestamp() for r in timed}
        first, last = min(starts.values()), max(starts.values())
        return [slowed(r, total ** ((starts[r.path] - first) / (last - first))) for r in runs]

    return _disturbed(rng, kind, ("order", "base"), change, study)


def _overlapping(rng, kind):
    """All runs of the sweep at once on one host."""
    study = _any(rng)

    def change(runs):
        factor = float(rng.uniform(1.2, 3))
        n = len(runs)
        timed = one_after_another(runs, interleaved=False)
        same = [replace(r, origin=replace(r.origin, started_at=timed[0].origin.started_at)) for r in runs]
        ended = [
            replace(
                r, origin=replace(r.origin, finished_at=(_START + timedelta(seconds=r.wall_s)).isoformat())
            )
            for r in same
        ]
        return [slowed(r, factor * (1 + 0.5 * rng.random(len(r.steps)))) if n > 1 else r for r in ended]

    return replace(_disturbed(rng, kind, ("overlap",), change, study), timed=False)


def _odd_seed(rng, kind, study=None):
    study = study or _any(rng)
    w, factor = int(rng.choice(study.world_sizes)), float(rng.uniform(1.3, 3))
    seed = int(rng.integers(study.seeds))
    return _disturbed(
        rng, kind, ("run",), lambda runs: at(runs, lambda r: slowed(r, factor), w, seeds={seed}), study
    )


def _shifted(rng, kind):
    """Each W has a shift of its own (host, hour), and the seeds of a W ran together: no interval can know."""
    study = _any(rng)
    shift = {w: float(np.exp(0.05 * rng.standard_normal())) for w in study.world_sizes}
    return _disturbed(
        rng,
        kind,
        (),
        lambda runs: [slowed(r, 1 / shift[r.world_size]) for r in runs],
        replace(study, shift=shift, today=True),
    )


def _interleaved(rng, kind):
    """Each hour has a shift of its own, and the seeds ran in turn over W."""
    study = replace(_any(rng), interleaved=True)
    cv = 0.05

    def change(runs):
        return [slowed(r, float(np.exp(cv * rng.standard_normal()))) for r in runs]

    return _disturbed(rng, kind, (), change, study)


def _retrograde(rng, kind):
    """The largest W is slower than the one before it."""

    def changes(t):
        exchanges = t.num_epochs * t.num_minibatches + 2
        return {"latency_s": rng.uniform(3, 6) * planted._ideal(t, 8) / exchanges / 7}

    return planted._plant(rng, kind, "communication", changes, missing_one=0, rules=("strong",))


def _slow_at_few(rng, kind):
    """A rank that is slow by a fixed time: much at a small W, little at a large one."""
    study = planted._plant(
        rng, kind, "", {"slow": {1: float(rng.uniform(1.12, 1.3))}, "env_s": 6e-5}, missing_one=0
    )
    return study


def _unseen_cores(rng, kind):
    """Cores are crowded only beyond the largest W."""
    largest = int(rng.choice([4, 8]))
    return planted._plant(
        rng,
        kind,
        "",
        {"cores": largest, "latency_s": 2e-6},
        largest=largest,
        missing_one=0,
        rules=("strong",),
    )


def _unlike_the_law(rng, kind):
    """Contention that no law knows: it grows slower or faster than the number of other ranks."""
    changes = {
        "contention": (float(rng.uniform(0.02, 0.1)), float(rng.uniform(0.0, 0.05))),
        "contention_power": float(rng.uniform(0.4, 1.4)),
        "env_s": 8e-5,
    }
    return planted.with_clear_main(planted._plant(rng, kind, "", changes, missing_one=0))


def _two_seeds(rng, kind):
    return replace(_any(rng), seeds=2, kind=kind)


def _returns(rng, kind, change):
    study = replace(_any(rng), seeds=int(rng.integers(3, 11)))
    w = int(rng.choice(study.world_sizes[1:]))
    return _disturbed(
        rng,
        kind,
        (),
        lambda runs: at(runs, lambda r: replace(r, final_return=change * r.final_return), w),
        replace(study, returns={w: change - 1}),
    )


def _two(rng, kind, first, second):
    """The causes of two kinds at once; the main cause is the larger, if it is clearly so."""
    while True:
        a, b = (_like(rng, name) for name in (first, second))
        if a.truth.rule == b.truth.rule == "strong":
            break
    plain = planted.Truth(rule="strong")
    added = {
        name: getattr(b.truth, name)
        for name in ("latency_s", "byte_s", "slow", "slow_phase", "cores", "other_s", "minibatch_s", "step_s")
        if getattr(b.truth, name) != getattr(plain, name) and getattr(a.truth, name) == getattr(plain, name)
    }
    study = replace(a, truth=replace(a.truth, **added), world_sizes=(1, 2, 4, 8), kind=kind)
    return planted.with_clear_main(study)


DISTURBED = {
    "calm": _calm,
    "cache": _cached,
    "base slow in stretches": _base_in_stretches,
    "base slow throughout": _base_throughout,
    "warm-up": _warm_up,
    "compilation": _compiled,
    "many stalls": _many_stalls,
    "step within runs": _step,
    "trend within runs": _trend,
    "learning changes the pace": _learning_trend,
    "another processor": _processor,
    "other hosts": _other_hosts,
    "drifting machine": _drifting,
    "overlapping runs": _overlapping,
    "odd seed": _odd_seed,
    "a shift of each W": _shifted,
    "a shift of each hour, interleaved": _interleaved,
    "largest W slower": _retrograde,
    "slightly slow rank": _slow_at_few,
    "crowded beyond the largest W": _unseen_cores,
    "contention unlike the law": _unlike_the_law,
    "two seeds": _two_seeds,
    "one W learns better": lambda rng, kind: _returns(rng, kind, 1.15),
    "one W learns less": lambda rng, kind: _returns(rng, kind, 0.85),
    "latency and a slow rank": lambda rng, kind: _two(rng, kind, "slow rank", "latency"),
    "latency and fixed acting": lambda rng, kind: _two(rng, kind, "acting that does not shrink", "latency"),
    "serial rest and a slow learner": lambda rng, kind: _two(rng, kind, "slow learner", "serial rest"),
    "fixed learning and crowded cores": lambda rng, kind: _two(
        rng, kind, "crowded cores", "learning that does not shrink"
    ),
    "warm-up and a slow rank": lambda rng, kind: _warm_up(rng, kind, _strong(rng, "slow rank")),
    "an odd seed and latency": lambda rng, kind: _odd_seed(rng, kind, _strong(rng, "latency")),
    "drift and a slow rank": lambda rng, kind: _drifting(rng, kind, _strong(rng, "slow rank")),
    "a step and crowded cores": lambda rng, kind: _step(rng, kind, _strong(rng, "crowded cores")),
}


def _strong(rng, name):
    while True:
        study = _like(rng, name)
        if study.world_sizes[0] == 1:
            return replace(study, seeds=max(3, study.seeds))
