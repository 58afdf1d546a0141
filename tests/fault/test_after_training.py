"""Nothing trained is lost to what comes after training: evaluations, uploads, and what a checkpoint is too full of."""

import json
import os
import shutil
import signal
import sys
from unittest import mock

import pytest
import torch

from ddppo import evaluate, train
from ddppo.loop import evaluation
from ddppo.records import checkpoint, recorder
from ddppo.records.terminal_text import closing
from ddppo.seeding import derived_seed
from tests.support import PATIENCE_S, TINY, door, lines, started, summary, wait_until

SMALL = (*TINY, "env=cartpole", "env.num_envs=2", "ppo.rollout_steps=8", "ppo.num_minibatches=2", "ppo.num_epochs=1",
         "ppo.total_steps=32", "eval.final_episodes=2")  # fmt: skip
# Goes wrong in the final evaluation's second episode, which rank 1 plays where there are two.
WRONG = (*SMALL, "env=gym", "env.id=tests.fault.wrong_env:Wrong-v0", "env.backend=sync", "env.kwargs.step=5",
         f"env.kwargs.seed={derived_seed(0, 'eval', 1)}")  # fmt: skip


@pytest.fixture
def call(monkeypatch, capsys):
    """Call a door in this process; returns (exit code, stderr)."""

    def call_door(*arguments, main=train.main):
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr("sys.argv", ["door.py", *map(str, arguments)])
        try:
            main()
        except SystemExit as e:
            return e.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call_door


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run whose final evaluation succeeded."""
    run_dir = tmp_path_factory.mktemp("after") / "run"
    arguments = ["train.py", *SMALL, f"hydra.run.dir={run_dir}"]
    with mock.patch.object(sys, "argv", arguments), mock.patch.dict(os.environ):
        train.main()
    return run_dir


def failing(monkeypatch, error, *, nth=1, times=1):
    """Have the nth evaluation, and some behind it, raise `error` before its first step."""
    play, calls = evaluation.play_episodes, []

    def fails(*arguments, **named):
        calls.append(None)
        if nth <= len(calls) < nth + times:
            raise error
        return play(*arguments, **named)

    monkeypatch.setattr(evaluation, "play_episodes", fails)


def untimed(run_dir, name="metrics.jsonl"):
    """Return the lines of a run's metrics but for times, and for who did them."""
    apart = ("time/", "dist/rho", "wall_s", "resumed", "rollout/fps", "rollout/local_fps", "eval/t_eval")
    return [{k: v for k, v in line.items() if not k.startswith(apart)} for line in lines(run_dir, name)]


# -- the final evaluation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise", "evaluation environment 1 raised ArithmeticError in step 5: the wheel came off"),
        ("leave", "evaluation environment 1 raised SystemExit in step 5"),
        ("nan", "evaluation environment 1 returned nan in the observation of step 5"),
    ],
)
def test_a_final_evaluation_that_fails_leaves_a_complete_run_and_its_policy(call, tmp_path, fault, said):
    run_dir = tmp_path / "run"
    code, stderr = call(*WRONG, f"env.kwargs.fault='{fault}'", f"hydra.run.dir={run_dir}")
    assert code == 5
    again = f"python -m ddppo.evaluate run={run_dir} episodes=2"
    last = stderr.splitlines()[-1]
    assert last.startswith(
        f"error: the run in {run_dir} is complete, but the final evaluation failed: {said}"
    )
    assert last.endswith(f"; repeat it by: {again}")
    assert ("Traceback" in stderr) == (fault != "nan")  # the task's own
    found = summary(run_dir)
    assert (found["status"], found["iterations"], found["eval"]["final"]) == ("completed", 2, None)
    (step,) = found["failed_after_training"]
    assert (step["step"], step["command"]) == ("the final evaluation", again)
    assert [line["iteration"] for line in lines(run_dir)] == [1, 2]
    assert not (run_dir / "checkpoints" / "best.pt").exists()
    assert call(run_dir, "seed=7", "episodes=1", main=evaluate.main)[0] == 0
    assert call(run_dir, "episodes=2", main=evaluate.main)[0] == 1


