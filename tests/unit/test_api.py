"""ddppo from Python: runs are processes of their own, and what ends them is an exception."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import types
from contextlib import contextmanager
from pathlib import Path

import pytest

import ddppo
from ddppo.api import NotebookView, Summary, View, evaluate, train, view
from ddppo.errors import ConfigError, TrainingError
from tests.support import CHECKOUT, lines, processes, wait_until

TINY = [
    "env=cartpole",
    "ppo.total_steps=512",
    "eval.final_episodes=2",
    "log.tensorboard=false",
    "log.progress=none",
    "device=cpu",
]


@pytest.fixture(autouse=True)
def in_checkout(monkeypatch):
    monkeypatch.chdir(CHECKOUT)


def test_in_a_thread_inside_an_event_loop_a_run_returns_its_summary_and_can_be_evaluated(tmp_path, capsys):
    async def cell():  # as a notebook runs one
        return train([*TINY, "log.progress=plain", f"hydra.run.dir={tmp_path / 'run'}"])

    found = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(cell())))
    thread.start()
    thread.join()
    (summary,) = found
    assert summary["status"] == "completed"
    assert summary["env_steps"] == 512
    assert summary.run_dir == tmp_path / "run"
    assert repr(summary).startswith("<completed: 512 steps, return ")
    assert pickle.loads(pickle.dumps(summary)) == summary
    said, warned = capsys.readouterr()
    assert "512 / 512 steps" in said
    assert "evaluation" in said
    assert warned == ""
    scores = evaluate(summary, episodes=3, seed=1)
    assert scores["episodes"] == 3
    assert len(scores["returns"]) == 3
    assert scores == evaluate(str(summary.run_dir), episodes=3, seed=1)


@pytest.mark.slow
def test_several_ranks_learn_the_same_and_change_nothing_of_the_caller(tmp_path):
    signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    one, two = (
        train([*TINY, f"hydra.run.dir={tmp_path / f'w{w}'}", f"dist.world_size={w}", "dtype=float64"])
        for w in (1, 2)
    )
    assert (one["world_size"], two["world_size"]) == (1, 2)
    assert one["eval"]["final"]["return_mean"] == two["eval"]["final"]["return_mean"]
    assert not processes(f"ddppo.launch.rank {tmp_path}")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == signals


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["env=cartpol"], "did you mean cartpole"),
        (["-m", "env=cartpole"], "-m: train takes settings"),
        (["hydra.mode=MULTIRUN", "seed=0,1"], "hydra.mode=MULTIRUN: train starts one run"),
        ("env=cartpole", "overrides are a list of texts"),
        ([Path("env=cartpole")], "overrides are a list of texts"),
    ],
)
def test_a_mistake_is_an_exception_that_says_what_the_door_says_and_leaves_nothing(
    tmp_path, monkeypatch, capsys, overrides, said
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said.replace("?", r"\?").replace("*", r"\*")) as e:
        train(overrides)
    assert "\n" not in str(e.value)
    assert capsys.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_is_an_exception_with_the_cause(tmp_path):
    wrong = ["env=gym", "env.id=tests.fault.wrong_env:Wrong-v0", "env.num_envs=2", "ppo.rollout_steps=8"]
    with pytest.raises(TrainingError, match="the wheel came off"):
        train([*TINY[1:], *wrong, "env.kwargs.fault=raise", f"hydra.run.dir={tmp_path / 'run'}"])


@contextmanager
def after_the_first_iteration(run_dir, do):
    """Do something while the run in `run_dir`, which is long, is under way."""

    def wait():
        try:
            wait_until(lambda: lines(run_dir), "iteration")
        finally:
            do()

    thread = threading.Thread(target=wait)
    thread.start()
    yield ["env=cartpole", "ppo.total_steps=2e7", "log.progress=none", f"hydra.run.dir={run_dir}"]
    thread.join()


@pytest.mark.slow
def test_a_run_that_is_killed_is_an_exception_and_the_next_runs(tmp_path):
    def kill():
        for pid in processes("ddppo.api.train"):
            os.kill(pid, signal.SIGKILL)

    with (
        after_the_first_iteration(tmp_path / "run", kill) as long,
        pytest.raises(TrainingError, match="ended with signal 9"),
    ):
        train(long)
    assert train([*TINY, f"hydra.run.dir={tmp_path / 'next'}"])["status"] == "completed"


@pytest.fixture
def heard_interrupts():
    """Interrupts are exceptions, also where whoever started the tests ignores them, as a shell does behind `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_interrupts")
def test_an_interrupt_saves_the_run_and_is_an_interrupt_here(tmp_path):
    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with (
        after_the_first_iteration(tmp_path / "run", interrupt) as long,
        pytest.raises(KeyboardInterrupt, match="the run was stopped; its folder is"),
    ):
        train(long)
    assert Summary.read(tmp_path / "run")["status"] == "stopped"
    assert list((tmp_path / "run" / "checkpoints").iterdir())


def test_the_modules_of_the_commands_are_the_functions_when_they_are_called():
    from ddppo import train as module

    assert callable(module.main)
    with pytest.raises(ConfigError, match="did you mean cartpole"):
        ddppo.train(["env=cartpol"])
    with pytest.raises(ConfigError, match="none is given"):
        ddppo.evaluate([])
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = ddppo.trian


def test_the_package_is_light_until_something_is_asked_of_it():
    code = "import sys, ddppo; assert not {'torch', 'hydra', 'numpy', 'omegaconf'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("run", "said"), [("nowhere", "not a run folder"), ([], "none is given")])
def test_what_cannot_be_evaluated_is_a_mistake(run, said):
    with pytest.raises(ConfigError, match=said):
        evaluate(run)
    with pytest.raises(ConfigError, match="there is no setting episods"):
        evaluate("nowhere", episods=3)


# -- in a notebook ---------------------------------------------------------------------------------------------------


class Handle:
    def __init__(self, shown):
        self.shown = shown

    def update(self, text, raw):
        self.shown.append(text["text/plain"])


@pytest.fixture
def notebook(monkeypatch):
    """Have this process be a notebook's kernel; return what it shows in place."""
    shown = []

    def display(text, raw, display_id):
        shown.append(text["text/plain"])
        return Handle(shown)

    ipython, its_display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=None)
    its_display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", its_display)
    return shown


def test_a_notebook_sees_the_progress_in_place_and_the_rest_as_text(notebook, capsys, tmp_path):
    summary = train([*TINY[:-2], "device=cpu", f"hydra.run.dir={tmp_path / 'run'}"])
    said = capsys.readouterr().out
    assert summary["status"] == "completed"
    assert "512 / 512 steps" in notebook[-1]
    assert "100 %" in notebook[-1]
    assert "evaluation" in said
    assert "\x1e" not in said
    assert "/ 512 steps" not in said


def test_output_that_comes_in_pieces_is_put_together(notebook, capsys):
    shown = view()
    assert isinstance(shown, NotebookView)
    for piece in (b'begin\n\x1e["50 %"', b', "\xe2\x94', b'\x81"]\nen', b"d"):
        shown.out(piece)
    shown.close()
    assert notebook == ["50 %\n━"]
    assert capsys.readouterr().out == "begin\nend"


def test_elsewhere_output_is_handed_on_as_it_comes(capsys):
    shown = view()
    assert type(shown) is View
    assert shown.environ == {}
    shown.out(b"\xe2\x94")
    shown.out(b"\x81 done\n")
    shown.err(b"warning: x\n")
    assert capsys.readouterr() == ("━ done\n", "warning: x\n")
