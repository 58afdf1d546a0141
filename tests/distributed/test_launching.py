"""How ranks come to life: in process, by our launcher, by torchrun, job after job."""

import sys

import pytest
import torch
from omegaconf import OmegaConf

from tests.support import TINY, Program, lines, run, summary

SMALL = [*TINY, "env.num_envs=4", "ppo.rollout_steps=16", "ppo.total_steps=128", "ppo.num_epochs=2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "ddppo.train"]


@pytest.mark.slow
def test_under_torchrun_the_ranks_share_one_run(tmp_path):
    run_dir = tmp_path / "run"
    how = ["log.progress=plain", "dist.on_lost=restart", f"hydra.run.dir={run_dir}"]
    result = run([*TORCHRUN, *SMALL, *how], run_dir)
    assert result.code == 0, result.stderr
    assert "warning: dist.on_lost=restart restarts no rank that torchrun started" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert summary(run_dir)["world_size"] == 2
    assert summary(run_dir)["status"] == "completed"
    assert OmegaConf.load(run_dir / "config.yaml").dist.world_size == 2
    assert [(r["iteration"], r["rank"]) for r in lines(run_dir)] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert result.stdout.count(f"{run_dir}/summary.json") == 1  # only rank 0 speaks


def test_torchrun_and_another_world_size_are_one_error_and_no_run(tmp_path):
    run_dir = tmp_path / "run"
    result = run([*TORCHRUN, *SMALL, "dist.world_size=4", f"hydra.run.dir={run_dir}"], run_dir)
    assert result.code != 0
    assert "error: dist.world_size=4, but torchrun started 2 ranks: leave it out" in result.stderr
    assert not run_dir.exists()


@pytest.mark.slow
def test_a_multirun_is_one_whole_run_per_combination(tmp_path):
    arguments = ["-m", *SMALL, "dist.world_size=1,2", "seed=0,1", f"sweep={tmp_path / 'sweep'}"]
    result = run(Program([sys.executable, "-m", "ddppo.train", *arguments]), tmp_path)
    assert result.code == 0, result.stderr
    folders = sorted(path for path in (tmp_path / "sweep").iterdir() if path.is_dir())
    summaries = [summary(path) for path in folders]
    assert [(s["world_size"], s["config"]["seed"]) for s in summaries] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(s["status"] == "completed" for s in summaries)
    assert all(s["env_steps"] == 128 for s in summaries)
    for path, s in zip(folders, summaries, strict=True):
        assert len(lines(path)) == 2 * s["world_size"]
        assert (path / "checkpoints" / "iteration_00000002.pt").exists()
        assert f"dist.world_size-{s['world_size']}_" in path.name
        assert path.name.endswith(f"_seed-{s['config']['seed']}")
    hashes = [s["params_hash"] for s in summaries]
    assert hashes[0] != hashes[1]


def test_one_rank_runs_in_process_without_a_process_group(tmp_path):
    run_dir = tmp_path / "run"
    alone = [sys.executable, "-m", "tests.distributed.alone"]
    result = run([*alone, *SMALL, f"hydra.run.dir={run_dir}"], run_dir)
    assert result.code == 0, result.stderr
    assert summary(run_dir)["derived"]["grad_sync"] == "none"


def test_a_rank_has_its_share_of_the_cores_where_a_minibatch_is_work_enough(monkeypatch):
    from ddppo.config.settings import Config
    from ddppo.distributed import join as launch

    monkeypatch.setattr(launch, "available_cores", lambda: 8)
    large, small = 10**9, 10**6
    assert (
        launch.threads_per_rank(Config(), 1, large) == 1
    )  # ordered: the number of threads would change the bits
    fast = Config()
    fast.dist.reduction = "fast"
    assert [launch.threads_per_rank(fast, ranks, large) for ranks in (1, 2, 4, 8, 16)] == [8, 4, 2, 1, 1]
    assert [launch.threads_per_rank(Config(), ranks, small) for ranks in (1, 2, 16)] == [1, 1, 1]


@pytest.mark.parametrize(("world_size", "given"), [(2, None), (2, 3)])
def test_small_ranks_have_one_thread_unless_given(tmp_path, world_size, given):
    run_dir = tmp_path / "run"
    extra = [f"dist.threads_per_rank={given}"] if given else []
    arguments = [
        *SMALL,
        f"dist.world_size={world_size}",
        "model.name=tests.distributed.threads:Model",
        *extra,
    ]
    command = [sys.executable, "-m", "ddppo.train", *arguments, f"hydra.run.dir={run_dir}"]
    result = run(command, run_dir, THREADS_EXPECTED=str(given or 1))
    assert result.code == 0, result.stderr
    assert summary(run_dir)["derived"]["threads_per_rank"] == (given or 1)


def test_checkpoints_and_summary_name_the_same_parameters(tmp_path):
    import hashlib

    run_dir = tmp_path / "run"
    arguments = [*SMALL, "dist.world_size=2", "dist.check_every=1", f"hydra.run.dir={run_dir}"]
    result = run([sys.executable, "-m", "ddppo.train", *arguments], run_dir)
    assert result.code == 0, result.stderr  # check_every=1 compared the replicas after every iteration
    state = torch.load(run_dir / "checkpoints" / "iteration_00000002.pt", weights_only=True)
    vector = torch.cat([p.reshape(-1) for p in state["model"].values()])
    digest = hashlib.blake2b(vector.numpy().tobytes(), digest_size=16).hexdigest()
    assert summary(run_dir)["params_hash"] == digest
