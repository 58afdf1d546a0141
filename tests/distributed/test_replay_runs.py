"""DQN and SAC give the same parameters on any topology and after a resume, with all that their replay buffers hold."""

import math
import os
import shutil
import signal
import sys

import pytest
import torch

from tests.distributed.test_exact_resume import assert_same, cut_back, resumed
from tests.support import TINY, descendants, door, lines, run, started, summary, wait_until

SIZES = [
    "env.num_envs=8", "algorithm.rollout_steps=6", "algorithm.total_steps=576", "algorithm.learning_starts=90",
    "algorithm.capacity=300", "algorithm.batch_size=16", "algorithm.n_step=3", "algorithm.updates_per_step=0.4",
    "model.hidden_sizes=[16,16]", "dtype=float64", "checkpoint.every_steps=96", "checkpoint.keep=99",
    "dist.check_every=1",
]  # fmt: skip
ALGORITHMS = {
    "dqn": ["env=cartpole", "algorithm=dqn", "algorithm.target_period_updates=20"],
    "sac": ["env=pendulum", "env.max_episode_steps=30", "algorithm=sac", "algorithm.uniform_steps=200"],
}
TOPOLOGIES = {
    "2 ranks": ["dist.world_size=2"],
    "shares of 3, 3 and 2": ["dist.world_size=3"],
    "sync_actors": ["distributed=sync_actors", "dist.world_size=4"],  # 3 actors with the same shares
    "multi_learner": ["distributed=multi_learner", "dist.world_size=4"],
    "env_workers": ["distributed=env_workers", "dist.world_size=3"],
    "central_inference": ["distributed=central_inference", "env.num_workers=2"],
    "async_actors without lag": ["distributed=async_actors", "dist.world_size=3", "dist.max_lag=0"],
}
QUICK = [
    ("dqn", "shares of 3, 3 and 2"), ("dqn", "sync_actors"), ("dqn", "async_actors without lag"), ("sac", "2 ranks"),
]  # fmt: skip


def trained(run_dir, algorithm, *arguments):
    result = door(*TINY, *ALGORITHMS[algorithm], *SIZES, *arguments, run_dir=run_dir)
    assert result.code == 0, result.stderr
    return result


def last(run_dir):
    path = max((run_dir / "checkpoints").glob("iteration_*.pt"))
    return torch.load(path, weights_only=True)


def iterations(run_dir):
    return max((line["iteration"] for line in lines(run_dir)), default=0)


def difference(one, other, section):
    """Return the largest difference between two dicts of tensors."""
    one, other = one[section], other[section]
    assert one.keys() == other.keys()
    return max((one[name].double() - x.double()).abs().max().item() for name, x in other.items() if x.numel())


