import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from ddppo.errors import RunFolderError, StorageError
from ddppo.files import write_json
from ddppo.records.jsonl import JsonlWriter, drop_after, read_reports
from ddppo.records.metrics import IterationReport


def report(iteration, num_ranks=2, **global_metrics):
    ranks = tuple({"time/t_iter": 0.1 * (rank + 1)} for rank in range(num_ranks))
    return IterationReport(iteration, 512 * iteration, 0.2 * iteration, ranks, global_metrics)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def five_iterations(path):
    writer = JsonlWriter(path)
    for iteration in range(1, 6):
        writer.write(report(iteration))
    writer.close()
    return path


def test_every_rank_has_a_line_and_rank_0_the_global_metrics(path):
    writer = JsonlWriter(path)
    writer.write(report(3, **{"train/entropy": 0.7}))
    writer.close()
    assert lines(path) == [
        {"iteration": 3, "rank": 0, "env_steps": 1536, "wall_s": pytest.approx(0.6), "time/t_iter": 0.1,
         "train/entropy": 0.7},
        {"iteration": 3, "rank": 1, "env_steps": 1536, "wall_s": pytest.approx(0.6), "time/t_iter": 0.2},
    ]  # fmt: skip


def test_lines_are_readable_before_the_writer_is_closed(path):
    writer = JsonlWriter(path)
    writer.write(report(1))
    assert len(lines(path)) == 2
    writer.close()


def test_where_a_resumed_run_began_is_marked(five_iterations):
    writer = JsonlWriter(five_iterations)
    for iteration in (6, 7):
        writer.write(report(iteration))
    writer.close()
    assert [line["iteration"] for line in lines(five_iterations) if "resumed" in line] == [6]
    assert [read.iteration for read in read_reports(five_iterations) if read.resumed] == [6]


def test_a_second_writer_appends(five_iterations):
    writer = JsonlWriter(five_iterations)
    writer.write(report(6))
    writer.close()
    assert [line["iteration"] for line in lines(five_iterations)][-3:] == [5, 6, 6]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_null(path, value):
    writer = JsonlWriter(path)
    writer.write(report(1, num_ranks=1, **{"train/explained_variance": value}))
    writer.close()
    assert lines(path)[0]["train/explained_variance"] is None


def test_resume_keeps_the_lines_up_to_the_checkpoint_and_moves_the_rest(five_iterations):
    assert drop_after(five_iterations, 3) == 4
    assert [line["iteration"] for line in lines(five_iterations)] == [1, 1, 2, 2, 3, 3]
    superseded = five_iterations.with_name("metrics.superseded.jsonl")
    assert [line["iteration"] for line in lines(superseded)] == [4, 4, 5, 5]


def test_a_second_resume_adds_to_the_superseded_lines(five_iterations):
    drop_after(five_iterations, 4)
    drop_after(five_iterations, 3)
    superseded = five_iterations.with_name("metrics.superseded.jsonl")
    assert [line["iteration"] for line in lines(superseded)] == [5, 5, 4, 4]


@pytest.mark.parametrize("fragment", ['{"iteration": 6, "ra', '{"iteration": 6}', "\x00\x00"])
def test_a_half_written_last_line_is_discarded(five_iterations, fragment):
    with five_iterations.open("a") as file:
        file.write(fragment)
    assert drop_after(five_iterations, 5) == 0
    assert len(lines(five_iterations)) == 10
    assert not five_iterations.with_name("metrics.superseded.jsonl").exists()


def test_nothing_to_drop_where_nothing_was_written(path):
    assert drop_after(path, 3) == 0
    assert not path.exists()


@pytest.mark.parametrize("line", ["hello", "[1]", '{"iteration": 1}'])
def test_a_foreign_line_is_named_and_the_file_left_alone(five_iterations, line):
    with five_iterations.open("a") as file:
        file.write(f"{line}\n")
    before = five_iterations.read_text()
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl line 11 was not written by ddppo"):
        drop_after(five_iterations, 2)
    assert five_iterations.read_text() == before
    assert [p.name for p in five_iterations.parent.iterdir()] == ["metrics.jsonl"]


def test_reports_are_read_back_as_they_were_written(path):
    written = [report(1), report(2, **{"train/entropy": 0.5, "eval/return_mean": 9.0})]
    writer = JsonlWriter(path)
    for each in written:
        writer.write(each)
    writer.close()
    assert list(read_reports(path)) == written


def test_null_is_read_back_as_nan(path):
    writer = JsonlWriter(path)
    writer.write(report(1, **{"train/entropy": math.nan}))
    writer.close()
    (read,) = read_reports(path)
    assert math.isnan(read.global_metrics["train/entropy"])


def test_json_files_hold_null_for_nan_at_any_depth(tmp_path):
    write_json(
        tmp_path / "x.json", {"a": [math.nan, {"b": (np.float32(0.5), np.int64(2))}], "c": Path("d"), 1: True}
    )
    assert json.loads((tmp_path / "x.json").read_text()) == {
        "a": [None, {"b": [0.5, 2]}],
        "c": "d",
        "1": True,
    }


def test_json_files_are_replaced_whole_and_leave_nothing_beside_them(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    class Unprintable:
        def __str__(self):
            raise RuntimeError("no")

    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError, match="no"):
        write_json(path, {"a": Unprintable()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_disk_that_is_full_in_the_middle_of_a_line_leaves_whole_lines(five_iterations, monkeypatch):
    writer = JsonlWriter(five_iterations)

    class Full:
        def __init__(self, file):
            self.file, self.left = file, 70

        def write(self, content):
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = self.file.write(content[: self.left])
            self.left = 0
            return written

        def __getattr__(self, name):
            return getattr(self.file, name)

    monkeypatch.setattr(writer, "_file", Full(writer._file))
    before = five_iterations.read_bytes()
    with pytest.raises(StorageError, match=rf"{five_iterations} cannot be written: No space left on device"):
        writer.write(report(6))
    assert five_iterations.read_bytes() == before
    writer.close()


def test_a_kill_between_moving_lines_and_cutting_them_doubles_none(five_iterations, monkeypatch):
    with monkeypatch.context() as patch:
        real = os.replace
        patch.setattr(
            os,
            "replace",
            lambda a, b: real(a, b) if "superseded" in str(b) else (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            drop_after(five_iterations, 3)
    assert drop_after(five_iterations, 3) == 4
    superseded = five_iterations.with_name("metrics.superseded.jsonl")
    assert [line["iteration"] for line in lines(superseded)] == [4, 4, 5, 5]
