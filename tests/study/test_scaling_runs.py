import json
import math
import shutil

import pytest

from ddppo.errors import ConfigError
from ddppo.records import run_folder
from ddppo.study.page.files import make_report
from ddppo.study.read import metrics_file, run_folders
from ddppo.study.read.run_folders import read_run, read_runs
from ddppo.study.read.selection import one_study, studies, with_target
from ddppo.study.report import ReportOptions
from tests.study.scaling_folders import change_summary, write_run


def only_left_out(folder):
    (item,) = read_runs(folder).left_out
    return str(item)


def only_study(folder):
    found = studies(read_runs(folder))
    (study,) = found.studies
    return study


def worlds(reading):
    return [(run.world_size, run.seed) for run in reading.runs]


def test_the_schema_version_is_the_one_that_runs_are_written_with():
    assert run_folders.SCHEMA_VERSION == run_folder.SCHEMA_VERSION


def test_a_run_is_read_without_its_warm_up(tmp_path):
    write_run(tmp_path / "a", world_size=2, iterations=6, warmup=2, t_iter=0.5)
    (run,) = read_runs(tmp_path).runs
    assert run.times["t_iter"].shape == (4, 2)
    assert run.steps.tolist() == [80] * 4
    assert [e.env_steps for e in run.evaluations] == [160, 320, 480]
    assert run.returns[-1].return_mean == 60.0
    assert run.final_return == 120.0
    assert run.stability["approx_kl"].tolist() == [0.01] * 4
    assert math.isnan(run.stability["entropy"][0])
    assert (run.num_envs, run.rollout_steps, run.num_epochs, run.num_minibatches) == (8, 10, 4, 2)


def test_throughput_is_steps_over_seconds_after_warm_up(tmp_path):
    folder = write_run(tmp_path / "a", warmup=2)
    paced(folder, [3.0, 4.0, 4.25, 4.5, 4.8, 5.0])  # the first two iterations are slow, and do not count
    change_summary(folder, fps=4 * 80 / 1.0, wall_s=5.0)
    (run,) = read_runs(tmp_path).runs
    assert run.fps == pytest.approx(4 * 80 / (5.0 - 4.0), rel=1e-12)


