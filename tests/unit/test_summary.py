import json
import subprocess
from dataclasses import replace

import pytest

from ddppo.config.algorithm_settings import ReinforceSettings
from ddppo.config.rules import validate
from ddppo.config.settings import Config
from ddppo.files import write_json
from ddppo.records.metrics import IterationReport
from ddppo.records.provenance import git_state, machine, versions
from ddppo.records.summary import SummaryBuilder, evaluation_metrics, iqm, sizes, spread
from ddppo.scaling import strong


def config():
    result = Config()
    result.env.id = "CartPole-v1"
    result.dist.world_size = 2
    return result


def builder(warmup_iterations=2, **derived):
    return SummaryBuilder(config(), validate(config()), derived, warmup_iterations)


def report(iteration, t_iter=(1.0, 1.0), env_steps=None, wall_s=None):
    """Rank r spends a quarter of its t_iter[r] in t_comm and half in t_sync."""
    ranks = tuple({"time/t_iter": t, "time/t_comm": t / 4, "time/t_sync": t / 2} for t in t_iter)
    steps = 1000 * iteration if env_steps is None else env_steps
    return IterationReport(iteration, steps, float(iteration) if wall_s is None else wall_s, ranks, {})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 6.0], 3.0),  # floor(3/4) = 0: nothing is dropped
        ([100.0, 2.0, 4.0, -100.0], 3.0),  # one at either end
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 99.0], 3.0),  # floor(7/4) = 1: the mean of 1 to 5
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 0.0], 4.5),  # two at either end: 3, 4, 5, 6
    ],
)
def test_iqm_drops_a_quarter_at_either_end_rounded_down(values, expected):
    assert iqm(values) == expected


def test_percentiles_interpolate_linearly():
    # 95 % of the way from index 0 to index 4 is index 3.8.
    assert spread([5.0, 1.0, 2.0, 3.0, 4.0]) == {
        "mean": 3.0,
        "p50": 3.0,
        "p95": pytest.approx(4.8),
        "max": 5.0,
    }


def test_evaluation_metrics_by_hand():
    assert evaluation_metrics([2.0, 4.0, 4.0, 10.0], [20, 40, 40, 100], 1.5) == {
        "eval/return_mean": 5.0,
        "eval/return_median": 4.0,
        "eval/return_iqm": 4.0,
        "eval/return_std": 3.0,  # sqrt((9 + 1 + 1 + 25) / 4)
        "eval/return_min": 2.0,
        "eval/return_max": 10.0,
        "eval/length_mean": 50.0,
        "eval/episodes": 4.0,
        "eval/t_eval": 1.5,
    }


def test_times_are_spread_over_iterations_of_the_mean_over_ranks():
    build = builder(warmup_iterations=1)
    for iteration, t_iter in enumerate([(50.0, 50.0), (1.0, 3.0), (4.0, 4.0), (5.0, 7.0)], start=1):
        build.add(report(iteration, t_iter))
    summary = build.build(status="completed")
    # Without the first iteration the means over ranks are 2, 4 and 6.
    assert summary["time"]["t_iter"] == {"mean": 4.0, "p50": 4.0, "p95": pytest.approx(5.8), "max": 6.0}
    assert summary["time"]["t_comm"]["mean"] == 1.0
    assert summary["dist"] == {"rho_comm": 0.25, "rho_sync": 0.5}
    assert summary["per_rank"][0] == {
        "rank": 0,
        "time": {
            "t_iter": pytest.approx(10 / 3),
            "t_comm": pytest.approx(10 / 12),
            "t_sync": pytest.approx(5 / 3),
        },
    }
    assert summary["per_rank"][1]["time"]["t_iter"] == pytest.approx(14 / 3)


def test_fps_counts_steps_and_time_after_warm_up():
    build = builder(warmup_iterations=2)
    for iteration, wall_s in enumerate([10.0, 20.0, 20.5, 21.0], start=1):
        build.add(report(iteration, wall_s=wall_s))
    summary = build.build(status="completed")
    assert summary["fps"] == 2000 / 1.0
    assert (summary["env_steps"], summary["iterations"], summary["wall_s"]) == (4000, 4, 21.0)
    assert summary["warmup"] == {
        "iterations": 2,
        "left_out": 2,
        "ranges": [[1, 2]],
        "measured": 2,
        "too_few_iterations": False,
    }


def test_a_run_shorter_than_warm_up_is_measured_whole_and_says_so():
    build = builder(warmup_iterations=5)
    build.add(report(1, wall_s=2.0))
    build.add(report(2, wall_s=4.0))
    summary = build.build(status="stopped")
    assert summary["fps"] == 500.0
    assert summary["time"]["t_iter"]["mean"] == 1.0
    assert summary["warmup"] == {
        "iterations": 5,
        "left_out": 0,
        "ranges": [],
        "measured": 2,
        "too_few_iterations": True,
    }


def test_warm_up_begins_anew_after_a_resume():
    build = builder(warmup_iterations=1)
    build.restore([report(1, (9.0, 9.0)), report(2, (1.0, 1.0))])
    build.add(report(3, (9.0, 9.0), wall_s=11.0))
    build.add(report(4, (1.0, 1.0), wall_s=12.0))
    summary = build.build(status="completed")
    assert summary["time"]["t_iter"]["max"] == 1.0
    assert summary["fps"] == 1000.0
    assert summary["warmup"]["left_out"] == 2


