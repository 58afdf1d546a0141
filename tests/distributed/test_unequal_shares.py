"""Ranks that do not divide the environments: the first ones step one more, and what is learned is the same."""

import sys

import pytest
import torch

from ddppo import native
from tests.distributed.test_independence import EVERYTHING, ITERATIONS, SIZES, largest_difference, state
from tests.support import TINY, door, lines, run, summary

# By topology and number of ranks: the environments, 8 in all, of each rank.
SPREADS = {
    "ddp 3": ([], [3, 3, 2]),
    "ddp 5": ([], [2, 2, 2, 1, 1]),
    "ddp 7": (["dist.collective=gloo", "compile=off"], [2, 1, 1, 1, 1, 1, 1]),
    "ddp_preempt 3": (["dist.sync_frac=1"], [3, 3, 2]),
    "device 3": ([], [3, 3, 2]),
    "sync_actors 4": ([], [0, 3, 3, 2]),
    "sync_actors 6": (["compile=off"], [0, 2, 2, 2, 1, 1]),
    "async_actors 4": (["dist.max_lag=0"], [0, 3, 3, 2]),
    "multi_learner 5": (["dist.num_learners=2"], [0, 3, 3, 0, 2]),
    "multi_learner 8": (["dist.num_learners=2"], [0, 2, 2, 1, 0, 1, 1, 1]),
    "env_workers 4": ([], [0, 3, 3, 2]),
    "env_workers_hetero 6": ([], [0, 2, 2, 2, 1, 1]),
    "central_inference 3": ([], [3, 3, 2]),
    "central_inference 5": (["dist.observers=1"], [2, 2, 2, 1, 1]),
}
QUICK = (
    "ddp 3",
    "sync_actors 4",
    "async_actors 4",
    "multi_learner 5",
    "env_workers 4",
    "central_inference 3",
)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Return the folder of a run with these arguments, made once."""

    def of(*arguments):
        if arguments not in done:
            folder = tmp_path_factory.mktemp("run") / "run"
            sizes = [] if "algorithm=dqn" in arguments else SIZES  # which are settings of PPO
            result = door(*TINY, *sizes, "dtype=float64", *arguments, run_dir=folder)
            assert result.code == 0, result.stderr
            done[arguments] = folder
        return done[arguments]

    done = {}
    return of


def spread(name):
    topology, world_size = name.split()
    return f"distributed={topology}", f"dist.world_size={world_size}", *SPREADS[name][0]


def assert_same_learning(one, other):
    a, b = state(one), state(other)
    assert a["env_steps"] == b["env_steps"] == ITERATIONS * 256
    assert largest_difference(a["model"], b["model"]) <= 1e-10
    assert a["window"] == [pytest.approx(episode, rel=1e-9) for episode in b["window"]]
    assert a["window"]
    assert a["learning_rate"] == b["learning_rate"]
    for moments in {"obs_moments", "return_moments"} & a.keys():
        torch.testing.assert_close(a[moments], b[moments], rtol=1e-10, atol=1e-10)


@pytest.mark.quick_cases(*QUICK)
@pytest.mark.parametrize("name", SPREADS)
def test_what_is_learned_is_what_one_process_learns(learned, name):
    if name.startswith("device") and native.why_not() is not None:
        pytest.skip(native.why_not())
    cartpole = ["env=cartpole", *EVERYTHING]
    folder = learned(*cartpole, *spread(name))
    assert_same_learning(learned(*cartpole, "distributed=single"), folder)
    # Every rank steps its own share, no more.
    steps = {}
    for line in lines(folder):
        steps.setdefault(line["rank"], set()).add(line["rollout/local_steps"])
    counted = [steps[rank] for rank in sorted(steps)]
    if name.startswith("env_workers"):  # rank 0 acts in all environments, and counts their steps
        assert counted == [{256}, *[{0}] * (len(steps) - 1)]
    else:
        assert counted == [{32 * num_envs} for num_envs in SPREADS[name][1]]


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_so_it_is_in_cpp(learned):
    pendulum = ["env=pendulum", "env.max_episode_steps=50", "ppo.normalize_rewards=true"]
    one, three = learned(*pendulum, "distributed=single"), learned(*pendulum, *spread("ddp 3"))
    assert [summary(folder)["derived"]["step"] for folder in (one, three)] == ["native"] * 2
    assert_same_learning(one, three)


@pytest.mark.quick_cases("sync_actors 4")
@pytest.mark.parametrize("name", ["ddp 3", "sync_actors 4", "central_inference 3"])
def test_so_it_is_with_memory(learned, name):
    gru = [
        "env=pendulum",
        "env.max_episode_steps=20",
        "model=gru",
        "model.memory_size=16",
        "ppo.sequence_length=8",
    ]
    assert_same_learning(learned(*gru, "distributed=single"), learned(*gru, *spread(name)))


ALGORITHMS = {
    "grpo": ["ppo=grpo", "ppo.group_size=4", "ppo.rollout_steps=40", "ppo.total_steps=700"],
    "dqn": ["algorithm=dqn", "env.num_envs=8", "algorithm.total_steps=1200"],
}


@pytest.mark.quick_cases("grpo-sync_actors 4", "dqn-multi_learner 5")
@pytest.mark.parametrize(
    "name", ["ddp 3", "sync_actors 4", "multi_learner 5", "env_workers 4", "central_inference 3"]
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_so_it_is_by_other_algorithms(learned, algorithm, name):
    how = ["env=cartpole", *ALGORITHMS[algorithm]]
    folders = learned(*how, "distributed=single"), learned(*how, *spread(name))
    a, b = (torch.load(folder / "checkpoints" / last(folder), weights_only=True) for folder in folders)
    assert a["iteration"] == b["iteration"] >= 3
    assert a["env_steps"] == b["env_steps"]
    assert largest_difference(a["model"], b["model"]) <= 1e-10
    assert a["window"] == [pytest.approx(episode, rel=1e-9) for episode in b["window"]]
    assert a["window"]


def last(folder):
    return max(path.name for path in (folder / "checkpoints").glob("iteration_*.pt"))


def test_advantages_normalised_by_each_rank_alone_are_learned_from_too(learned):
    folder = learned("env=cartpole", "ppo.normalize_advantages=local", *spread("ddp 3"))
    assert state(folder)["env_steps"] == ITERATIONS * 256


def test_a_run_goes_on_in_other_unequal_shares_and_ends_as_that_of_one_process(learned, tmp_path):
    pendulum = ["env=pendulum", "env.max_episode_steps=50", "ppo.normalize_rewards=true", "compile=off"]
    folder = tmp_path / "run"
    settings = [*TINY, *SIZES, "dtype=float64", *pendulum, "dist.world_size=3", "ppo.lr_schedule=none"]
    result = door(*settings, "ppo.total_steps=512", run_dir=folder)
    assert result.code == 0, result.stderr
    goes_on = [
        (768, ["dist.world_size=5"]),
        (1024, ["dist.topology=sync_actors", "dist.world_size=4"]),
        (256 * ITERATIONS, ["dist.topology=multi_learner", "dist.world_size=5", "dist.num_learners=2"]),
    ]
    for total_steps, ranks in goes_on:
        more = [f"resume={folder}", f"ppo.total_steps={total_steps}", *ranks]
        result = run([sys.executable, "-m", "ddppo.train", *more], folder)
        assert result.code == 0, result.stderr
    alone = learned(*pendulum, "ppo.lr_schedule=none", "distributed=single")
    assert_same_learning(alone, folder)
    a, b = (state(each)["environments"] for each in (alone, folder))
    for name in ("lengths", "returns", "discounted"):
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-9)
