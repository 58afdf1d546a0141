"""What if: FPS, speedup and efficiency at W not measured, for other networks, models, environments and stragglers.

model = fit(runs); model.predict([1, 2, ..., 1024], WhatIf(latency_s=20e-6, preemption=0.6))
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ddppo import scaling
from ddppo.config import check_fields, setting
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape
from ddppo.study.predict import collective_cost
from ddppo.study.predict.fitting import fit_parameters
from ddppo.study.predict.iteration import Iteration, Preemption, System, expected
from ddppo.study.predict.parameters import Parameters, build_system, system_of_point
from ddppo.study.predict.points import (
    BLOCK,
    Point,
    crowding,
    gradient_messages,
    of_one_stepping,
    points,
    slow_ranks,
)
from ddppo.study.predict.simulate import simulate
from ddppo.study.runs import PARTS, Run

_REPLICATES = 100
_SIMULATED = 2_000  # iterations times W of a prediction by simulation, at least 20 iterations


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes to the measured system; null keeps what was measured. Raises ConfigError for one without effect."""

    latency_s: float | None = setting(
        None, "alpha: seconds a message takes whatever its size", low=0, high=1e3
    )
    bandwidth: float | None = setting(None, "1 / beta: bytes per second between two ranks", low=1, high=1e15)
    call_s: float | None = setting(None, "seconds of a collective at any W (software)", low=0, high=1e3)
    algorithm: str | None = setting(
        None, "how gradients are summed", choices=(*collective_cost.ALGORITHMS, "hierarchical")
    )
    ranks_per_node: int | None = setting(None, "ranks of a node (algorithm=hierarchical)", low=1)
    num_parameters: int | None = setting(
        None, "parameters of the model; only communication follows", low=1, high=10**13
    )
    env_step_s: float | None = setting(None, "seconds of one step of one environment", low=0, high=1e6)
    num_envs: int | None = setting(
        None, "environments of all ranks (strong) or of one (weak)", low=1, high=10**9
    )
    rollout_steps: int | None = setting(None, "steps T per environment and iteration", low=1, high=10**9)
    num_epochs: int | None = setting(None, "passes K over the batch", low=1, high=10**4)
    num_minibatches: int | None = setting(None, "minibatches M per epoch", low=1, high=10**6)
    rule: str | None = setting(None, "how the batch follows W", choices=("strong", "weak"))
    cores_per_worker: float | None = setting(
        None, "cores of a rank; null: all ranks share the measured machine", low=1e-3, high=1e6
    )
    tail: float | None = setting(None, "multiplies the spread of rollouts over ranks", low=0, high=1e3)
    straggler_share: float = setting(0.0, "probability that a rank straggles in an iteration", low=0, high=1)
    straggler_factor: float = setting(1.0, "how many times slower it then is", low=1, high=1e6)
    slow_step_s: float | None = setting(
        None, "seconds that one rank always needs more per vectorised step", low=0, high=1e6
    )
    preemption: float | None = setting(
        None, "share of ranks whose end ends the others' rollouts (DD-PPO: 0.6)", above=0, high=1
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.algorithm == "hierarchical" and self.ranks_per_node is None:
            raise ConfigError("algorithm=hierarchical needs ranks_per_node, e.g. ranks_per_node=8")
        if self.algorithm != "hierarchical" and self.ranks_per_node is not None:
            raise ConfigError("ranks_per_node has no effect without algorithm=hierarchical")
        if (self.straggler_share > 0) != (self.straggler_factor > 1):
            raise ConfigError(
                f"straggler_share={self.straggler_share:g} and straggler_factor={self.straggler_factor:g} have an "
                "effect only together: give the probability and how many times slower, e.g. 0.01 and 3"
            )

    @property
    def changes(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True, slots=True)
class Prediction:
    """One W. Intervals hold 95 %; parts are mean seconds per iteration over ranks and add up to t_iter.

    speedup is FPS(W) / FPS(W_1) of the same system, by the same law, W_1 the smallest W measured; efficiency
    speedup * W_1 / W. t_iter and parts are NaN and empty where a law tells throughput alone.
    """

    world_size: int
    fps: float
    fps_low: float
    fps_high: float
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    t_iter: float
    parts: dict[str, float]


@dataclass(frozen=True, eq=False)
class FittedModel:
    """Parameters fitted to runs, others fitted to resampled runs, and how far the fit is from what it was fitted to.

    misfit: {W: predicted t_iter / measured t_iter - 1}.
    """

    parameters: Parameters
    replicates: tuple[Parameters, ...]
    points: tuple[Point, ...]
    misfit: dict[int, float]
    notes: tuple[str, ...]

    @property
    def base(self) -> Point:
        """The smallest world measured, whose settings hold for all."""
        return min(self.points, key=lambda p: p.run.world_size)

    def cores(self, world_size: int) -> float:
        """Return the cores that W ranks are given, as `cores_rule` says; at a W measured those that it had."""
        measured = {p.run.world_size: p.run.cores for p in self.points}
        if world_size in measured:
            return measured[world_size]
        if self._cores_per_rank is not None:
            return self._cores_per_rank * world_size
        return min(measured.items(), key=lambda wc: abs(np.log(wc[0] / world_size)))[1]

    @property
    def _cores_per_rank(self) -> float | None:
        """Cores per rank of the largest W, where another W has as many; else None: ranks share what there is."""
        measured = {p.run.world_size: p.run.cores for p in self.points}
        largest = max(measured)
        alike = [w for w, cores in measured.items() if cores * largest == measured[largest] * w]
        return measured[largest] / largest if len(alike) > 1 else None

    @property
    def cores_rule(self) -> str:
        """Return in a sentence which cores W ranks are given where W was not measured."""
        if (each := self._cores_per_rank) is not None:
            return f"W not measured are given {each:g} cores for each worker, as the largest W measured had."
        cores = sorted({p.run.cores for p in self.points})
        listed = " or ".join(f"{c:g}" for c in dict.fromkeys((cores[0], cores[-1])))
        return f"All workers share {listed} cores, as measured; cores_per_worker=1 gives each its own."

    def predict(self, world_sizes: Sequence[int], what_if: WhatIf | None = None) -> list[Prediction]:
        """Return predictions for the world sizes. Raises ConfigError for one that the batch cannot be divided by."""
        what_if = what_if or WhatIf()
        ones, baselines, _ = self._outcomes(1, what_if)
        baseline = ones.fps
        predictions = []
        for world_size in world_sizes:
            point, fps, misfits = self._outcomes(world_size, what_if)
            low, high = np.quantile(fps * misfits, (0.025, 0.975))
            against = baselines if world_size > 1 else fps * misfits
            s_low, s_high = np.quantile(fps * misfits / against, (0.025, 0.975))
            speedup = point.fps / baseline
            predictions.append(
                Prediction(
                    world_size=world_size,
                    fps=point.fps,
                    fps_low=float(min(low, point.fps)),
                    fps_high=float(max(high, point.fps)),
                    speedup=speedup,
                    speedup_low=float(min(s_low, speedup)),
                    speedup_high=float(max(s_high, speedup)),
                    efficiency=speedup / world_size,
                    efficiency_low=float(min(s_low, speedup)) / world_size,
                    efficiency_high=float(max(s_high, speedup)) / world_size,
                    t_iter=point.t_iter,
                    parts=point.parts,
                )
            )
        return predictions

    def system(self, world_size: int, what_if: WhatIf | None = None) -> System:
        """Return the system of W ranks, for `iteration.expected` or `simulate`."""
        return self._system(self.parameters, world_size, what_if or WhatIf())

    def shape(self, world_size: int, what_if: WhatIf | None = None) -> BatchShape:
        """Return the batch at W by the rule that the runs followed, or the one that is asked for."""
        what_if, base = what_if or WhatIf(), self.base
        rule = what_if.rule or base.run.rule
        # Strong scaling starts from the environments of all ranks, weak scaling from those of one.
        of_all = base.local_num_envs * base.run.world_size
        num_envs = what_if.num_envs or round(of_all if rule == "strong" else base.local_num_envs)
        sizes = {
            "num_envs": num_envs,
            "rollout_steps": what_if.rollout_steps or base.run.rollout_steps,
            "world_size": world_size,
            "num_minibatches": what_if.num_minibatches or base.run.num_minibatches,
            "num_epochs": what_if.num_epochs or base.run.num_epochs,
        }
        return (
            scaling.strong(**sizes) if rule == "strong" else scaling.weak(**sizes, learning_rate_rule="none")
        )

    def divides(self, world_size: int, what_if: WhatIf | None = None) -> bool:
        """Return whether the batch can be divided among so many ranks."""
        try:
            self.shape(world_size, what_if)
        except ConfigError:
            return False
        return True

    def _outcomes(self, world_size: int, what_if: WhatIf) -> tuple[Iteration, np.ndarray, np.ndarray]:
        """Return the expected iteration, FPS of the replicates, and factors for how far the model itself is off."""
        whole = replace(what_if, preemption=None)
        system = self._system(self.parameters, world_size, whole)
        point = expected(system)
        fps = np.array([expected(self._system(p, world_size, whole)).fps for p in self.replicates])
        if what_if.preemption is not None and world_size > 1:
            preempted = replace(system, preemption=Preemption(what_if.preemption))
            simulated = simulate(preempted, max(20, _SIMULATED // world_size)).mean
            # The simulation is not repeated for every replicate: its interval is that of the same system without.
            fps = fps * (simulated.fps / point.fps)
            point = simulated
        # How far the model may be off where nobody measured: as far as it is off, on average, where somebody did.
        logs = np.log1p(np.array([*self.misfit.values()]))
        off = float(np.sqrt((logs**2).mean()))
        if not what_if.changes and world_size in self.misfit:
            off = abs(float(np.log1p(self.misfit[world_size])))
        rng = np.random.default_rng(world_size)
        return point, fps, np.exp(off * rng.standard_normal(len(fps)))

    def _system(self, fitted: Parameters, world_size: int, what_if: WhatIf) -> System:
        shape, base = self.shape(world_size, what_if), self.base
        fitted = _changed(fitted, what_if)
        crowded = crowding(world_size, self.cores(world_size))
        if what_if.cores_per_worker is not None:
            crowded = crowding(1.0, what_if.cores_per_worker)
        epochs = base.num_epochs if what_if.num_epochs is None else float(what_if.num_epochs)
        num_segments = epochs * shape.num_minibatches
        num_parameters = what_if.num_parameters or base.run.num_parameters
        one_sum = gradient_messages(base.run, world_size, num_parameters)
        sum_s = None
        if what_if.algorithm is not None and world_size > 1:
            sum_s = self._sum_s(fitted, world_size, num_parameters * base.bytes_per_parameter, what_if)
            sum_s *= 1 + fitted.comm_crowding * (crowded - 1)
        num_bytes = base.gathered_bytes(num_segments) / base.num_gathers
        small = collective_cost.own_gather(world_size, num_bytes, base.collective)
        noise = fitted.noise(shape.local_batch_size)
        if what_if.tail is not None:
            noise = noise.with_cv(noise.cv * what_if.tail)
        noise = noise.with_stragglers(what_if.straggler_share, what_if.straggler_factor)
        return build_system(
            fitted,
            world_size=world_size,
            rollout_steps=shape.rollout_steps,
            local_num_envs=shape.local_num_envs,
            num_epochs=epochs,
            num_minibatches=shape.num_minibatches,
            num_gathers=base.num_gathers,
            sums=one_sum.times(num_segments),
            gathers=small.times(base.num_gathers),
            crowded=crowded,
            sum_s=sum_s,
            noise=noise,
        )

    def _sum_s(self, fitted: Parameters, world_size: int, num_bytes: float, what_if: WhatIf) -> float:
        if what_if.algorithm != "hierarchical":
            assert what_if.algorithm is not None
            messages = collective_cost.ALGORITHMS[what_if.algorithm](world_size, num_bytes)
            return messages.seconds(fitted.latency_s, fitted.byte_s)
        assert what_if.ranks_per_node is not None
        within, across = collective_cost.hierarchical(world_size, num_bytes, what_if.ranks_per_node)
        measured = self.parameters  # on one machine; the given latency and bandwidth are the network's
        return within.seconds(measured.latency_s, measured.byte_s) + across.seconds(
            fitted.latency_s, fitted.byte_s
        )


def fit(runs: Sequence[Run], *, replicates: int = _REPLICATES, seed: int = 0) -> FittedModel:
    """Fit the model to runs of one task at one or more W.

    Intervals come from `replicates` fits to resampled runs: seeds of each W, and blocks of 5 iterations of each run.
    Raises ConfigError for runs that tell no times or belong to different tasks.
    """
    usable = [r for r in runs if tells_times(r)]
    if not usable:
        raise ConfigError(
            f"none of {len(runs)} runs has the times of its ranks and iterations: a model needs folders that "
            "ddppo.train wrote (metrics.jsonl), of at least 2 iterations after warm-up"
        )
    tasks = sorted({(r.env_id, r.rule) for r in usable})
    if len(tasks) > 1:
        raise ConfigError(f"one model is fitted to one task and scaling rule, not to {tasks}")
    notes: list[str] = []
    if len(usable) < len(runs):
        notes.append(
            f"{len(runs) - len(usable)} of {len(runs)} runs are left out: they tell no times per rank"
        )
    slow = slow_ranks(usable)
    if slow:
        named = ", ".join(f"rank {r} ({1e3 * s:.2g} ms per vectorised step)" for r, s in slow.items())
        notes.append(f"always slower than the others: {named}; slow_step_s=0 shows the system without")
    all_points = points(usable, slow)
    fitted = fit_parameters(all_points, slow, lambda: 0.5, notes)
    rng = np.random.default_rng(seed)
    fits = []
    for _ in range(replicates):
        resampled = _resampled(usable, rng)
        fits.append(fit_parameters(points(resampled, slow), slow, lambda: float(rng.uniform()), []))
    misfit = {}
    alike = of_one_stepping(all_points)
    for world_size in sorted({p.run.world_size for p in alike}):
        same = [p for p in alike if p.run.world_size == world_size]
        measured = np.mean([p.means["t_iter"] for p in same])
        predicted = np.mean([expected(system_of_point(fitted, p)).t_iter for p in same])
        misfit[world_size] = float(predicted / measured - 1)
    return FittedModel(fitted, tuple(fits), tuple(all_points), misfit, tuple(notes))


def tells_times(run: Run) -> bool:
    """Return whether the run has every part of at least 2 iterations, and the sizes that they depend on."""
    sizes = (run.rollout_steps, run.num_epochs, run.num_minibatches, run.num_parameters, run.cores)
    return (
        all(p in run.times and len(run.times[p]) >= 2 for p in ("t_iter", *PARTS))
        and all(bool(np.isfinite(t).all()) for t in (*run.times.values(), run.steps))
        and all(size > 0 for size in sizes)
    )


def _resampled(runs: Sequence[Run], rng: np.random.Generator) -> list[Run]:
    """Return as many runs per W, drawn with replacement, each with blocks of its iterations drawn with replacement."""
    chosen = []
    for world_size in sorted({r.world_size for r in runs}):
        same = [r for r in runs if r.world_size == world_size]
        for pick in rng.integers(len(same), size=len(same)):
            run = same[pick]
            n = len(run.steps)
            starts = rng.integers(max(1, n - BLOCK + 1), size=-(-n // BLOCK))
            index = (starts[:, None] + np.arange(BLOCK)).ravel()[:n] % n
            times = {part: t[index] for part, t in run.times.items()}
            chosen.append(replace(run, times=times, steps=run.steps[index]))
    return chosen


def _changed(fitted: Parameters, what_if: WhatIf) -> Parameters:
    """Return the parameters with the changes that concern what single things cost."""
    changes: dict[str, Any] = {}
    if what_if.latency_s is not None:
        changes["latency_s"] = what_if.latency_s
    if what_if.bandwidth is not None:
        changes["byte_s"] = 1 / what_if.bandwidth
    if what_if.call_s is not None:
        changes["call_s"] = what_if.call_s
    if what_if.slow_step_s is not None:
        if not fitted.slow_step_s and what_if.slow_step_s > 0:
            changes["slow_step_s"] = {0: what_if.slow_step_s}
        else:
            changes["slow_step_s"] = dict.fromkeys(fitted.slow_step_s, what_if.slow_step_s)
    if what_if.env_step_s is not None:
        if fitted.env_sleep_s > 0:
            changes["env_sleep_s"] = what_if.env_step_s
        else:
            # What a step of one environment computes; all that an environment adds, where nobody knows better.
            own = min(
                fitted.env_step_s if fitted.env_step_s is not None else fitted.per_env_s, fitted.per_env_s
            )
            changes["per_env_s"] = fitted.per_env_s - own + what_if.env_step_s
    return replace(fitted, **changes)
