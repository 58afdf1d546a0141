"""What a step of one environment costs, measured before the batch is made, and what follows for who steps it."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.encoding.codec import sample_action
from ddppo.envs.guard import STEPPED, guarding
from ddppo.envs.scalar.row_env import RowEnv, make_row_env
from ddppo.envs.vec_env import EnvSpec

# Asking the processes of a pool and answering the rank: seconds per step of the batch. Measured by
# experiments/env_backends: 20 us where all have the cores to themselves, 100 us where each has to be woken.
_POOL_S = 75e-6
_COMPUTES_ABOVE = 0.9  # of its step; the rest is noise


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step of one environment takes, resets included, and how many of them it computes.

    The rest it sleeps, or waits for something else than a core.
    """

    total_s: float
    busy_s: float


@guarding(STEPPED)
def measure(env: EnvConfig, spec: EnvSpec, measure_s: float = 0.05, min_steps: int = 5) -> StepCost:
    """Measure one environment with random actions, over measure_s and min_steps or more."""
    row_env = make_row_env(env, spec, "an environment that was made to measure a step")
    try:
        row_env.action_space.seed(0)
        row, _ = row_env.reset(seed=0)
        row = _next_row(row_env, row)  # the first may load something
        num_steps, start, computed_s, queued_s = 0, time.perf_counter(), time.process_time(), _queued_s()
        while num_steps < min_steps or time.perf_counter() - start < measure_s:
            row = _next_row(row_env, row)
            num_steps += 1
        total_s = time.perf_counter() - start - (_queued_s() - queued_s)
        busy_s = time.process_time() - computed_s
    finally:
        row_env.close()
    return StepCost(total_s / num_steps, busy_s / num_steps)


def choose_num_workers(cost: StepCost, num_envs: int, cores: int) -> int:
    """Return how few processes step a batch in the least time: what `cores` compute, or one environment's step.

    Environments that compute get a process per core, those that sleep or wait up to one each.
    """
    busy = cost.busy_s / cost.total_s
    if busy > _COMPUTES_ABOVE:
        return min(num_envs, cores)
    in_turn = max(1, int(num_envs * busy / cores))  # which one process steps while the cores compute for all
    return -(-num_envs // in_turn)


def pool_pays(cost: StepCost, num_envs: int, num_workers: int) -> bool:
    """Return whether what a pool of so many processes saves of a step in turn exceeds what asking it costs."""
    return num_envs * cost.total_s * (1 - 1 / num_workers) > _POOL_S


def _next_row(row_env: RowEnv, row: np.ndarray) -> np.ndarray:
    mask = row_env.layout.mask(row)
    row, _, terminated, truncated, _ = row_env.step(sample_action(row_env.action_space, mask))
    return row_env.reset()[0] if terminated or truncated else row


def _queued_s() -> float:
    """Return how long this thread has waited for a core that others had, where the system tells."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0
