"""What if? FPS, speedup and efficiency at a W without a run, also for other networks, models, environments and cores.

model = fit(runs); model.predict([1, 2, ..., 1024], WhatIf(latency_s=20e-6, num_envs=256))
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ddppo import scaling
from ddppo.config.fields import check_fields, setting
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape
from ddppo.study.predict.fitting import fit_parameters, with_one_backend
from ddppo.study.predict.intervals import Errors, Law, Prediction, errors, moved, predicted
from ddppo.study.predict.parameters import CostParameters
from ddppo.study.predict.points import Load, Point, done_epochs, points
from ddppo.study.read.record import PARTS, Run

_REPLICATES = 100
_SIZES = ("rollout_steps", "num_minibatches", "num_epochs")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes to the measured system; null keeps what was measured."""

    latency_s: float | None = setting(None, "alpha: seconds per message of any size", low=0, high=1e3)
    bandwidth: float | None = setting(None, "1 / beta: bytes per second between two ranks", low=1, high=1e15)
    num_parameters: int | None = setting(
        None, "parameters of the model; changes communication only", low=1, high=10**13
    )
    env_step_s: float | None = setting(None, "seconds per step of one environment", low=0, high=1e6)
    num_envs: int | None = setting(
        None, "environments of all ranks (strong) or of one rank (weak)", low=1, high=10**9
    )
    rollout_steps: int | None = setting(
        None,
        "steps T per environment and iteration; the mean length of episodes where an iteration is whole episodes",
        low=1,
        high=10**9,
    )
    num_epochs: int | None = setting(None, "passes K over the batch", low=1, high=10**4)
    num_minibatches: int | None = setting(None, "minibatches M per epoch", low=1, high=10**6)
    rule: str | None = setting(None, "how the batch follows W", choices=("strong", "weak"))
    cores_per_worker: float | None = setting(None, "cores of a rank; null: as measured", low=1e-3, high=1e6)
    slow_factor: float | None = setting(
        None, "how many times slower one rank acts; 1: no rank is slower", low=1, high=1e6
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def changes(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True, eq=False)
class FittedModel:
    """The model of an iteration, fitted to runs."""

    parameters: CostParameters
    replicates: tuple[CostParameters, ...]  # fitted to points moved by their errors
    points: tuple[Point, ...]  # by W
    fps: dict[int, float]  # measured FPS(W), median over seeds, at the fitted W
    errors: Errors
    notes: tuple[str, ...]  # costs that the runs cannot tell apart, and the like
    cores_per_worker: float | None = None  # for a W without a run, if given

    @property
    def base(self) -> Point:
        """The smallest W; its settings hold for every W."""
        return self.points[0]

    @property
    def cores_of_each(self) -> float | None:
        """Cores of a rank at a W without a run: as given, or as at the largest W if another W had the same number.

        None if all W share the cores of one machine.
        """
        if self.cores_per_worker is not None:
            return self.cores_per_worker
        # The same number of cores for each rank at two W: a cluster, not one shared machine.
        each = [p.run.cores / p.world_size for p in self.points]
        return each[-1] if each.count(each[-1]) > 1 else None

    @property
    def cores_rule(self) -> str:
        """A sentence about the cores that ranks are assumed to have at a W without a run."""
        if (each := self.cores_of_each) is not None:
            how = "as at the largest W measured" if self.cores_per_worker is None else "as asked"
            return f"A W that was not measured gets {each:g} core{'s' * (each != 1)} for each worker, {how}."
        cores = dict.fromkeys(sorted({p.run.cores for p in self.points}))
        shared = " or ".join(map(str, cores))
        return f"All workers share {shared} cores, as measured; cores_per_worker=1 gives each its own."

    def _cores(self, world_size: int) -> float:
        measured = {p.world_size: p.run.cores for p in self.points}
        if world_size not in measured and self.cores_of_each is not None:
            return self.cores_of_each * world_size
        return measured[min(measured, key=lambda w: abs(np.log(w / world_size)))]

    def predict(self, world_sizes: Sequence[int], what_if: WhatIf | None = None) -> list[Prediction]:
        """Return predictions for the world sizes. Raises ConfigError for one that strong scaling refuses."""
        what_if, base = what_if or WhatIf(), self.base.world_size
        # All fits predict all W; the first is the fit itself, the others give the interval.
        laws = [_changed(law, what_if) for law in (self.parameters, *self.replicates)]
        loads = {w: self._load(w, what_if) for w in {base, *world_sizes}}
        made = {w: [law.expected(load) for law in laws] for w, load in loads.items()}
        fps = {w: np.array([iteration.fps for iteration in each]) for w, each in made.items()}
        return [predicted(w, base, (fps[w], fps[base]), self.errors, made[w][0].parts) for w in world_sizes]

    def without(self, world_size: int) -> "FittedModel":
        """Return the model fitted to the other W."""
        others = [p for p in self.points if p.world_size != world_size]
        return fit_points(others, [], self.cores_per_worker, len(self.replicates) // 2)

    def shape(self, world_size: int, what_if: WhatIf | None = None) -> BatchShape:
        """Return the batch at W, by the runs' scaling rule or that of `what_if`."""
        what_if, run, local = what_if or WhatIf(), self.base.run, self.base.load.local_num_envs
        rule = what_if.rule or run.rule
        # Strong scaling starts from the environments of all ranks, weak scaling from those of one rank.
        num_envs = what_if.num_envs or round(local * run.world_size if rule == "strong" else local)
        sizes = {name: getattr(what_if, name) or getattr(run, name) for name in _SIZES}
        sizes |= {"num_envs": num_envs, "world_size": world_size}
        if rule == "strong" and run.whole_episodes and world_size > num_envs:
            raise ConfigError(
                f"W={world_size} exceeds the {num_envs} environments, and an iteration is one whole episode of each, "
                f"so each rank needs one: use at most {num_envs}, or num_envs={world_size}"
            )
        if rule == "strong":
            return scaling.strong(**sizes)
        return scaling.weak(**sizes, learning_rate_rule="none")

    def divides(self, world_size: int, what_if: WhatIf | None = None) -> bool:
        """Return whether W ranks can share the batch: more ranks than environments must divide it."""
        try:
            self.shape(world_size, what_if)
        except ConfigError:
            return False
        return True

    def _load(self, world_size: int, what_if: WhatIf) -> Load:
        """Return the work of W ranks, which communicate as at the largest W, with as many ranks on a host."""
        shape, run = self.shape(world_size, what_if), self.points[-1].run
        # Whole episodes are as long as in the runs, on average.
        steps: float = shape.rollout_steps
        if run.whole_episodes and what_if.rollout_steps is None:
            steps = self.base.load.rollout_steps
        # Hosts grow in proportion to W.
        hosts, each = run.origin.num_hosts, what_if.cores_per_worker
        return Load(
            run,
            world_size,
            steps,
            shape.num_envs / world_size,
            done_epochs(self.base.run) if what_if.num_epochs is None else what_if.num_epochs,
            shape.num_minibatches,
            what_if.num_parameters or run.num_parameters,
            1 if hosts <= 1 else max(1, round(world_size * hosts / run.world_size)),
            self._cores(world_size) if each is None else each * world_size,
            shape.local_num_envs * world_size / shape.num_envs,
        )


def fit(
    runs: Sequence[Run], *, cores_per_worker: float | None = None, replicates: int = _REPLICATES
) -> FittedModel:
    """Fit the model to runs of one task at one or more W; `replicates` more fits are for the intervals.

    Raises ConfigError for runs without times, of several tasks, or of a topology other than ddp.
    """
    if not all(run.ranks_are_alike for run in runs):
        raise ConfigError(
            "the model describes workers that all act and learn (distributed=ddp), not other topologies"
        )
    usable = [r for r in runs if has_times(r)]
    if not usable:
        raise ConfigError(
            f"none of {len(runs)} runs has the times of its iterations and parts: a model needs folders that "
            "ddppo.train wrote (metrics.jsonl), of at least 2 iterations after warm-up"
        )
    # One model describes one task under one scaling rule.
    tasks = sorted({(r.env_id, r.rule) for r in usable})
    if len(tasks) > 1:
        raise ConfigError(f"one model is fitted to one task and scaling rule, not to {tasks}")
    without = len(runs) - len(usable)
    note = f"{without} of {len(runs)} runs are left out: they have no times of their parts"
    return fit_points(points(usable), [note] if without else [], cores_per_worker, replicates)


def fit_points(
    all_points: Sequence[Point], notes: list[str], cores_per_worker: float | None, replicates: int
) -> FittedModel:
    """Fit the model to points in order of W; costs that cannot be told apart are added to `notes`."""
    if slow := sorted({rank for p in all_points for rank in p.slow}):
        listed = ", ".join(map(str, slow))
        notes.append(f"always slower than the others: rank {listed}; slow_factor=1 shows the system without")
    # The fit, and the same fit to points moved by their errors.
    fitted = fit_parameters(all_points, notes)
    rng = np.random.default_rng(0)
    fits = [fit_parameters(_moved(all_points, rng), []) for _ in range(replicates)]
    # The errors of the fit, also when fitted to some of the W.
    measured = {p.world_size: float(np.median(p.fps)) for p in all_points}
    loads = {p.world_size: p.load for p in all_points}
    alike = {p.world_size: measured[p.world_size] for p in with_one_backend(all_points, [])}

    def law(parameters: CostParameters) -> Law:
        return lambda world_size: parameters.expected(loads[world_size]).fps

    def refit(world_sizes: Sequence[int]) -> Law:
        refitted = fit_parameters([p for p in all_points if p.world_size in world_sizes], [])
        # Slow ranks are those of the whole fit: other W may not have them.
        return law(replace(refitted, slow=fitted.slow | refitted.slow))

    off = errors(alike, law(fitted), refit)
    return FittedModel(fitted, tuple(fits), tuple(all_points), measured, off, tuple(notes), cores_per_worker)


def has_times(run: Run) -> bool:
    """Return whether the run has all parts of at least 2 iterations (or their means, from a table), and its sizes."""
    least = 2 if run.config else 1
    sizes = (run.rollout_steps, run.num_epochs, run.num_minibatches, run.num_parameters, run.cores)
    return (
        all(p in run.times and len(run.times[p]) >= least for p in ("t_iter", *PARTS))
        and all(bool(np.isfinite(t).all()) for t in (*run.times.values(), run.steps))
        and all(size > 0 for size in sizes)
    )


def _moved(all_points: Sequence[Point], rng: np.random.Generator) -> list[Point]:
    """Return the points with means moved by their errors: by one factor for each W, and each part by itself."""
    # A factor for each W (runs differ), and an error for each part (iterations differ).
    factors = moved({p.world_size: p.fps for p in all_points}, rng)
    others = []
    for p in all_points:
        off = {part: error * float(rng.standard_normal()) for part, error in p.sampling.items()}
        means = {part: max(0.0, factors[p.world_size] * mean + off[part]) for part, mean in p.means.items()}
        others.append(replace(p, means=means))
    return others


def _changed(fitted: CostParameters, what_if: WhatIf) -> CostParameters:
    """Return the parameters with the changes of `what_if` to single costs."""
    changes: dict[str, Any] = {} if what_if.latency_s is None else {"latency_s": what_if.latency_s}
    if what_if.bandwidth is not None:
        changes["byte_s"] = 1 / what_if.bandwidth
    if what_if.slow_factor is not None:
        more = what_if.slow_factor - 1
        changes["slow"] = {next(iter(fitted.slow), 0): (0.0, more, 0.0)} if more else {}
    if what_if.env_step_s is not None:
        if fitted.env_sleep_s > 0:
            changes["env_sleep_s"] = what_if.env_step_s
        else:
            # Replace the computing of an environment's step: its known time, or else all that an environment adds.
            unit = fitted.step.unit_s
            own = min(unit if fitted.env_step_s is None else fitted.env_step_s, unit)
            changes["step"] = replace(fitted.step, unit_s=unit - own + what_if.env_step_s)
    return replace(fitted, **changes)