def test_the_policy_is_on_the_disk_before_the_final_evaluation_begins(call, tmp_path, monkeypatch):
    found = []

    def looks(*arguments, **named):
        path = checkpoint.last(tmp_path / "checkpoints")
        found.append(checkpoint.load(path)["env_steps"])
        raise MemoryError

    monkeypatch.setattr(evaluation, "play_episodes", looks)
    assert call(*SMALL, f"hydra.run.dir={tmp_path}")[0] == 5
    assert found == [32]


def test_a_mean_return_that_is_no_number_is_no_score(call, tmp_path, monkeypatch):
    scores = evaluation.Scores((1e308, 1e308), (1, 1))
    monkeypatch.setattr(evaluation, "play_episodes", lambda *arguments, **named: scores)
    code, stderr = call(*SMALL, f"hydra.run.dir={tmp_path}")
    assert code == 5
    assert "failed: the mean return of CartPole-v1 is inf; repeat" in stderr
    assert not (tmp_path / "checkpoints" / "best.pt").exists()


def test_resume_repeats_an_evaluation_that_failed_and_leaves_what_an_undisturbed_run_does(
    call, tmp_path, monkeypatch, undisturbed
):
    failing(monkeypatch, MemoryError("no room"))
    assert call(*SMALL, f"hydra.run.dir={tmp_path}")[0] == 5
    assert call(f"resume={tmp_path}") == (0, "")
    assert untimed(tmp_path) == untimed(undisturbed)
    again, once = summary(tmp_path), summary(undisturbed)
    assert again["failed_after_training"] == once["failed_after_training"] == []
    assert again["eval"]["final"]["return_mean"] == once["eval"]["final"]["return_mean"]
    assert again["params_hash"] == once["params_hash"]
    states = [
        checkpoint.load(path / "checkpoints" / "iteration_00000002.pt") for path in (tmp_path, undisturbed)
    ]
    assert "unrecorded" not in states[0]
    assert states[0]["best"]["return_mean"] == states[1]["best"]["return_mean"]
    torch.testing.assert_close(states[0]["environments"], states[1]["environments"], rtol=0, atol=0)
    code, stderr = call(f"resume={tmp_path}")
    assert code == 2
    assert "is complete" in stderr


class Killed(BaseException):
    """As kill -9, nothing handles it."""


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "failed"])
def test_a_run_without_its_final_evaluation_can_be_given_more_steps(call, tmp_path, monkeypatch, is_killed):
    failing(monkeypatch, Killed() if is_killed else MemoryError())
    if is_killed:
        with pytest.raises(Killed):
            call(*SMALL, f"hydra.run.dir={tmp_path}")
        (tmp_path / "summary.json").unlink()
        assert [line["iteration"] for line in lines(tmp_path)] == [1]
    else:
        assert call(*SMALL, f"hydra.run.dir={tmp_path}")[0] == 5
    assert call(f"resume={tmp_path}", "ppo.total_steps=48") == (0, "")
    assert [line["iteration"] for line in lines(tmp_path)] == [1, 2, 3]
    assert [line.get("resumed", False) for line in lines(tmp_path)] == [False, False, True]
    assert not (tmp_path / "metrics.superseded.jsonl").exists()
    assert summary(tmp_path)["iterations"] == 3


@pytest.mark.slow
def test_a_run_that_was_killed_in_its_final_evaluation_is_evaluated(call, tmp_path, monkeypatch, undisturbed):
    failing(monkeypatch, Killed())
    with pytest.raises(Killed):
        call(*SMALL, f"hydra.run.dir={tmp_path}")
    (tmp_path / "summary.json").unlink()
    assert call(f"resume={tmp_path}") == (0, "")
    assert untimed(tmp_path) == untimed(undisturbed)
    assert summary(tmp_path)["warmup"] == summary(undisturbed)["warmup"]


