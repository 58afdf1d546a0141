"""Which numbers of the runs does the fit use? For each W a `Point`: mean times, their errors, and the work done."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddppo.study.measure.slow import PHASES, slowness, standard_error
from ddppo.study.predict import collective_cost
from ddppo.study.predict.collective_cost import Messages
from ddppo.study.read.record import PARTS, SLEEPING_TASK, Run, by_world_size

_LEAST_ERROR = 0.01  # of t_iter; the fit does not take a part to be known better


@dataclass(frozen=True, slots=True)
class Load:
    """The work of an iteration of W ranks."""

    run: Run  # its settings hold for everything else
    world_size: int
    rollout_steps: float  # if iterations are whole episodes, their mean length
    local_num_envs: float  # mean over ranks
    num_epochs: float  # mean passes over the batch; target_kl may end them early
    num_minibatches: int
    num_parameters: float
    num_hosts: int
    cores: float  # that all ranks share
    imbalance: float = 1.0  # the largest share of the environments relative to the mean

    @property
    def of_largest_share(self) -> "Load":
        """The load as it would be if every rank had as many environments as the first one."""
        return replace(self, local_num_envs=self.local_num_envs * self.imbalance, imbalance=1.0)

    @property
    def crowded(self) -> float:
        """Ranks per core, at least 1."""
        return max(1.0, self.world_size / self.cores)

    @property
    def local_batch_size(self) -> float:
        return self.local_num_envs * self.rollout_steps

    @property
    def minibatch_size(self) -> float:
        return self.local_batch_size / self.num_minibatches

    @property
    def num_segments(self) -> float:
        """Minibatches of an iteration, each with a gradient sum."""
        return self.num_epochs * self.num_minibatches

    @property
    def num_calls(self) -> float:
        """Collectives of an iteration: gradient sums, two gathers (statistics, report), and the KL of each epoch."""
        ppo = self.run.config.get("ppo") or {}
        per_epoch = ppo.get("target_kl") is not None or ppo.get("lr_schedule") == "adaptive"
        return self.num_segments + 2 + (self.run.num_epochs if per_epoch else 0)

    @property
    def messages(self) -> Messages:
        """The messages of all collectives; the few hundred bytes of gathers are neglected."""
        # One gradient sum for each minibatch, and gathers of no size.
        num_bytes = self.num_parameters * self.run.number_bytes
        by, hosts = _collective(self.run), self.num_hosts
        sums = collective_cost.own_sum(self.world_size, num_bytes, by, hosts).times(self.num_segments)
        gather = collective_cost.own_sum(self.world_size, 0, by, hosts)
        return sums.plus(gather.times(self.num_calls - self.num_segments))


@dataclass(frozen=True, slots=True)
class Point:
    """The runs of one W, as the fit uses them. Durations are seconds, means over iterations and ranks."""

    run: Run  # the run with the median FPS
    load: Load
    fps: tuple[float, ...]  # of all runs
    # By part, of the median run or the mean of the two in the middle, without the extra time of slow ranks. t_other is
    # the rest of steps / FPS.
    means: dict[str, float]
    sampling: dict[str, float]  # standard errors of means
    errors: dict[str, float]  # the same, but at least 1 % of t_iter: the weights of the fit
    slow: dict[int, tuple[float, float]]  # {rank: (its rollout / the others', its update / the others')}
    writer_s: float  # t_other of rank 0 beyond that of the others

    @property
    def world_size(self) -> int:
        return self.run.world_size

    @property
    def step_s(self) -> float | None:
        """Seconds of an environment's step, for the task with that setting; None for other tasks."""
        return float(self._kwargs.get("step_time_s", 0.0)) if self.run.env_id == SLEEPING_TASK else None

    @property
    def sleep_s(self) -> float:
        """Seconds of step_s during which the environment sleeps."""
        return 0.0 if self._kwargs.get("busy", False) else self.step_s or 0.0

    @property
    def stepping(self) -> str:
        """The backend that stepped the environments, e.g. "sync"."""
        return self.run.origin.env_backend or str(self.env.get("backend", "sync"))

    @property
    def env_processes(self) -> float:
        """Environments of a rank that sleep at the same time: the processes of a pool, by default one for each."""
        # Async is an older backend: one process for each environment.
        if self.stepping not in (
            "pool",
            "async",
        ):
            return 1.0
        # By setting, or one process for each environment.
        observers = (self.run.config.get("dist") or {}).get("observers")
        return float(self.env.get("num_workers") or observers or math.inf)

    @property
    def env(self) -> dict[str, Any]:
        return self.run.config.get("env") or {}

    @property
    def _kwargs(self) -> dict[str, Any]:
        return self.env.get("kwargs") or {}


