"""One process that learns from what ranks of ddp_preempt had: their environments, cut where theirs were."""

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import torch

from ddppo.distributed.topologies.base import Collected
from ddppo.distributed.topologies.contract import Layout, Role, TopologySpec
from ddppo.distributed.topologies.ddp import Ddp
from ddppo.envs.make import make_vec_env
from ddppo.ppo.rollout import Cut, Rollout


def layout(world_size, sizes):
    return Layout((Role("worker", (0,), steps=True, acts=True, learns=True, does=()),), ())


class PooledWorker(Ddp):
    """CUTS names a JSON file: steps `[iterations][ranks]` of each environment."""

    def __init__(self, context):
        super().__init__(context)
        self._cuts = json.loads(Path(os.environ["CUTS"]).read_text())
        num_ranks = len(self._cuts[0])
        size = context.shape.num_envs // num_ranks
        self._shares = [range(rank * size, (rank + 1) * size) for rank in range(num_ranks)]
        self._collectors = [
            context.collector(make_vec_env(context.config.env, share, rank=0, cores=1), share.start)
            for share in self._shares
        ]

    def reset(self, sample):
        super().reset(sample)  # for checkpoints alone: nobody acts in these
        for collector, share in zip(self._collectors, self._shares, strict=True):
            collector.reset(*sample.of(share))

    def collect(self, iteration):
        parts = []
        for collector, share, steps in zip(
            self._collectors, self._shares, self._cuts[iteration - 1], strict=True
        ):
            collector.cut = Cut(np.zeros(1, np.int64), 0, 1, steps, math.inf)
            parts.append(self._context.act(collector, share, iteration))
        rollouts = [part.rollout for part in parts]
        episodes = sorted((e for part in parts for e in part.episodes), key=lambda e: (e.step, e.env_index))
        pooled = {
            field.name: torch.cat([self._whole(getattr(rollout, field.name)) for rollout in rollouts], 1)
            for field in dataclasses.fields(Rollout)
            if isinstance(getattr(rollouts[0], field.name), torch.Tensor)
        }
        return Collected(
            sum(part.num_steps for part in parts), episodes, Rollout(**({"action_mask": None} | pooled))
        )

    def _whole(self, x):
        """Return x `[rows, E, ...]` with rows of zeros up to T, which are not valid."""
        return torch.cat([x, x.new_zeros(self._context.shape.rollout_steps - len(x), *x.shape[1:])])


Pooled = TopologySpec("pooled", "one process", layout, "tests.distributed.pooled:PooledWorker")
