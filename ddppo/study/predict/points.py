"""From runs to what the fit takes from them: means, their errors, and the messages of an iteration's collectives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddppo.study.predict import collective_cost
from ddppo.study.predict.collective_cost import Messages
from ddppo.study.runs import SLEEPING_TASK, Run

BLOCK = 5  # iterations; neighbours are not independent


def crowding(num_ranks: float, cores: float) -> float:
    """Return how many ranks share a core, at least 1: max(1, ranks / cores) by which computing on all takes longer."""
    return max(1.0, num_ranks / cores)


@dataclass(frozen=True, slots=True)
class Point:
    """What the fit takes from one run; durations are means in seconds, over iterations and ranks.

    spread: standard errors of the means, at least a hundredth of each. rollout leaves the slow rank's extra out.
    sums, gathers: the messages of all gradient sums, and of the other collectives, of an iteration.
    """

    run: Run
    local_batch_size: float
    local_num_envs: float
    num_epochs: float
    means: dict[str, float]
    spread: dict[str, float]
    rollout: np.ndarray  # [iterations, W], the slow rank's extra taken off
    stepping: str
    env_step_s: float | None
    env_asleep: bool
    sums: Messages
    gathers: Messages
    num_gathers: int
    collective: str

    @property
    def bytes_per_parameter(self) -> int:
        return 8 if self.run.config.get("dtype") == "float64" else 4

    def gathered_bytes(self, num_sums: float) -> float:
        """Return the bytes that a rank gives to the gathers of an iteration with `num_sums` gradient sums."""
        return _gathered_bytes(num_sums, self.num_gathers)

    @property
    def num_segments(self) -> float:
        return self.num_epochs * self.run.num_minibatches

    @property
    def crowding(self) -> float:
        return crowding(self.run.world_size, self.run.cores)


def slow_ranks(runs: Sequence[Run]) -> dict[int, float]:
    """Return {rank: seconds per vectorised step} for the rank that is slow in every run that has it, or nothing.

    Slow: its mean rollout is over 1.25 times the median of the others', and further from it than 4 of their standard
    deviations; judged at W >= 3. Random differences between ranks belong to the noise instead.
    """
    extra: dict[int, list[float]] = {}
    rejected: set[int] = set()
    for run in runs:
        if run.world_size < 3:
            continue
        means = run.times["t_rollout"].mean(axis=0)
        slowest = int(means.argmax())
        others = np.delete(means, slowest)
        excess = means[slowest] - np.median(others)
        if excess > max(0.25 * np.median(others), 4 * others.std()):
            extra.setdefault(slowest, []).append(float(excess) / run.rollout_steps)
            rejected |= set(range(run.world_size)) - {slowest}
        else:
            rejected |= set(range(run.world_size))
    return {rank: float(np.mean(e)) for rank, e in extra.items() if rank not in rejected}


def points(runs: Sequence[Run], slow: dict[int, float]) -> list[Point]:
    return [_point(run, slow) for run in runs]


def _point(run: Run, slow: dict[int, float]) -> Point:
    world_size = run.world_size
    rollout = run.times["t_rollout"].copy()
    for rank, seconds in slow.items():
        if rank < world_size:
            rollout[:, rank] = np.maximum(rollout[:, rank] - seconds * run.rollout_steps, 0.0)
    local_batch = float(np.mean(run.steps)) / world_size
    local_envs = local_batch / run.rollout_steps
    ppo, env = _section(run, "ppo"), _section(run, "env")
    done = run.stability.get("epochs", np.array([]))
    done = done[np.isfinite(done)]
    epochs = float(done.mean()) if done.size else float(run.num_epochs)
    num_sums = epochs * run.num_minibatches
    per_epoch = ppo.get("target_kl") is not None or ppo.get("lr_schedule") == "adaptive"
    num_gathers = 2 + (run.num_epochs if per_epoch else 0)
    series = {p: t.mean(axis=1) for p, t in run.times.items()}
    series["t_rollout"] = rollout.mean(axis=1)
    kwargs = env.get("kwargs") or {}
    sleep = kwargs.get("step_time_s", 0.0) if run.env_id == SLEEPING_TASK else None
    one_sum = gradient_messages(run, world_size, run.num_parameters)
    num_bytes = _gathered_bytes(num_sums, num_gathers) / num_gathers
    small = collective_cost.own_gather(world_size, num_bytes, collective_of(run))
    return Point(
        run=run,
        local_batch_size=local_batch,
        local_num_envs=local_envs,
        num_epochs=epochs,
        means={p: float(x.mean()) for p, x in series.items()},
        spread={p: _standard_error(x) for p, x in series.items()},
        rollout=rollout,
        stepping=_stepping(run),
        env_step_s=sleep,
        env_asleep=sleep is not None and not kwargs.get("busy", False),
        sums=one_sum.times(num_sums),
        gathers=small.times(num_gathers),
        num_gathers=num_gathers,
        collective=collective_of(run),
    )


def of_one_stepping(all_points: Sequence[Point]) -> list[Point]:
    """Return the points whose environments were stepped as those of the largest W were; others cost otherwise."""
    stepping = max(all_points, key=lambda p: p.run.world_size).stepping
    return [p for p in all_points if p.stepping == stepping]


def env_processes(point: Point) -> float:
    """Return how many environments of a rank sleep at once: as many as a pool has processes, by default one each."""
    if point.stepping not in ("pool", "async"):  # async, one process each, was before there were pools
        return 1.0
    return float(_section(point.run, "env").get("num_workers") or math.inf)


def collective_of(run: Run) -> str:
    """Return by what its ranks exchanged; a run of one, or from before summary.json said so, stands for its device."""
    said = run.origin.collective
    if said not in ("", "none"):
        return said
    on_cpu = run.origin.device == "cpu"  # else the name of a GPU
    return ("shm" if said else "gloo") if on_cpu else "nccl"


def gradient_messages(run: Run, world_size: int, num_parameters: float) -> Messages:
    """Return the messages of one gradient sum as ddppo does it."""
    if world_size == 1:
        return collective_cost.NOTHING
    num_bytes = num_parameters * (8 if run.config.get("dtype") == "float64" else 4)
    return collective_cost.own_sum(world_size, num_bytes, collective_of(run), run.origin.num_hosts)


def _gathered_bytes(num_sums: float, num_gathers: int) -> float:
    # Agreeing: a count per minibatch and 9 moments. Reporting: 14 numbers and two stamps per collective. KL: one.
    return 8 * (num_sums + 9) + 8 * (14 + 2 * (num_sums + num_gathers)) + 8 * (num_gathers - 2)


def _section(run: Run, name: str) -> dict[str, Any]:
    section = run.config.get(name)
    return section if isinstance(section, dict) else {}


def _stepping(run: Run) -> str:
    """Return who stepped the environments, e.g. "sync"."""
    return run.origin.env_backend or str(_section(run, "env").get("backend", "sync"))


def _standard_error(x: np.ndarray) -> float:
    """Return the standard error of the mean of neighbouring, dependent values, by means of blocks of 5."""
    mean = abs(float(x.mean()))
    num_blocks = min(len(x), max(2, len(x) // BLOCK))
    sizes = np.full(num_blocks, len(x) // num_blocks)
    sizes[: len(x) % num_blocks] += 1
    blocks = np.add.reduceat(x, np.cumsum(sizes) - sizes) / sizes
    error = float(np.std(blocks, ddof=1)) / len(blocks) ** 0.5 if len(blocks) > 1 else 0.0
    return max(error, 0.01 * mean, 1e-9)
