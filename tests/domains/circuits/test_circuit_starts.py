"""Episodes that start from the circuit with its rotations merged, env.kwargs.start=merge."""

import pytest

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.rewriting import merged
from ddppo.domains.circuits.task import CircuitEnv
from ddppo.domains.circuits.task.journal import CircuitJournal
from ddppo.domains.circuits.task.lineage import read_rewrites, repeated
from ddppo.errors import ConfigError, EnvStateError, RunFolderError
from tests.domains.circuits.circuit_play import Together, steps

pytestmark = pytest.mark.skipif(PLUGIN.cpp.why_not() is not None, reason=str(PLUGIN.cpp.why_not()))


def told(run, folder):
    env = type("Env", (), {"kwargs": {"circuit": "barenco_tof_3", "start": "merge"}})
    journal = CircuitJournal(env, folder)
    journal.note(run.exchange(), 100, 1.0)
    return journal.summary()


def test_episodes_start_from_merged_rotations_and_the_file_leads_from_the_original(tmp_path):
    run = Together(2, circuit="barenco_tof_3", start="merge")
    original, start = benchmark("barenco_tof_3"), run.envs[0].starts[0]
    assert (start.cost, start.original.cost, start.circuit) == (46, 58, merged(original).canonical())
    run.play(400)
    said = told(run, tmp_path)["circuits"]["barenco_tof_3"]
    assert (said["original"]["cost"], said["original"]["gates"]) == (58, 58)
    held = read_rewrites(tmp_path / "best" / "barenco_tof_3.json")
    assert held.start == "merge"
    assert held.original.canonical() == original.canonical()
    assert len(repeated(held, original, run.envs[0].rewriter)) == said["best"]["cost"] < 46
    assert "elements" in said["verified"] or "unitar" in said["verified"]
    # A later run in the folder goes on from it, but not one that starts from the circuit as given.
    told(Together(1, circuit="barenco_tof_3", start="merge"), tmp_path)
    env = type("Env", (), {"kwargs": {"circuit": "barenco_tof_3"}})
    with pytest.raises(RunFolderError, match="or to another start"):
        CircuitJournal(env, tmp_path)


def test_a_circuit_that_merging_makes_costlier_or_leaves_as_it_is_starts_as_given():
    assert CircuitEnv("tof_3", cost="cx_count", start="merge").starts[0].how == "merge"  # no cx more
    costly = CircuitEnv("tof_3", cost=f"{__name__}:fewer_is_worse", start="merge").starts[0]
    assert (costly.how, costly.original) == ("given", costly)
    with pytest.raises(ConfigError, match="start=merged: has to be one of merge, given"):
        CircuitEnv("tof_3", start="merged")


def fewer_is_worse(circuit):
    return -len(circuit)


def test_a_state_is_restored_by_an_environment_of_the_same_start_alone():
    env, other = (CircuitEnv("mod5_4", start="merge") for _ in range(2))
    given = CircuitEnv("mod5_4")
    for *_, (_, _, terminated, truncated, info) in steps(env, 120):
        if terminated or truncated:
            assert info["original_cost"] == 63  # of the circuit as given
    obs, _ = other.restore(env.state())
    assert other.circuit == env.circuit
    assert other.state() == env.state()
    assert int(obs["num_nodes"][0]) == len(env.circuit)
    given.reset(seed=0)
    with pytest.raises(EnvStateError, match="other circuits, rules or settings"):
        given.restore(env.state())
