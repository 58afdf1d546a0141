"""Rewriting circuits is learned alike on any number of ranks."""

import json

import pytest

from ddppo.records.run_folder import RunFolder
from tests.distributed.test_independence import (
    SIZES,
    assert_same_learning,
    largest_difference,
    runs,  # noqa: F401 (a fixture)
    state,
)
from tests.distributed.test_ordered import assert_same_bits
from tests.distributed.test_ordered import runs as ordered_runs
from tests.support import TINY, door, lines

SMALL = ["env=circuit", "model=gnn", "model.graph_width=16", "model.graph_layers=2"]
PAIRS = ["env=circuit", "env.num_envs=8"]


@pytest.mark.slow
@pytest.mark.parametrize("model", [SMALL, PAIRS], ids=["gnn", "pairs"])
def test_rewritten_circuits_agree_as_well(runs, model):  # noqa: F811
    folders = runs(f"circuits_{model[1]}", *model, "dtype=float64", "dist.world_size=1,2")
    assert_same_learning(folders[1], folders[2], 1e-9)
    one, two = (told_of_task(folders[w]) for w in (1, 2))
    assert one == two
    assert one[-1]["task/buffer_circuits/tof_3"] > 8  # what one of them keeps, others found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return spread(tmp_path_factory.mktemp("alone") / "run", "single", 1)


def spread(run_dir, topology, world_size):
    how = [*TINY, *SIZES, *SMALL, "dtype=float64", "dist.threads_per_rank=1", "eval.final_episodes=0"]
    result = door(*how, f"distributed={topology}", f"dist.world_size={world_size}", run_dir=run_dir)
    assert result.code == 0, result.stderr
    return run_dir


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "world_size"),
    [("sync_actors", 3), ("multi_learner", 4), ("env_workers", 3), ("central_inference", 2)],
)
def test_so_they_do_under_every_topology_in_step(alone, tmp_path, topology, world_size):
    run_dir = spread(tmp_path / "run", topology, world_size)
    assert largest_difference(state(alone)["model"], state(run_dir)["model"]) <= 1e-9
    assert told_of_task(alone) == told_of_task(run_dir)


@pytest.mark.slow
def test_a_run_that_stands_still_is_completed_with_a_policy_that_repeats_most_of_it(tmp_path):
    how = [*TINY, "env=circuit", "env.patience=2048", "dist.world_size=2", "eval.final_episodes=4"]
    result = door(*how, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["env_steps"] < 100_000
    circuit = summary["task"]["circuits"]["tof_3"]
    assert summary["task"]["said"]["ended"] == "nothing became smaller for 2,048 steps (env.patience)"
    # One iteration passes before all ranks know.
    assert summary["env_steps"] == circuit["found_at"]["env_steps"] + 2048 + 512
    saved = circuit["original"]["cost"] - circuit["best"]["cost"]
    assert summary["eval"]["final"]["return_mean"] >= saved - 1
    # It is complete: a sweep or resume=auto passes it over, and resume= says what to change.
    assert summary["ended"]["by"] == "task"
    assert RunFolder(tmp_path / "run").is_complete
    again = door(f"resume={tmp_path / 'run'}", run_dir=tmp_path / "run")
    assert (again.code, "to go on, add a larger total_steps" in again.stderr) == (2, True), again.stderr


@pytest.mark.slow
def test_a_resumed_run_of_pairs_equals_one_without_interruption(tmp_path):
    how = [*TINY, "env=circuit", "dist.world_size=1", "dtype=float64", "ppo.rollout_steps=64"]
    for name, steps in (("whole", 1024), ("parted", 512)):
        result = door(*how, f"ppo.total_steps={steps}", run_dir=tmp_path / name)
        assert result.code == 0, result.stderr
    result = door(f"resume={tmp_path / 'parted'}", "ppo.total_steps=1024", run_dir=tmp_path / "parted")
    assert result.code == 0, result.stderr
    whole, parted = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "parted")
    )
    assert whole["params_hash"] == parted["params_hash"]
    # (Counts of rules begin anew with each start.)
    bests = [
        [
            {name: x for name, x in line.items() if name.startswith(("task/best", "task/buffer"))}
            for line in told_of_task(tmp_path / folder)
        ]
        for folder in ("whole", "parted")
    ]
    assert bests[0] == bests[1]


@pytest.mark.slow
def test_with_ordered_sums_they_are_the_same_bits(tmp_path):
    assert_same_bits(ordered_runs(tmp_path, *SMALL, "eval.final_episodes=0", world_sizes="1,8"))


def told_of_task(run_dir):
    """Return what the task's journal said of each iteration, but for how fast it was."""
    of_rank_0 = [line for line in lines(run_dir) if line["rank"] == 0]
    return [
        {name: value for name, value in line.items() if name.startswith("task/") and "per_s" not in name}
        for line in of_rank_0
    ]
