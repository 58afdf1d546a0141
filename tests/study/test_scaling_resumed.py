"""A run that was resumed is reported as what it is, also with another number of workers."""

import json
import math
import shutil
from dataclasses import replace

import pytest

from ddppo.study.measure.speedup import study, time_to_target
from ddppo.study.page.files import make_report
from ddppo.study.page.tables import run_row
from ddppo.study.predict.command import PredictConfig, predict
from ddppo.study.predict.model import WhatIf
from ddppo.study.read.run_folders import read_run, read_runs
from ddppo.study.report import ReportOptions, compute, read
from tests.study.scaling_folders import trained, write_run

STEPS = 8 * 128


def test_the_part_with_the_last_world_size_is_measured_after_its_own_warm_up(tmp_path):
    run = read_run(trained(tmp_path / "a", (2, 5, 0.5), (4, 4, 0.25)))
    assert (run.world_size, run.others) == (4, {2: 5})
    assert run.times["t_iter"].tolist() == [[0.25] * 4] * 3
    assert run.steps.tolist() == [STEPS] * 3
    assert run.stability["epochs"].tolist() == [4.0] * 3
    assert run.fps == pytest.approx(STEPS / 0.25, rel=1e-12)
    assert (run.env_steps, run.final_return) == (9 * STEPS, 90.0)
    assert [point.return_mean for point in run.returns] == [10.0 * i for i in range(1, 10)]


def test_its_time_to_target_is_unknown_since_it_mixes_two_speeds(tmp_path):
    mixed = read_run(trained(tmp_path / "a", (2, 5, 0.5), (4, 4, 0.25)))
    whole = read_run(trained(tmp_path / "b", (4, 9, 0.25)))
    assert time_to_target(whole) == 0.75
    assert math.isnan(time_to_target(mixed))
    assert math.isnan(run_row(mixed)["time_to_target_s"])
    assert run_row(mixed)["iterations_of_other_world_sizes"] == 5
    base = read_run(trained(tmp_path / "c", (1, 9, 1.0)))
    alone = study([base, whole]).row(4)
    both = study([base, whole, replace(mixed, seed=1)]).row(4)
    assert both.time_to_target.median == alone.time_to_target.median
    assert both.time_to_target.count == 1
    assert both.speedup_by_target.median == alone.speedup_by_target.median
    assert both.fps.count == 2


def test_under_weak_scaling_its_returns_are_of_no_one_batch(tmp_path):
    run = read_run(trained(tmp_path / "a", (2, 5, 0.5), (4, 4, 0.25), rule="weak"))
    assert math.isnan(run.final_return)
    assert (run.returns, run.evaluations) == ((), ())
    assert run.steps.tolist() == [4 * STEPS] * 3


@pytest.mark.parametrize(
    "starts",
    [
        ((4, 3, 0.25), (2, 3, 0.5), (4, 4, 0.25)),
        ((2, 3, 0.5), (4, 3, 0.25), (4, 3, 0.25)),
        ((4, 2, 0.25), (8, 2, 0.5), (4, 1, 0.25), (4, 2, 0.25)),
    ],
)
def test_with_several_starts_its_throughput_is_that_of_its_summary(tmp_path, starts):
    folder = trained(tmp_path / "a", *starts)
    run = read_run(folder)
    assert run.fps == json.loads((folder / "summary.json").read_text())["fps"]
    assert run.times["t_iter"].shape == (len(run.steps), 4)


def test_a_run_resumed_with_the_same_world_size_is_a_run_like_any_other(tmp_path):
    run = read_run(trained(tmp_path / "a", (2, 5, 0.5), (2, 4, 0.5)))
    assert run.others == {}
    # Without the slow first iteration of either start, in throughput and in times.
    assert run.fps == pytest.approx(STEPS / 0.5, rel=1e-12)
    assert run.times["t_iter"].tolist() == [[0.5] * 2] * 7
    assert len(run.steps) == len(run.stability["epochs"]) == 7
    assert time_to_target(run) == 1.5


def test_the_time_of_an_iteration_is_its_steps_over_the_throughput_however_often_a_run_was_resumed(tmp_path):
    # Of warm-up in the times but not in the throughput, parts were once 143 % of what they were parts of.
    folder = trained(tmp_path / "a", *[(2, 4, 0.5)] * 5, first=80)
    run = read_run(folder)
    assert run.times["t_iter"].mean() == pytest.approx(STEPS / run.fps, rel=1e-12) == 0.5


