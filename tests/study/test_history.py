"""Run folders as rows of a table, whatever state they are in, and runs compared."""

import fcntl
import io
import json
import os
import shutil
import threading
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from ddppo.config import stored
from ddppo.config.settings import Config
from ddppo.study.runs.command import CompareOptions, compare
from ddppo.study.runs.comparison import compared
from ddppo.study.runs.records import read_curves, read_record, read_records
from ddppo.study.runs.table import RunFilter, TableOptions, columns, lines
from tests.support import wait_until

LONG_AGO = 1_700_000_000


def line(iteration, rank=0, **metrics):
    position = {"iteration": iteration, "rank": rank, "env_steps": 100 * iteration, "wall_s": 0.5 * iteration}
    return json.dumps({**position, "time/t_iter": 0.5, **metrics}) + "\n"


def write_run(
    folder,
    *,
    status="completed",
    returns=(10.0, 20.0),
    world_size=1,
    env="CartPole-v1",
    seed=0,
    gamma=0.99,
    dtype="float32",
    **more,
):
    """Write what a run leaves behind; without a status no summary.json, as while it goes on."""
    folder.mkdir(parents=True)
    config = Config()
    config.env.id, config.seed, config.ppo.gamma, config.dtype = env, seed, gamma, dtype
    config.dist.world_size, config.ppo.total_steps = world_size, 100 * len(returns)
    (folder / "config.yaml").write_text(stored.to_yaml(config))
    text = "".join(
        line(i, rank, **({"rollout/return_mean": x, "rollout/fps": 200.0} if rank == 0 else {}))
        for i, x in enumerate(returns, start=1)
        for rank in range(world_size)
    )
    (folder / "metrics.jsonl").write_text(text)
    if status:
        summary = {
            "schema_version": 1,
            "status": status,
            "env_steps": 100 * len(returns),
            "fps": 200.0,
            "wall_s": 0.5 * len(returns),
            "eval": {"final": {"return_mean": returns[-1]}, "best": {"return_mean": max(returns)}},
            "config": asdict(config),
            "started_at": "2026-01-02T03:04:05+00:00",
            "git_commit": "0123456789abcdef",
            **more,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def chosen(folder, **options):
    settings = options.pop("settings", {})
    return [r.name for r in RunFilter(TableOptions(**options), settings).chosen(read_records(folder))]


def test_a_complete_run_is_told_by_its_summary(tmp_path):
    write_run(tmp_path / "cartpole" / "a", world_size=2, returns=(10.0, 30.0, 20.0), seed=7)
    (record,) = read_records(tmp_path)
    assert (record.name, record.status, record.task) == ("cartpole/a", "completed", "CartPole-v1")
    assert (record.world_size, record.seed, record.env_steps, record.fps) == (2, 7, 300, 200)
    assert (record.final_return, record.best_return) == (20, 30)
    assert record.when.isoformat() == "2026-01-02T03:04:05+00:00"
    assert record.settings["ppo.gamma"] == 0.99


def test_a_run_that_was_cut_off_is_told_by_its_last_whole_line(tmp_path):
    run = write_run(tmp_path / "a", status=None, returns=(10.0, 20.0, 30.0))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(line(4)[:40])
    os.utime(run / "metrics.jsonl", (LONG_AGO, LONG_AGO))
    record = read_record(run)
    assert (record.status, record.env_steps, record.final_return) == ("unfinished", 300, 30)


def test_of_a_run_that_was_cut_off_every_evaluation_counts(tmp_path):
    run = write_run(tmp_path / "a", status=None, returns=())
    scores = {1: 10.0, 2: 90.0, 3: 30.0}
    with (run / "metrics.jsonl").open("a") as file:
        for k in range(1, 5000):
            evaluation = {"eval/return_mean": scores[k]} if k in scores else {}
            file.write(line(k, **{"rollout/return_mean": 1.0}, **evaluation))
    record = read_record(run)
    assert (record.env_steps, record.final_return, record.best_return) == (499_900, 30, 90)


def test_any_seed_is_that_of_a_run(tmp_path):
    write_run(tmp_path / "a", seed=2**63 - 1)
    write_run(tmp_path / "b", seed=2**63 - 2)
    assert chosen(tmp_path, seed=2**63 - 1) == ["a"]


def test_a_run_whose_folder_a_process_holds_is_running(tmp_path):
    run = write_run(tmp_path / "a", status=None)
    os.utime(run / "metrics.jsonl", (LONG_AGO, LONG_AGO))
    assert read_record(run).status == "unfinished"
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_record(run).status == "running"
    assert read_record(run).status == "unfinished"


def test_it_is_running_also_while_some_process_waits_for_another_lock(tmp_path):
    run = write_run(tmp_path / "a", status=None)
    os.utime(run / "metrics.jsonl", (LONG_AGO, LONG_AGO))
    with (run / ".lock").open("a") as lock, (tmp_path / "other").open("a") as other:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)

        def wait():
            with (tmp_path / "other").open("a") as mine:
                fcntl.flock(mine, fcntl.LOCK_EX)

        waiting = threading.Thread(target=wait)
        waiting.start()
        inode = f":{os.fstat(other.fileno()).st_ino} "
        locks = Path("/proc/locks")
        wait_until(lambda: any("->" in line and inode in line for line in locks.read_text().splitlines()))
        assert read_record(run).status == "running"
        fcntl.flock(other, fcntl.LOCK_UN)
        waiting.join()


