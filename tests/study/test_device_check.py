"""`python -m ddppo.device_check`: every path is tried on the CPU and on the device, and what differs is named."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ddppo.device_check import main
from ddppo.errors import ConfigError
from ddppo.study import device_check
from ddppo.study.device_check import DeviceCheckConfig, difference
from tests.support import process_of


def test_the_difference_is_relative_to_the_largest_parameter():
    one = {"a": torch.tensor([4.0, -2.0]), "b": torch.tensor([[0.5]])}
    other = {"a": torch.tensor([4.0, -2.0]), "b": torch.tensor([[0.7]])}
    assert difference(one, other) == pytest.approx(0.2 / 4)
    assert difference(one, one) == 0


def test_a_parameter_that_is_not_finite_differs():
    one, other = {"a": torch.tensor([1.0])}, {"a": torch.tensor([float("nan")])}
    assert not difference(one, other) <= device_check.TOLERANCE


def test_the_table_has_a_row_for_each_path_and_names_what_failed_or_differs():
    def row(**others):
        unknown = dict.fromkeys(("difference", "failed", "unfinished"))
        return {"path": "a path", "differs": False, **unknown, **others}

    rows = [row(), row(difference=2e-7), row(difference=0.3, differs=True), row(failed="no such kernel")]
    assert device_check._paths_head("cuda").splitlines() == [
        "| path | CPU against device=cuda |",
        "|---|---|",
    ]
    assert list(map(device_check._path_row, rows)) == [
        "| a path | yes |",
        "| a path | 2.0e-07 |",
        "| a path | **differs** 3.0e-01 |",
        "| a path | **failed**: no such kernel |",
    ]


def test_speeds_are_rows_by_task_and_columns_by_device():
    speeds = {"W1": {"cpu": 61234.5, "cuda": 8000.0}, "W2": {"cpu": 2e5, "cuda": "no such kernel"}}
    assert device_check._speed_head(speeds["W1"]).splitlines() == [
        "| steps/s | cpu | cuda |",
        "|---|---|---|",
    ]
    assert [device_check._speed_row(task, row) for task, row in speeds.items()] == [
        "| W1 | 61,234 | 8,000 |",
        "| W2 | 200,000 | **failed**: no such kernel |",
    ]


@pytest.mark.parametrize(("num_devices", "shares"), [(1, True), (2, False)])
def test_two_ranks_share_a_device_where_there_is_one_and_never_the_cpu(num_devices, shares, monkeypatch):
    commands = []

    def trained(overrides, run_dir):
        commands.append(overrides)
        return {"a": torch.ones(1)}

    monkeypatch.setattr(device_check, "_trained", trained)
    row = device_check._try_path("two ranks", device_check.PATHS["two ranks"], "cuda", num_devices)
    assert (row["difference"], row["differs"], row["failed"]) == (0.0, False, None)
    assert [command[-1 - (shares and k)] for k, command in enumerate(commands)] == [
        "device=cpu",
        "device=cuda",
    ]
    assert ["dist.share_device=true" in command for command in commands] == [False, shares]


def test_a_file_that_cannot_hold_numbers_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"out=numbers\.csv: give a file that ends in \.json"):
        device_check.device_check(DeviceCheckConfig(out="numbers.csv"))


def test_a_path_that_fails_makes_the_check_fail_and_shows_its_message(tmp_path, monkeypatch, capsys):
    paths = {
        "one that runs": ("env=cartpole", "ppo.total_steps=256", "env.num_envs=4", "ppo.rollout_steps=32"),
        "one that cannot": ("env=cartpole", "ppo.total_steps=none"),
    }
    monkeypatch.setattr(device_check, "PATHS", paths)
    out = tmp_path / "numbers.json"
    assert not device_check.device_check(DeviceCheckConfig(device="cpu", speed=False, out=str(out)))
    printed = capsys.readouterr().out
    assert "| one that runs | yes |" in printed
    assert "| one that cannot | **failed**: " in printed
    assert json.loads(out.read_text())["paths"][0]["failed"] is None


def test_a_run_that_a_busy_machine_does_not_finish_in_time_is_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(device_check, "PATHS", {"a slow one": ("env=cartpole",)})
    monkeypatch.setattr(device_check, "_LIMIT_S", 0.01)
    assert device_check.device_check(DeviceCheckConfig(device="cpu", speed=False))
    assert (
        "| a slow one | **unfinished**: it took longer than 0 s: is the machine busy? |"
        in capsys.readouterr().out
    )


def forked(command, *, cwd, env, timeout, **_):
    """Do what subprocess.run does with a run of training, in a fork that has torch already: 2.5 s of a core less."""
    with process_of(
        command,
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        stdout, stderr = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def test_the_command_ends_with_0_if_every_path_runs(monkeypatch, capsys):
    paths = {"one": ("env=cartpole", "ppo.total_steps=256", "env.num_envs=4", "ppo.rollout_steps=32")}
    monkeypatch.setattr(device_check, "PATHS", paths)
    assert_runs(monkeypatch, capsys)


@pytest.mark.slow
def test_on_this_machine_every_path_runs(monkeypatch, capsys):
    assert_runs(monkeypatch, capsys)


def assert_runs(monkeypatch, capsys):
    run = SimpleNamespace(run=forked, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(device_check, "subprocess", run)
    monkeypatch.setattr(sys, "argv", ["ddppo.device_check", "device=cpu", "speed=false"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert "failed" not in printed
    assert all(f"| {name} | yes |" in printed for name in device_check.PATHS)
