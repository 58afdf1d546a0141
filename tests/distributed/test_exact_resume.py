"""A run that was killed and resumed is, to the bit, the one that was not interrupted."""

import random
import shutil
import sys

import pytest
import torch

from tests.distributed.test_independence import largest_difference
from tests.support import TINY, door, lines, run, summary

SIZES = [
    "env.num_envs=4", "ppo.rollout_steps=24", "ppo.num_minibatches=3", "ppo.num_epochs=2", "dist.check_every=1",
    "checkpoint.every_steps=96", "checkpoint.keep=99", "compile=off",
]  # fmt: skip
NUM_ITERATIONS = 6
EVERYTHING = ["ppo.normalize_obs=true", "ppo.normalize_rewards=true", "ppo.lr_schedule=adaptive"]
TIMED = (
    "time/",
    "dist/rho",
    "rollout/fps",
    "rollout/local_fps",
    "wall_s",
    "resumed",
    "eval/t_",
    "eval/seconds",
)

RUNS = {
    "CartPole in C++": ["env=cartpole", "compile=auto"],
    "CartPole": ["env=cartpole"],
    "CartPole, 2 ranks": ["env=cartpole", "compile=auto", "dist.world_size=2"],
    "a network of one's own in C++": ["env=cartpole", "compile=auto", "model.name=ddppo.study.bench.own:Plain"],
    "Pendulum": ["env=pendulum", *EVERYTHING],
    "Pendulum, 2 ranks": ["env=pendulum", *EVERYTHING, "dist.world_size=2"],
    "MountainCar with evaluations": ["env=gym", "env.id=MountainCar-v0", "eval.every_steps=96", "eval.episodes=1"],
    "Pendulum, 3 ranks": ["env=pendulum", *EVERYTHING, "dist.world_size=3"],
    "LSTM, 2 ranks": [
        "env=pendulum", "env.max_episode_steps=20", *EVERYTHING, "model=lstm", "model.memory_size=16",
        "ppo.num_minibatches=2", "dist.world_size=2",
    ],
    "GRU, env_workers": [
        "env=cartpole", "model=gru", "model.memory_size=16", "distributed=env_workers", "dist.world_size=3",
    ],
    "one by one": ["env=cartpole", "env.backend=sync", "env.max_episode_steps=20"],
    "a pool": ["env=cartpole", "env.backend=pool", "env.num_workers=2"],
    "LunarLander": ["env=lunarlander", "env.backend=sync"],
    "LunarLander, a pool": ["env=lunarlander", "env.backend=pool", "env.num_workers=2"],
    "Hopper in C++": ["env=hopper", "compile=auto", "env.max_episode_steps=20", *EVERYTHING],
    "Pong": ["env=atari", "model=mlp", "env.num_envs=4", "ppo.num_epochs=1", "env.num_workers=1"],
    "FrozenLake": ["env=gym", "env.id=FrozenLake-v1"],
    "a task that publishes": ["env=gym", "env.id=tests.distributed.telling:tests/Telling-v0", "env.backend=sync"],
    "whole episodes": ["env=cartpole", "ppo=grpo", "ppo.group_size=2"],
    "sync_actors": ["env=pendulum", *EVERYTHING, "distributed=sync_actors", "dist.world_size=3"],
    "multi_learner": ["env=pendulum", *EVERYTHING, "distributed=multi_learner", "dist.world_size=4"],
    "env_workers": ["env=pendulum", *EVERYTHING, "distributed=env_workers", "dist.world_size=3"],
    "unequal shares": [
        "env=pendulum", *EVERYTHING, "distributed=env_workers_hetero", "dist.world_size=3", "dist.env_shares=[1,3]",
    ],
    "observers": ["env=pendulum", *EVERYTHING, "distributed=central_inference", "env.num_workers=2"],
    "device": ["env=pendulum", *EVERYTHING, "distributed=device", "compile=auto"],
}  # fmt: skip
QUICK = ("a network of one's own in C++", "Pendulum, 2 ranks", "one by one", "env_workers")


def trained(run_dir, *arguments):
    how = [*TINY, *SIZES, f"ppo.total_steps={96 * NUM_ITERATIONS}", *arguments]
    result = door(*how, run_dir=run_dir)
    assert result.code == 0, result.stderr
    return result


def resumed(run_dir, *arguments):
    result = run([sys.executable, "-m", "ddppo.train", f"resume={run_dir}", *arguments], run_dir)
    assert result.code == 0, result.stderr
    return result


def cut_back(run_dir, iteration):
    """Make of a run that is complete one that was killed in the iteration after the next."""
    (run_dir / "summary.json").unlink()
    for path in (run_dir / "checkpoints").glob("iteration_*.pt"):
        if path.name > f"iteration_{iteration:08d}.pt":
            path.unlink()