def test_a_run_that_another_machine_writes_is_running(tmp_path):
    assert read_record(write_run(tmp_path / "a", status=None)).status == "running"


def test_a_run_that_has_just_begun_has_no_steps(tmp_path):
    run = write_run(tmp_path / "a", status=None, returns=())
    (run / "metrics.jsonl").unlink()
    assert read_record(run).env_steps == 0


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("summary.json", '{"schema_ver', "not JSON"),
        ("summary.json", '{"schema_version": 1, "status": "completed", "fps": "fast"}', "fps"),
        ("summary.json", '{"schema_version": 1, "status": "glorious"}', "glorious"),
        ("config.yaml", "env: [1, 2", "config.yaml is not readable"),
        ("config.yaml", "5", "not the configuration of a run"),
    ],
)
def test_a_run_whose_files_are_damaged_stands_in_the_table_with_the_reason(tmp_path, name, text, why):
    run = write_run(tmp_path / "a", status="completed" if name == "summary.json" else None)
    (run / name).write_text(text)
    (record,) = read_records(tmp_path)
    assert record.status == "damaged"
    assert why in record.why


def test_folders_of_others_are_passed_over(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "summary.json").write_text('{"kind": "scaling report", "schema_version": 1}')
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.yaml").write_text("services: {web: {}}")
    (tmp_path / ".hidden").mkdir()
    write_run(tmp_path / ".hidden" / "a")
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "sweep" / "b" / "0")
    (tmp_path / "sweep" / "config.yaml").write_text("[]")
    (tmp_path / "summary.json").write_text("{}")
    assert [record.name for record in read_records(tmp_path)] == ["sweep/b/0"]


def test_filters_keep_what_is_asked_for(tmp_path):
    write_run(tmp_path / "a", seed=1)
    write_run(tmp_path / "b", env="Pendulum-v1", status="failed", gamma=0.9)
    write_run(tmp_path / "c", world_size=4, status=None)
    assert chosen(tmp_path, sort="run") == ["a", "b", "c"]
    assert chosen(tmp_path, sort="run", env="cart") == ["a", "c"]
    assert chosen(tmp_path, env="Pend*") == ["b"]
    assert chosen(tmp_path, sort="run", status="completed, failed") == ["a", "b"]
    assert chosen(tmp_path, world_size="2,4") == ["c"]
    assert chosen(tmp_path, seed=1) == ["a"]
    assert chosen(tmp_path, since="1h") == ["c"]
    assert chosen(tmp_path, sort="run", since="2026-01-01") == ["a", "b", "c"]
    assert chosen(tmp_path, settings={"ppo.gamma": "9e-1"}) == ["b"]
    assert chosen(tmp_path, settings={"ppo.gamma": "0.9", "dist.world_size": "4"}) == []


