"""Environments that go wrong in a run: what the door says, and that it says no more."""

import pytest

from ddppo import train
from ddppo.evaluate import main as evaluate
from tests.support import CHECKOUT, TINY, door, lines, summary

WRONG = [
    *TINY,
    "env=gym",
    "env.id=tests.fault.wrong_env:Wrong-v0",
    "env.num_envs=2",
    "ppo.rollout_steps=8",
    "env.kwargs.from_seed=3",
]  # the trial meets no fault


@pytest.fixture
def trained(monkeypatch, capsys, tmp_path):
    """Train in this process, so at W = 1; return (exit code, stderr)."""

    def call_door(*arguments):
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr("sys.argv", ["train.py", *WRONG, *arguments, f"hydra.run.dir={tmp_path / 'run'}"])
        try:
            train.main()
        except SystemExit as e:
            return e.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call_door


@pytest.mark.parametrize("backend", ["sync", "pool"])
def test_a_task_that_raises_costs_one_sentence_and_its_own_traceback(trained, tmp_path, backend):
    code, stderr = trained("env.kwargs.fault=raise", f"env.backend={backend}", "ppo.total_steps=64")
    assert code == 1
    said, heading, place, line, *rest = stderr.splitlines()
    assert said == "error: environment 0 of rank 0 raised ArithmeticError in step 13: the wheel came off"
    assert heading == "Traceback (most recent call last):"
    assert place.startswith('  File "')
    assert 'wrong_env.py", line' in place
    assert line == '    raise ArithmeticError("the wheel came off")'
    assert rest == ["ArithmeticError: the wheel came off"]
    assert summary(tmp_path / "run")["status"] == "failed"
    assert [record["iteration"] for record in lines(tmp_path / "run")] == [1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("env.backend=sync env.kwargs.fault=leave", "environment 0 of rank 0 raised SystemExit in step 13"),
        ("env.backend=pool env.kwargs.fault=die", "of rank 0 ended (exit code 7)"),
        ("env.backend=sync env.kwargs.fault='nan'", "returned nan in the observation of step 13"),
        ("env.backend=sync env.kwargs.fault=reward", "returned -inf as the reward of step 13"),
        ("env.backend=sync env.kwargs.fault=mask", "an action_mask in step 13 that forbids every choice"),
    ],
)
def test_what_environments_do_wrong_is_said_of_them_and_not_of_the_loss(trained, settings, said):
    code, stderr = trained(*settings.split(), "ppo.total_steps=64")
    assert code == 1
    assert stderr.startswith("error: ")
    assert said in stderr
    assert "loss" not in stderr
    assert f"{CHECKOUT}/ddppo/" not in stderr


def test_a_fault_in_evaluation_is_evaluations(trained, monkeypatch, capsys, tmp_path):
    settings = ["env.backend=sync", "env.kwargs.fault=raise", "env.kwargs.step=9", "ppo.total_steps=4"]
    few = ["ppo.rollout_steps=2", "ppo.num_minibatches=1"]
    code, stderr = trained(*settings, *few, "eval.final_episodes=2")
    assert code == 5
    assert "final evaluation failed: evaluation environment 0 raised ArithmeticError in step 9" in stderr
    (tmp_path / "run").rename(tmp_path / "failed")
    assert trained(*settings, *few)[0] == 0
    monkeypatch.setattr("sys.argv", ["evaluate.py", str(tmp_path / "run"), "episodes=2"])
    with pytest.raises(SystemExit) as ended:
        evaluate()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(
        "error: evaluation environment 0 raised ArithmeticError in step 9"
    )


def test_a_rank_whose_environment_returns_nan_says_so_and_the_others_end(tmp_path):
    result = door(
        *WRONG, "dist.world_size=2", "env.kwargs.fault=final nan", "env.kwargs.step=13", "env.backend=sync",
        "ppo.total_steps=64", run_dir=tmp_path / "run",
    )  # fmt: skip
    assert result.code == 1
    assert "environment 1 of rank 1 returned nan in the observation of step 13 (entry 0 of 2" in result.stderr
    assert "Traceback" not in result.stderr
