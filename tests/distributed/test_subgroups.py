"""Groups of some of the ranks, by every transport: their own places, sums and faults."""

import os

import pytest
import torch

from ddppo.errors import CollectiveError, TrainingError
from tests.distributed.forked_ranks import forked_ranks

SOME = ((0, 2, 3), (1, 4), (3,), (0, 1, 2, 3, 4), (0, 2, 3))  # the last is another group than the first


def numbers(group):
    """What the collectives of each subgroup give, whose members number themselves by their ranks."""
    found = []
    for ranks in SOME:
        some = group.subgroup(ranks)
        if some is None:
            found.append(None)
            continue
        mine = torch.tensor([float(group.rank)], dtype=torch.float64)
        some.barrier()
        rows = some.gather_at_root(mine)
        found.append(
            {
                "place": (some.rank, some.world_size, some.members),
                "sum": some.sum_(mine.clone()).item(),
                "gather": some.gather(mine).flatten().tolist(),
                "at_root": None if rows is None else rows.flatten().tolist(),
                "broadcast": some.broadcast_(mine.clone()).item(),
            }
        )
    group.barrier()
    found.append(group.sum_(torch.ones(1)).item())
    group.close()
    return found


@pytest.mark.parametrize(
    ("collective", "machines", "process_group"),
    [("shm", "aaaaa", False), ("shm", "aabba", False), ("shm", "abbba", True), ("gloo", "aaaaa", False)],
)
def test_a_subgroup_is_a_group_of_its_members_alone(collective, machines, process_group):
    how = {"collective": collective, "process_group": process_group, "subgroups": True}
    with forked_ranks(5, numbers, machines=dict(enumerate(machines)), **how) as (_, results):
        of_ranks = results()
    for rank, found in enumerate(of_ranks):
        assert found.pop() == 5
        for ranks, said in zip(SOME, found, strict=True):
            if rank not in ranks:
                assert said is None
                continue
            place, values = ranks.index(rank), [float(member) for member in ranks]
            assert said == {
                "place": (place, len(ranks), ranks),
                "sum": sum(values),
                "gather": values,
                "at_root": None if place else values,
                "broadcast": values[0],
            }


def test_over_machines_it_must_have_been_declared():
    with forked_ranks(3, lambda group: group.subgroup((0, 1)), machines={0: "a", 1: "b", 2: "b"}) as (
        _,
        results,
    ):
        for error in results():
            assert isinstance(error, TrainingError)
            assert "declares it by subgroups=True" in str(error)


@pytest.mark.parametrize("collective", ["shm", "gloo"])
def test_a_rank_lost_in_a_subgroup_is_named_by_those_who_wait_for_it_and_ends_all(collective):
    def wait_for_rank_2(group):
        pair, others = group.subgroup((1, 2)), group.subgroup((0, 1, 3))
        group.begin(7)
        if group.rank == 2:
            os._exit(9)
        if pair is not None:
            pair.barrier()
        others.barrier()

    with forked_ranks(4, wait_for_rank_2, collective=collective) as (_, results):
        errors = results(0, 1, 3)
    assert all(isinstance(error, CollectiveError) for error in errors)
    assert "no word from rank 2 for" in str(errors[1])
    assert "in iteration 7" in str(errors[1])
