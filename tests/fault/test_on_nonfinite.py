"""Numbers that are not finite, in two ranks one of which meets them: what on_nonfinite makes of the run."""

import pytest
import torch

from ddppo.records import checkpoint
from tests.fault.test_bad_endings import iterations
from tests.support import TINY, door, lines, summary

SPIKES = (
    *TINY, "env=gym", "env.id=tests.fault.saboteurs:Spikes-v0", "env.backend=sync", "env.num_envs=4",
    "ppo.rollout_steps=8", "ppo.num_epochs=2", "ppo.lr_schedule=none", "ppo.total_steps=320", "dist.world_size=2",
    "dist.check_every=1", "checkpoint.every_steps=64", "checkpoint.keep=99",
)  # fmt: skip
IN_ITERATION_5 = {"FAULT_AFTER": "70"}  # 2 environments of a rank and 8 steps are 16 in an iteration


def of_rank_0(run_dir, name):
    return [line.get(name) for line in lines(run_dir) if line["rank"] == 0]


@pytest.fixture(params=["on", "off"])
def how(request):
    return f"compile={request.param}"


def test_a_batch_that_is_skipped_is_taken_back_by_all_ranks_and_counted(tmp_path, how):
    run_dir = tmp_path / "run"
    result = door(
        *SPIKES,
        how,
        "on_nonfinite=skip_batch",
        "checkpoint.every_steps=32",
        run_dir=run_dir,
        **IN_ITERATION_5,
    )
    assert result.code == 0, result.stderr
    assert iterations(run_dir) == list(range(1, 11))
    assert of_rank_0(run_dir, "train/skipped_batches") == [0] * 4 + [1] * 6
    assert of_rank_0(run_dir, "train/policy_loss")[4] is None
    kept = [checkpoint.load(path) for path in sorted((run_dir / "checkpoints").glob("iteration_*.pt"))]
    assert all(p.isfinite().all() for state in kept for p in state["model"].values())
    before, after = kept[3], kept[4]
    assert all(torch.equal(before["model"][name], p) for name, p in after["model"].items())
    assert torch.equal(before["optimizer"]["state"][0]["step"], after["optimizer"]["state"][0]["step"])
    assert kept[-1]["nonfinite"] == [1, 0, 0]
    assert summary(run_dir)["status"] == "completed"


@pytest.mark.quick_cases("on")
def test_a_run_that_is_to_go_back_goes_on_from_its_last_checkpoint_with_smaller_steps(tmp_path, how):
    run_dir = tmp_path / "run"
    result = door(*SPIKES, how, "on_nonfinite=restore", run_dir=run_dir, **IN_ITERATION_5)
    assert result.code == 0, result.stderr
    said = "the loss of rank 1 is not finite in iteration 5; going back to iteration 4, step sizes times 0.5 (restore"
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert iterations(run_dir) == list(range(1, 11))
    rates = of_rank_0(run_dir, "train/learning_rate")
    assert rates[4:] == [rates[0] / 2] * 6
    assert of_rank_0(run_dir, "train/restores") == [0] * 4 + [1] * 6
    assert summary(run_dir)["status"] == "completed"
    again = door(f"resume={run_dir}", "ppo.total_steps=384", run_dir=run_dir, FAULT_AFTER="100000")
    assert again.code == 0, again.stderr
    assert of_rank_0(run_dir, "train/learning_rate")[-2:] == [rates[0] / 2] * 2


def test_going_back_is_bounded_and_the_last_good_checkpoint_stays(tmp_path):
    run_dir = tmp_path / "run"
    result = door(
        *SPIKES, "model.name=tests.fault.saboteurs:NaNModel", "on_nonfinite=restore", "on_nonfinite_max=2",
        "on_nonfinite_factor=0.1", "ppo.total_steps=3200", run_dir=run_dir, FAULT_AFTER="50",
    )  # fmt: skip
    assert result.code == 1
    assert "step sizes times 0.01 (restore 2 of 2)" in result.stderr
    assert "Restores from a checkpoint so far: 2. The last good checkpoint is " in result.stderr
    last = checkpoint.load(checkpoint.last(run_dir / "checkpoints"))
    assert all(p.isfinite().all() for p in last["model"].values())
    done = iterations(run_dir)
    assert done == list(range(1, len(done) + 1))
    assert summary(run_dir)["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "world_size"),
    [("sync_actors", 3), ("async_actors", 3), ("multi_learner", 4), ("env_workers", 3)],
)
def test_in_other_topologies_who_learns_skips_it_and_all_go_on(tmp_path, topology, world_size):
    result = door(
        *SPIKES, f"distributed={topology}", f"dist.world_size={world_size}", "env.num_envs=8",
        "on_nonfinite=skip_batch", "ppo.total_steps=1280", run_dir=tmp_path / "run", **IN_ITERATION_5,
    )  # fmt: skip
    assert result.code == 0, result.stderr
    skipped = of_rank_0(tmp_path / "run", "train/skipped_batches")
    assert skipped == sorted(skipped)
    assert (skipped[0], skipped[-1]) == (0, 1)
