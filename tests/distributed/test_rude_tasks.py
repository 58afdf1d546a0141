"""A task that changes the process in which it runs is named once, and a run of it is that of its polite twin."""

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
import torch

from ddppo import train
from ddppo.api import NotebookView
from ddppo.config.settings import EnvConfig
from ddppo.envs import guard
from ddppo.envs.guard import IMPORT, MADE, STEPPED, guarded, guarding, watched
from ddppo.envs.make import make_vec_env
from ddppo.errors import EnvError
from ddppo.policies.playing import blamed_on
from ddppo.processes.signals import StopRequest
from ddppo.records.progress_display import FRAME_BEGINS
from ddppo.terminal import unbroken_streams
from tests.distributed.rude_tasks import HARMLESS, RUDE, START_METHOD
from tests.support import CHECKOUT, PATIENCE_S, TINY, door, lines, summary

TASKS = "tests.distributed.rude_tasks"
RUN = [
    *TINY, "env=gym", "env.num_envs=4", "ppo.rollout_steps=16", "ppo.num_minibatches=2", "ppo.num_epochs=2",
    "ppo.total_steps=192", "resume_state=approximate",
]  # fmt: skip
POLITE, RUDE_ID = f"env.id={TASKS}:Polite-v0", f"env.id={TASKS}:Rude-v0"
BY_IMPORT = "env.id=tests.distributed.rude_import:RudeByImport-v0"


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch):
    monkeypatch.delenv("DDPPO_WARNED", raising=False)
    monkeypatch.setattr(guard, "_own", {})


@pytest.fixture
def trained(monkeypatch, capsys, tmp_path):
    """Train in this process; return the exit code and stderr."""

    def call_door(*arguments):
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr("sys.argv", ["train.py", *RUN, *arguments])
        code = 0
        try:
            train.main()
        except SystemExit as e:
            code = e.code
        return code, capsys.readouterr().err

    return call_door


