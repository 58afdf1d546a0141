"""Somebody else's runs, in a table: what it says is used, what it does not say is not made up."""

import csv
import math

import pytest

from ddppo.errors import ConfigError
from ddppo.study.measure.speedup import time_to_target
from ddppo.study.page.files import make_report
from ddppo.study.report import ReportOptions, compute, read
from tests.study.scaling_folders import write_run

OWN = "experiments/scaling_cartpole/report/per_run.csv"


def reported(path, **options):
    chosen = ReportOptions(path=str(path), **options)
    return compute(chosen, read(chosen))


def table(folder, text):
    path = folder / "runs.csv"
    path.write_text(text)
    return path


def kinds(report):
    return [(each.study.env_id, each.study.rule, len(each.study.runs)) for each in report.studies]


def test_our_own_table_of_a_strong_and_a_weak_study_gives_both_as_their_runs_did(tmp_path):
    sweep = tmp_path / "sweep"
    for rule in ("strong", "weak"):
        for w in (1, 2, 4):
            for seed in range(2):
                seconds = (1 / w if rule == "strong" else 1) + 0.01 * seed
                write_run(
                    sweep / f"{rule}{w}{seed}",
                    w,
                    seed,
                    t_iter=seconds,
                    scaling__rule=rule,
                    target_return=30.0,
                )
    report, out = make_report(ReportOptions(path=str(sweep)))
    again = reported(out / "per_run.csv")
    assert kinds(again) == kinds(report) == [("Task-v0", "strong", 6), ("Task-v0", "weak", 6)]
    for own, table in zip(report.studies, again.studies, strict=True):
        for ours, theirs in zip(own.study.rows, table.study.rows, strict=True):
            for name in (
                "fps",
                "speedup",
                "efficiency",
                "time_to_target",
                "speedup_by_target",
                "final_return",
            ):
                assert getattr(theirs, name).median == pytest.approx(getattr(ours, name).median), name
            assert theirs.num_reached == ours.num_reached
            assert theirs.parts == pytest.approx(ours.parts)
            assert (theirs.cores, theirs.oversubscription) == (ours.cores, ours.oversubscription)
    assert again.left_out == []
    (told, _) = again.remarks
    assert told.endswith("not read: iterations_measured, path.")


def test_a_table_that_does_not_tell_its_cores_says_where_their_cost_stands(tmp_path):
    head = "world_size,fps,t_iter,t_rollout,t_sync"
    told = table(tmp_path, f"{head},cores\n1,100,1,1,0,2\n8,100,1,.2,.8,2\n")
    assert reported(told).studies[0].study.row(8).oversubscription == 4
    assert reported(told).remarks == []
    untold = table(tmp_path, f"{head}\n1,100,1,1,0\n8,100,1,.2,.8\n")
    assert reported(untold).studies[0].study.row(8).oversubscription == 1
    assert "has no column cores" in reported(untold).remarks[0]


@pytest.mark.parametrize(("asked", "found"), [
    ({"env": "A-v0"}, [("A-v0", "strong", 2), ("A-v0", "weak", 2)]),
    ({"rule": "weak"}, [("A-v0", "weak", 2)]),
    ({"env": "A-v0", "rule": "strong"}, [("A-v0", "strong", 2)]),
])  # fmt: skip
def test_env_and_rule_choose_where_the_table_has_them(tmp_path, asked, found):
    rows = "1,10,A-v0,strong\n2,20,A-v0,strong\n1,10,A-v0,weak\n2,20,A-v0,weak\n1,5,B-v0,strong\n"
    path = table(tmp_path, "world_size,fps,env_id,rule\n" + rows)
    assert kinds(reported(path, **asked)) == found


def test_env_and_rule_name_the_study_where_the_table_does_not(tmp_path):
    path = table(tmp_path, "world_size,fps\n1,10\n2,20\n")
    assert kinds(reported(path)) == [("runs", "strong", 2)]
    assert kinds(reported(path, env="Mine-v0", rule="weak")) == [("Mine-v0", "weak", 2)]


def test_a_task_that_the_table_does_not_have_is_no_new_name(tmp_path):
    path = table(tmp_path, "world_size,fps,env_id\n1,10,A-v0\n2,20,A-v0\n")
    with pytest.raises(ConfigError, match=r"env=A-v1: there is no such run \(did you mean A-v0\?\)"):
        reported(path, env="A-v1")


def test_a_row_twice_counts_once_and_is_named(tmp_path):
    # Counted twice, the slow run of W=1 was the median: E(2) = 1.45, PASS.
    path = table(tmp_path, "world_size,seed,fps\n1,0,100\n1,1,58\n1,1,58\n2,0,180\n")
    report = reported(path)
    assert report.studies[0].study.row(2).efficiency.median == pytest.approx(180 / 79 / 2)
    assert [str(item) for item in report.left_out] == [
        f"{path}, line 4: it repeats line 3, which counts once; correct the row, or remove it"
    ]


def test_of_two_rows_of_one_world_and_seed_the_later_counts(tmp_path):
    path = table(tmp_path, "world_size,seed,fps\n1,0,100\n2,0,150\n2,0,180\n")
    report = reported(path)
    assert report.studies[0].study.row(2).fps.median == 180
    assert "line 3: line 4 has W=2 seed=0 again, and as the later one counts" in str(report.left_out[0])


