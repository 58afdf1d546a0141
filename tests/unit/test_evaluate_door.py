"""The door `ddppo.evaluate`: what it prints, and what it says to a mistake."""

import json
import shutil
import sys

import pytest
import torch

from ddppo import evaluate
from tests.support import TINY, door, run
from tests.unit.policy_tasks import run_folder


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("evaluate_door") / "run"
    arguments = ["ppo.total_steps=64", "ppo.rollout_steps=8", "eval.final_episodes=3"]
    result = door(*TINY, *arguments, run_dir=run_dir)
    assert result.code == 0, result.stderr
    return run_dir


@pytest.fixture
def call(monkeypatch, capsys):
    """Call the door in this process; returns (exit code, stdout, stderr)."""

    def call_door(*arguments):
        monkeypatch.setattr("sys.argv", ["evaluate.py", *map(str, arguments)])
        code = 0
        try:
            evaluate.main()
        except SystemExit as e:
            code = e.code
        return code, *capsys.readouterr()

    return call_door


def refuses(call, *arguments):
    code, stdout, stderr = call(*arguments)
    assert (code, stdout) == (2, "")
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    return stderr


def test_the_same_command_gives_the_same_scores(call, finished_run):
    first, second = (call(f"run={finished_run}", "episodes=6", "json=true")[1] for _ in range(2))
    assert first == second
    scores = json.loads(first)
    assert len(scores["returns"]) == len(scores["lengths"]) == 6
    assert scores["return_mean"] == pytest.approx(sum(scores["returns"]) / 6)
    assert scores["return_p25"] <= scores["return_median"] <= scores["return_p75"]
    other = json.loads(call(f"run={finished_run}", "episodes=6", "json=true", "seed=99")[1])
    assert other["returns"] != scores["returns"]


def test_more_episodes_begin_with_the_same_ones(call, finished_run):
    few, many = (json.loads(call(f"run={finished_run}", f"episodes={n}", "json=true")[1]) for n in (3, 70))
    assert many["returns"][:3] == few["returns"]


def test_the_text_has_mean_median_and_quartiles(call, finished_run):
    code, stdout, _ = call(f"run={finished_run}", "episodes=4")
    assert code == 0
    for word in ("CartPole-v1", "4 episodes", "mean", "median", "IQR"):
        assert word in stdout


def test_several_runs_are_a_table_and_a_file_of_every_episode(call, finished_run, tmp_path):
    runs = [str(shutil.copytree(finished_run, tmp_path / name)) for name in "abc"]
    out = tmp_path / "scores.json"
    code, stdout, _ = call(*runs, "episodes=2", "seeds=[5,6]", f"out={out}")
    lines = stdout.splitlines()
    assert (code, len(lines)) == (0, 5)
    assert lines[-1].startswith("CartPole-v1, 3 runs: mean ")
    assert lines[-1].count("95 %") == 2
    whole = json.loads(out.read_text())
    assert [run["run"] for run in whole["runs"]] == runs
    assert {tuple(run["returns"]) for run in whole["runs"]} == {tuple(whole["runs"][0]["returns"])}
    alone = json.loads(call(runs[0], "episodes=2", "seed=6", "json=true")[1])
    assert whole["runs"][0]["returns"][2:] == alone["returns"]
    assert whole["tasks"]["CartPole-v1"]["runs"] == 3
    as_list = call(f"run=[{','.join(runs)}]", "episodes=2", "seeds=[5,6]", "json=true")[1]
    assert json.loads(as_list) == whole
    assert "95 % unknown of so few" in call(*runs[:2], "episodes=2")[1]


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_last_and_best_are_found_by_name(call, finished_run, checkpoint):
    assert call(f"run={finished_run}", f"checkpoint={checkpoint}", "episodes=1")[0] == 0


