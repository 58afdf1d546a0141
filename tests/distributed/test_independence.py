"""What is learned does not depend on the number of ranks: the same run at W = 1, 2 and 4, with real processes."""

import sys

import pytest
import torch

from tests.support import TINY, lines, run, summary

ITERATIONS = 5
SIZES = [
    "env.num_envs=8", "ppo.rollout_steps=32", f"ppo.total_steps={ITERATIONS * 256}", "ppo.num_epochs=3",
    "ppo.num_minibatches=4", "dist.check_every=1",
]  # fmt: skip
EVERYTHING = [
    "ppo.normalize_obs=true", "ppo.normalize_rewards=true", "ppo.target_kl=0.002", "ppo.clip_value_coef=0.2",
    "ppo.entropy_coef=0.01", "ppo.lr_schedule=adaptive", "ppo.num_minibatches=7", "model.shared_trunk=true",
    "ppo.normalize_advantages=minibatch",
]  # fmt: skip


def sweep(folder, *arguments):
    """Run a multirun; return its run folders by world size."""
    command = [
        sys.executable,
        "-m",
        "ddppo.train",
        "-m",
        *TINY,
        *SIZES,
        *arguments,
        f"hydra.sweep.dir={folder}",
    ]
    result = run(command, folder)
    assert result.code == 0, result.stderr
    folders = [path for path in folder.iterdir() if path.is_dir()]
    return {summary(path)["world_size"]: path for path in folders}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def by_world_size(name, *arguments):
        if name not in done:
            done[name] = sweep(tmp_path_factory.mktemp(name), *arguments)
        return done[name]

    done = {}
    return by_world_size


def state(run_dir):
    return torch.load(run_dir / "checkpoints" / f"iteration_{ITERATIONS:08d}.pt", weights_only=True)


def largest_difference(a, b):
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def assert_same_learning(run_a, run_b, limit):
    a, b = state(run_a), state(run_b)
    assert a["env_steps"] == b["env_steps"] == ITERATIONS * 256
    assert largest_difference(a["model"], b["model"]) <= limit
    assert a["window"] == [pytest.approx(episode, rel=1e-9) for episode in b["window"]]
    for moments in {"obs_moments", "return_moments"} & a.keys():
        torch.testing.assert_close(a[moments], b[moments], rtol=1e-9, atol=1e-9)


@pytest.mark.quick_cases("cartpole")
@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
def test_in_float64_parameters_after_5_iterations_agree_to_1e_9(runs, env):
    folders = runs(f"{env}_float64", f"env={env}", "dtype=float64", "dist.world_size=1,2,4")
    assert_same_learning(folders[1], folders[2], 1e-9)
    assert_same_learning(folders[1], folders[4], 1e-9)


@pytest.mark.slow
def test_games_of_pixels_agree_as_well(runs):
    pytest.importorskip("ale_py", reason="needs the extra atari: pip install '.[atari]'")
    small = ["model=cnn", "model.conv_layers=[[8,8,8],[8,4,2]]", "model.hidden_sizes=[32]", "dtype=float64"]
    breakout = ["env=atari", "env.id=ALE/Breakout-v5", "ppo.total_steps=1200"]
    folders = runs("games", *breakout, *small, "dist.world_size=1,2")
    one, two = (state(folders[w]) for w in (1, 2))
    assert 1200 <= one["env_steps"] == two["env_steps"] < 1280  # FIRE after a lost life is no step
    assert largest_difference(one["model"], two["model"]) <= 1e-9
    assert one["window"] == two["window"] != []


@pytest.mark.parametrize(
    "model", [["model=lstm", "model.memory_layers=2"], pytest.param(["model=gru"], marks=pytest.mark.slow)]
)
def test_policies_with_memory_agree_as_well(runs, model):
    cut = ["env=pendulum", "env.max_episode_steps=20", "ppo.num_minibatches=3", "ppo.normalize_obs=true"]
    folders = runs(model[0], *cut, *model, "model.memory_size=16", "dtype=float64", "dist.world_size=1,2,4")
    assert_same_learning(folders[1], folders[2], 1e-9)
    assert_same_learning(folders[1], folders[4], 1e-9)
    assert len(state(folders[1])["window"]) == 8 * 8  # episodes, each of which was cut


