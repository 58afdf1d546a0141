"""Agents that serve observers of quantum circuits: whose episodes begin, and what a lost observer costs."""

import json
import shutil
import sys
from collections import Counter

import pytest
import torch

from tests.distributed.test_exchange import cut_back, model, state
from tests.distributed.test_independence import largest_difference
from tests.support import TINY, door, lines, run, summary

CIRCUITS = ("tof_3", "barenco_tof_3", "mod5_4")
# Every episode lasts as long as a rollout: no cost ends it, and to change nothing does not.
STEPS = 20
FIXED = [
    f"env.kwargs.episode.min_steps={STEPS}", f"env.kwargs.episode.max_steps={STEPS}", "env.kwargs.episode.slack=50",
    "env.kwargs.episode.nop_stop=false", f"ppo.rollout_steps={STEPS}",
]  # fmt: skip
HOW = [
    "env=circuit", "env.id=tests.domains.circuits.watched_circuits:tests/Watched-v0", "model=mlp",
    "model.hidden_sizes=[16]",
    f"env.kwargs.circuit=[{','.join(CIRCUITS)}]", "ppo.num_minibatches=2", "ppo.num_epochs=1", "dtype=float64",
    "distributed=central_inference",
]  # fmt: skip


def trained(folder, *arguments):
    how = [*TINY, *HOW, *FIXED, f"+env.kwargs.folder={folder}", *arguments]
    result = door(*how, run_dir=folder / "run")
    assert result.code == 0, result.stderr
    return folder / "run", json.loads((folder / "run" / "ended.json").read_text())


@pytest.mark.quick_cases("1")
@pytest.mark.parametrize("world_size", [1, 2])
def test_3_circuits_4_observers_and_3_iterations_are_12_episodes_4_of_each_circuit(tmp_path, world_size):
    num_envs, steps = 4 * world_size, 3 * 4 * world_size * STEPS
    how = [f"dist.world_size={world_size}", "dist.observers=4", f"env.num_envs={num_envs}"]
    run_dir, ended = trained(tmp_path, *how, f"ppo.total_steps={steps}")
    assert [[len(of_env) for of_env in of_iteration] for of_iteration in ended] == [[1] * num_envs] * 3
    episodes = Counter(name for of_iteration in ended for of_env in of_iteration for name in of_env)
    assert episodes == dict.fromkeys(CIRCUITS, 4 * world_size)
    for line in lines(run_dir):
        assert line["rollout/inference_batch"] == 4  # one forward a step, for all observers of the agent


@pytest.mark.slow
def test_a_run_whose_observer_is_killed_is_the_one_that_nothing_befell(tmp_path):
    how = ["dist.observers=4", "env.num_envs=4", f"ppo.total_steps={3 * 4 * STEPS}", "dist.on_lost=restart"]
    (tmp_path / "whole").mkdir()
    (tmp_path / "again").mkdir()
    whole, expected = trained(tmp_path / "whole", *how)
    run_dir, ended = trained(tmp_path / "again", *how, f"+env.kwargs.dies_at={STEPS + 7}")
    assert (tmp_path / "again" / "died").exists()
    written = lines(run_dir)
    assert [line["dist/restarts"] for line in written] == [0, 1, 1]
    assert [line["rollout/env_restarts"] for line in written] == [0, 1, 1]
    assert [line["dist/lost_episodes"] for line in written] == [0, 0, 0]
    assert ended == expected
    learned = [
        [{name: x for name, x in line.items() if name.startswith("train/")} for line in lines(folder)]
        for folder in (whole, run_dir)
    ]
    assert learned[0] == learned[1]
    assert summary(run_dir)["status"] == "completed"


@pytest.mark.slow
def test_a_resumed_run_keeps_its_buffers_and_is_the_one_that_was_not_interrupted(tmp_path):
    how = [
        "env=circuit", "model=mlp", "model.hidden_sizes=[16]", "env.kwargs.circuit=[tof_3,barenco_tof_3]",
        "env.num_envs=4", "ppo.rollout_steps=32", "ppo.num_minibatches=2", "ppo.total_steps=512", "dtype=float64",
        "checkpoint.every_steps=128", "checkpoint.keep=9",
    ]  # fmt: skip
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert door(*TINY, *how, run_dir=whole).code == 0
    shutil.copytree(whole, again)
    cut_back(again, 2)
    resumed = run([sys.executable, "-m", "ddppo.train", f"resume={again}", "dist.world_size=2"], again)
    assert resumed.code == 0, resumed.stderr
    assert largest_difference(model(again), model(whole)) <= 1e-9
    assert torch.equal(*(state(folder)["environments"]["states"] for folder in (whole, again)))
    assert state(again)["window"] == state(whole)["window"] != []
