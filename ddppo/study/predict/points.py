"""From runs to what the fit takes from them: at each W the means of the median run, their errors, and what it did."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddppo.study.predict import collective_cost
from ddppo.study.predict.collective_cost import Messages
from ddppo.study.predict.variance import standard_error, variance_components
from ddppo.study.runs import PARTS, SLEEPING_TASK, Run

_CLEARLY = 1.1  # times the reference rank: slower is slow
_MATTERS = 0.01  # of t_iter
_LEAST_ERROR = 0.01  # of t_iter: a part need not be known better than that


@dataclass(frozen=True, slots=True)
class Load:
    """What an iteration at W has to do: sizes of a rank, messages of all its collectives, ranks of a core.

    num_segments: minibatches, K * M, fewer on average where target_kl ends epochs. crowded: at least 1.
    """

    world_size: int
    rollout_steps: int
    local_num_envs: float
    num_segments: float
    num_minibatches: int
    num_calls: float
    messages: Messages
    crowded: float

    @property
    def local_batch_size(self) -> float:
        return self.local_num_envs * self.rollout_steps

    @property
    def others(self) -> float:
        """How many other ranks run at the same time as one, as far as there are cores."""
        return self.world_size / self.crowded - 1

    @property
    def minibatch_size(self) -> float:
        return self.local_batch_size / self.num_minibatches


@dataclass(frozen=True, slots=True)
class Spread:
    """How rollouts of ranks differ. gap: mean of (the longest - their mean) / mean, and its standard error.

    residuals: deviations of rollouts from their mean, without what all ranks share in an iteration, of variance 1.
    """

    gap: float
    gap_error: float
    residuals: np.ndarray


@dataclass(frozen=True, slots=True)
class Slow:
    """What a slow rank takes longer, seconds an iteration in its rollout, and a part of its learning."""

    rollout_s: float
    learning: float


@dataclass(frozen=True, slots=True)
class Point:
    """The runs of one W, as the fit takes them; durations are means in seconds, over iterations and ranks.

    means: of the median run by FPS, or of the two in the middle, slow ranks' extra taken off; t_other is all that the
    other parts leave of steps / FPS. sampling: their standard errors; errors: and at least 1 % of t_iter, by which they
    are weighted. fps: of all runs. writer_s: what rank 0 needs more of t_other. spread: None where no ranks are told.
    """

    run: Run
    load: Load
    fps: tuple[float, ...]
    means: dict[str, float]
    sampling: dict[str, float]
    errors: dict[str, float]
    slow: dict[int, Slow]
    writer_s: float
    spread: Spread | None

    @property
    def world_size(self) -> int:
        return self.run.world_size

    @property
    def step_s(self) -> float | None:
        """Seconds of an environment's step, of the task that tells them."""
        kwargs = _section(self.run, "env").get("kwargs") or {}
        return float(kwargs.get("step_time_s", 0.0)) if self.run.env_id == SLEEPING_TASK else None

    @property
    def asleep(self) -> bool:
        kwargs = _section(self.run, "env").get("kwargs") or {}
        return self.step_s is not None and not kwargs.get("busy", False)

    @property
    def stepping(self) -> str:
        """Who stepped the environments, e.g. "sync"."""
        return self.run.origin.env_backend or str(_section(self.run, "env").get("backend", "sync"))

    @property
    def env_processes(self) -> float:
        """How many environments of a rank sleep at once: as many as a pool has processes, by default one each."""
        if self.stepping not in ("pool", "async"):  # async, one process each, was before there were pools
            return 1.0
        return float(_section(self.run, "env").get("num_workers") or math.inf)


def points(runs: Sequence[Run]) -> list[Point]:
    """Return a point for each W and model size, W ascending."""
    groups: dict[tuple[int, int], list[Run]] = {}
    for run in sorted(runs, key=lambda r: (r.world_size, r.num_parameters)):
        groups.setdefault((run.world_size, run.num_parameters), []).append(run)
    slow = slow_ranks(runs)
    return [_point(same, slow) for same in groups.values()]


def load(
    run: Run,
    world_size: int,
    *,
    rollout_steps: int,
    local_num_envs: float,
    num_epochs: float,
    num_minibatches: int,
    num_parameters: float,
    num_hosts: int,
    cores: float,
) -> Load:
    """Return what W ranks would have to do that are otherwise as those of `run`."""
    num_sums = num_epochs * num_minibatches
    ppo = _section(run, "ppo")
    per_epoch = ppo.get("target_kl") is not None or ppo.get("lr_schedule") == "adaptive"
    num_gathers = 2 + (run.num_epochs if per_epoch else 0)
    messages = collective_cost.NOTHING
    if world_size > 1:
        # Agreeing: a count per minibatch and 9 moments. Reporting: 14 numbers and two stamps per collective. KL: one.
        gathered = (
            8 * (num_sums + 9) + 8 * (14 + 2 * (num_sums + num_gathers)) + 8 * (num_gathers - 2)
        ) / num_gathers
        num_bytes = num_parameters * (8 if run.config.get("dtype") == "float64" else 4)
        collective = _collective(run)
        sums = collective_cost.own_sum(world_size, num_bytes, collective, num_hosts).times(num_sums)
        gathers = collective_cost.own_gather(world_size, gathered, collective).times(num_gathers)
        messages = sums.plus(gathers)
    return Load(
        world_size=world_size,
        rollout_steps=rollout_steps,
        local_num_envs=local_num_envs,
        num_segments=num_sums,
        num_minibatches=num_minibatches,
        num_calls=num_sums + num_gathers,
        messages=messages,
        crowded=max(1.0, world_size / cores),
    )