def untimed(value):
    """Return a state or line without what tells of time."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if not str(k).startswith(TIMED) and k != "t_eval"}
    if isinstance(value, str):  # a configuration, in which the sweep that it could be of has a stamp
        return [line for line in value.splitlines() if not line.startswith("sweep: ")]
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.numpy().tobytes())
    return [untimed(each) for each in value] if isinstance(value, (list, tuple)) else value


def assert_same(one, other):
    assert summary(one)["params_hash"] == summary(other)["params_hash"]
    for first, second in zip(lines(one), lines(other), strict=True):
        assert untimed(first) == untimed(second)
    names = [sorted(path.name for path in (each / "checkpoints").glob("*.pt")) for each in (one, other)]
    assert names[0] == names[1]
    for name in names[0]:
        first, second = (
            untimed(torch.load(each / "checkpoints" / name, weights_only=True)) for each in (one, other)
        )
        assert first == second, name


@pytest.mark.parametrize(
    "what", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_a_run_that_goes_on_from_any_checkpoint_is_the_one_that_was_not_interrupted(tmp_path, what):
    if what.startswith("Hopper"):
        pytest.importorskip("mujoco")
    trained(tmp_path / "whole", *RUNS[what])
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    cut_back(tmp_path / "again", random.Random(what).randrange(1, NUM_ITERATIONS))
    result = resumed(tmp_path / "again")
    assert "approximately" not in result.stderr
    assert_same(tmp_path / "whole", tmp_path / "again")


OTHERS = {
    "1 to 2": ["dist.world_size=2"],
    "1 to 3": ["dist.world_size=3"],
    "1 to 4, over gloo": ["dist.world_size=4", "dist.collective=gloo"],
    "sync_actors": ["dist.topology=sync_actors", "dist.world_size=3"],
    "sync_actors, 3 of them": ["dist.topology=sync_actors", "dist.world_size=4"],
    "multi_learner": ["dist.topology=multi_learner", "dist.world_size=4"],
    "multi_learner, unequal teams": [
        "dist.topology=multi_learner",
        "dist.world_size=5",
        "dist.num_learners=2",
    ],
    "env_workers": ["dist.topology=env_workers", "dist.world_size=3"],
    "unequal shares": ["dist.topology=env_workers", "dist.world_size=4", "dist.env_shares=[1,2,1]"],
}


@pytest.fixture(scope="module")
def in_float64(tmp_path_factory):
    """A run of one rank in float64, whole, with everything that has a state of its own in each environment."""
    run_dir = tmp_path_factory.mktemp("float64") / "run"
    trained(run_dir, "env=pendulum", *EVERYTHING, "dtype=float64")
    return run_dir


@pytest.mark.parametrize(
    "other", [name if name == "1 to 2" else pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]
)
def test_other_ranks_and_topologies_go_on_with_the_environments_where_they_were(in_float64, tmp_path, other):
    again = shutil.copytree(in_float64, tmp_path / "again")
    cut_back(again, 2)
    resumed(again, *OTHERS[other])
    assert_equal(in_float64, again)
    if other != "1 to 2":
        return
    cut_back(again, 4)
    resumed(again, "dist.world_size=1")
    assert_equal(in_float64, again)


def assert_equal(one, other):
    states = [
        torch.load(each / "checkpoints" / f"iteration_{NUM_ITERATIONS:08d}.pt", weights_only=True)
        for each in (one, other)
    ]
    assert largest_difference(states[0]["model"], states[1]["model"]) <= 1e-9
    a, b = (each["environments"] for each in states)
    assert torch.equal(a["lengths"], b["lengths"])
    for name in ("returns", "discounted"):
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_pool_goes_on_with_what_was_stepped_one_by_one(tmp_path):
    trained(tmp_path / "whole", "env=cartpole", "env.backend=sync")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    cut_back(tmp_path / "again", 3)
    resumed(tmp_path / "again", "env.backend=pool", "env.num_workers=2")
    assert summary(tmp_path / "whole")["params_hash"] == summary(tmp_path / "again")["params_hash"]


def test_a_task_whose_state_cannot_be_had_says_so_and_is_resumed_with_new_episodes_only(tmp_path):
    task = ["env=gym", "env.id=tests.distributed.forgetful:tests/Forgetful-v0", "env.backend=sync"]
    run_dir = tmp_path / "run"
    first = trained(run_dir, *task)
    assert first.stderr.count("warning: checkpoints will not hold the states of environments, because") == 1
    cut_back(run_dir, 2)
    refused = run([sys.executable, "-m", "ddppo.train", f"resume={run_dir}"], run_dir)
    assert refused.code == 2
    assert "resume_state=approximate resumes from it with new episodes" in refused.stderr
    again = resumed(run_dir, "resume_state=approximate")
    assert again.stderr.count("the run goes on approximately, its environments with new episodes") == 1
    quiet = trained(tmp_path / "quiet", *task, "resume_state=approximate")
    assert "checkpoints will not hold" not in quiet.stderr


@pytest.mark.slow
def test_an_ordered_run_of_4_ranks_then_2_then_8_ends_as_that_of_one(tmp_path):
    """In C++, with all that is decided over all ranks: the end of epochs, moments of minibatches of unequal sizes."""
    how = [
        "env=pendulum", *EVERYTHING, "env.num_envs=8", "ppo.total_steps=1152", "dist.reduction=ordered", "compile=auto",
        "ppo.target_kl=0.01", "ppo.clip_value_coef=0.2", "ppo.entropy_coef=0.01", "ppo.num_minibatches=7",
        "ppo.normalize_advantages=minibatch", "eval.every_steps=384", "eval.episodes=3",
    ]  # fmt: skip
    trained(tmp_path / "alone", *how, "checkpoint.every_steps=192")
    again = tmp_path / "again"
    trained(again, *how, "checkpoint.every_steps=192", "dist.world_size=4")
    for last, num_ranks in ((2, 2), (4, 8)):
        cut_back(again, last)
        resumed(again, f"dist.world_size={num_ranks}")
    assert_same_learning(tmp_path / "alone", again)


def assert_same_learning(one, other):
    assert summary(one)["params_hash"] == summary(other)["params_hash"]
    name = f"checkpoints/iteration_{NUM_ITERATIONS:08d}.pt"
    states = [torch.load(each / name, weights_only=True) for each in (one, other)]
    assert untimed(states[0]["environments"]) == untimed(states[1]["environments"])
    assert untimed(states[0]["model"]) == untimed(states[1]["model"])
