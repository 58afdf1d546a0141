"""Signals that ask a run to stop: what is saved, what is said, what stays behind. And ends of a parent or a peer."""

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import hydra
import pytest

from ddppo import train
from tests.fault.test_bad_endings import LONG, iterations, running, wait_for_end_of_ranks, wait_for_iteration
from tests.support import CHECKOUT, PATIENCE_S, TINY, descendants, door, rank_of, summary, wait_until

SMALL = [
    *TINY,
    "env=cartpole",
    "env.num_envs=2",
    "ppo.rollout_steps=8",
    "ppo.num_minibatches=2",
    "ppo.num_epochs=1",
]
REQUEUEING = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
STOPPING = [signal.SIGINT, signal.SIGHUP, *REQUEUEING]
NEEDS_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")


@pytest.fixture
def call(monkeypatch, capsys):
    """Call the door in this process; returns (exit code, stderr)."""

    def call_door(*arguments):
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr("sys.argv", ["train.py", *arguments])
        code = 0
        try:
            train.main()
        except SystemExit as e:
            code = e.code
        return code, capsys.readouterr().err

    handlers = [signal.getsignal(number) for number in STOPPING]
    yield call_door
    assert [signal.getsignal(number) for number in STOPPING] == handlers


def signal_before(monkeypatch, target, number, *, nth=1):
    """Have this process get a signal when `target`, an import path, is called for the nth time."""
    where, name = target.rsplit(".", 1)
    owner = hydra.utils.get_object(where)
    function, calls = getattr(owner, name), []

    def signalled(*arguments, **named):
        calls.append(None)
        if len(calls) == nth:
            os.kill(os.getpid(), number)
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, signalled)


COLLECT = "ddppo.ppo.collector.Collector.collect"


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_in_an_iteration_has_it_finished_and_saved_and_says_how_to_go_on(
    call, monkeypatch, tmp_path, number
):
    signal_before(monkeypatch, COLLECT, number, nth=2)
    code, stderr = call(*SMALL, f"hydra.run.dir={tmp_path}")
    assert code == (75 if number in REQUEUEING else 128 + number)
    what = "interrupted" if number == signal.SIGINT else f"stopped by {number.name}"
    assert stderr == f"{what}; go on with: python -m ddppo.train resume={tmp_path}\n"
    assert summary(tmp_path)["status"] == "stopped"
    assert summary(tmp_path)["iterations"] == 2
    assert (tmp_path / "checkpoints" / "iteration_00000002.pt").exists()


def test_a_second_sigterm_while_the_summary_is_written_loses_nothing(call, monkeypatch, tmp_path):
    signal_before(monkeypatch, COLLECT, signal.SIGTERM, nth=2)
    signal_before(monkeypatch, "ddppo.records.recorder.Recorder.close", signal.SIGTERM)
    assert call(*SMALL, f"hydra.run.dir={tmp_path}")[0] == 75
    assert summary(tmp_path)["status"] == "stopped"


