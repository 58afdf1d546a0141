"""ddp and ddp_preempt: W equal workers; each acts in its own environments and learns from its own rollout.

`Ddp` is the shortest topology and the base of several others: read it first. Only gradients and a few statistics travel
between ranks (the list is in `ddppo.distributed.gradient_sync`). `DdpPreempt` adds one rule: a slow rank ends its
rollout early, once enough others have finished theirs.

The name ddp means data-parallel training in general. `dist.grad_sync=ddp` is something else, a way to sum gradients
that uses torch's DistributedDataParallel; this topology works with any `dist.grad_sync`.
"""

import math
import time
from collections import deque

import numpy as np
import torch

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.distributed.topologies.base import Closeable, Collected, RankContext, Topology
from ddppo.distributed.topologies.settings import PreemptSettings
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import Cut, RolloutCollector


class Ddp(Topology):
    """A rank that acts and learns."""

    collector: RolloutCollector
    env: Closeable

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self.collector = self._make_collector()
        self.env = self.collector.env
        self.learners = context.group  # all ranks learn
        self.sync = context.sync(context.group)
        self.learner = context.learner(context.group, self.sync)

    def _make_collector(self) -> RolloutCollector:
        """Make this rank's environments and the collector that acts in them."""
        return self._context.own_collector()

    def reset(self, sample: TaskSample) -> None:
        self.collector.reset(*sample.of(self._context.env_indices))

    def collect(self, iteration: int) -> Collected:
        return self._context.act(self.collector, self._context.env_indices, iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        assert collected.rollout is not None
        return self.learner.update(collected.rollout, iteration, progress)

    def measured(self) -> dict[str, float]:
        return {**self._context.restarts(self.env), **self.collector.measured()}

    def close(self) -> None:
        self.env.close()


# -- ddp_preempt.
#
# Every rank posts the end of its rollout on a board (`ddppo.collectives.group.Board`), a few integers that every rank
# reads in its own memory, so the step loop contains no collective. Once `dist.sync_frac` of the ranks have posted, a
# rank that has done `dist.min_frac` of its steps ends its rollout: the rule of DD-PPO (Wijmans et al. 2020,
# arXiv:1911.00357, section 3). Rollouts then have unequal lengths. The update is still the update of one process with
# the same samples, because losses and moments are local sums divided by global counts.
#
# `dist.preempt_rule=throughput` chooses in each iteration how many ranks to await: the number with the most steps per
# second, steps / (rollout time + learn time), at the speeds of the last iterations (Wijmans et al. 2022, VER,
# arXiv:2210.05064, appendix).

_SPEED_WINDOW = 8  # iterations; their speeds predict the next one


class DdpPreempt(Ddp):
    """A rank that acts and learns, and ends a slow rollout early."""

    collector: Collector

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        dist, self._steps = context.config.dist, context.shape.rollout_steps
        assert isinstance(dist, PreemptSettings), dist
        self._chooses = dist.preempt_rule == "throughput"
        self._board = context.group.board()
        self._least_steps = max(1, math.ceil(dist.min_frac * self._steps))
        self._cap_s = dist.rollout_time_cap_s or math.inf
        # Ranks that must post before the others may end early. The throughput rule awaits all until it knows speeds.
        self._awaited = context.group.world_size if self._chooses else dist.awaited_ranks
        # `[W, 2]`: seconds per step, seconds learning.
        self._speeds: deque[np.ndarray] = deque(maxlen=_SPEED_WINDOW)
        # Numbers the rollouts of this process. Iteration numbers would not do: a recovered run repeats iterations, and
        # the board only counts upwards.
        self._rollout_number = 0
        # The iteration under way.
        self._awaited_now = self._steps_done = 0
        self._rollout_s = self._learn_s = 0.0

    def collect(self, iteration: int) -> Collected:
        start, self._awaited_now = time.perf_counter(), self._awaited
        self._rollout_number += 1
        num_cells = self._board.begin(self._rollout_number, self._awaited)
        # The collector calls the cut after every step; the call reads the board's cells and waits for nothing.
        self.collector.cut = Cut(
            self._board.cells,
            self._rollout_number,
            num_cells,
            self._least_steps,
            deadline=start + self._cap_s,
        )
        collected = super().collect(iteration)
        self._board.post(self._rollout_number)
        assert collected.rollout is not None
        self._rollout_s, self._steps_done = time.perf_counter() - start, len(collected.rollout.rewards)
        return collected

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        start = time.perf_counter()
        if self._chooses:
            self._choose_awaited(is_first=not self._learn_s)
        update = super().learn(collected, iteration, progress)
        self._learn_s = time.perf_counter() - start
        return update

    def measured(self) -> dict[str, float]:
        return {
            **super().measured(),
            "dist/preempted_fraction": 1 - self._steps_done / self._steps,
            "dist/awaited_ranks": float(self._awaited_now),
        }

    def _choose_awaited(self, *, is_first: bool) -> None:
        """Choose how many ranks to await in the next iteration. All ranks choose the same number."""
        own = torch.tensor([self._rollout_s / self._steps_done, self._learn_s], dtype=torch.float64)
        speeds = self._context.group.gather(own).numpy()  # [W, 2]
        # The first rollout includes one-time costs, and no learning time is known yet.
        if is_first:
            return
        self._speeds.append(speeds)
        step_s, learn_s = np.stack(self._speeds).transpose(2, 0, 1)  # [J, W, 2] -> [2, J, W]
        self._awaited = best_awaited(
            step_s, learn_s.max(axis=1), steps=self._steps, least_steps=self._least_steps, cap_s=self._cap_s
        )


def best_awaited(
    step_s: np.ndarray, learn_s: np.ndarray, *, steps: int, least_steps: int, cap_s: float
) -> int:
    """Return the number of ranks to await for the most steps per second; the largest such number.

    step_s `[J, W]`: seconds per step of each rank in J iterations. learn_s `[J]`: seconds of learning. Each rank does
    at least least_steps and at most `steps` steps, and ends after cap_s seconds if it has least_steps by then.
    """
    # If k ranks are awaited, all rollouts end when the k-th fastest rank has done all its steps, or at the cap.
    ends_s = np.sort(step_s * steps, axis=1).clip(max=cap_s)  # [J, W], for k = 1, 2, ..., W
    # No rollout ends before the slowest rank has done its least steps.
    ends_s = np.maximum(ends_s, (step_s * least_steps).max(axis=1, keepdims=True))
    # Steps of all ranks until then: [J, k, rank] -> [J, k].
    num_steps = (ends_s[:, :, None] / step_s[:, None, :]).clip(max=steps).sum(axis=2)
    rates = num_steps.sum(axis=0) / (ends_s + learn_s[:, None]).sum(axis=0)  # [k]
    return int(np.flatnonzero(rates >= rates.max() * (1 - 1e-9))[-1]) + 1