def test_help_needs_nothing(call):
    code, stdout, _ = call("--help")
    assert code == 0
    assert "episodes" in stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "run= is missing (the run folder): give one, or zoo= with"),
        (["run=/no/such/folder"], "not a run folder"),
        (["run={run}", "episods=3"], "did you mean episodes"),
        (["run={run}", "episodes=0"], "episodes=0: must be at least 1"),
        (["run={run}", "episodes=many"], "many"),
        (["run={run}", "checkpoint=/no/such/file"], "does not exist"),
        (["run={run}", "video=true", "video_format=avi"], "mp4, gif"),
        (["run={run}", "device=gpu"], "cpu"),
        (["run={run}", "seed=-1"], "at least 0"),
        (["{run}", "{run}/"], "is given twice"),
        (["{run}", "{run}/../run"], "is given twice"),
        (["{run}", "{run}/..", "checkpoint={run}/x.pt"], "is one run's, and 2 runs are given"),
        (["{run}", "out=/no/such/folder/x.json"], "in a folder that is there"),
        (["{run}", "out={run}"], "in a folder that is there"),
        (["{run}", "/no/such/folder"], "run=/no/such/folder: not a run folder"),
        (["{run}", "seeds=[1,1]"], "different numbers"),
        (["{run}", "seeds=[1]", "seed=1"], "give one of them"),
    ],
)
def test_a_mistake_costs_one_paragraph(call, finished_run, arguments, said):
    assert said in refuses(call, *[a.format(run=finished_run) for a in arguments])


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_cuda_that_is_absent_is_said(call, finished_run):
    assert "device=cpu" in refuses(call, f"run={finished_run}", "device=cuda")


@pytest.mark.parametrize("broken", ["truncated", "foreign", "empty"])
def test_a_broken_checkpoint_is_named(call, finished_run, tmp_path, broken):
    copy = shutil.copytree(finished_run, tmp_path / "copy")
    path = copy / "checkpoints" / "iteration_00000001.pt"
    if broken == "foreign":
        torch.save({"model": {"weight": torch.zeros(2)}}, path)
    else:
        path.write_bytes(path.read_bytes()[: 500 if broken == "truncated" else 0])
    assert str(path) in refuses(call, f"run={copy}")


def test_of_a_damaged_checkpoint_the_one_before_it_is_evaluated(call, finished_run, tmp_path):
    copy = shutil.copytree(finished_run, tmp_path / "copy")
    newer = copy / "checkpoints" / "iteration_00000002.pt"
    newer.write_bytes(b"PK")
    code, stdout, stderr = call(f"run={copy}", "episodes=1")
    assert code == 0
    assert "iteration_00000001.pt" in stdout
    assert stderr == f"warning: {newer} is damaged: iteration_00000001.pt is taken\n"


def test_a_video_that_cannot_be_written_is_said_in_one_sentence(call, finished_run, tmp_path):
    pytest.importorskip("imageio", reason="needs the extra video: pip install '.[video]'")
    copy = shutil.copytree(finished_run, tmp_path / "copy")
    (copy / "videos").touch()
    code, _, stderr = call(f"run={copy}", "episodes=1", "video=true")
    assert (code, stderr) == (1, f"error: {copy / 'videos'} cannot be written: File exists\n")


def test_a_checkpoint_of_another_model_is_named(call, finished_run, tmp_path):
    copy = shutil.copytree(finished_run, tmp_path / "copy")
    text = (copy / "config.yaml").read_text()
    assert "- 64" in text
    (copy / "config.yaml").write_text(text.replace("- 64", "- 32"))
    assert "another run's" in refuses(call, f"run={copy}")


def test_a_checkpoint_of_a_model_that_computes_otherwise_is_named(call, finished_run, tmp_path):
    copy = shutil.copytree(finished_run, tmp_path / "copy")
    text = (copy / "config.yaml").read_text()
    assert "activation: tanh" in text
    (copy / "config.yaml").write_text(text.replace("activation: tanh", "activation: relu"))
    path = finished_run / "checkpoints" / "iteration_00000001.pt"
    said = refuses(call, f"run={copy}", f"checkpoint={path}")
    assert "with model.activation=tanh; this run has relu" in said
    assert call(f"run={finished_run}", f"checkpoint={path}", "episodes=1")[0] == 0


def test_a_video_of_a_task_without_pictures_costs_no_episode(call, tmp_path, monkeypatch):
    pytest.importorskip("imageio", reason="needs the extra video: pip install '.[video]'")
    monkeypatch.setattr("ddppo.policies.scores.evaluated", None)
    run = run_folder(tmp_path, "tests.unit.seen_tasks:seen/Picture-v0", normalized=False)
    assert "render_mode" in refuses(call, f"run={run}", "video=true")


def test_a_run_without_checkpoints_is_named(call, finished_run, tmp_path):
    copy = shutil.copytree(finished_run, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    assert "no checkpoint" in refuses(call, f"run={copy}")


def test_in_a_process_of_its_own_it_prints_json_and_nothing_else(finished_run):
    command = [sys.executable, "-m", "ddppo.evaluate", f"run={finished_run}", "episodes=2", "json=true"]
    result = run(command, finished_run)
    assert result.code == 0, result.stderr
    assert result.stderr == ""
    assert json.loads(result.stdout)["episodes"] == 2
