"""Runs that end badly, with real processes: what stops, what it says, what stays behind."""

import json
import math
import os
import signal
import sys

import pytest
import torch

from tests.support import (
    NEVER_S,
    PATIENCE_S,
    TINY,
    descendants,
    door,
    lines,
    processes,
    rank_of,
    started,
    summary,
    wait_until,
)

TRAIN = [sys.executable, "-m", "ddppo.train", *TINY]
LONG = ["env=synthetic", "ppo.total_steps=100000000", "ppo.rollout_steps=16", "env.kwargs.step_time_s=0.0005"]
SHORT = ["env=synthetic", "ppo.rollout_steps=16", "env.num_envs=4", "ppo.num_epochs=2"]


def iterations(run_dir):
    return [line["iteration"] for line in lines(run_dir) if line["rank"] == 0]


def running(*arguments, run_dir, **environ):
    return started([*TRAIN, *arguments, f"hydra.run.dir={run_dir}"], **environ)


def wait_for_iteration(run_dir, number, process):
    def reached():
        assert process.poll() is None, process.communicate()
        return bool(iterations(run_dir)) and iterations(run_dir)[-1] >= number

    wait_until(reached, f"iteration {number}")


def wait_for_end_of_ranks(run_dir):
    wait_until(lambda: not descendants(str(run_dir)), "end of all ranks")


@pytest.mark.quick_cases("flat")
@pytest.mark.parametrize("grad_sync", ["flat", "ddp"])
def test_a_killed_rank_ends_the_run_long_before_the_limit_and_is_named(tmp_path, grad_sync):
    run_dir = tmp_path / "run"
    how = ["dist.world_size=4", f"dist.grad_sync={grad_sync}", f"dist.timeout_s={NEVER_S:g}"]
    with running(*LONG, *how, run_dir=run_dir) as process:
        wait_for_iteration(run_dir, 2, process)
        (victim,) = [pid for pid in descendants(str(run_dir)) if rank_of(pid) == 2]
        os.kill(victim, signal.SIGKILL)
        _, stderr = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert "error: rank 2 of 4 ended with signal 9" in stderr
        wait_for_end_of_ranks(run_dir)


def test_a_rank_that_raises_shows_its_traceback_and_stops_the_others(tmp_path):
    run_dir = tmp_path / "run"
    result = door(
        *TINY, "env=gym", "env.id=tests.fault.saboteurs:Raises-v0", "env.backend=sync", "dist.world_size=2",
        "ppo.total_steps=100000000", "ppo.rollout_steps=32", run_dir=run_dir,
    )  # fmt: skip
    assert result.code == 1
    assert "ZeroDivisionError: the task of the test broke" in result.stderr
    assert "saboteurs.py" in result.stderr
    assert "rank 1" in result.stderr
    assert not descendants(str(run_dir))


def test_a_loss_that_is_not_finite_stops_all_ranks_before_the_optimizer_moves(tmp_path):
    run_dir = tmp_path / "run"
    # 2 epochs * 4 minibatches: call 20 is in iteration 3, so iterations 1 and 2 are whole, and saved.
    result = door(
        *TINY, *SHORT, "model.name=tests.fault.saboteurs:NaNModel", "dist.world_size=2", "ppo.total_steps=6400",
        "checkpoint.every_steps=1", run_dir=run_dir, FAULT_AFTER="20",
    )  # fmt: skip
    assert result.code == 1
    assert iterations(run_dir) == [1, 2]
    last = run_dir / "checkpoints" / "iteration_00000002.pt"
    assert "the loss of rank 1 is not finite in iteration 3" in result.stderr
    assert f"The last good checkpoint is {last}" in result.stderr
    state = torch.load(last, weights_only=True)
    assert all(p.isfinite().all() for p in state["model"].values())
    assert "Traceback" not in result.stderr
    assert summary(run_dir)["status"] == "failed"