def points(runs: Sequence[Run]) -> list[Point]:
    """Return a point for each W, ascending."""
    return [_point(sorted(same, key=lambda run: run.fps)) for same in by_world_size(runs).values()]


def done_epochs(run: Run) -> float:
    """Return the mean number of epochs done; target_kl may end them early."""
    done = run.stability.get("epochs", np.array([math.nan]))
    return float(np.nanmean(done)) if not np.isnan(done).all() else float(run.num_epochs)


def _point(runs: Sequence[Run]) -> Point:
    """Return the point of the runs of one W, which are sorted by FPS."""
    # The median run, or the two in the middle.
    middle = runs[(len(runs) - 1) // 2 : len(runs) // 2 + 1]
    run, slow = middle[0], _slow(middle[0])
    # Means, and standard errors of these means from iteration to iteration.
    each = [_means(r) for r in middle]
    means = {p: float(np.mean([m[p] for m in each])) for p in PARTS}
    sampling = {
        p: float(np.mean([standard_error(r.times[p].mean(axis=1))[0] for r in middle])) for p in PARTS
    }
    # Environments are counted by their steps, because some steps only reset. Whole episodes end before rollout_steps.
    rollout_steps, local_num_envs = float(run.rollout_steps), run.num_envs / run.world_size
    if run.whole_episodes:
        rollout_steps = float(np.mean(run.steps)) / run.num_envs
    else:
        local_num_envs = float(np.mean(run.steps)) / run.world_size / run.rollout_steps
    # Rank 0 writes the records: its t_other is longer.
    least = _LEAST_ERROR * sum(means.values())
    first, *others = run.times["t_other"].mean(axis=0).tolist()
    return Point(
        run=run,
        load=Load(
            run,
            run.world_size,
            rollout_steps,
            local_num_envs,
            done_epochs(run),
            run.num_minibatches,
            run.num_parameters,
            run.origin.num_hosts,
            run.cores,
            max(run.shares) * run.world_size / sum(run.shares),
        ),
        fps=tuple(r.fps for r in runs),
        means=means,
        sampling=sampling,
        errors={p: math.hypot(e, least) for p, e in sampling.items()},
        slow=slow,
        writer_s=max(0.0, first - float(np.mean(others))) if others else 0.0,
    )


def _means(run: Run) -> dict[str, float]:
    """Return the mean seconds of the parts of a run, without the extra time of slow ranks."""
    means, slow = {p: float(run.times[p].mean()) for p in PARTS}, _slow(run)
    # t_other is the wall-clock time outside the other parts, so that all parts sum to steps / FPS.
    known = sum(means[p] for p in PARTS if p != "t_other")
    means["t_other"] = max(0.0, float(run.steps.mean()) / run.fps - known)
    # Divide by the mean factor over ranks, of which slow ranks have more than 1.
    for i, part in enumerate(PHASES):
        means[part] /= 1 + sum(times[i] - 1 for times in slow.values()) / run.world_size
    return means


def _slow(run: Run) -> dict[int, tuple[float, float]]:
    """Return {rank: (its rollout / the others', its update / the others')} for the slow ranks of a run."""
    found = slowness(run, expected={}, turns=max(1.0, run.world_size / run.cores)).ranks
    acting, learning = (found.get(phase, {}) for phase in PHASES)
    return {rank: (acting.get(rank, 1.0), learning.get(rank, 1.0)) for rank in sorted({*acting, *learning})}


def _collective(run: Run) -> str:
    """Return the collective of a run; the usual one of its device if it has W=1 or an old summary.json."""
    name, on_gpu = run.origin.collective, run.origin.device != "cpu"
    return {"": "nccl" if on_gpu else "gloo", "none": "nccl" if on_gpu else "shm"}.get(name, name)
