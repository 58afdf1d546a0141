"""Studies of several topologies: sorted apart, and compared side by side."""

from scaling_folders import write_run

from ddppo.study.read.run_folders import read_runs
from ddppo.study.read.selection import named, studies


def test_the_runs_of_each_topology_are_a_study(tmp_path):
    for topology in ("sync_actors", "ddp"):
        write_run(tmp_path / topology, 2, dist__topology=topology)
    found = studies(read_runs(tmp_path))
    assert [named(each.runs) for each in found.studies] == [
        "Task-v0, strong scaling",
        "Task-v0, strong scaling, sync_actors",
    ]
    assert found.left_out == []


def test_of_several_settings_all_topologies_have_the_same_if_they_can(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"ddp-{seed}", 2, seed)
    write_run(tmp_path / "sync", 2, dist__topology="sync_actors")
    for seed in range(2):
        write_run(tmp_path / f"other-{seed}", 2, seed, dist__topology="sync_actors", ppo__learning_rate=0.002)
    found = studies(read_runs(tmp_path))
    assert {run.config["ppo"]["learning_rate"] for each in found.studies for run in each.runs} == {0.001}
    assert [len(each.left_out) for each in found.studies] == [0, 2]
