"""Runs with environments that live on a device (env.backend=device): any number of ranks, and resumed."""

import pytest
import torch

from ddppo.records import checkpoint
from tests.distributed.test_independence import largest_difference
from tests.support import TINY, door, lines, summary

SIZES = [
    "env.num_envs=6", "ppo.rollout_steps=16", "ppo.num_epochs=2", "ppo.num_minibatches=4", "ppo.total_steps=480",
    "dtype=float64", "env.max_episode_steps=11", "checkpoint.every_steps=192", "dist.check_every=1",
]  # fmt: skip
NORMALISED = ["ppo.normalize_obs=true", "ppo.normalize_rewards=true", "ppo.lr_schedule=adaptive"]


def trained(folder, *arguments):
    result = door(*TINY, "env=cartpole_device", *SIZES, *arguments, run_dir=folder)
    assert result.code == 0, result.stderr
    return torch.load(folder / "checkpoints" / "iteration_00000005.pt", weights_only=True)


@pytest.mark.parametrize("settings", [[], NORMALISED], ids=["plain", "normalised"])
def test_what_is_learned_does_not_depend_on_the_number_of_ranks(settings, tmp_path):
    one, two, three = (trained(tmp_path / f"{w}", *settings, f"dist.world_size={w}") for w in (1, 2, 3))
    assert one["window"]
    for other in (two, three):
        assert largest_difference(one["model"], other["model"]) < 1e-10
        assert one["window"] == [pytest.approx(episode, rel=1e-9) for episode in other["window"]]


@pytest.mark.parametrize(
    "settings",
    [
        ("ppo=grpo", "ppo.group_size=3", "ppo.normalize_obs=true"),
        ("algorithm=reinforce", "algorithm.rollout_steps=16", "algorithm.total_steps=250"),
    ],
    ids=["grpo", "reinforce"],
)
def test_whole_episodes_are_learned_from_alike_by_any_number_of_ranks(settings, tmp_path):
    sizes = [x for x in SIZES if settings[0] == "ppo=grpo" or not x.startswith("ppo.")]
    found = []
    for w in (1, 2):
        arguments = (*TINY, "env=cartpole_device", *sizes, *settings, f"dist.world_size={w}")
        result = door(*arguments, run_dir=tmp_path / f"{w}")
        assert result.code == 0, result.stderr
        found.append(checkpoint.load(checkpoint.last(tmp_path / f"{w}" / "checkpoints")))
    assert largest_difference(found[0]["model"], found[1]["model"]) < 1e-10
    assert [x[1:3] for x in found[0]["window"]] == [x[1:3] for x in found[1]["window"]]
    assert max(line["rollout/length_mean"] for line in lines(tmp_path / "1")) <= 11


def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit_with_episodes_under_way(tmp_path):
    whole = trained(tmp_path / "whole", *NORMALISED)
    first = door(
        *TINY, "env=cartpole_device", *SIZES, *NORMALISED, "ppo.total_steps=288", run_dir=tmp_path / "cut"
    )
    assert first.code == 0, first.stderr
    again = door(f"resume={tmp_path / 'cut'}", "ppo.total_steps=480", run_dir=tmp_path / "cut")
    assert again.code == 0, again.stderr
    resumed = torch.load(tmp_path / "cut" / "checkpoints" / "iteration_00000005.pt", weights_only=True)
    assert largest_difference(whole["model"], resumed["model"]) == 0
    assert whole["window"] == resumed["window"]
    assert any(line["rollout/episodes"] for line in lines(tmp_path / "cut"))


def test_scores_of_an_evaluation_do_not_depend_on_the_number_of_ranks(tmp_path):
    scores = []
    for w in (1, 2):
        trained(tmp_path / f"{w}", f"dist.world_size={w}", "eval.final_episodes=5")
        scores.append(summary(tmp_path / f"{w}")["eval"]["final"])
    assert scores[0]["return_mean"] == scores[1]["return_mean"]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_cartpole_on_a_device_reaches_475(world_size, tmp_path):
    """Its preset, 1,024 environments, 100 deterministic episodes: 15 seconds on two free cores."""
    arguments = [
        "env=cartpole_device",
        f"dist.world_size={world_size}",
        "log.tensorboard=false",
        "log.progress=none",
    ]
    result = door(*arguments, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["eval"]["final"]["return_mean"] >= 475


def test_a_quadruped_is_learned_from_alike_by_any_number_of_ranks_logs_its_metrics_and_is_exported(tmp_path):
    one, two = (
        trained(tmp_path / f"{w}", "env=quadruped", "ppo=quadruped", *SIZES, f"dist.world_size={w}")
        for w in (1, 2)
    )
    assert largest_difference(one["model"], two["model"]) < 1e-10
    for first, second in zip(lines(tmp_path / "1"), lines(tmp_path / "2")[::2], strict=True):
        assert 0.2 < first["user/height"] < 0.4
        assert first["user/velocity_error"] == pytest.approx(second["user/velocity_error"], rel=1e-5)
    exported = door(f"run={tmp_path / '1'}", run_dir=tmp_path / "1", module="ddppo.export")
    assert exported.code == 0, exported.stderr
    pictures = door(f"run={tmp_path / '1'}", run_dir=tmp_path / "1", module="ddppo.enjoy")
    assert "draws no pictures" in pictures.stderr


@pytest.mark.slow
def test_a_simulator_without_states_or_final_observations_says_so_and_is_resumed_with_new_episodes(tmp_path):
    folder, sizes = tmp_path / "run", [x for x in SIZES if not x.startswith(("env.max", "dtype"))]
    task = ["env.id=tests.device.fake_simulators:RslRlCartPole", "env.simulator=rsl_rl"]
    first = door(*TINY, "env=cartpole_device", *sizes, *task, "ppo.total_steps=288", run_dir=folder)
    assert first.code == 0, first.stderr
    assert "this run can be resumed with new episodes only" in " ".join(first.stderr.split())
    assert summary(folder)["derived"]["final_observations"] == "lost"
    refused = door(f"resume={folder}", "ppo.total_steps=480", run_dir=folder)
    assert refused.code == 2
    assert "resume_state=approximate" in refused.stderr
    again = door(f"resume={folder}", "ppo.total_steps=480", "resume_state=approximate", run_dir=folder)
    assert again.code == 0, again.stderr
    assert summary(folder)["env_steps"] == 480
