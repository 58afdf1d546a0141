"""Sums and minibatches of shards follow from how many there are, not from which rank holds them."""

import contextlib
import itertools

import numpy as np
import pytest
import torch

from ddppo.collectives.group import Group, OrderedSum, sum_in_pairs
from ddppo.config.settings import Config, DistSettings
from ddppo.distributed.join import threads_per_rank
from ddppo.ppo.minibatches import by_shard, local_minibatches
from ddppo.scaling import BatchShape


class NotAllThere(Exception):
    """Other ranks have still to gather."""


class Remembering(Group):
    """A rank of a group that gathers what its ranks gave one after another, and knows it once all have."""

    sums_in_pairs = False

    def __init__(self, given, world_size):
        super().__init__()
        self.world_size = world_size
        self._given = given

    def gather(self, values):
        self._given.append(values.clone())
        if len(self._given) < self.world_size:
            raise NotAllThere
        return torch.stack(self._given)


def summed(vectors, world_size):
    """Return the sum of shards' vectors `[V, n]` as the last of W ranks finds it, and how many vectors travelled."""
    given, out = [], None
    for of_rank in vectors.chunk(world_size):
        ordered = OrderedSum(Remembering(given, world_size), len(of_rank), vectors[0])
        with contextlib.suppress(NotAllThere):
            for vector in of_rank:
                out = ordered.sum_(vector.clone())
    return out, sum(map(len, given))


@pytest.mark.parametrize("num_shards", [1, 2, 3, 6, 7, 8, 12])
def test_the_sum_is_the_same_bits_whichever_ranks_hold_the_shards(num_shards):
    vectors = torch.randn(num_shards, 1000, generator=torch.Generator().manual_seed(num_shards)) * 1e3
    alone, _ = summed(vectors, 1)
    torch.testing.assert_close(alone, vectors.double().sum(0).float(), rtol=1e-4, atol=1e-2)
    for world_size in (w for w in range(2, num_shards + 1) if num_shards % w == 0):
        assert torch.equal(summed(vectors, world_size)[0], alone)


def test_vectors_are_added_in_pairs_as_the_tree_is_written():
    x = torch.tensor([1e8, 1.0, -1e8, 1.0, 3.0])
    assert sum_in_pairs(x) == ((x[0] + x[1]) + (x[2] + x[3])) + x[4]
    assert sum_in_pairs(x[:1]) == x[0]


def test_as_many_vectors_travel_as_ranks_where_each_has_a_power_of_two_of_shards():
    vectors = torch.ones(8, 3)
    assert [summed(vectors, w)[1] for w in (1, 2, 4, 8)] == [1, 2, 4, 8]
    assert [summed(torch.ones(6, 3), w)[1] for w in (2, 3, 6)] == [6, 3, 6]


def parts_of_shards(world_size, num_shards=4):
    """Return the samples of every shard in every minibatch, numbered (t, environment of all)."""
    shape = BatchShape(
        num_envs=8, rollout_steps=5, world_size=world_size, num_minibatches=3, num_epochs=1, num_shards=num_shards
    )  # fmt: skip
    found = [[] for _ in range(shape.num_minibatches)]
    for rank in range(world_size):
        order, bounds = by_shard(*local_minibatches(0, 1, 0, shape, rank), shape)
        parts = [order[a:b] for a, b in itertools.pairwise(bounds)]
        assert len(parts) == 3 * shape.local_num_shards
        steps_and_envs = [np.divmod(part, shape.local_num_envs) for part in parts]
        of_all = [
            list(zip(t.tolist(), (i + rank * shape.local_num_envs).tolist(), strict=True))
            for t, i in steps_and_envs
        ]
        for m, minibatch in enumerate(found):
            minibatch += of_all[m * shape.local_num_shards : (m + 1) * shape.local_num_shards]
    return found


def test_a_shards_part_of_a_minibatch_is_the_same_samples_in_the_same_order_at_any_w():
    alone = parts_of_shards(1)
    assert parts_of_shards(2) == parts_of_shards(4) == alone
    samples = sorted(itertools.chain(*itertools.chain(*alone)))
    assert samples == sorted(itertools.product(range(5), range(8)))
    assert all({env // 2 for _, env in part} <= {shard} for m in alone for shard, part in enumerate(m))


def test_a_rank_has_one_thread_however_much_work_there_is():
    ordered = Config(dist=DistSettings(reduction="ordered"))
    assert threads_per_rank(ordered, 1, 10**12) == 1
    told = Config(dist=DistSettings(reduction="ordered", threads_per_rank=2))
    assert threads_per_rank(told, 1, 10**12) == 2