def test_a_replica_that_drifts_is_named_within_check_every_iterations(tmp_path):
    run_dir = tmp_path / "run"
    result = door(
        *TINY, *SHORT, "model.name=tests.fault.saboteurs:DriftingModel", "dist.world_size=4", "dist.check_every=2",
        "ppo.total_steps=6400", run_dir=run_dir, FAULTY_RANK="3", FAULT_AFTER="12",
    )  # fmt: skip
    assert result.code == 1
    assert (
        "after iteration 2 the parameters of rank 3 differ from those of the other 3 of 4 ranks"
        in result.stderr
    )
    assert iterations(run_dir) == [1]


def test_ranks_end_when_the_parent_is_killed(tmp_path):
    run_dir = tmp_path / "run"
    with running(*LONG, "dist.world_size=2", run_dir=run_dir) as process:
        wait_for_iteration(run_dir, 2, process)
        assert len(descendants(str(run_dir))) == 2
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)
        wait_for_end_of_ranks(run_dir)


@pytest.mark.slow
def test_a_killed_fork_server_fails_its_run_and_the_next_run_of_a_sweep_has_another(tmp_path):
    def run_dirs():
        return sorted(path.parent for path in tmp_path.glob("[!.]*/config.yaml"))

    arguments = [
        "-m",
        *SHORT,
        "ppo.total_steps=512",
        "dist.world_size=2",
        "env.kwargs.step_time_s=0.002",
        "seed=0,1",
    ]
    with started([*TRAIN, *arguments, f"sweep={tmp_path}"]) as process:
        wait_until(lambda: run_dirs() and iterations(run_dirs()[0]), "iteration 1")
        (first,) = run_dirs()
        ranks = descendants(str(first))
        (server,) = processes(f"ddppo.processes.forking for {process.pid}")
        os.kill(server, signal.SIGKILL)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    said = "the process that the 2 ranks were forked from ended with signal 9, and they with it. Checkpoints, if any, "
    assert f"{first.name}: {said}are in {first}: go on with resume={first}" in stderr
    assert f"sweep {tmp_path}: 2 runs, 1 completed, 1 failed" in stderr
    assert "Traceback" not in stderr
    assert len(ranks) == 2
    assert not descendants(str(first))
    assert summary(run_dirs()[1])["status"] == "completed"
    wait_until(lambda: not processes(f"ddppo.processes.forking for {process.pid}"), "end of the servers")