@pytest.mark.slow
def test_resume_auto_finds_such_a_run_complete_and_says_what_failed(call, tmp_path, monkeypatch, capsys):
    failing(monkeypatch, MemoryError())
    command = [*SMALL, "resume=auto", f"hydra.run.dir={tmp_path}"]
    assert call(*command)[0] == 5
    monkeypatch.setattr("sys.argv", ["door.py", *command])
    train.main()
    said = capsys.readouterr().out
    assert said.startswith(f"the run in {tmp_path} is complete, but the final evaluation failed: MemoryError")


def test_a_sweep_goes_on_after_it_and_says_so(call, tmp_path, monkeypatch):
    failing(monkeypatch, MemoryError("no room"))
    command = ["-m", *SMALL, "seed=0,1", f"sweep={tmp_path}"]
    code, stderr = call(*command)
    assert code == 5
    assert f"sweep {tmp_path}: 2 runs, 2 completed\n" in stderr
    (said,) = [line for line in stderr.splitlines() if line.startswith("  ") and "complete, but" in line]
    assert "complete, but the final evaluation failed: MemoryError: no room" in said
    assert [summary(path.parent)["status"] for path in tmp_path.glob("[!.]*/config.yaml")] == [
        "completed"
    ] * 2
    assert call(*command)[0] == 0


@pytest.mark.quick_cases("2-130-interrupted")
@pytest.mark.parametrize(
    ("number", "code", "what"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 75, "stopped by SIGTERM")],
)
def test_a_signal_cuts_the_final_evaluation_short_and_the_same_command_repeats_it(
    call, tmp_path, monkeypatch, undisturbed, number, code, what
):
    play = evaluation.play_episodes

    def signalled(*arguments, **named):
        os.kill(os.getpid(), number)
        return play(*arguments, **named)

    monkeypatch.setattr(evaluation, "play_episodes", signalled)
    again = f"go on with: python -m ddppo.train resume={tmp_path}\n"
    said = f"{what}; all steps are done and saved, only the final evaluation is missing; {again}"
    assert call(*SMALL, f"hydra.run.dir={tmp_path}") == (code, said)
    found = summary(tmp_path)
    assert (found["status"], found["env_steps"]) == ("stopped", 32)
    assert found["failed_after_training"][0]["why"] == what
    assert f"stopped, but  the final evaluation was {what}\n" in closing(found, tmp_path)
    monkeypatch.setattr(evaluation, "play_episodes", play)
    assert call(f"resume={tmp_path}") == (0, "")
    assert untimed(tmp_path) == untimed(undisturbed)


@pytest.mark.parametrize(
    ("fault", "more"),
    [
        ("raise", ()),
        pytest.param("die", (), marks=pytest.mark.slow),
        pytest.param("die", ("dist.on_lost=restart",), marks=pytest.mark.slow),
        pytest.param("hang", ("dist.timeout_s=10",), marks=pytest.mark.slow),
    ],
)
def test_the_evaluation_of_another_rank_fails_for_all_ranks(tmp_path, fault, more):
    run_dir = tmp_path / "run"
    result = door(*WRONG, f"env.kwargs.fault={fault}", "dist.world_size=2", *more, run_dir=run_dir)
    assert result.code == 5, result.stderr
    said = "rank 1: evaluation environment 0 raised ArithmeticError" if fault == "raise" else "rank 1"
    assert f"the run in {run_dir} is complete, but the final evaluation failed: " in result.stderr
    assert said in result.stderr.splitlines()[-1]
    assert summary(run_dir)["status"] == "completed"
    assert checkpoint.last(run_dir / "checkpoints").name == "iteration_00000002.pt"
    assert [line["iteration"] for line in lines(run_dir) if line["rank"] == 0] == [1, 2]


