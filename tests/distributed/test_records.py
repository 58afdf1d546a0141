"""What a run of two ranks leaves behind, and that evaluating it again gives the same scores."""

import json
import shutil
import sys

import pytest
import torch

from tests.support import door, lines, run, summary

STEPS = 8 * 32  # of an iteration
LINE_KEYS = {"iteration", "rank", "env_steps", "wall_s"}
PER_RANK = {"time/t_iter", "time/t_rollout", "time/t_learn", "time/t_sync", "time/t_comm", "time/t_other",
            "dist/rho_comm", "dist/rho_sync", "rollout/local_steps", "rollout/local_fps"}  # fmt: skip
GLOBAL = {"train/approx_kl", "train/clip_fraction", "train/entropy", "train/policy_loss", "train/value_loss",
          "train/explained_variance", "train/grad_norm", "train/learning_rate", "train/ratio_outliers",
          "rollout/fps", "rollout/steps"}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Four iterations with an evaluation after each, of which the last is the final one."""
    result = door(
        "env=cartpole", "env.num_envs=8", "ppo.rollout_steps=32", f"ppo.total_steps={4 * STEPS}", "dist.world_size=2",
        f"eval.every_steps={STEPS}", "eval.episodes=5", "eval.final_episodes=7", "target_return=5", "seed=3",
        "log.warmup_iterations=1", "ppo.num_minibatches=2", "ppo.normalize_obs=true", "ppo.num_epochs=2",
        "log.progress=plain",
        run_dir=tmp_path_factory.mktemp("records") / "run",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    return result


def test_every_iteration_has_a_line_of_every_rank(finished):
    records = lines(finished.run_dir)
    assert [(r["iteration"], r["rank"]) for r in records] == [
        (k, rank) for k in range(1, 5) for rank in (0, 1)
    ]
    for record in records:
        assert record.keys() >= LINE_KEYS | PER_RANK
        assert (record.keys() >= GLOBAL) == (record["rank"] == 0)
        assert record["env_steps"] == record["iteration"] * STEPS


def test_the_summary_has_the_keys_that_reports_read(finished):
    found = summary(finished.run_dir)
    assert found["world_size"] == 2
    assert found["env_steps"] == 4 * STEPS
    assert len(found["params_hash"]) == 32
    assert found["wall_s"] > 0
    assert found["fps"] > 0
    for part in ("t_iter", "t_rollout", "t_learn", "t_comm", "t_sync", "t_other"):
        assert found["time"][part].keys() == {"mean", "p50", "p95", "max"}
    for which, episodes in (("final", {7}), ("best", {5, 7})):
        assert found["eval"][which].keys() >= {"return_mean", "return_median", "return_iqm", "episodes"}
        assert found["eval"][which]["episodes"] in episodes
    assert found["eval"]["best"]["env_steps"] in range(STEPS, 5 * STEPS, STEPS)
    assert found["config"]["seed"] == 3
    assert {"versions", "git_commit", "machine", "derived"} <= found.keys()


def test_evaluation_is_on_its_own_clock(finished):
    records = [line for line in lines(finished.run_dir) if line["rank"] == 0]
    assert all(line["eval/t_eval"] > 0 for line in records)
    assert records[-1]["wall_s"] == pytest.approx(sum(line["time/t_iter"] for line in records), rel=0.01)
    assert summary(finished.run_dir)["wall_s"] == records[-1]["wall_s"]


def test_the_first_evaluation_above_target_return_gives_time_and_steps_to_it(finished):
    first = lines(finished.run_dir)[0]
    assert first["eval/return_mean"] >= 5  # an episode of CartPole lasts at least 8 steps
    assert summary(finished.run_dir)["target"] == {
        "return": 5.0, "reached": True, "steps_to_target": STEPS, "time_to_target_s": first["wall_s"],
    }  # fmt: skip


def test_a_resumed_run_remembers_when_the_target_was_reached(finished, tmp_path):
    copy = shutil.copytree(finished.run_dir, tmp_path / "copy")
    result = door(f"resume={copy}", f"ppo.total_steps={5 * STEPS}", "eval.final_episodes=2", run_dir=copy)
    assert result.code == 0, result.stderr
    assert summary(copy)["target"] == summary(finished.run_dir)["target"]
    assert [line["iteration"] for line in lines(copy) if line["rank"] == 0] == [1, 2, 3, 4, 5]


def test_a_run_resumed_twice_has_its_throughput_and_its_times_of_the_same_iterations(finished, tmp_path):
    copy = shutil.copytree(finished.run_dir, tmp_path / "copy")
    for iterations in (6, 8):
        result = door(f"resume={copy}", f"ppo.total_steps={iterations * STEPS}", run_dir=copy)
        assert result.code == 0, result.stderr
    assert summary(copy)["warmup"]["ranges"] == [[1, 1], [5, 5], [7, 7]]
    read = pytest.importorskip("ddppo.study.read.run_folders", reason="ddppo.study is not there").read_run(
        copy
    )
    assert read.times["t_iter"].shape == (5, 2)
    # Rank 0 keeps the wall clock; on a busy machine others end an iteration up to a millisecond apart.
    assert read.times["t_iter"][:, 0].mean() == pytest.approx(STEPS / read.fps, rel=0.02)


def test_a_run_tells_its_machine_its_ranks_and_its_command(finished):
    found = summary(finished.run_dir)
    (machine,) = found["machines"]
    assert machine == {key: found["machine"][key] for key in ("hostname", "cpu", "gpu", "cores")} | {
        "ranks": [0, 1]
    }
    assert found["command"].startswith("python -m ddppo.train env=cartpole env.num_envs=8 ")


def test_evaluating_the_last_checkpoint_again_gives_the_final_scores(finished):
    result = run(
        [sys.executable, "-m", "ddppo.evaluate", f"run={finished.run_dir}", "episodes=7", "json=true"],
        finished.run_dir,
    )
    assert result.code == 0, result.stderr
    scores = json.loads(result.stdout)
    final = summary(finished.run_dir)["eval"]["final"]
    for name in ("return_mean", "return_median", "return_iqm", "length_mean"):
        assert scores[name] == final[name]
    assert scores["seed"] == 3


def test_tensorboard_reads_every_group(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished.run_dir / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {tag.split("/")[0] for tag in tags} >= {"rollout", "train", "time", "dist", "eval"}
    assert [e.step for e in events.Scalars("train/approx_kl")] == [k * STEPS for k in range(1, 5)]


def test_the_terminal_shows_sizes_first_and_commands_last(finished):
    out = finished.stdout
    sizes = out.index("W = 2"), out.index("= 256 (strong scaling)"), out.index("minibatch 128")
    assert sizes == tuple(sorted(sizes))
    assert sizes[-1] < out.index("completed") < out.index("tensorboard --logdir")
    assert f"python -m ddppo.evaluate run={finished.run_dir}" in out
    assert f"tensorboard --logdir {finished.run_dir}" in out
    assert finished.stderr == ""


def test_checkpoints_keep_the_newest_and_the_best_and_unpickle_nothing(finished):
    names = sorted(path.name for path in (finished.run_dir / "checkpoints").iterdir())
    assert names == ["best.pt", "iteration_00000004.pt"]
    for name in names:
        assert (
            torch.load(finished.run_dir / "checkpoints" / name, weights_only=True)["format"]
            == "ddppo-checkpoint"
        )