def assert_equal(one, other):
    """Parameters within 1e-10, counters and replay buffers equal."""
    one, other = last(one), last(other)
    for section in ("model", "kept"):
        assert difference(one, other, section) < 1e-10
    for name in ("num_rows", "num_updates"):
        assert one["kept"][name] == other["kept"][name]
    assert difference(one, other, "replay") < 1e-10


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the run of one process, made once for each algorithm."""
    folder = tmp_path_factory.mktemp("whole")

    def made(algorithm):
        if not (folder / algorithm).exists():
            trained(folder / algorithm, algorithm)
        return folder / algorithm

    return made


@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        (a, t) if (a, t) in QUICK else pytest.param(a, t, marks=pytest.mark.slow)
        for a in ALGORITHMS
        for t in TOPOLOGIES
    ],
)
def test_parameters_are_those_of_one_process(tmp_path, whole, algorithm, topology):
    trained(tmp_path / "run", algorithm, *TOPOLOGIES[topology])
    assert_equal(whole(algorithm), tmp_path / "run")


def test_the_replay_ratio_is_kept_to_an_integer(whole):
    kept = last(whole("dqn"))["kept"]
    # 90 rows are there after the second of twelve iterations of 48 rows, and that iteration owes its updates.
    assert kept["num_rows"] == 11 * 48
    assert kept["num_updates"] == math.floor(0.4 * 11 * 48)


@pytest.mark.parametrize("algorithm", ["dqn", pytest.param("sac", marks=pytest.mark.slow)])
def test_a_resumed_run_is_the_one_that_was_not_interrupted_to_the_bit(tmp_path, whole, algorithm):
    shutil.copytree(whole(algorithm), tmp_path / "again")
    cut_back(tmp_path / "again", 8)
    result = resumed(tmp_path / "again")
    assert "approximately" not in result.stderr
    assert_same(whole(algorithm), tmp_path / "again")


@pytest.mark.parametrize(
    "topology",
    [
        "shares of 3, 3 and 2",
        *(pytest.param(t, marks=pytest.mark.slow) for t in ("sync_actors", "multi_learner")),
    ],
)
def test_a_run_resumed_by_other_ranks_goes_on_as_it_would_have(tmp_path, whole, topology):
    shutil.copytree(whole("dqn"), tmp_path / "again")
    cut_back(tmp_path / "again", 6)
    arguments = [a.replace("distributed=", "dist.topology=") for a in TOPOLOGIES[topology]]
    result = resumed(tmp_path / "again", *arguments)
    assert "approximately" not in result.stderr
    assert_equal(whole("dqn"), tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["2 ranks", "sync_actors"])
def test_a_run_that_is_killed_with_9_ends_as_the_undisturbed_one(tmp_path, topology):
    """Parameters, Adam, target, counters, replay and what epsilon follows from: the same bits."""
    more = [*TOPOLOGIES[topology], "algorithm.total_steps=2880", "checkpoint.keep=2"]
    trained(tmp_path / "whole", "dqn", *more)
    command = [
        sys.executable, "-m", "ddppo.train", *TINY, *ALGORITHMS["dqn"], *SIZES, *more, "resume=auto",
        f"hydra.run.dir={tmp_path / 'again'}",
    ]  # fmt: skip
    for num_iterations in (15, 40):
        with started(command) as process:
            wait_until(
                lambda process=process, n=num_iterations: (
                    process.poll() is not None or iterations(tmp_path / "again") >= n
                ),
                "line of metrics",
            )
            for pid in (process.pid, *descendants(str(tmp_path / "again"))):
                os.kill(pid, signal.SIGKILL)
    result = run(command, tmp_path / "again")
    assert result.code == 0, result.stderr
    assert_same(tmp_path / "whole", tmp_path / "again")


@pytest.mark.slow
def test_with_lag_the_replay_ratio_is_kept_exactly(tmp_path):
    trained(
        tmp_path / "run",
        "dqn",
        "distributed=async_actors",
        "dist.world_size=4",
        "algorithm.rollouts_per_update=1",
    )
    kept = last(tmp_path / "run")["kept"]
    assert kept["num_rows"] > 400
    assert kept["num_updates"] == math.floor(0.4 * int(kept["num_rows"]))


def test_without_the_replay_buffer_a_run_goes_on_approximately_if_that_is_said(tmp_path):
    result = trained(tmp_path / "run", "dqn", "checkpoint.replay=false")
    assert "can be resumed with an empty one only" in result.stderr
    assert last(tmp_path / "run")["replay"] == {"missing": "checkpoint.replay=false left it out"}
    cut_back(tmp_path / "run", 6)
    command = [sys.executable, "-m", "ddppo.train", f"resume={tmp_path / 'run'}"]
    refused = run(command, tmp_path / "run")
    assert refused.code == 2
    assert "does not hold the replay buffer, for checkpoint.replay=false left it out" in refused.stderr
    num_rows = int(last(tmp_path / "run")["kept"]["num_rows"])
    result = resumed(tmp_path / "run", "resume_state=approximate")
    assert "the run goes on approximately, with an empty replay buffer" in result.stderr
    # Six more iterations of 48 rows; the first of them does not fill the buffer to 90 rows, so it owes no updates.
    assert last(tmp_path / "run")["kept"]["num_rows"] == num_rows + 5 * 48
    assert summary(tmp_path / "run")["env_steps"] == 576


def test_the_best_policy_is_kept_without_the_replay_buffer(tmp_path):
    trained(tmp_path / "run", "dqn", "eval.final_episodes=1")
    assert "replay" not in torch.load(tmp_path / "run" / "checkpoints" / "best.pt", weights_only=True)
    assert "replay" in last(tmp_path / "run")