@pytest.mark.slow
def test_ctrl_c_cuts_the_final_evaluation_of_all_ranks_short(tmp_path):
    run_dir = tmp_path / "run"
    more = ["eval.final_episodes=100000000", "dist.world_size=2", f"hydra.run.dir={run_dir}"]
    with started([sys.executable, "-m", "ddppo.train", *SMALL, *more]) as process:
        wait_until(lambda: checkpoint.last(run_dir / "checkpoints") is not None, "checkpoint")
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert (
        "interrupted; all steps are done and saved, only the final evaluation is missing; go on with: "
        in stderr
    )
    assert (summary(run_dir)["status"], summary(run_dir)["env_steps"]) == ("stopped", 32)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["die", "kill"])
def test_rank_0_lost_in_the_final_evaluation_costs_the_evaluation_alone(tmp_path, how):
    run_dir, seed = tmp_path / "run", derived_seed(0, "eval", 0)
    wrong = [*WRONG, f"env.kwargs.fault={how}", f"env.kwargs.seed={seed}", "dist.world_size=2"]
    result = door(*wrong, run_dir=run_dir)
    assert result.code == 1
    assert "rank 0 of 2 ended with" in result.stderr
    assert checkpoint.load(checkpoint.last(run_dir / "checkpoints"))["env_steps"] == 32
    assert (f"resume={run_dir}, which evaluates: all steps are done and saved" in result.stderr) == (
        how == "kill"
    )


# -- evaluations during training ---------------------------------------------------------------------------------------

EVALUATED = (*SMALL, "ppo.total_steps=64", "eval.every_steps=16", "eval.episodes=2")


def test_an_evaluation_during_training_that_fails_is_a_warning_and_best_stays_the_best(
    call, tmp_path, monkeypatch
):
    failing(monkeypatch, MemoryError("no room"), nth=2, times=2)
    code, stderr = call(*EVALUATED, f"hydra.run.dir={tmp_path}")
    assert code == 0
    assert (
        stderr.count("failed, and training goes on without its scores (eval.on_error=stop would end it)") == 2
    )
    assert "warning: the evaluation after 32 steps failed" in stderr
    assert ["eval/return_mean" in line for line in lines(tmp_path)] == [True, False, False, True]
    best = checkpoint.load(tmp_path / "checkpoints" / "best.pt")
    assert best["env_steps"] == summary(tmp_path)["eval"]["best"]["env_steps"]


def test_on_error_stop_ends_the_run_with_the_tasks_own_fault(call, tmp_path):
    seed = derived_seed(0, "eval", 0)
    wrong = [
        *WRONG,
        "env.kwargs.fault=raise",
        f"env.kwargs.seed={seed}",
        "eval.every_steps=16",
        "eval.episodes=1",
    ]
    code, stderr = call(*wrong, "eval.on_error=stop", f"hydra.run.dir={tmp_path}")
    assert code == 1
    assert stderr.startswith(
        "error: evaluation environment 0 raised ArithmeticError in step 5: the wheel came off"
    )
    assert summary(tmp_path)["status"] == "failed"


@pytest.mark.slow
def test_a_second_interrupt_in_an_evaluation_during_training_ends_the_run(call, tmp_path, monkeypatch):
    failing(monkeypatch, KeyboardInterrupt(), nth=2)
    code, stderr = call(*EVALUATED, "checkpoint.every_steps=16", f"hydra.run.dir={tmp_path}")
    assert (code, stderr) == (130, f"interrupted; go on with: python -m ddppo.train resume={tmp_path}\n")


# -- a tracker's last upload -------------------------------------------------------------------------------------------