def test_with_every_normaliser_early_stop_and_odd_minibatches_they_agree_as_well(runs):
    folders = runs("everything", "env=pendulum", "dtype=float64", *EVERYTHING, "dist.world_size=1,2,4")
    assert_same_learning(folders[1], folders[2], 1e-9)
    assert_same_learning(folders[1], folders[4], 1e-9)
    epochs = {
        w: [line["train/epochs"] for line in lines(path) if line["rank"] == 0] for w, path in folders.items()
    }
    assert epochs[1] == epochs[2] == epochs[4]
    assert min(epochs[1]) < 3  # target_kl did stop some


MIXED = [
    "env=gym", "env.id=tests.unit.seen_tasks:seen/Mixed-v0", "model.name=tests.unit.seen_tasks:Looking",
    "ppo.normalize_obs=true", "dtype=float64",
]  # fmt: skip


@pytest.mark.slow
def test_with_pixels_beside_other_arrays_and_a_model_of_them_they_agree_whoever_steps_the_tasks(runs):
    one = runs("mixed_sync", *MIXED, "env.backend=sync", "dist.world_size=1")[1]
    two = runs("mixed_pool", *MIXED, "env.backend=pool", "dist.world_size=2")[2]
    assert_same_learning(one, two, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [[], ["model.memory=lstm", "model.memory_size=8"]], ids=["none", "lstm"])
def test_with_an_encoder_for_each_array_they_agree_as_well(runs, memory):
    small = ["model=dict", "model.hidden_sizes=[16]", "model.image_features=8", "model.vector_sizes=[8]"]
    folders = runs(
        f"encoders{len(memory)}", *MIXED[:2], *small, *memory, "dtype=float64", "dist.world_size=1,2"
    )
    assert_same_learning(folders[1], folders[2], 1e-9)


def test_distributed_data_parallel_learns_the_same_as_one_rank(runs, tmp_path):
    one = runs("everything", "env=pendulum", "dtype=float64", *EVERYTHING, "dist.world_size=1,2,4")[1]
    two = sweep(
        tmp_path / "ddp",
        "env=pendulum",
        "dtype=float64",
        *EVERYTHING,
        "dist.world_size=2",
        "dist.grad_sync=ddp",
    )[2]
    assert summary(two)["derived"]["grad_sync"] == "ddp"
    assert_same_learning(one, two, 1e-9)


@pytest.mark.quick_cases("pendulum")
@pytest.mark.parametrize("env", ["cartpole", "pendulum"])
def test_in_float32_the_first_metrics_agree_to_1e_4(runs, env):
    """|a - b| <= 1e-4 max(1, |a|): absolute below 1, relative above, in the first 3 iterations."""
    folders = runs(f"{env}_float32", f"env={env}", "dist.world_size=1,2,4")
    numbers = {w: [line for line in lines(path) if line["rank"] == 0][:3] for w, path in folders.items()}
    for w in (2, 4):
        for expected, found in zip(numbers[1], numbers[w], strict=True):
            names = [n for n in expected if n.startswith(("train/", "rollout/")) and "local" not in n]
            names.remove("rollout/fps")  # a matter of time
            assert len(names) >= 12
            for name in names:
                assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-4), (w, name)


def test_weak_scaling_keeps_the_batch_of_a_rank_and_scales_the_learning_rate(tmp_path):
    arguments = [
        "scaling=weak",
        "scaling.learning_rate_rule=sqrt",
        "ppo.lr_schedule=none",
        "ppo.learning_rate=1e-3",
    ]
    run_dir = sweep(tmp_path / "weak", *arguments, "dist.world_size=2")[2]
    assert summary(run_dir)["derived"]["B"] == 2 * 8 * 32
    first = lines(run_dir)[0]
    assert first["rollout/steps"] == 512
    assert first["rollout/local_steps"] == 256
    assert first["train/learning_rate"] == pytest.approx(1e-3 * 2**0.5)
