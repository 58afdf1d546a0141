"""A disk that fills up, or a run folder that goes away, while two ranks train: what is said, and what is left."""

import os
import resource
import shutil
import signal

import pytest

from ddppo.records import checkpoint
from tests.fault.test_bad_endings import LONG, iterations, running, wait_for_end_of_ranks, wait_for_iteration
from tests.support import PATIENCE_S, descendants, door, lines, rank_of, summary

pytestmark = pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux, to fill a rank's disk")


def rank_0(run_dir):
    (pid,) = [pid for pid in descendants(str(run_dir)) if rank_of(pid) == 0]
    return pid


@pytest.mark.parametrize("file", [pytest.param("metrics.jsonl", marks=pytest.mark.slow), "a checkpoint"])
def test_a_disk_that_fills_up_ends_the_run_with_its_last_state_intact(tmp_path, file):
    run_dir = tmp_path / "run"
    every = 1 if file == "a checkpoint" else 5
    with running(
        *LONG, "env.num_envs=4", "dist.world_size=2", f"checkpoint.every_steps={64 * every}", run_dir=run_dir
    ) as process:
        wait_for_iteration(run_dir, 7, process)
        pid, metrics = rank_0(run_dir), run_dir / "metrics.jsonl"
        os.kill(pid, signal.SIGSTOP)  # else it would write between the look and the limit
        saved = min(path.stat().st_size for path in (run_dir / "checkpoints").glob("iteration_*.pt"))
        room = saved // 2 if file == "a checkpoint" else metrics.stat().st_size + 100
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        os.kill(pid, signal.SIGCONT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
        wait_for_end_of_ranks(run_dir)
    assert process.returncode == 1
    last = checkpoint.last(run_dir / "checkpoints")
    assert "cannot be written: File too large: the limit of a file's size, " in stderr
    assert ". The last good checkpoint is " in stderr
    assert f"once that can be written, go on with resume={run_dir}" in stderr
    assert "Traceback" not in stderr
    assert checkpoint.is_whole(last)
    assert metrics.read_bytes().endswith(b"\n")
    done = iterations(run_dir)[-1]
    again = door(f"resume={run_dir}", f"ppo.total_steps={64 * (done + 2)}", run_dir=run_dir)
    assert again.code == 0, again.stderr
    assert [line["iteration"] for line in lines(run_dir) if line["rank"] == 1] == list(range(1, done + 3))
    assert summary(run_dir)["status"] == "completed"


def test_a_run_whose_folder_goes_away_stops_instead_of_training_for_nobody(tmp_path):
    run_dir = tmp_path / "run"
    with running(*LONG, "env.num_envs=4", "dist.world_size=2", run_dir=run_dir) as process:
        wait_for_iteration(run_dir, 3, process)
        kept = tmp_path / "kept"
        shutil.move(run_dir, kept)
        _, stderr = process.communicate(timeout=PATIENCE_S)
        wait_for_end_of_ranks(run_dir)
    assert process.returncode == 1
    assert f"{run_dir / 'metrics.jsonl'} cannot be written: No such file or directory" in stderr
    assert "Traceback" not in stderr
    assert (kept / "metrics.jsonl").read_bytes().endswith(b"\n")