def test_the_largest_return_is_first_and_what_is_not_known_last(tmp_path):
    write_run(tmp_path / "low", returns=(1.0,))
    write_run(tmp_path / "none", status=None, returns=())
    write_run(tmp_path / "high", returns=(9.0,))
    assert chosen(tmp_path, sort="return") == ["high", "low", "none"]
    assert chosen(tmp_path, sort="return", reverse=True) == ["low", "high", "none"]
    assert chosen(tmp_path, sort="return", limit=1) == ["high"]


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_table_fits_the_terminal_and_keeps_what_matters_most(tmp_path, width):
    write_run(tmp_path / "a_folder_with_a_very_long_name_indeed" / "x", returns=(123.456,))
    text = lines(columns(read_records(tmp_path)), width)
    assert max(map(len, text)) <= width
    for words in ("run", "status", "completed", "…" if width == 40 else "x"):
        assert words in "\n".join(text)


def test_of_five_hundred_runs_no_file_is_read_more_than_twice(tmp_path, monkeypatch):
    whole, cut_off = write_run(tmp_path / "0"), write_run(tmp_path / "1", status=None)
    for number in range(2, 500):
        shutil.copytree(whole if number % 5 else cut_off, tmp_path / str(number))
    opened = Counter()

    def counted(path, *arguments, open=io.open, **named):
        opened[str(path)] += 1
        return open(path, *arguments, **named)

    monkeypatch.setattr(io, "open", counted)
    assert len(read_records(tmp_path)) == 500
    of_runs = {path: times for path, times in opened.items() if path.startswith(str(tmp_path))}
    assert len(of_runs) >= 500
    assert max(of_runs.values()) <= 2  # metrics.jsonl from both ends


# -- compared --------------------------------------------------------------------------------------------------------


def test_settings_that_differ_are_named_and_the_others_counted(tmp_path):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", gamma=0.9, seed=3)
    tables = {table.title: table for table in compared([str(a), str(b)]).tables}
    assert tables["Settings"].rows == [["ppo.gamma", "0.99", "0.9"], ["seed", "0", "3"]]
    assert "settings are the same" in tables["Settings"].notes[0]


def test_curves_stand_at_the_same_steps_and_say_when_each_reached_what_all_reach(tmp_path):
    a = write_run(tmp_path / "a", returns=(0.0, 10.0, 20.0, 30.0))
    b = write_run(tmp_path / "b", returns=(0.0, 5.0, 10.0, 20.0, 40.0))
    (table,) = (t for t in compared([str(a), str(b)]).tables if t.title.startswith("Curve"))
    assert table.title == "Curve of rollout/return_mean"
    assert ["at 200 steps", "10", "5"] in table.rows
    assert ["at 400 steps", "30", "20"] in table.rows
    assert ["steps to 30", "400", "500"] in table.rows
    assert "They first differ at 200 steps; they are at most 10 apart" in table.notes[0]


def test_curves_that_are_the_same_are_said_to_be(tmp_path):
    a, b = write_run(tmp_path / "a", world_size=1), write_run(tmp_path / "b", world_size=4)
    text = compare(CompareOptions(str(a), [str(b)]))
    assert "the same to the last bit at all 2 steps" in text
    assert "dist.world_size" in text


def test_a_damaged_line_of_metrics_is_passed_over_and_counted(tmp_path):
    run = write_run(tmp_path / "a", returns=(1.0, 2.0))
    good = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    broken = '{"iteration": 9, "rank": 0, \n'
    (run / "metrics.jsonl").write_text("".join([good[0], broken, good[1], good[1], good[0][:30]]))
    curves, unread = read_curves(run / "metrics.jsonl")
    assert curves["rollout/return_mean"].values.tolist() == [1.0, 2.0]
    assert unread == 2


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_a_plot_has_a_line_for_each_run(tmp_path, suffix):
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b & <c>", gamma=0.9)
    out = tmp_path / f"both.{suffix}"
    assert f"plot: {out}" in compare(CompareOptions(str(a), [str(b)], plot=str(out)))
    text = out.read_text()
    assert text.count('<path class="line blue"') >= 1
    assert text.count('<path class="line orange"') >= 1
    assert "<c>" not in text
    assert ("ppo.gamma" in text) is (suffix == "html")


@pytest.mark.parametrize("width", [40, 80])
def test_a_comparison_fits_the_terminal(tmp_path, width):
    a, b = write_run(tmp_path / "a", env="A" * 60), write_run(tmp_path / "b")
    rows = [
        text for text in compare(CompareOptions(str(a), [str(b)]), width).splitlines() if "env.id" in text
    ]
    assert all(len(text) <= width for text in rows)