def test_warm_up_of_every_start_is_left_out_and_listed():
    build = builder(warmup_iterations=2)
    earlier = [report(i) for i in range(1, 9)]
    earlier[4] = replace(earlier[4], resumed=True)
    build.restore(earlier)
    for i in (9, 10, 11):
        build.add(report(i))
    assert build.build(status="completed")["warmup"] == {
        "iterations": 2,
        "left_out": 6,
        "ranges": [[1, 2], [5, 6], [9, 10]],
        "measured": 5,
        "too_few_iterations": False,
    }


def test_fps_ignores_an_iteration_whose_beginning_is_unknown():
    build = builder(warmup_iterations=0)
    build.add(report(11, env_steps=11_000, wall_s=100.0))  # resumed without the history
    build.add(report(12, env_steps=12_000, wall_s=102.0))
    assert build.build(status="completed")["fps"] == 500.0


def test_a_run_without_iterations_is_json_with_nulls(tmp_path):
    write_json(tmp_path / "summary.json", builder().build(status="failed"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["fps"] is None
    assert summary["time"]["t_iter"]["mean"] is None
    assert (summary["env_steps"], summary["status"]) == (0, "failed")


def test_the_summary_has_every_promised_key(tmp_path):
    build = builder(num_parameters=9155, device="cpu", threads=1, roles=["learner", "actor"])
    for iteration in range(1, 5):
        build.add(report(iteration))
    summary = build.build(
        status="completed",
        params_hash="abc",
        final_eval=evaluation_metrics([500.0] * 4, [500] * 4, 1.0),
        best_eval={"return_mean": 500.0, "env_steps": 3000},
        target={"return": 475.0, "reached": True, "time_to_target_s": 3.0, "steps_to_target": 3000},
    )
    write_json(tmp_path / "summary.json", summary)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert (read["world_size"], read["env_steps"], read["wall_s"], read["fps"]) == (2, 4000, 4.0, 1000.0)
    assert read["params_hash"] == "abc"
    for part in ("t_iter", "t_rollout", "t_learn", "t_sync", "t_comm", "t_other", "t_comm_total"):
        assert set(read["time"][part]) == {"mean", "p50", "p95", "max"}
    final = {"return_mean": 500.0, "return_median": 500.0, "return_iqm": 500.0, "episodes": 4}
    assert final.items() <= read["eval"]["final"].items()
    assert read["eval"]["best"] == {"return_mean": 500.0, "env_steps": 3000}
    assert read["target"]["reached"] is True
    assert read["derived"] == {
        "W": 2, "num_stepping": 2, "E": 4, "N": 8, "T": 128, "B": 1024, "minibatch": 256, "M": 4, "K": 4,
        "num_parameters": 9155, "device": "cpu", "threads": 1,
    }  # fmt: skip
    assert [each["role"] for each in read["per_rank"]] == ["learner", "actor"]
    assert read["config"]["env"]["id"] == "CartPole-v1"
    assert read["machine"]["cores"] >= 1
    assert read["schema_version"] == 1
    assert read["started_at"] <= read["finished_at"]


def test_the_summary_of_another_algorithm_has_no_settings_of_ppo():
    of_reinforce = config()
    of_reinforce.algorithm = ReinforceSettings(name="reinforce")
    built = SummaryBuilder(of_reinforce, validate(of_reinforce), {}, 0).build(status="completed")
    assert "ppo" not in built["config"]
    assert built["config"]["algorithm"]["name"] == "reinforce"
    assert "ppo" in builder().build(status="completed")["config"]


def test_no_evaluation_is_null():
    assert builder().build(status="completed")["eval"] == {"final": None, "best": None}


def test_sizes_are_those_of_the_shape():
    shape = strong(num_envs=8, rollout_steps=64, world_size=4, num_minibatches=3, num_epochs=2)
    assert sizes(shape) == {
        "W": 4, "num_stepping": 4, "E": 2, "N": 8, "T": 64, "B": 512, "minibatch": 171, "M": 3, "K": 2
    }  # fmt: skip


def test_versions_name_the_packages_that_results_depend_on():
    assert set(versions()) == {"python", "torch", "gymnasium", "numpy", "ddppo"}
    assert all(versions().values())


def test_the_machine_has_a_gpu_only_where_one_is_used():
    assert machine()["gpu"] is None
    assert machine()["memory_gb"] > 0


def git(folder, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_commit_is_that_of_the_checkout_and_says_whether_it_was_changed(tmp_path):
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == {"git_commit": commit, "git_dirty": False}
    (tmp_path / "new.py").touch()
    assert git_state(tmp_path) == {"git_commit": commit, "git_dirty": True}


def test_a_package_inside_a_foreign_checkout_has_no_commit(tmp_path):
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    (tmp_path / "site-packages").mkdir()
    assert git_state(tmp_path / "site-packages") == {"git_commit": None, "git_dirty": None}


def test_outside_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) == {"git_commit": None, "git_dirty": None}