@pytest.mark.quick_cases("1-terminal", "2-parent only")
@pytest.mark.parametrize("to_group", [True, False], ids=["terminal", "parent only"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, world_size, to_group):
    run_dir = tmp_path / "run"
    with running(*LONG, f"dist.world_size={world_size}", run_dir=run_dir) as process:
        wait_for_iteration(run_dir, 2, process)
        (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert f"resume={run_dir}" in stderr
        assert "Traceback" not in stderr
        assert not descendants(str(run_dir))
    done = iterations(run_dir)[-1]
    assert (run_dir / "checkpoints" / f"iteration_{done:08d}.pt").exists()
    assert summary(run_dir)["status"] == "stopped"
    assert summary(run_dir)["iterations"] == done


def test_a_run_killed_as_a_whole_goes_on_without_counting_a_step_twice(tmp_path):
    run_dir = tmp_path / "run"
    steps = 64  # of an iteration
    with running(*SHORT, "ppo.total_steps=100000000", f"checkpoint.every_steps={4 * steps}", "dist.world_size=2",
                 "log.tensorboard=true", "env.kwargs.step_time_s=0.001", run_dir=run_dir) as process:  # fmt: skip
        wait_for_iteration(run_dir, 6, process)
        ranks = descendants(str(run_dir))
        for pid in (process.pid, *ranks):
            os.kill(pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)
        wait_for_end_of_ranks(run_dir)
    done = iterations(run_dir)[-1]
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 999, "rank": 0, "env_st')  # the line that was being written
    saved = max((run_dir / "checkpoints").glob("iteration_*.pt"))
    resumed_from = int(saved.stem.removeprefix("iteration_"))
    assert resumed_from <= done

    total = (done + 3) * steps
    result = door(
        *TINY, f"resume={run_dir}", f"ppo.total_steps={total}", "dist.world_size=4", run_dir=run_dir
    )
    # A resumed run may also change the number of ranks: here 2 became 4.
    assert result.code == 0, result.stderr
    records = lines(run_dir)
    by_rank_0 = [r for r in records if r["rank"] == 0]
    assert [r["iteration"] for r in by_rank_0] == list(range(1, done + 4))
    assert [r["env_steps"] for r in by_rank_0] == [steps * k for k in range(1, done + 4)]
    walls = [r["wall_s"] for r in by_rank_0]
    assert walls == sorted(walls)
    for record in by_rank_0:
        ranks = [r["rank"] for r in records if r["iteration"] == record["iteration"]]
        assert ranks == list(range(2 if record["iteration"] <= resumed_from else 4))
    superseded = lines(run_dir, "metrics.superseded.jsonl") if done > resumed_from else []
    assert [r["iteration"] for r in superseded if r["rank"] == 0] == list(range(resumed_from + 1, done + 1))
    assert summary(run_dir)["env_steps"] == total
    assert summary(run_dir)["world_size"] == 4


def test_a_resumed_run_learns_as_if_other_environments_had_followed_not_other_parameters(tmp_path):
    """The first resumed iteration starts from the saved parameters, optimizer and schedule."""
    run_dir = tmp_path / "run"
    base = [*SHORT, "ppo.normalize_obs=true", "ppo.normalize_rewards=true", "ppo.lr_schedule=none"]
    first = door(*TINY, *base, "ppo.total_steps=256", run_dir=run_dir)
    assert first.code == 0, first.stderr
    before = torch.load(run_dir / "checkpoints" / "iteration_00000004.pt", weights_only=True)
    result = door(f"resume={run_dir}", "ppo.total_steps=320", run_dir=run_dir)
    assert result.code == 0, result.stderr
    after = torch.load(run_dir / "checkpoints" / "iteration_00000005.pt", weights_only=True)
    moved = max((after["model"][k] - before["model"][k]).abs().max().item() for k in before["model"])
    assert 0 < moved < 0.05  # 8 Adam steps of 3e-4 each move a parameter by a few 1e-3
    num_updates = after["optimizer"]["state"][0]["step"].item()
    assert num_updates == 5 * 2 * 4
    assert after["obs_moments"][0].max() == 320  # samples the moments are of
    assert after["wall_s"] > before["wall_s"]
    assert math.isfinite(summary(run_dir)["time"]["t_iter"]["mean"])
    assert json.loads((run_dir / "summary.1.json").read_text())["env_steps"] == 256


def test_a_run_killed_between_its_last_checkpoint_and_its_summary_is_only_concluded(tmp_path):
    run_dir = tmp_path / "run"
    first = door(
        *TINY, *SHORT, "ppo.total_steps=256", "dist.world_size=2", "eval.final_episodes=3", run_dir=run_dir
    )
    assert first.code == 0, first.stderr
    before, records = summary(run_dir), (run_dir / "metrics.jsonl").read_bytes()
    (run_dir / "summary.json").unlink()
    again = door(f"resume={run_dir}", run_dir=run_dir)
    assert again.code == 0, again.stderr
    after = summary(run_dir)
    for name in ("status", "env_steps", "iterations", "wall_s", "fps", "params_hash"):
        assert after[name] == before[name], name
    assert after["eval"]["final"]["return_mean"] == before["eval"]["final"]["return_mean"]
    assert (run_dir / "metrics.jsonl").read_bytes() == records


def test_ctrl_c_before_the_first_checkpoint_promises_no_resuming(tmp_path):
    run_dir = tmp_path / "run"
    with running(*LONG, "dist.world_size=2", run_dir=run_dir) as process:
        wait_until(lambda: (run_dir / "config.yaml").exists(), "config.yaml")
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
        # A shell shows 130 for both: CPython ends itself by SIGINT if the interrupt met code that an import executes.
        assert process.returncode in (130, -signal.SIGINT)
        assert "interrupted" in stderr
        has_checkpoint = any((run_dir / "checkpoints").glob("iteration_*.pt"))
        assert ("resume=" in stderr) == has_checkpoint
        assert not descendants(str(run_dir))