def test_columns_that_are_not_read_are_named(tmp_path):
    path = table(tmp_path, "world_size,fps,gpu_hours,note\n1,10,3,\n2,20,3,x\n")
    assert reported(path).remarks == [f"Columns of {path} that are not read: gpu_hours, note."]


def test_means_over_workers_name_no_worker(tmp_path):
    head = "world_size,fps,t_iter,t_rollout,t_learn,t_sync,t_comm,t_other\n"
    path = table(tmp_path, head + "1,100,1,.5,.5,0,0,0\n4,200,.5,.125,.125,.25,0,0\n")
    (study,) = reported(path).studies
    (_, run) = study.study.runs
    assert not run.tells_ranks
    assert run.times["t_sync"].tolist() == [[0.25]]
    assert study.study.row(4).ranks == ()
    assert study.accounts[0].shares["waiting"] == pytest.approx(0.5)


def test_a_time_to_target_is_taken_as_the_table_tells_it(tmp_path):
    head = "world_size,seed,fps,target_return,time_to_target_s\n"
    path = table(tmp_path, head + "1,0,10,475,60\n2,0,20,475,30\n2,1,20,475,\n2,2,20,475,inf\n2,3,20,,\n")
    (study,) = reported(path).studies
    assert [time_to_target(run) for run in study.study.runs[:4]] == [60.0, 30.0, math.inf, math.inf]
    row = study.study.row(2)
    assert (row.num_reached, study.study.target_return) == (1, 475.0)
    assert math.isnan(time_to_target(study.study.runs[4]))  # it was asked for nothing
    (other,) = reported(path, target_return=400.0).studies
    assert math.isnan(time_to_target(other.study.runs[0]))  # of another target it says nothing


def test_a_resumed_run_of_two_w_in_our_own_table_has_no_time_to_target(tmp_path):
    head = "world_size,fps,target_return,final_return,time_to_target_s,iterations_of_other_world_sizes\n"
    (study,) = reported(table(tmp_path, head + "1,10,475,500,60,0\n2,20,475,500,,5\n")).studies
    assert math.isnan(time_to_target(study.study.runs[1]))


def test_rows_without_a_seed_get_one_that_no_other_row_has(tmp_path):
    path = table(tmp_path, "world_size,seed,fps\n1,,100\n1,,101\n1,0,102\n1,2,103\n")
    report = reported(path)
    assert [(run.seed, run.fps) for run in report.studies[0].study.runs] == [
        (0, 102),
        (1, 100),
        (2, 103),
        (3, 101),
    ]
    assert report.left_out == []


def test_without_a_target_in_the_table_target_return_names_it(tmp_path):
    path = table(tmp_path, "world_size,fps,time_to_target_s\n1,10,60\n2,20,40\n")
    assert reported(path).studies[0].study.row(2).speedup_by_target.median == 1.5
    (study,) = reported(path, target_return=400.0).studies
    assert (study.study.target_return, study.study.row(2).speedup_by_target.median) == (400.0, 1.5)


MS = "world_size,fps,num_envs,rollout_steps,t_iter,t_rollout\n1,1000,8,16,128,100\n2,2000,8,16,64,50\n"


def test_a_table_in_milliseconds_is_asked_about(tmp_path):
    with pytest.raises(
        ConfigError, match=r"t_iter=128 is 1e\+03 times the 0.128 s .* are these milliseconds\?"
    ):
        reported(table(tmp_path, MS))


def test_a_single_row_in_milliseconds_is_left_out(tmp_path):
    path = table(tmp_path, MS.replace("128,100", "0.128,.1"))
    (item,) = reported(path).left_out
    assert "line 3: t_iter=64 is 1e+03 times" in str(item)


@pytest.mark.parametrize(("row", "said"), [
    ("1,10,50,20,", "t_rollout=20 is more than t_iter=5"),
    ("1,10,50,80,5", "t_iter=80 is 1.6 times the 50 s"),
])  # fmt: skip
def test_parts_beyond_their_whole_are_asked_about(tmp_path, row, said):
    cells = row.split(",")
    row = ",".join([*cells[:3], "5" if not cells[4] else cells[3], cells[3] if not cells[4] else cells[4]])
    path = table(tmp_path, f"world_size,fps,wall_s,t_iter,t_rollout\n{row}\n")
    with pytest.raises(ConfigError) as e:
        reported(path)
    assert said in str(e.value)
    assert "are these milliseconds?" in str(e.value)


def test_workers_and_throughput_alone_get_a_recommendation(tmp_path):
    rows = "".join(f"{w},{1000 * w / (1 + 0.05 * (w - 1))}\n" for w in (1, 2, 4, 8))
    (study,) = reported(table(tmp_path, "world_size,fps\n" + rows)).studies
    chosen = study.ahead.recommendation
    assert chosen.chosen.world_size == 8  # efficiency .74; none beyond was measured
    assert "for 1,000,000 environment steps" in chosen.text()


def test_the_table_of_our_own_study_on_disk_is_two_studies():
    with open(OWN) as file:
        count = len(list(csv.DictReader(file)))
    report = reported(OWN)
    assert [kind[:2] for kind in kinds(report)] == [("CartPole-v1", "strong"), ("CartPole-v1", "weak")]
    assert sum(kind[2] for kind in kinds(report)) == count
    assert report.left_out == []