def test_a_last_upload_that_fails_leaves_a_complete_run_and_can_be_repeated(call, tmp_path, monkeypatch):
    class Tracker:
        id, last_step, is_broken = "x", 0, True

        def write(self, report):
            pass

        def close(self, summary):
            if self.is_broken:
                raise OSError("the service is gone")

    tracker = Tracker()
    monkeypatch.setattr(recorder, "open_tracker", lambda *arguments, **named: tracker)
    monkeypatch.setattr("ddppo.launch.checks.check_installed", lambda names: None)
    code, stderr = call(*SMALL, "log.trackers=[wandb]", f"hydra.run.dir={tmp_path}")
    again = f"python -m ddppo.train resume={tmp_path}"
    said = f"the last upload to wandb failed: OSError: the service is gone; repeat it by: {again}\n"
    assert (code, stderr) == (5, f"error: the run in {tmp_path} is complete, but {said}")
    before = lines(tmp_path)
    assert summary(tmp_path)["eval"]["final"]["episodes"] == 2
    tracker.is_broken = False
    assert call(f"resume={tmp_path}") == (0, "")
    assert summary(tmp_path)["failed_after_training"] == []
    assert lines(tmp_path) == before


# -- sizes -------------------------------------------------------------------------------------------------------------


MAPPED = (*SMALL, "env=gym", "env.id=tests.fault.wrong_env:Mapped-v0", "env.backend=sync",
          "env.num_envs=4", "ppo.total_steps=64", "eval.final_episodes=0")  # fmt: skip


def size_of_last(run_dir):
    return checkpoint.last(run_dir / "checkpoints").stat().st_size


def test_what_all_environments_have_is_stored_once_and_gone_on_from_to_the_bit(call, tmp_path):
    whole = tmp_path / "whole"
    assert call(*MAPPED, "ppo.total_steps=128", "checkpoint.every_steps=64", f"hydra.run.dir={whole}") == (
        0,
        "",
    )
    assert size_of_last(whole) < 5e6  # not 4 times 4 MB
    parted = shutil.copytree(whole, tmp_path / "parted")
    (parted / "summary.json").unlink()
    checkpoint.last(parted / "checkpoints").unlink()
    assert call(f"resume={parted}") == (0, "")
    assert untimed(parted) == untimed(whole)
    assert summary(parted)["params_hash"] == summary(whole)["params_hash"]


def test_a_checkpoint_that_is_large_says_what_is_and_how_to_leave_it_out(call, tmp_path, monkeypatch):
    monkeypatch.setattr("ddppo.loop.checkpointer._LARGE", 1e6)  # bytes; 16 MB would take seconds
    run_dir = tmp_path / "run"
    code, stderr = call(
        *MAPPED, "env.kwargs.megabytes=2", "checkpoint.every_steps=32", f"hydra.run.dir={run_dir}"
    )
    assert code == 0
    (said,) = stderr.splitlines()
    assert said.startswith("warning: a checkpoint holds ")
    assert "MB of states of 4 environments, mostly the task's map (float64 [2, 125000], 2.0 MB): " in said
    assert "checkpoint.environments=false leaves them out" in said
    before = size_of_last(run_dir)
    # What the checkpoint holds is gone on from; those that follow are small.
    code, stderr = call(f"resume={run_dir}", "ppo.total_steps=96", "checkpoint.environments=false")
    assert code == 0
    assert "goes on approximately" not in stderr
    assert size_of_last(run_dir) < before / 5
    code, stderr = call(f"resume={run_dir}", "ppo.total_steps=128")
    assert code == 2
    assert "checkpoint.environments=false leaves them out: resume_state=approximate resumes from it" in stderr
    code, stderr = call(f"resume={run_dir}", "ppo.total_steps=128", "resume_state=approximate")
    assert code == 0
    assert "what a task remembers from one to the next is lost" in stderr


@pytest.mark.slow
def test_a_checkpoint_of_the_version_before_is_gone_on_from(call, tmp_path, undisturbed):
    copy = shutil.copytree(undisturbed, tmp_path / "copy")
    path = checkpoint.last(copy / "checkpoints")
    state = torch.load(path, weights_only=True)
    torch.save({**state, "version": 2}, path)
    assert call(f"resume={copy}", "ppo.total_steps=48") == (0, "")
    assert json.loads((copy / "summary.json").read_text())["iterations"] == 3