@pytest.fixture(autouse=True)
def start_method():
    """Begin without a start method of multiprocessing, which anything before in this process may have chosen."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.fixture(scope="module")
def polite(tmp_path_factory):
    """Return the run of the polite task at W = 1 or 2, which is the same with all backends."""
    known = {}

    def run_of(num_ranks):
        if num_ranks not in known:
            folder = tmp_path_factory.mktemp("polite") / "run"
            finished = door(
                *RUN, POLITE, f"dist.world_size={num_ranks}", "eval.final_episodes=3", run_dir=folder
            )
            assert finished.code == 0, finished.stderr
            known[num_ranks] = summary(folder)
        return known[num_ranks]

    return run_of


# -- single changes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUDE)
def test_a_change_is_put_back_and_named_once(capsys, name):
    with watched("the test") as unseen:
        for _ in range(2):
            with guarded("my:Task-v0", MADE):
                RUDE[name]()
    assert unseen == []
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("warning: env.id=my:Task-v0: its making changed ")
    assert name in said[0]


@pytest.mark.parametrize("name", RUDE)
def test_what_a_block_of_code_changes_is_told_in_sentences(name):
    with watched("its import") as changes:
        RUDE[name]()
    assert any(name in each for each in changes)
    assert all(each.startswith("its import changed ") for each in changes)
    with watched("its import") as changes:
        pass
    assert changes == []


@pytest.mark.parametrize("name", HARMLESS)
def test_of_what_training_does_not_rely_on_nothing_is_said(capsys, name):
    with watched("its import") as changes, guarded("my:Task-v0", IMPORT):
        HARMLESS[name]()
    assert changes == []
    assert capsys.readouterr().err == ""


def test_what_a_task_adds_for_itself_stays(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with guarded("my:Task-v0", IMPORT):
        sys.path.insert(0, str(tmp_path))
        os.environ["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        os.environ["MUJOCO_GL"] = "egl"
    assert sys.path[0] == str(tmp_path)
    assert os.environ["PATH"].startswith(str(tmp_path))
    assert os.environ.pop("MUJOCO_GL") == "egl"
    assert capsys.readouterr().err == ""


def test_what_changed_before_an_error_is_put_back(capsys):
    @guarding(MADE)
    def made(env):
        torch.set_default_dtype(torch.float64)
        raise ZeroDivisionError

    with watched("the test") as unseen, pytest.raises(ZeroDivisionError):
        made(EnvConfig(id="my:Task-v0"))
    assert unseen == []
    assert "torch.set_default_dtype from torch.float32 to torch.float64" in capsys.readouterr().err


def test_a_process_of_a_task_alone_keeps_what_the_task_sets(monkeypatch):
    monkeypatch.setattr(guard, "_left_alone", True)
    with watched("the test") as changes, guarded("my:Task-v0", MADE):
        torch.set_default_dtype(torch.float64)
    assert changes == ["the test changed torch.set_default_dtype from torch.float32 to torch.float64"]


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_a_task_keeps_its_working_directory_and_each_environment_is_made_in_the_same(
    monkeypatch, tmp_path, backend
):
    monkeypatch.syspath_prepend(CHECKOUT)  # for the pool's processes
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "level.txt").write_text("1")
    monkeypatch.chdir(tmp_path)
    env = EnvConfig(id=f"{TASKS}:Moved-v0", backend=backend, num_workers=1)
    envs = make_vec_env(env, range(3), rank=0, cores=1)
    assert os.getcwd() == str(tmp_path)
    with guarded(f"{TASKS}:Moved-v0", STEPPED):
        envs.reset([1, 2, 3])
    assert os.getcwd() == str(tmp_path)
    envs.close()


def test_a_start_method_that_can_be_set_once_is_set_by_every_environment():
    before = multiprocessing.get_start_method(allow_none=True)
    env = EnvConfig(id=f"{TASKS}:Rude-v0", backend="sync", kwargs={"rude": [START_METHOD]})
    make_vec_env(env, range(3), rank=0, cores=1).close()
    assert multiprocessing.get_start_method(allow_none=True) == before


# -- signals, exits and what is left behind ---------------------------------------------------------------------------


def test_a_handler_that_a_task_sets_does_not_take_the_request_to_stop(capsys):
    def handler(number, frame):
        raise AssertionError

    install, before = signal.signal, signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        stop.listen()
        assert signal.signal(signal.SIGTERM, handler) is before
        assert signal.signal(signal.SIGTERM, signal.SIG_IGN) is handler
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
        assert signal.signal(signal.SIGALRM, signal.SIG_DFL) is signal.SIG_DFL
    assert signal.signal is install
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err.count("the task sets a handler of SIGTERM") == 1


def test_a_handler_that_a_library_in_c_installed_holds_until_the_end_of_the_iteration():
    with StopRequest() as stop:
        stop.listen()
        ctypes.CDLL(None).signal(signal.SIGUSR1, ctypes.c_void_p(signal.SIG_IGN))  # as Python does not see it
        stop.listen_again()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.signal == signal.SIGUSR1


def test_a_run_stops_in_good_order_though_its_task_takes_all_signals(trained, tmp_path):
    rude = "env.kwargs={rude:[SIGTERM,stops],when:[stepped],since:30}"
    code, stderr = trained(RUDE_ID, rude, "env.backend=sync", f"hydra.run.dir={tmp_path}")
    assert code == 75
    assert stderr.splitlines()[-1].startswith("stopped by SIGTERM; go on with: ")
    assert summary(tmp_path)["status"] == "stopped"
    assert len(lines(tmp_path)) == 2


def test_a_task_cannot_close_the_streams_of_the_process(capsys):
    with unbroken_streams():
        sys.stdout.close()
        print("still here")
    assert capsys.readouterr().out == "still here\n"


def test_a_frame_is_shown_though_the_task_printed_before_it(capsys, monkeypatch):
    view, shown = NotebookView(), []
    monkeypatch.setattr(view, "_show", shown.append)
    view.out(f'rude{FRAME_BEGINS}["10 %"]\nrude\n'.encode())
    assert shown == ["10 %"]
    assert capsys.readouterr().out == "rude\nrude\n"


def test_a_task_that_exits_while_it_is_shown_costs_one_sentence():
    with pytest.raises(EnvError, match=r"my:Task-v0 failed: SystemExit: enough"), blamed_on("my:Task-v0"):
        sys.exit("enough")


@pytest.mark.slow
def test_a_run_ends_though_its_task_leaves_threads_and_processes_running(tmp_path):
    rude = "env.kwargs={rude:[leaves behind],when:[made]}"
    finished = door(*RUN, RUDE_ID, rude, "env.backend=sync", run_dir=tmp_path / "run")
    assert finished.code == 0
    said = [each for each in finished.stderr.splitlines() if "left" in each]
    assert len(said) == 1
    assert said[0].endswith("running (asleep, forever): they end with this program")


def test_a_program_that_calls_a_command_goes_on_though_threads_are_left():
    program = """
