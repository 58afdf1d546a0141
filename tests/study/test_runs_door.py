"""The door `python -m ddppo.runs`."""

import json
import subprocess
import sys

import pytest

from ddppo.runs import main
from tests.study.test_history import write_run


def answered(monkeypatch, capsys, *arguments):
    """Return what the door prints, what it says is wrong, and its exit code."""
    monkeypatch.setattr(sys, "argv", ["runs", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as e:
        code = e.code
    out, err = capsys.readouterr()
    return out, err, code


def test_the_table_has_a_row_for_each_run_and_counts_them(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "a", returns=(1.0, 321.0))
    write_run(tmp_path / "b", status="stopped", returns=(2.0,))
    out, err, code = answered(monkeypatch, capsys, tmp_path, "sort=return", "show=[ppo.gamma]")
    rows = out.splitlines()
    assert (code, err) == (0, "")
    assert rows[0].split()[:4] == ["run", "task", "W", "seed"]
    assert rows[0].endswith("ppo.gamma")
    assert rows[1].split()[0] == "a"
    assert "321.00" in rows[1]
    assert rows[1].endswith("0.99")
    assert f"2 of 2 runs in {tmp_path}: 1 completed, 1 stopped" in out


def test_settings_are_filters(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", gamma=0.5, dtype="float64")
    for given in (["ppo.gamma=0.5"], ["dtype=float64"]):
        out, _, _ = answered(monkeypatch, capsys, tmp_path, *given, "json=true")
        (found,) = map(json.loads, out.splitlines())
        assert found["run"].endswith("/b")
    assert found["settings"]["ppo.gamma"] == 0.5


def test_where_there_are_no_runs_it_says_so(tmp_path, monkeypatch, capsys):
    assert answered(monkeypatch, capsys, tmp_path)[0] == f"no runs in {tmp_path}\n"
    monkeypatch.chdir(tmp_path)
    assert "no runs yet" in answered(monkeypatch, capsys)[0]
    write_run(tmp_path / "a")
    out, _, code = answered(monkeypatch, capsys, tmp_path, "env=pong")
    assert code == 0
    assert out == f"none of the 1 runs in {tmp_path} matches; their tasks: CartPole-v1\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{}/nowhere",), "is not a folder"),
        (("{}", "status=finished"), "status=finished: must be one of completed"),
        (("{}", "sort=retrun"), "did you mean return or run?"),
        (("{}", "since=yesterday"), "since=yesterday: a day, e.g. since=2026-01-31"),
        (("{}", "since=d"), "since=d: a day"),
        (("{}", "world_size=two"), "world_size=two: numbers of workers"),
        (("{}", "limit=-1"), "limit=-1: must be at least 0"),
        (("{}", "ppo.gama=0.9"), "ppo.gama: no run in the folder has such a setting (did you mean ppo.gamma"),
        (("{}", "show=[ppo.gama]"), "ppo.gama: no run in the folder has such a setting"),
        (("{}", "stauts=failed"), "did you mean status?"),
        (("--json", "{}"), "options are key=value here"),
        (("compare",), "compare takes 2 to 8 run folders, and 0 are given"),
        (("compare", "{}/a"), "compare takes 2 to 8 run folders, and 1 are given"),
        (("compare", *["{}/a"] * 9), "and 9 are given"),
        (("compare", "{}/a", "{}"), "not a run folder"),
        (("compare", "{}/a", "{}/damaged"), "config.yaml is not readable"),
        (("compare", "{}/a", "{}/a", "plot=both.jpg"), "a file that ends in .png, .svg or .html"),
        (("compare", "{}/a", "{}/a", "metric=rollout/return"), "did you mean rollout/return_mean"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, said):
    write_run(tmp_path / "a")
    (write_run(tmp_path / "damaged", status=None) / "config.yaml").write_text("a: [")
    out, err, code = answered(monkeypatch, capsys, *(a.format(tmp_path) for a in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "both.jpg").exists()


@pytest.mark.parametrize("arguments", [("--help",), ("compare", "--help"), ("plot", "--help")])
def test_help_tells_of_every_setting(monkeypatch, capsys, arguments):
    out, _, code = answered(monkeypatch, capsys, *arguments)
    assert not code
    assert ("metric=" in out) is (len(arguments) > 1)
    assert ("status=" in out) is (len(arguments) == 1)
    assert ("group=" in out) is ("compare" not in arguments)


def test_the_door_imports_no_torch():
    slow = "{'torch', 'gymnasium', 'jinja2', 'PIL', 'tensorboard'}"
    code = f"import sys; import ddppo.runs; assert not {slow} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
