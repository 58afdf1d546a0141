"""dist.reduction=ordered: the same bits at any W that divides dist.shards, with real processes."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from ddppo import native
from tests.support import TINY, door, lines, run, summary

ITERATIONS = 4
SIZES = [
    "env.num_envs=8", "ppo.rollout_steps=32", f"ppo.total_steps={ITERATIONS * 256}", "ppo.num_epochs=3",
    "ppo.num_minibatches=4", "dist.check_every=1", "eval.final_episodes=11",
]  # fmt: skip
EVERYTHING = [
    "ppo.normalize_obs=true", "ppo.normalize_rewards=true", "ppo.target_kl=0.01", "ppo.clip_value_coef=0.2",
    "ppo.entropy_coef=0.01", "ppo.lr_schedule=adaptive", "ppo.num_minibatches=7", "eval.every_steps=512",
    "ppo.normalize_advantages=minibatch",
]  # fmt: skip
PONG = [
    "env=atari", "env.id=ALE/Pong-v5", "model=cnn", "model.conv_layers=[[8,8,8],[8,4,2]]", "model.hidden_sizes=[32]",
    "ppo.rollout_steps=8", "ppo.total_steps=192", "eval.final_episodes=0",
]  # fmt: skip
ROUNDED = [
    *PONG[:2], "model=resnet", "model.resnet_channels=[8,8]", "model.precision=bfloat16", *PONG[4:],
]  # fmt: skip
TIME_METRICS = ("time/", "dist/", "fps", "_per_s", "eval/t_")


def runs(folder, *arguments, reduction="ordered", world_sizes="1,2,4"):
    """Run the same at several world sizes; return the run folders by W."""
    of_all = [*TINY, *SIZES, f"dist.reduction={reduction}", f"dist.world_size={world_sizes}"]
    command = [
        sys.executable,
        "-m",
        "ddppo.train",
        "-m",
        *of_all,
        *arguments,
        f"hydra.sweep.dir={folder}",
    ]
    result = run(command, folder)
    assert result.code == 0, result.stderr
    return {summary(path)["world_size"]: path for path in folder.iterdir() if path.is_dir()}


def learned(run_dir):
    """Return what a run's numbers were, but for times: those of rank 0, and its summary's."""
    told = [
        {name: x for name, x in line.items() if not any(of_time in name for of_time in TIME_METRICS)}
        for line in lines(run_dir)
        if line["rank"] == 0
    ]
    for line in told:
        for of_one_rank in ("rollout/local_steps", "wall_s"):
            line.pop(of_one_rank, None)
    of_run = summary(run_dir)
    scores = {
        which: {name: x for name, x in of_one.items() if name != "t_eval"}
        for which, of_one in (of_run["eval"] or {}).items()
        if of_one
    }
    return told, of_run["params_hash"], scores, of_run["derived"]["step"]


def assert_same_bits(folders):
    one, *others = (learned(folders[w]) for w in sorted(folders))
    assert one[0]
    for other in others:
        assert other == one


@pytest.mark.quick_cases("lstm")
@pytest.mark.parametrize(
    ("arguments", "world_sizes"),
    [
        (["env=pendulum", "compile=off", *EVERYTHING, "ppo.num_epochs=2", "model.shared_trunk=true"], "1,4"),
        (["env=cartpole", "model=lstm", "model.memory_size=16", "ppo.num_minibatches=3"], "1,4"),
    ],
    ids=["pendulum-eager", "lstm"],
)
def test_parameters_metrics_and_evaluations_are_the_same_bits(arguments, world_sizes, tmp_path):
    assert_same_bits(runs(tmp_path, *arguments, world_sizes=world_sizes))


@pytest.mark.parametrize("network", ["ddppo.study.bench.own:Plain", "tests.distributed.own_parts:Joined"])
def test_they_are_with_a_network_of_ones_own_which_cpp_computes(network, tmp_path):
    in_cpp = native.why_not() is None  # then sums are ordered by default
    how = [*TINY, *SIZES, "env=cartpole", f"model.name={network}"]
    how += [] if in_cpp else ["dist.reduction=ordered"]
    for world_size in (1, 4):
        result = door(*how, f"dist.world_size={world_size}", run_dir=tmp_path / str(world_size))
        assert result.code == 0, result.stderr
    assert_same_bits({world_size: tmp_path / str(world_size) for world_size in (1, 4)})
    derived = summary(tmp_path / "4")["derived"]
    assert derived["step"] == ("native" if in_cpp else "eager")
    assert derived["sums"] == "ordered: the same bits at W = 1, 2, 4 and 8"


def test_they_are_with_actions_of_a_beta_distribution(tmp_path):
    settings = ["env=pendulum", "model.distribution=beta", "ppo.entropy_coef=0.01", "ppo.normalize_obs=true"]
    assert_same_bits(folders := runs(tmp_path, *settings, reduction="auto", world_sizes="1,2"))
    in_cpp = native.why_not() is None
    assert learned(folders[2])[-1] == ("native" if in_cpp else "eager")


def test_by_default_they_are_too(tmp_path):
    settings = ["env=pendulum", "model.layer_norm=true", "model.squash=tanh", "model.log_std=state"]
    settings += ["ppo.entropy_coef=0.01", "ppo.normalize_obs=true", "eval.every_steps=512"]
    assert_same_bits(folders := runs(tmp_path, *settings, reduction="auto", world_sizes="1,4"))
    assert {summary(path)["derived"]["sums"] for path in folders.values()} == {
        "ordered: the same bits at W = 1, 2, 4 and 8"
    }
    # The policy's scores are those of the last evaluation, whichever number of episodes are side by side.
    final = summary(folders[1])["eval"]["final"]["return_mean"]
    said = door(f"run={folders[4]}", "episodes=11", module="ddppo.evaluate", run_dir=tmp_path).stdout
    assert f"{final:.2f}" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "world_sizes"),
    [
        (["env=cartpole"], "1,2,4,8"),
        (["env=cartpole", "compile=off", "dist.collective=gloo"], "1,8"),
        (["env=cartpole", "ppo.learning_rates={value_head:1e-3}", "compile=on"], "1,2"),
        (["env=pendulum", *EVERYTHING], "1,8"),
        (PONG, "1,4"),
        (ROUNDED, "1,4"),
        (["env=lunarlander", "env.backend=pool", "env.num_workers=1", "ppo=lunarlander", *SIZES], "1,4"),
    ],
    ids=[
        "cartpole",
        "eager-gloo",
        "compiled",
        "pendulum",
        "pong",
        "residual-bfloat16",
        "lander-pool",
    ],
)
def test_they_are_at_up_to_8_ranks(arguments, world_sizes, tmp_path):
    for module, env in {"ale_py": "env=atari", "Box2D": "env=lunarlander"}.items():
        if env in arguments:
            pytest.importorskip(module, reason="needs the extra")
    if "compile=on" in arguments and " " in torch.__file__:
        pytest.skip("torch's compiler knows no folders with spaces")
    assert_same_bits(runs(tmp_path, *arguments, world_sizes=world_sizes))


@pytest.mark.slow
def test_they_are_where_the_library_is_compiled_for_another_processor(tmp_path, monkeypatch):
    """That builds for others compute the same bits, whatever the shape, is tests/unit/test_bits.py's."""
    cpuinfo = Path("/proc/cpuinfo")
    if shutil.which("g++") is None or not cpuinfo.is_file() or " fma " not in cpuinfo.read_text():
        pytest.skip("needs g++ and an x86-64 processor with fma")
    monkeypatch.setenv("CXX", "g++ -march=haswell -mtune=znver3")
    folders = runs(tmp_path, "env=cartpole", "compile=on", world_sizes="1,4")
    assert_same_bits(folders)
    assert learned(folders[1])[-1] == "native"


@pytest.mark.slow
def test_shards_that_are_no_power_of_two_are_too(tmp_path):
    sizes = ["env.num_envs=12", "dist.shards=6", "ppo.total_steps=1536"]
    assert_same_bits(runs(tmp_path, "env=cartpole", *sizes, world_sizes="1,2,3"))


@pytest.mark.slow
def test_summed_fast_the_same_runs_agree_but_not_to_the_bit(tmp_path):
    folders = runs(
        tmp_path, "env=pendulum", "compile=off", "ppo.num_epochs=2", reduction="fast", world_sizes="1,4"
    )
    one, four = (
        torch.load(
            next((folders[w] / "checkpoints").glob(f"iteration_{ITERATIONS:08d}.pt")), weights_only=True
        )
        for w in (1, 4)
    )
    differences = [(one["model"][name] - four["model"][name]).abs().max().item() for name in one["model"]]
    assert 0 < max(differences) < 1e-3
