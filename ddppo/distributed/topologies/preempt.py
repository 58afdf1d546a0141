"""ddp_preempt: ddp whose slow ranks end their rollouts early, once enough others have theirs.

Every rank posts the end of its rollout on a board that all read in their own memory, a few integers a step, so no
collective stands in the step loop. Once `dist.sync_frac` of the ranks have ended theirs, a rank that has
`dist.min_frac` of its steps ends its own: DD-PPO's rule (Wijmans et al. 2020, arXiv:1911.00357, section 3). Rollouts
have unequal lengths then, and what is learned is that of one process with the same samples, for losses and moments are
local sums over global counts.

`dist.preempt_rule=throughput` chooses anew in each iteration for how many ranks to wait: so many that, by the speeds of
the last iterations, steps / (rollout + learn time) is highest (Wijmans et al. 2022, VER, arXiv:2210.05064, appendix).
"""

import math
import time
from collections import deque

import numpy as np
import torch

from ddppo.distributed.topologies.base import Collected, RankContext
from ddppo.distributed.topologies.ddp import Ddp
from ddppo.distributed.topologies.settings import PreemptSettings
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import Cut

_WINDOW = 8  # iterations whose speeds are thought to come again


def best_awaited(
    step_s: np.ndarray, learn_s: np.ndarray, *, steps: int, least_steps: int, cap_s: float
) -> int:
    """Return after the end of how many ranks' rollouts all should end: as many steps a second as goes.

    step_s `[J, W]`: seconds of each rank's steps in J iterations; learn_s `[J]`: of learning. Each rank does at least
    least_steps and at most `steps`, by cap_s seconds if it can. Of equals the most ranks.
    """
    ended = np.sort(step_s * steps, axis=1).clip(max=cap_s)  # [J, W]: seconds after which 1, 2, ... W have
    ended = np.maximum(ended, (step_s * least_steps).max(axis=1, keepdims=True))
    # [J, W]: steps of all by then
    done = (ended[:, :, None] / step_s[:, None, :]).clip(max=steps).sum(axis=2)
    rates = done.sum(axis=0) / (ended + learn_s[:, None]).sum(axis=0)
    return int(np.flatnonzero(rates >= rates.max() * (1 - 1e-9))[-1]) + 1


class PreemptiveWorker(Ddp):
    """A rank that acts and learns, and does not have others wait for the end of a long rollout."""

    collector: Collector

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        dist, self._steps = context.config.dist, context.shape.rollout_steps
        assert isinstance(dist, PreemptSettings), dist
        self._chooses = dist.preempt_rule == "throughput"
        self._board = context.group.board()
        self._least_steps = max(1, math.ceil(dist.min_frac * self._steps))
        self._cap_s = dist.rollout_time_cap_s or math.inf
        self._awaited = context.group.world_size
        if not self._chooses:
            self._awaited = dist.awaited_ranks
        # Of ranks, `[W, 2]` an iteration: seconds a step, and of learning.
        self._speeds: deque[np.ndarray] = deque(maxlen=_WINDOW)
        self._number = 0  # of rollouts so far, for iterations may be done again
        self._asked = self._taken = 0  # in the iteration under way: ranks that are waited for, own steps
        self._rollout_s = self._learn_s = 0.0

    def collect(self, iteration: int) -> Collected:
        start, self._asked = time.perf_counter(), self._awaited
        self._number += 1
        num_cells = self._board.begin(self._number, self._awaited)
        self.collector.cut = Cut(
            self._board.cells, self._number, num_cells, self._least_steps, deadline=start + self._cap_s
        )
        collected = super().collect(iteration)
        self._board.post(self._number)
        assert collected.rollout is not None
        self._rollout_s, self._taken = time.perf_counter() - start, len(collected.rollout.rewards)
        return collected

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        start = time.perf_counter()
        if self._chooses:
            self._choose(is_first=not self._learn_s)
        update = super().learn(collected, iteration, progress)
        self._learn_s = time.perf_counter() - start
        return update

    def measured(self) -> dict[str, float]:
        return {
            **super().measured(),
            "dist/preempted_fraction": 1 - self._taken / self._steps,
            "dist/awaited_ranks": float(self._asked),
        }

    def _choose(self, *, is_first: bool) -> None:
        """Choose for how many ranks to wait in the next iteration; all ranks choose alike."""
        mine = torch.tensor([self._rollout_s / self._taken, self._learn_s], dtype=torch.float64)
        of_all = self._context.group.gather(mine).numpy()
        if is_first:
            return  # what a first rollout takes comes once, and what learning takes is not known
        self._speeds.append(of_all)
        step_s, learn_s = np.stack(self._speeds).transpose(2, 0, 1)
        self._awaited = best_awaited(
            step_s, learn_s.max(axis=1), steps=self._steps, least_steps=self._least_steps, cap_s=self._cap_s
        )
