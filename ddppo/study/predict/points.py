"""From runs to what the fit takes from them: at each W the means of the median run, their errors, and what it did."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddppo.study.measure.slow import PHASES, slowness, standard_error
from ddppo.study.predict import collective_cost
from ddppo.study.predict.collective_cost import Messages
from ddppo.study.read.record import PARTS, SLEEPING_TASK, Run, by_world_size

_LEAST_ERROR = 0.01  # of t_iter: a part need not be known better than that


@dataclass(frozen=True, slots=True)
class Load:
    """What an iteration of W ranks has to do that are otherwise as those of `run`.

    num_epochs: passes over the batch, fewer on average where target_kl ends them. cores: that all W ranks share.
    """

    run: Run
    world_size: int
    rollout_steps: int
    local_num_envs: float
    num_epochs: float
    num_minibatches: int
    num_parameters: float
    num_hosts: int
    cores: float

    @property
    def crowded(self) -> float:
        """How many ranks share a core, at least 1."""
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
        """Collectives of an iteration: besides sums two gathers, to agree and to report, and one of KL every epoch."""
        ppo = self.run.config.get("ppo") or {}
        per_epoch = ppo.get("target_kl") is not None or ppo.get("lr_schedule") == "adaptive"
        return self.num_segments + 2 + (self.run.num_epochs if per_epoch else 0)

    @property
    def messages(self) -> Messages:
        """The messages of all of them; what is gathered is a few hundred bytes, which are left out."""
        num_bytes = self.num_parameters * self.run.number_bytes
        by, hosts = _collective(self.run), self.num_hosts
        sums = collective_cost.own_sum(self.world_size, num_bytes, by, hosts).times(self.num_segments)
        gather = collective_cost.own_sum(self.world_size, 0, by, hosts)
        return sums.plus(gather.times(self.num_calls - self.num_segments))


@dataclass(frozen=True, slots=True)
class Point:
    """The runs of one W, as the fit takes them; durations are means in seconds, over iterations and ranks.

    means: of the median run by FPS, or of the two in the middle, slow ranks' extra taken off; t_other is all that the
    other parts leave of steps / FPS. sampling: their standard errors; errors: and at least 1 % of t_iter, by which they
    are weighted. fps: of all runs. slow: {rank: times the others' rollout, and learning}. writer_s: what rank 0 needs
    more of t_other.
    """

    run: Run
    load: Load
    fps: tuple[float, ...]
    means: dict[str, float]
    sampling: dict[str, float]
    errors: dict[str, float]
    slow: dict[int, tuple[float, float]]
    writer_s: float

    @property
    def world_size(self) -> int:
        return self.run.world_size

    @property
    def step_s(self) -> float | None:
        """Seconds of an environment's step, of the task that tells them."""
        return float(self._kwargs.get("step_time_s", 0.0)) if self.run.env_id == SLEEPING_TASK else None

    @property
    def sleep_s(self) -> float:
        """How much of them it sleeps."""
        return 0.0 if self._kwargs.get("busy", False) else self.step_s or 0.0

    @property
    def stepping(self) -> str:
        """Who stepped the environments, e.g. "sync"."""
        return self.run.origin.env_backend or str(self.env.get("backend", "sync"))

    @property
    def env_processes(self) -> float:
        """How many environments of a rank sleep at once: as many as a pool has processes, by default one each."""
        if self.stepping not in ("pool", "async"):  # async, one process each, was before there were pools
            return 1.0
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
    """Return the passes over the batch that were made, on average; target_kl may end them early."""
    done = run.stability.get("epochs", np.array([math.nan]))
    return float(np.nanmean(done)) if not np.isnan(done).all() else float(run.num_epochs)


def _point(runs: Sequence[Run]) -> Point:
    """Return the point of runs, by FPS ascending."""
    middle = runs[(len(runs) - 1) // 2 : len(runs) // 2 + 1]
    run, slow = middle[0], _slow(middle[0])
    each = [_means(r) for r in middle]
    means = {p: float(np.mean([m[p] for m in each])) for p in PARTS}
    sampling = {
        p: float(np.mean([standard_error(r.times[p].mean(axis=1))[0] for r in middle])) for p in PARTS
    }
    least = _LEAST_ERROR * sum(means.values())
    first, *others = run.times["t_other"].mean(axis=0).tolist()
    return Point(
        run=run,
        load=Load(
            run,
            run.world_size,
            run.rollout_steps,
            float(np.mean(run.steps)) / run.world_size / run.rollout_steps,
            done_epochs(run),
            run.num_minibatches,
            run.num_parameters,
            run.origin.num_hosts,
            run.cores,
        ),
        fps=tuple(r.fps for r in runs),
        means=means,
        sampling=sampling,
        errors={p: math.hypot(e, least) for p, e in sampling.items()},
        slow=slow,
        writer_s=max(0.0, first - float(np.mean(others))) if others else 0.0,
    )


def _means(run: Run) -> dict[str, float]:
    """Return the means of the parts, slow ranks' extra taken off."""
    means, slow = {p: float(run.times[p].mean()) for p in PARTS}, _slow(run)
    known = sum(means[p] for p in PARTS if p != "t_other")
    means["t_other"] = max(0.0, float(run.steps.mean()) / run.fps - known)
    for i, part in enumerate(PHASES):
        means[part] /= 1 + sum(times[i] - 1 for times in slow.values()) / run.world_size
    return means


def _slow(run: Run) -> dict[int, tuple[float, float]]:
    found = slowness(run, expected={}, turns=max(1.0, run.world_size / run.cores)).ranks
    acting, learning = (found.get(phase, {}) for phase in PHASES)
    return {rank: (acting.get(rank, 1.0), learning.get(rank, 1.0)) for rank in sorted({*acting, *learning})}


def _collective(run: Run) -> str:
    """Return by what its ranks exchanged; a run of one, or from before summary.json said so, stands for its device."""
    said, on_gpu = run.origin.collective, run.origin.device != "cpu"
    return {"": "nccl" if on_gpu else "gloo", "none": "nccl" if on_gpu else "shm"}.get(said, said)
