"""The command `python -m ddppo.search`: what a search has tried, and what it expects."""

import sys

import pytest

from ddppo.errors import ConfigError, RunFolderError
from ddppo.search.__main__ import SearchOptions, main, shown


def test_the_command_has_a_help_that_names_both_kinds_of_searches(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ddppo.search", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "hydra/sweeper=gp_ucb" in text
    assert "experiment=workflows" in text
    assert "top=null" in text


def test_the_runs_of_a_search_over_settings_are_listed_the_best_first(tmp_path):
    (tmp_path / "trials.csv").write_text(
        "trial,ppo.gamma,value,mean,deviation,bound\n0,0.9,12.5,,,\n1,0.95,,1,2,5\n2,0.99,80.0,20.0,3.0,26.0\n"
    )
    text = shown(SearchOptions(str(tmp_path))).splitlines()
    assert text[0] == "3 runs, 1 without a value; maximized, the best first"
    assert [line.split()[1] for line in text[1:]] == ["ppo.gamma=0.99", "ppo.gamma=0.9"]
    (tmp_path / "multirun.yaml").write_text("hydra: {sweeper: {direction: minimize}}\n")
    assert "ppo.gamma=0.9 " in shown(SearchOptions(str(tmp_path), top=1)).splitlines()[1]


def test_a_folder_without_a_search_is_refused_and_a_damaged_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no search: give the run folder of experiment=workflows"):
        shown(SearchOptions(str(tmp_path)))
    with pytest.raises(ConfigError, match="is no folder"):
        shown(SearchOptions(str(tmp_path / "none")))
    (tmp_path / "trials.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunFolderError, match=r"trials\.csv is not as a search writes it"):
        shown(SearchOptions(str(tmp_path)))