def paced(folder, wall):
    """Let the iterations of a run of one worker end at these seconds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, seconds in zip(lines, wall, strict=True):
        line["wall_s"] = seconds
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_folder_names_mean_nothing(tmp_path):
    write_run(tmp_path / "W=8,seed=5" / "deeper", world_size=1, seed=3)
    assert worlds(read_runs(tmp_path)) == [(1, 3)]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            lambda run: (run / "summary.json").unlink(),
            "has no summary.json, so the run did not end; go on with it",
        ),
        (lambda run: (run / "summary.json").write_text('{"schema'), "summary.json cannot be read"),
        (
            lambda run: (run / "summary.json").write_text("[]"),
            "cannot be read (it is not a JSON object but [])",
        ),
        (lambda run: (run / "summary.json").write_text("{}"), "summary.json is not a run's"),
        (lambda run: change_summary(run, schema_version=7), "has schema_version 7, this ddppo reads 1"),
        (lambda run: change_summary(run, status="failed"), "did not complete (status failed)"),
        (
            lambda run: change_summary(run, derived={}),
            "summary.json is not as ddppo writes it (derived.N is missing)",
        ),
        (lambda run: change_summary(run, fps=17.0), "not of the same run"),
        (lambda run: change_summary(run, iterations=7), "has 12 lines, not 2 ranks * 7 iterations"),
        (lambda run: (run / "metrics.jsonl").unlink(), "has no metrics.jsonl"),
        (
            lambda run: lead_nowhere(run / "summary.json"),
            "summary.json cannot be read (No such file or directory)",
        ),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "line 1, is not one of ddppo's"),
        (lambda run: drop_line(run, 3), "line 4, is rank 0 of iteration 3 where rank 1 of 2 belongs"),
        (lambda run: cut_last_line(run), "line 12, is not one of ddppo's"),
        (lambda run: (shutil.rmtree(run), run.mkdir()), "is empty, so the job never started"),
    ],
)
def test_an_unusable_folder_is_named_with_reason_and_remedy_and_the_rest_is_read(tmp_path, harm, said):
    write_run(tmp_path / "good")
    harm(write_run(tmp_path / "bad", world_size=2))
    assert worlds(read_runs(tmp_path)) == [(1, 0)]
    message = only_left_out(tmp_path)
    assert message.startswith(str(tmp_path / "bad"))
    assert said in message
    assert "\n" not in message
    assert message.count(";") >= 1  # what to do about it


def lead_nowhere(path):
    path.unlink()
    path.symlink_to("nowhere")


def drop_line(run, index):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:index] + lines[index + 1 :]))


def cut_last_line(run):
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[:-20])


def test_reports_in_the_folder_are_not_read_as_runs(tmp_path):
    write_run(tmp_path / "0")
    make_report(ReportOptions(path=str(tmp_path)))
    (tmp_path / "report").rename(tmp_path / "kept")
    assert worlds(read_runs(tmp_path)) == [(1, 0)]
    assert read_runs(tmp_path).left_out == []


def test_what_hidden_folders_hold_is_not_read(tmp_path):
    sweep = tmp_path / ".cache" / "sweep"  # hidden folders above the given one do not matter
    write_run(sweep / "0")
    write_run(sweep / ".earlier" / "2026" / "0", seed=1)
    write_run(sweep / "deeper" / ".submitit" / "1", seed=2)
    (sweep / ".submitit" / "empty").mkdir(parents=True)
    found = read_runs(sweep)
    assert worlds(found) == [(1, 0)]
    assert found.left_out == []


def test_cores_are_of_all_machines_that_a_run_used(tmp_path):
    def cores(**derived):
        folder = write_run(tmp_path / str(len(list(tmp_path.iterdir()))))
        summary = json.loads((folder / "summary.json").read_text())
        change_summary(folder, derived=summary["derived"] | derived)
        return read_run(folder).cores

    assert cores() == 64
    assert cores(num_nodes=4) == 256
    assert cores(num_nodes=4, num_hosts=1) == 64


def test_an_older_summary_of_several_starts_gives_way_to_the_iterations_that_count(tmp_path):
    # It does not say which four it left out: throughput and times are of the same ones, all after the first warm-up.
    folder = write_run(tmp_path / "a")
    paced(folder, [0.5, 1.0, 1.5, 2.0, 2.4, 3.0])
    warmup = {"iterations": 2, "left_out": 4, "measured": 2, "too_few_iterations": False}
    change_summary(folder, warmup=warmup, fps=170.0)
    (run,) = read_runs(tmp_path).runs
    assert run.fps == pytest.approx(4 * 80 / 2.0)
    assert len(run.steps) == len(run.times["t_iter"]) == 4


@pytest.mark.parametrize("fps", [None, math.nan, math.inf, -5.0, 0.0, 1e-30, 1.0, 1e9, "160", True, [160.0]])
def test_a_resumed_run_whose_throughput_is_not_that_of_its_iterations_is_left_out(tmp_path, fps):
    write_run(tmp_path / "good")
    folder = write_run(tmp_path / "bad", seed=1)
    paced(folder, [0.5, 1.0, 1.5, 2.0, 2.4, 3.0])
    change_summary(
        folder,
        warmup={
            "iterations": 2,
            "left_out": 4,
            "measured": 2,
            "too_few_iterations": False,
            "ranges": [[1, 2], [5, 6]],
        },
        fps=fps,
    )
    assert worlds(read_runs(tmp_path)) == [(1, 0)]
    assert "bad: " in only_left_out(tmp_path)


def test_a_run_of_warm_up_only_is_measured_after_all(tmp_path):
    folder = write_run(tmp_path / "a", iterations=2)
    change_summary(folder, warmup={"iterations": 2, "left_out": 0, "measured": 2, "too_few_iterations": True})
    assert len(read_runs(tmp_path).runs[0].steps) == 2


def test_runs_are_sorted_into_studies_by_task_and_rule(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", seed=seed)
    write_run(tmp_path / "b", env__id="Other-v0")
    write_run(tmp_path / "c", world_size=2, scaling__rule="weak")
    found = studies(read_runs(tmp_path))
    assert [worlds(each) for each in found.studies] == [[(1, 0)], [(1, 0), (1, 1)], [(2, 0)]]
    assert found.left_out == []
    (remark,) = found.remarks
    assert (
        "are mixed, of 3 studies: Other-v0, strong scaling (1 run), Task-v0, strong scaling (2 runs)"
        in remark
    )


def test_a_task_or_a_rule_can_be_asked_for(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", seed=seed)
    write_run(tmp_path / "b", seed=9, env__id="Other-v0")
    write_run(tmp_path / "c", seed=8, scaling__rule="weak")
    for asked, expected in (({"env": "Other-v0"}, [(1, 9)]), ({"rule": "weak"}, [(1, 8)])):
        found = studies(read_runs(tmp_path), **asked)
        assert [worlds(each) for each in found.studies] == [expected]
        assert len(found.left_out) == 2
        assert "Task-v0, strong scaling (2 runs): is not asked for by" in " ".join(map(str, found.left_out))
        assert found.remarks == []
    with pytest.raises(
        ConfigError, match=r"env=Othr-v0: .* \(did you mean Other-v0\?\); there are Other-v0 \(strong"
    ):
        studies(read_runs(tmp_path), env="Othr-v0")


def test_one_study_is_the_largest_and_says_which_others_there_are(tmp_path):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1)
    write_run(tmp_path / "c", scaling__rule="weak")
    found = one_study(read_runs(tmp_path), remedy="rule= chooses another")
    assert worlds(found) == [(1, 0), (1, 1)]
    assert "holds 2 studies: Task-v0, strong scaling (2 runs), Task-v0, weak" in found.remarks[0]
    assert "This is Task-v0, strong scaling" in found.remarks[0]
    assert found.remarks[0].endswith("rule= chooses another.")


def test_runs_with_other_settings_are_left_out_and_the_difference_is_named(tmp_path):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1)
    write_run(tmp_path / "c", world_size=2, ppo__learning_rate=0.5)
    found = only_study(tmp_path)
    assert worlds(found) == [(1, 0), (1, 1)]
    assert "differs in ppo.learning_rate=0.5 (the study: 0.001)" in str(found.left_out[0])


def test_settings_of_dist_may_differ_between_world_sizes_but_not_within_one(tmp_path):
    write_run(tmp_path / "a")
    for seed in range(3):
        kind = "ddp" if seed == 2 else "flat"
        write_run(tmp_path / f"b{seed}", world_size=2, seed=seed, dist__grad_sync=kind)
    found = only_study(tmp_path)
    assert worlds(found) == [(1, 0), (2, 0), (2, 1)]
    assert "differs from the other runs of W=2 in dist.grad_sync=ddp" in str(found.left_out[0])


def test_a_slowed_rank_does_not_make_another_study(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", world_size=4, env__slow_ranks={"3": 0.01})
    assert worlds(only_study(tmp_path)) == [(1, 0), (4, 0)]


def test_of_two_runs_of_one_world_and_seed_the_newest_counts(tmp_path):
    write_run(tmp_path / "z_old", t_iter=0.5, finished="2026-01-01T00:00:00+00:00")
    write_run(tmp_path / "a_new", t_iter=0.25, finished="2026-01-02T00:00:00+00:00")
    found = only_study(tmp_path)
    assert [run.fps for run in found.runs] == [320.0]
    assert "is an older run of W=1 seed=0 than" in str(found.left_out[0])


def test_runs_of_several_commits_are_remarked_on(tmp_path):
    write_run(tmp_path / "a")
    change_summary(write_run(tmp_path / "b", seed=1), git_commit="1" * 40)
    (remark,) = only_study(tmp_path).remarks
    assert "git_commit: 000000000000 or 111111111111 at W=1. A difference between W" in remark


def test_the_target_is_the_one_asked_for_or_the_runs_own(tmp_path):
    write_run(tmp_path / "a", target_return=50.0)
    found = read_runs(tmp_path).runs
    assert [run.target_return for run in with_target(found, None)[0]] == [50.0]
    assert [run.target_return for run in with_target(found, 70.0)[0]] == [70.0]


def test_long_curves_are_thinned_but_every_first_crossing_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_file, "_MAX_RETURNS", 5)
    write_run(tmp_path / "a", iterations=40)
    returns = read_runs(tmp_path).runs[0].returns
    assert [point.return_mean for point in returns] == [
        10.0 * i for i in range(1, 41)
    ]  # each is a new highest