def done_epochs(run: Run) -> float:
    """Return the passes over the batch that were made, on average; target_kl may end them early."""
    done = run.stability.get("epochs", np.array([]))
    done = done[np.isfinite(done)]
    return float(done.mean()) if done.size else float(run.num_epochs)


def slow_ranks(runs: Sequence[Run]) -> dict[str, set[int]]:
    """Return the ranks that are slow to act ("t_rollout") and to learn ("t_learn") in every run that has them, W >= 2.

    Slow: over 1.1 times as long as the reference, the lower median rank, by more than 1 % of t_iter, and by more than 4
    standard errors of the rank's mean. Random differences between ranks belong to the noise instead.
    """
    many = [run for run in runs if run.world_size > 1 and run.tells_ranks]
    slow = {}
    for part in ("t_rollout", "t_learn"):
        having: dict[int, list[bool]] = {}
        for run in many:
            excess, reference = _excess(run, part)
            matters = _MATTERS * float(run.times["t_iter"].mean())
            least = np.maximum(
                (_CLEARLY - 1) * reference, np.maximum(matters, 4 * standard_error(run.times[part]))
            )
            for rank, is_slow in enumerate(excess > least):
                having.setdefault(rank, []).append(bool(is_slow))
        slow[part] = {rank for rank, each in having.items() if all(each)}
    return slow


def _excess(run: Run, part: str) -> tuple[np.ndarray, float]:
    """Return by how much each rank is above the reference, mean seconds `[W]`, and the reference."""
    means = run.times[part].mean(axis=0)
    reference = float(np.sort(means)[(run.world_size - 1) // 2])
    return means - reference, reference


def _slow(run: Run, ranks: dict[str, set[int]]) -> dict[int, Slow]:
    if run.world_size < 2 or not run.tells_ranks:
        return {}
    acting, _ = _excess(run, "t_rollout")
    learning, reference = _excess(run, "t_learn")
    return {
        r: Slow(
            float(acting[r]) if r in ranks["t_rollout"] else 0.0,
            float(learning[r]) / reference if r in ranks["t_learn"] else 0.0,
        )
        for r in sorted(ranks["t_rollout"] | ranks["t_learn"])
        if r < run.world_size
    }


def _point(runs: Sequence[Run], ranks: dict[str, set[int]]) -> Point:
    ranked = sorted(runs, key=lambda r: r.fps)
    middle = ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1]
    run, slow = middle[0], _slow(middle[0], ranks)
    each = [_means(r, _slow(r, ranks)) for r in middle]
    means = {p: float(np.mean([m[p] for m in each])) for p in PARTS}
    least = _LEAST_ERROR * sum(means.values())
    errors = {p: float(np.mean([standard_error(r.times[p].mean(axis=1)) for r in middle])) for p in PARTS}
    local_batch = float(np.mean(run.steps)) / run.world_size
    first, *others = run.times["t_other"].mean(axis=0).tolist()
    spreads = [_spread(r, _slow(r, ranks)) for r in middle]
    return Point(
        run=run,
        load=load(
            run,
            run.world_size,
            rollout_steps=run.rollout_steps,
            local_num_envs=local_batch / run.rollout_steps,
            num_epochs=done_epochs(run),
            num_minibatches=run.num_minibatches,
            num_parameters=run.num_parameters,
            num_hosts=run.origin.num_hosts,
            cores=run.cores,
        ),
        fps=tuple(r.fps for r in runs),
        means=means,
        sampling=errors,
        errors={p: math.hypot(e, least) for p, e in errors.items()},
        slow=slow,
        writer_s=max(0.0, first - float(np.mean(others))) if others else 0.0,
        spread=_pooled([s for s in spreads if s is not None]),
    )


def _means(run: Run, slow: dict[int, Slow]) -> dict[str, float]:
    """Return the means of the parts, slow ranks' extra taken off."""
    means = {p: float(run.times[p].mean()) for p in PARTS}
    known = sum(means[p] for p in PARTS if p != "t_other")
    means["t_other"] = max(0.0, float(run.steps.mean()) / run.fps - known)
    means["t_rollout"] -= sum(s.rollout_s for s in slow.values()) / run.world_size
    means["t_learn"] /= 1 + sum(s.learning for s in slow.values()) / run.world_size
    return means


def _spread(run: Run, slow: dict[int, Slow]) -> Spread | None:
    rollout = run.times["t_rollout"].copy()
    if not run.tells_ranks or run.world_size < 2 or rollout.mean() <= 0.0:
        return None
    for rank, extra in slow.items():
        rollout[:, rank] *= 1 - extra.rollout_s / rollout[:, rank].mean()
    x = rollout / rollout.mean() - 1.0
    gaps = x.max(axis=1) - x.mean(axis=1)
    common, persistent, own = variance_components(rollout)
    shared = common / (common + (own + persistent) / run.world_size) if common > 0 else 0.0
    left = (x - shared * x.mean(axis=1, keepdims=True)).ravel()
    residuals = left / left.std() if left.std() > 0 else np.zeros(0)
    return Spread(float(gaps.mean()), float(standard_error(gaps)), residuals)


def _pooled(spreads: Sequence[Spread]) -> Spread | None:
    if not spreads:
        return None
    gap, error = (float(np.mean([getattr(s, name) for s in spreads])) for name in ("gap", "gap_error"))
    return Spread(gap, error, np.concatenate([s.residuals for s in spreads]))


def _collective(run: Run) -> str:
    """Return by what its ranks exchanged; a run of one, or from before summary.json said so, stands for its device."""
    said = run.origin.collective
    if said not in ("", "none"):
        return said
    on_cpu = run.origin.device == "cpu"  # else the name of a GPU
    return ("shm" if said else "gloo") if on_cpu else "nccl"


def _section(run: Run, name: str) -> dict[str, Any]:
    section = run.config.get(name)
    return section if isinstance(section, dict) else {}