def test_a_hangup_that_nohup_has_ignored_stops_nothing(call, monkeypatch, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signal_before(monkeypatch, COLLECT, signal.SIGHUP, nth=2)
        code, stderr = call(*SMALL, "ppo.total_steps=64", f"hydra.run.dir={tmp_path}")
        assert (code, stderr) == (0, "")
        assert summary(tmp_path)["status"] == "completed"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_before_the_first_iteration_says_that_there_is_nothing_to_go_on_from(
    call, monkeypatch, tmp_path
):
    signal_before(monkeypatch, "ddppo.loop.build.build_networks", signal.SIGTERM)
    code, stderr = call(*SMALL, f"hydra.run.dir={tmp_path}")
    assert (code, stderr) == (143, "stopped by SIGTERM; there is no checkpoint\n")


@pytest.mark.parametrize(
    ("target", "outcome"),
    [
        (COLLECT, "stopped"),
        ("ddppo.loop.evaluation.play_episodes", "stopped"),
        ("ddppo.records.recorder.Recorder.close", "completed"),
    ],
)
def test_a_signal_ends_a_sweep_even_where_it_comes_too_late_for_the_run(
    call, monkeypatch, tmp_path, target, outcome
):
    signal_before(monkeypatch, target, signal.SIGTERM)
    code, stderr = call(
        "-m", *SMALL, "eval.final_episodes=2", "ppo.total_steps=64", "seed=0,1", f"sweep={tmp_path}"
    )
    assert code == 75
    assert stderr == f"stopped by SIGTERM; the same command with sweep={tmp_path} continues the sweep\n"
    (run_dir,) = (path.parent for path in tmp_path.glob("[!.]*/config.yaml"))
    assert run_dir.name.endswith("seed-0")
    assert summary(run_dir)["status"] == outcome


def test_the_exit_code_that_asks_to_be_started_again_is_the_users(call, monkeypatch, tmp_path):
    signal_before(monkeypatch, COLLECT, signal.SIGUSR1, nth=2)
    assert call(*SMALL, "run.requeue_exit_code=99", f"hydra.run.dir={tmp_path}")[0] == 99


LIMITED = (*LONG, "run.max_minutes=0.02")


@pytest.mark.quick_cases("2")
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_whose_minutes_are_over_is_saved_and_asks_to_be_started_again(tmp_path, world_size):
    run_dir = tmp_path / "run"
    result = door(*TINY, *LIMITED, "env.num_envs=4", f"dist.world_size={world_size}", run_dir=run_dir)
    assert result.code == 75
    assert result.stderr == f"run.max_minutes are over; go on with: python -m ddppo.train resume={run_dir}\n"
    assert summary(run_dir)["status"] == "stopped"
    done = iterations(run_dir)[-1]
    assert (run_dir / "checkpoints" / f"iteration_{done:08d}.pt").exists()
    again = door(f"resume={run_dir}", run_dir=run_dir)
    assert again.code == 75
    assert iterations(run_dir)[-1] > done


def test_a_sweep_whose_minutes_are_over_begins_no_other_run(call, tmp_path):
    code, stderr = call("-m", *SMALL, *LIMITED, "env.num_envs=4", "seed=0,1", f"sweep={tmp_path}")
    assert code == 75
    assert stderr == f"run.max_minutes are over; the same command with sweep={tmp_path} continues the sweep\n"
    assert len(list(tmp_path.glob("[!.]*/config.yaml"))) <= 1


@pytest.mark.parametrize(
    ("arguments", "number", "to_group"),
    [
        (("dist.world_size=2", "env.backend=pool"), signal.SIGTERM, False),
        (("env.backend=pool",), signal.SIGHUP, True),
    ],
    ids=["docker stop", "closed terminal"],
)
def test_a_stopped_run_is_saved_and_leaves_nothing_behind(tmp_path, arguments, number, to_group):
    run_dir, temporary = tmp_path / "run", tmp_path / "tmp"
    temporary.mkdir()
    with running(*LONG, "env.num_envs=4", *arguments, run_dir=run_dir, TMPDIR=str(temporary)) as process:
        wait_for_iteration(run_dir, 2, process)
        (os.killpg if to_group else os.kill)(process.pid, number)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (75 if number in REQUEUEING else 128 + number)
    assert stderr == f"stopped by {number.name}; go on with: python -m ddppo.train resume={run_dir}\n"
    assert not descendants(str(run_dir))
    assert summary(run_dir)["status"] == "stopped"
    assert (run_dir / "checkpoints" / f"iteration_{iterations(run_dir)[-1]:08d}.pt").exists()
    caches = ("torchinductor_", f"ddppo-{os.getuid()}")  # the latter without a HOME that can be written to
    assert not [path.name for path in temporary.iterdir() if not path.name.startswith(caches)]


def test_a_frozen_rank_is_named_after_the_limit(tmp_path):
    run_dir = tmp_path / "run"
    with running(*LONG, "dist.world_size=2", "dist.timeout_s=10", run_dir=run_dir) as process:
        wait_for_iteration(run_dir, 2, process)
        (frozen,) = [pid for pid in descendants(str(run_dir)) if rank_of(pid) == 1]
        os.kill(frozen, signal.SIGSTOP)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    last = stderr.splitlines()[-1]
    silence = re.match(r"error: rank 1 of 2 did not answer for ([\d.]+) s, ", last)
    assert silence is not None, last
    assert float(silence[1]) >= 10
    # All ranks end an iteration together, so the last that was heard of is the last that was written, or the next.
    done = iterations(run_dir)[-1]
    assert any(f"last heard of in iteration {n} " in last for n in (done, done + 1))
    assert "signal 9" not in stderr
    wait_for_end_of_ranks(run_dir)


# -- environment processes ---------------------------------------------------------------------------------------------

HANGING_BATCH = """
import os
import numpy as np
from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
task = EnvConfig("tests.fault.saboteurs:Hangs-v0", backend="pool", num_workers=2, kwargs={"owner": os.getpid()})
envs = make_vec_env(task, range(2), rank=0, cores=2)
envs.reset([0, 1])
print(*(worker.process.pid for worker in envs._stepper.workers), flush=True)
envs.step(np.zeros(2, int))
"""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@NEEDS_LINUX
def test_environments_that_hang_and_their_fork_server_end_with_a_killed_rank(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(HANGING_BATCH)
    environ = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(
        [sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: select.select([process.stdout], [], [], 0)[0], "processes of environments")
        workers = [int(pid) for pid in process.stdout.readline().split()]
        (fork_server,) = {
            int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in workers
        }
        assert fork_server != process.pid
        process.kill()
    wait_until(lambda: not any(map(is_running, [fork_server, *workers])), "end of the environments")