import sys, threading
from ddppo.options import door
end = threading.Event()
threading.Thread(target=end.wait).start()
sys.argv = ["ddppo.search", "--help"]  # as a command sees it, for which this process is not to be taken

@door()
def main():
    sys.exit(0)

try:
    main()
except SystemExit:
    print("goes on")
end.set()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "num_ranks"),
    [
        pytest.param("sync", 1, marks=pytest.mark.slow),
        pytest.param("sync", 2, marks=pytest.mark.slow),
        pytest.param("pool", 1, marks=pytest.mark.slow),
        pytest.param("remote", 2, marks=pytest.mark.slow),
    ],
)
def test_a_rude_task_trains_and_scores_as_its_polite_twin(polite, tmp_path, backend, num_ranks):
    if backend == "remote":
        pytest.importorskip("ddppo.serve", reason="ddppo.serve is not there")
    elsewhere, run_dir = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    finished = door(
        *RUN, BY_IMPORT, f"env.backend={backend}", f"dist.world_size={num_ranks}", "eval.final_episodes=3",
        run_dir=run_dir, TMPDIR=str(elsewhere),
    )  # fmt: skip
    assert finished.code == 0, finished.stderr
    assert summary(run_dir)["params_hash"] == polite(num_ranks)["params_hash"]
    found, wanted = (each["eval"]["final"] for each in (summary(run_dir), polite(num_ranks)))
    assert {**found, "t_eval": 0} == {**wanted, "t_eval": 0}
    assert {each.name for each in run_dir.iterdir()} >= {"checkpoints", "config.yaml", "metrics.jsonl"}
    assert not [each for each in elsewhere.rglob("*") if each.suffix in (".pt", ".yaml", ".jsonl")]
    of_import = [each for each in finished.stderr.splitlines() if "its import changed" in each]
    assert len(of_import) == 2  # one of all that is put back, one of its working directory
    assert finished.stderr.count("warning: ") == len(of_import)


def test_the_next_job_of_a_sweep_begins_as_the_first_did_and_its_files_lie_where_they_should(
    trained, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    with watched("the sweep") as changes:
        code, stderr = trained("-m", RUDE_ID, "env.backend=sync", "ppo.clip_coef=0.1,0.2", "sweep=of/rude")
    assert code == 0, stderr
    assert not [each for each in changes if "DDPPO_BEGAN" not in each]  # which the door sets, with others
    assert stderr.count("warning: ") == 3  # of all that is put back, its working directory, its start method
    assert trained(POLITE, "env.backend=sync", "ppo.clip_coef=0.2", "hydra.run.dir=of/polite")[0] == 0
    runs = [summary(path.parent) for path in (tmp_path / "of" / "rude").glob("*/summary.json")]
    (second,) = (run for run in runs if run["config"]["ppo"]["clip_coef"] == 0.2)
    assert second["params_hash"] == summary(tmp_path / "of" / "polite")["params_hash"]


@pytest.mark.slow
def test_json_stands_alone_on_stdout_though_the_task_and_its_programs_print(trained, tmp_path):
    run_dir = tmp_path / "run"
    assert trained(POLITE, "env.backend=sync", f"hydra.run.dir={run_dir}")[0] == 0
    config = (run_dir / "config.yaml").read_text()
    config = config.replace("Polite-v0", "Rude-v0").replace("kwargs: {}", "kwargs: {rude: [says]}", 1)
    (run_dir / "config.yaml").write_text(config)
    finished = door(str(run_dir), "episodes=2", "json=true", module="ddppo.evaluate", run_dir=run_dir)
    assert finished.code == 0
    assert json.loads(finished.stdout)["episodes"] == 2
    assert "rude" in finished.stderr
