"""Groups of whole episodes: the same numbers however many ranks share them, and across an interruption."""

import sys

import pytest
import torch

from tests.support import TINY, door, lines, run, summary

# Groups of 4: whole on one rank and on two, halved on 4 ranks; 3 ranks have 3, 3 and 2 of the 8 environments.
SMALL = [
    "env=cartpole", "ppo=grpo", "env.num_envs=8", "ppo.group_size=4", "ppo.rollout_steps=40", "ppo.num_epochs=2",
    "ppo.num_minibatches=3", "ppo.total_steps=700", "ppo.lr_schedule=none", "dtype=float64", "dist.check_every=1",
]  # fmt: skip
EVERYTHING = [
    "ppo.kl_coef=0.1", "ppo.token_mean=constant", "ppo.entropy_coef=0.01", "ppo.normalize_obs=true",
    "ppo.target_kl=0.02", "ppo.scale_by=none", "ppo.mask_truncated=true", "ppo.clip_coef_high=0.28",
]  # fmt: skip


COMPARED = (
    *("rollout/group", "rollout/failed", "rollout/success", "rollout/steps", "train/", "curriculum/"),
    *(
        "reward/",
        "rollout/truncated",
        "rollout/tokens_m",
        "rollout/turns_mean",
        "rollout/ended",
        "rollout/tool",
    ),
)
KINDS = {
    "rollouts_as_wholes": [
        *(*SMALL, "ppo.token_mean=episodes", "ppo.ratio=sequence", "ppo.scale_by=batch", "ppo.kl_coef=0.1"),
        *("ppo.clip_coef=0.01", "ppo.clip_coef_high=0.02"),
    ],
    "weights": [*SMALL, "ppo.loss=cispo", "ppo.clip_coef=0.05"],
    "everything": [*SMALL, *EVERYTHING],
}


def last_state(run_dir):
    path = sorted((run_dir / "checkpoints").glob("iteration_*.pt"))[-1]
    return torch.load(path, weights_only=True)


def of_rank_0(run_dir):
    return [line for line in lines(run_dir) if line["rank"] == 0]


def trained(folder, arguments, world_sizes):
    """Return the run folders by world size."""
    command = ["-m", "ddppo.train", "-m", *TINY, *arguments, f"dist.world_size={world_sizes}"]
    result = run([sys.executable, *command, f"hydra.sweep.dir={folder}"], folder)
    assert result.code == 0, result.stderr
    return {summary(path)["world_size"]: path for path in folder.iterdir() if path.is_dir()}


def assert_same(one_dir, other_dir):
    one, other = last_state(one_dir), last_state(other_dir)
    assert one["iteration"] >= 3
    assert (other["iteration"], other["env_steps"]) == (one["iteration"], one["env_steps"])
    for name, x in one["model"].items():
        torch.testing.assert_close(other["model"][name], x, rtol=0, atol=1e-10)
    for expected, found in zip(of_rank_0(one_dir), of_rank_0(other_dir), strict=True):
        names = [name for name in expected if name.startswith(COMPARED)]
        known = {name: expected[name] for name in names if expected[name] is not None}  # null: of no sample
        assert {name: found[name] for name in known} == pytest.approx(known, rel=1e-9, abs=1e-10)
        assert all(found[name] is None for name in names if name not in known)


@pytest.mark.quick_cases("everything")
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_group_statistics_are_those_of_one_rank(tmp_path, kind):
    folders = trained(tmp_path, KINDS[kind], "1,2,3,4")
    for world_size in (2, 3, 4):
        assert_same(folders[1], folders[world_size])


SPREAD = {  # topologies that collect whole episodes, and of how many ranks
    "sync_actors": ("dist.world_size=3",),
    "multi_learner": ("dist.world_size=4",),
    "env_workers": ("dist.world_size=3",),
    "env_workers_hetero": ("dist.world_size=4",),
    "central_inference": ("dist.world_size=2", "dist.max_wait_ms=0"),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    result = door(*TINY, *KINDS["everything"], "dist.world_size=1", run_dir=folder)
    assert result.code == 0, result.stderr
    return folder


@pytest.mark.quick_cases("sync_actors", "env_workers", "central_inference")
@pytest.mark.parametrize("topology", SPREAD)
def test_a_topology_learns_from_groups_what_one_rank_learns(alone, tmp_path, topology):
    how = [f"distributed={topology}", *SPREAD[topology]]
    result = door(*TINY, *KINDS["everything"], *how, run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert_same(alone, tmp_path / "run")
    assert torch.equal(last_state(alone)["reference"], last_state(tmp_path / "run")["reference"])


def assert_goes_on_to_the_bit(folder, arguments, end, stop):
    """Train to the end, and to a stop and then on; compare."""
    settings, whole, parted = [*TINY, *arguments], folder / "whole", folder / "parted"
    for run_dir, total_steps in ((whole, end), (parted, stop)):
        result = door(*settings, f"ppo.total_steps={total_steps}", run_dir=run_dir)
        assert result.code == 0, result.stderr
    assert last_state(parted)["iteration"] < last_state(whole)["iteration"]
    result = door(f"resume={parted}", f"ppo.total_steps={end}", "log.progress=none", run_dir=parted)
    assert result.code == 0, result.stderr
    expected, found = last_state(whole), last_state(parted)
    for key in ("model", "reference", "iteration", "env_steps", "window", "sampler"):
        assert str(found[key]) == str(expected[key]), key
    assert summary(parted)["params_hash"] == summary(whole)["params_hash"]
    assert not torch.equal(found["reference"], torch.cat([x.flatten() for x in found["model"].values()]))


def test_a_run_that_is_gone_on_with_is_to_the_bit_the_one_that_was_not_interrupted(tmp_path):
    assert_goes_on_to_the_bit(tmp_path, KINDS["everything"], 700, 300)


@pytest.mark.slow
@pytest.mark.parametrize("topology", SPREAD)
def test_so_it_is_under_every_topology(tmp_path, topology):
    # A batch that waits for all: otherwise a clock decides which observers share it.
    how = [setting for setting in SPREAD[topology] if not setting.startswith("dist.max_wait_ms")]
    assert_goes_on_to_the_bit(tmp_path, [*KINDS["everything"], f"distributed={topology}", *how], 700, 300)
