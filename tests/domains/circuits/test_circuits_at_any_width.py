"""Rewriting circuits is learned alike on any number of ranks."""

import pytest

from tests.distributed.test_independence import assert_same_learning, runs  # noqa: F401 (a fixture)
from tests.distributed.test_ordered import assert_same_bits
from tests.distributed.test_ordered import runs as ordered_runs
from tests.support import lines

SMALL = ["env=circuit", "model=gnn", "model.graph_width=16", "model.graph_layers=2"]


@pytest.mark.slow
def test_rewritten_circuits_agree_as_well(runs):  # noqa: F811
    folders = runs("circuits", *SMALL, "dtype=float64", "dist.world_size=1,2")
    assert_same_learning(folders[1], folders[2], 1e-9)
    one, two = (told_of_task(folders[w]) for w in (1, 2))
    assert one == two
    assert one[-1]["task/buffer_circuits/tof_3"] > 8  # what one of them keeps, others found


@pytest.mark.slow
def test_with_ordered_sums_they_are_the_same_bits(tmp_path):
    assert_same_bits(ordered_runs(tmp_path, *SMALL, "eval.final_episodes=0", world_sizes="1,2,4,8"))


def told_of_task(run_dir):
    """Return what the task's journal said of each iteration, but for how fast it was."""
    of_rank_0 = [line for line in lines(run_dir) if line["rank"] == 0]
    return [
        {name: value for name, value in line.items() if name.startswith("task/") and "per_s" not in name}
        for line in of_rank_0
    ]
