"""Whatever ends a run, what it had written is there, and the same run goes on from it."""

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest

from ddppo import train
from ddppo.config.stored import load_config
from ddppo.launch import sweep_runs
from ddppo.records import recorder
from ddppo.records.run_folder import RunFolder
from tests.support import CHECKOUT, PATIENCE_S, TINY, Fork, door, lines, summary

SMALL = (*TINY, "ppo.total_steps=128", "ppo.rollout_steps=8", "checkpoint.every_steps=64")


@pytest.fixture
def trained(monkeypatch, capsys):
    """Call the door in this process; returns (exit code, stderr)."""

    def call_door(*arguments):
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the door sets it; this puts it back
        monkeypatch.setattr("sys.argv", ["train.py", *TINY, *arguments])
        try:
            train.main()
        except SystemExit as e:
            return e.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call_door


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A complete run of 2 iterations with a checkpoint after each."""
    run_dir = tmp_path_factory.mktemp("nothing_is_lost") / "run"
    result = door(*SMALL, run_dir=run_dir)
    assert result.code == 0, result.stderr
    return run_dir


@pytest.fixture
def copied_run(finished_run, tmp_path):
    return shutil.copytree(finished_run, tmp_path / "copy")


def iterations(run_dir, name="metrics.jsonl"):
    return [line["iteration"] for line in lines(run_dir, name)]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["start", "resume", "sweep"])
def test_a_run_completes_after_a_kill_and_after_a_full_disk_at_any_file_operation(tmp_path, scenario):
    command = [sys.executable, "-m", "tests.fault.file_operations", str(tmp_path), scenario, "every=6"]
    environ = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    result = subprocess.run(
        command, cwd=CHECKOUT, env=environ, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(" 0 findings") == 2


# -- resume -----------------------------------------------------------------------------------------------------------


def test_a_run_without_a_checkpoint_begins_anew_and_keeps_what_was_there(trained, copied_run):
    before = (copied_run / "metrics.jsonl").read_text()
    for path in (copied_run / "checkpoints").iterdir():
        path.unlink()
    stopped = summary(copied_run) | {"status": "stopped"}
    (copied_run / "summary.json").write_text(json.dumps(stopped))
    code, _ = trained(f"resume={copied_run}")
    assert code == 0
    assert iterations(copied_run) == [1, 2]
    assert (copied_run / "metrics.superseded.jsonl").read_text() == before
    assert (copied_run / "summary.1.json").exists()
    assert not load_config(copied_run / "config.yaml").resume


def test_a_damaged_newest_checkpoint_is_kept_and_the_one_before_it_gone_on_from(trained, copied_run):
    last = copied_run / "checkpoints" / "iteration_00000002.pt"
    damaged = last.read_bytes()[:1000]
    last.write_bytes(damaged)
    code, stderr = trained(f"resume={copied_run}", "ppo.total_steps=192")
    assert code == 0
    assert "warning: a damaged checkpoint is kept as" in stderr
    assert "iteration_00000001.pt" in stderr
    assert last.with_name("iteration_00000002.damaged.1.pt").read_bytes() == damaged
    assert iterations(copied_run) == [1, 2, 3]
    assert iterations(copied_run, "metrics.superseded.jsonl") == [2]


def test_a_run_with_nothing_but_damaged_checkpoints_is_not_resumed(trained, copied_run):
    for path in (copied_run / "checkpoints").glob("iteration_*.pt"):
        path.write_bytes(b"")
    code, stderr = trained(f"resume={copied_run}", "ppo.total_steps=256")
    assert code == 2
    assert f"every checkpoint of {copied_run} is damaged" in stderr
    assert stderr.count("\n") == 1


def test_a_run_that_lacks_only_its_summary_is_concluded(trained, copied_run):
    first, records = summary(copied_run), (copied_run / "metrics.jsonl").read_bytes()
    (copied_run / "summary.json").unlink()
    assert trained(f"resume={copied_run}") == (0, "")
    assert (copied_run / "metrics.jsonl").read_bytes() == records
    second = summary(copied_run)
    for name in ("status", "env_steps", "iterations", "wall_s", "fps", "params_hash"):
        assert first[name] == second[name], name


@pytest.mark.parametrize("moment", ["link", "replace"])
def test_a_run_folder_has_a_whole_config_at_every_instant(trained, copied_run, monkeypatch, moment):
    before = (copied_run / "config.yaml").read_text()

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, killed)
        code, _ = trained(f"resume={copied_run}", "ppo.total_steps=192")
    assert code == 130
    assert (copied_run / "config.yaml").read_text() == before
    assert not list(copied_run.glob(".*.tmp"))


def test_a_run_that_was_given_more_steps_is_not_complete_before_it_has_done_them(copied_run):
    folder = RunFolder(copied_run)
    assert folder.is_complete
    text = (copied_run / "config.yaml").read_text()
    (copied_run / "config.yaml").write_text(text.replace("total_steps: 128", "total_steps: 192"))
    assert not folder.is_complete


def test_a_damaged_best_checkpoint_is_kept_and_does_not_hinder(trained, copied_run):
    (copied_run / "checkpoints" / "best.pt").write_bytes(b"PK")
    code, stderr = trained(f"resume={copied_run}", "ppo.total_steps=192")
    assert code == 0
    assert "best.damaged.1.pt" in stderr


def test_a_sweep_goes_on_from_an_older_checkpoint_too(trained, tmp_path):
    command = ["-m", "seed=0", *SMALL, f"sweep={tmp_path}"]
    assert trained(*command)[0] == 0
    run_dir = next(path for path in tmp_path.iterdir() if path.is_dir())
    (run_dir / "summary.json").unlink()
    (run_dir / "checkpoints" / "iteration_00000002.pt").write_bytes(b"")
    code, stderr = trained(*command)
    assert code == 0
    assert "iteration_00000002.damaged.1.pt" in stderr
    assert iterations(run_dir, "metrics.superseded.jsonl") == [2]
    assert not (tmp_path / ".earlier").exists()


# -- viewers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["start", "update", "close"])
@pytest.mark.parametrize(
    "fault", [BrokenPipeError("nobody reads"), SystemExit(1), ZeroDivisionError("a bug")]
)
def test_a_display_that_fails_is_switched_off_with_one_warning(trained, tmp_path, monkeypatch, method, fault):
    def fail(*args):
        raise fault

    monkeypatch.setattr(f"ddppo.records.progress_display.PlainDisplay.{method}", fail)
    code, stderr = trained(*SMALL, "log.progress=plain", f"hydra.run.dir={tmp_path}")
    assert code == 0
    assert stderr.count("the progress display failed and is switched off") == 1
    assert stderr.count("\n") == 1
    assert summary(tmp_path)["status"] == "completed"


@pytest.mark.parametrize("method", ["__init__", "write", "close"])
def test_a_tensorboard_that_fails_is_switched_off_with_one_warning(trained, tmp_path, monkeypatch, method):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(recorder.TensorBoardWriter, method, fail)
    code, stderr = trained(*SMALL, "log.tensorboard=true", f"hydra.run.dir={tmp_path}")
    assert code == 0
    assert stderr.count("TensorBoard failed and is switched off") == 1
    assert summary(tmp_path)["status"] == "completed"


@pytest.mark.parametrize("progress", ["plain", "rich"])
def test_a_reader_that_leaves_is_no_fault_of_the_run(tmp_path, progress):
    command = [
        sys.executable,
        "-m",
        "ddppo.train",
        *SMALL,
        f"log.progress={progress}",
        f"hydra.run.dir={tmp_path}",
    ]
    read, write = os.pipe()
    os.close(read)  # as `| head -2` once it has its lines
    with Fork(command, cwd=CHECKOUT, stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stderr) == (0, "")
    assert summary(tmp_path)["status"] == "completed"


def test_a_terminal_that_goes_away_is_no_fault_of_the_run(tmp_path):
    command = [sys.executable, "-m", "ddppo.train", *SMALL, "log.progress=rich", f"hydra.run.dir={tmp_path}"]
    ours, terminal = os.openpty()
    with Fork(command, cwd=CHECKOUT, stdout=terminal, stderr=terminal, stdin=terminal) as process:
        os.close(terminal)
        os.close(ours)  # it is not the process's controlling terminal, so there is no SIGHUP: as after nohup
        assert process.wait(timeout=PATIENCE_S) == 0
    assert summary(tmp_path)["status"] == "completed"


def test_a_curve_file_that_is_damaged_is_kept_and_the_run_goes_on(trained, finished_run, tmp_path):
    run_dir = tmp_path / "run"
    assert trained(*SMALL, "log.tensorboard=true", f"hydra.run.dir={run_dir}")[0] == 0
    (events,) = (run_dir / "tensorboard").iterdir()
    content = bytearray(events.read_bytes())
    content[len(content) // 2 :] = os.urandom(len(content) - len(content) // 2)
    events.write_bytes(content)
    code, stderr = trained(f"resume={run_dir}", "log.tensorboard=true", "ppo.total_steps=192")
    assert code == 0
    assert stderr.startswith(f"warning: {events} is damaged")
    (kept,) = (run_dir / "tensorboard").glob("*damaged*")
    assert kept.read_bytes() == bytes(content)


# -- disks ------------------------------------------------------------------------------------------------------------


def test_a_sweep_goes_on_where_its_journal_cannot_be_written(tmp_path, capsys):
    sweep_dir = tmp_path / "file" / "sweep"
    (tmp_path / "file").touch()
    sweep_runs.note(sweep_dir, sweep_dir / "a", "failed", "no room")
    sweep_runs.note(sweep_dir, sweep_dir / "b", "completed")
    assert capsys.readouterr().err.count("cannot be written") == 2
    assert [(o.run, o.outcome, o.why) for o in sweep_runs.outcomes(sweep_dir, sweep_runs.FolderBefore())] == [
        ("a", "failed", "no room"),
        ("b", "completed", ""),
    ]


def test_an_outcome_after_a_line_that_was_cut_short_is_read(tmp_path):
    sweep_runs.note(tmp_path, tmp_path / "a", "completed")
    journal = tmp_path / "sweep.jsonl"
    journal.write_bytes(journal.read_bytes() + journal.read_bytes()[:20])
    sweep_runs.note(tmp_path, tmp_path / "b", "completed")
    assert [outcome.run for outcome in sweep_runs.outcomes(tmp_path, sweep_runs.FolderBefore())] == ["a", "b"]


@pytest.mark.parametrize("where", ["/proc/nowhere", "{tmp}/file/run"])
def test_a_folder_that_cannot_be_made_is_said_in_one_sentence(trained, tmp_path, where):
    (tmp_path / "file").touch()
    code, stderr = trained(*SMALL, f"hydra.run.dir={where.format(tmp=tmp_path)}")
    assert code in (1, 2)
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