def test_an_older_summary_that_does_not_say_what_it_left_out_counts_later_warm_up_in_throughput_and_times(
    tmp_path,
):
    folder = trained(tmp_path / "a", (2, 5, 0.5), (2, 4, 0.5))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["warmup"].pop("ranges") == [[1, 1], [6, 6]]
    (folder / "summary.json").write_text(json.dumps(summary))
    run = read_run(folder)
    assert run.times["t_iter"].mean() == pytest.approx(STEPS / run.fps, rel=1e-12) == (7 * 0.5 + 1.0) / 8


@pytest.mark.parametrize("ranges", [[], [[1, 2]], [[1, 1]], [[6, 6], [1, 2]], [[1, 1], [60, 60]]])
def test_a_summary_whose_ranges_are_not_as_many_iterations_as_it_left_out_is_of_no_run(tmp_path, ranges):
    folder = trained(tmp_path / "a", (2, 5, 0.5), (2, 4, 0.5))
    summary = json.loads((folder / "summary.json").read_text())
    summary["warmup"]["ranges"] = ranges
    (folder / "summary.json").write_text(json.dumps(summary))
    (item,) = read_runs(tmp_path).left_out
    assert "warmup.ranges" in str(item) or "not of the same run" in str(item)


def test_the_report_and_the_prediction_say_what_of_it_is_used(tmp_path):
    for world_size in (1, 2, 4):
        trained(tmp_path / f"w{world_size}", (world_size, 9, 1.0 / world_size))
    folder = trained(tmp_path / "mixed", (2, 5, 0.5), (4, 4, 0.25), seed=1)
    report, out = make_report(ReportOptions(path=str(tmp_path)))
    assert report.left_out == []
    (remark,) = [r for r in report.studies[0].remarks if "resumed" in r]
    assert remark.startswith(f"{folder} (W=4 seed=1) was resumed with another world_size")
    for part in ("5 with W=2", "of the 3 with W=4 after warm-up", "returns are used", "time to target"):
        assert part in remark
    assert "was resumed with another world_size" in (out / "report.html").read_text()
    text = predict(PredictConfig(folder=str(tmp_path), world_sizes="1,2,4"), WhatIf())
    assert f"note: {remark}" in text


def test_a_run_of_one_world_size_goes_before_a_newer_one_of_two(tmp_path):
    whole = trained(tmp_path / "a", (4, 9, 0.25))
    mixed = trained(tmp_path / "b", (2, 5, 0.5), (4, 4, 0.25))
    options = ReportOptions(path=str(tmp_path))
    (item,) = compute(options, read(options)).left_out
    assert str(item).startswith(f"{mixed}: had W=2 before W=4 seed=0, which {whole} had throughout")


def test_a_line_lost_from_the_part_that_is_measured_is_no_other_world_size(tmp_path):
    folder = trained(tmp_path / "a", (2, 5, 0.5), (4, 4, 0.25))
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    del lines[2 * 5 + 4 + 3]  # the last rank of the second iteration of four
    (folder / "metrics.jsonl").write_text("".join(lines))
    (item,) = read_runs(tmp_path).left_out
    assert "has 3 ranks of iteration 7, which made 768 of its 1024 steps: the file is damaged" in str(item)


def test_a_line_lost_from_the_part_of_the_other_world_size_is_seen_too(tmp_path):
    folder = trained(tmp_path / "a", (2, 5, 0.5), (4, 4, 0.25))
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:3] + lines[4:]))
    (item,) = read_runs(tmp_path).left_out
    assert "has 1 ranks of iteration 2, which made 512 of its 1024 steps" in str(item)


def test_iterations_that_summary_json_does_not_count_are_no_other_world_size(tmp_path):
    folder = trained(tmp_path / "a", (2, 5, 0.5), (4, 4, 0.25))
    shutil.copy(trained(tmp_path / ".b", (2, 6, 0.5), (4, 3, 0.25)) / "metrics.jsonl", folder)
    (item,) = read_runs(tmp_path).left_out
    assert "has 9 iterations, 3 of them with 4 ranks, where summary.json tells of 9 and 4" in str(item)


def test_a_run_resumed_when_all_was_done_tells_nothing_of_its_world_size(tmp_path):
    write_run(tmp_path / "good")
    trained(tmp_path / "bad", (2, 5, 0.5), (4, 0, 0.25))
    (item,) = read_runs(tmp_path).left_out
    assert "was resumed with world_size=4 when all its steps were done" in str(item)
    assert "a larger ppo.total_steps" in str(item)
