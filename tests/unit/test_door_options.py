"""The command line of the doors that are not Hydra's."""

import importlib
import importlib.util
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import pytest
from omegaconf import MISSING

import ddppo
from ddppo.config.fields import setting
from ddppo.config.help import setting_line
from ddppo.errors import ConfigError, TrainingError
from ddppo.options import door, parse, parse_all
from tests.support import CHECKOUT

USAGE = "python -m ddppo.door <folder> [key=value ...]"


@dataclass(slots=True)
class Door:
    folder: str = setting(MISSING, "where the runs are")
    count: int = setting(3, "how many", low=1)
    seed: int | None = setting(None, "root of all streams")
    style: str = setting("plain", "how it looks", choices=("plain", "fancy"))
    names: dict[str, Any] = setting(meaning="our names to theirs", factory=dict)
    quick: bool = setting(False, "do less")


@dataclass(slots=True)
class Further:
    """What may be changed besides."""

    latency: float = setting(0.0, "seconds", low=0)


def parsed(*arguments):
    return parse(Door, arguments, path="folder", usage=USAGE)


def refused(*arguments):
    with pytest.raises(ConfigError) as e:
        parsed(*arguments)
    assert "\n" not in str(e.value)
    return str(e.value)


def test_values_are_typed_and_the_rest_keeps_its_default():
    found = parsed("runs", "count=5", "names={a: b, c: 2}", "quick=true", "seed=null")
    assert found == Door("runs", 5, None, "plain", {"a": "b", "c": 2}, True)


def test_the_path_stands_anywhere_or_by_its_name_and_is_taken_as_it_stands(tmp_path):
    assert parsed("count=5", "runs").folder == "runs"
    assert parsed("folder=2026").folder == "2026"
    assert parsed("1e3").folder == "1e3"
    assert parsed("folder=a[1]").folder == "a[1]"
    odd = tmp_path / "lr=3"
    odd.mkdir()
    assert parsed(str(odd)).folder == str(odd)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("runs", "cuont=5"), "cuont=5: there is no setting cuont (did you mean count?)"),
        (("a", "b"), "b: a second folder, after a: give one at a time"),
        (("a", "folder=b"), "a second folder"),
        (("count=5",), "folder= is missing (where the runs are): python -m ddppo.door <folder>"),
        (("a", "count=many"), "count: "),
        (("a", "count=0"), "count=0: must be at least 1"),
        (("a", "style=fancyy"), "style=fancyy: must be one of plain, fancy (did you mean fancy?)"),
        (("a", "names={a: b"), "names={a: b: the value cannot be read"),
        (("a", "names={a: b: c}"), "the value cannot be read"),
        (("a", "seed=${x}"), "x"),
        (("a", "=3"), "there is no setting"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(arguments, said):
    assert said in refused(*arguments)


def test_a_door_without_a_path_takes_no_words():
    with pytest.raises(ConfigError, match="word: there is no setting word"):
        parse(Door, ["word"], usage=USAGE)


def test_several_sections_share_one_command_line():
    door, further = parse_all((Door, Further), ["a", "latency=0.5", "count=2"], path="folder", usage=USAGE)
    assert (door.count, further.latency) == (2, 0.5)
    with pytest.raises(ConfigError, match=r"latency=-1\.0: must be at least 0"):
        parse_all((Door, Further), ["a", "latency=-1"], path="folder", usage=USAGE)


def test_help_names_each_field_with_default_meaning_and_choices(capsys):
    with pytest.raises(SystemExit) as e:
        parse_all((Door, Further), ["--help", "nonsense=1"], path="folder", usage=USAGE)
    assert e.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(USAGE)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "folder= where the runs are",
        "count=3 how many",
        "seed=null root of all streams",
        "style=plain how it looks (plain, fancy)",
        "quick=false do less",
        "What may be changed besides:",
        "latency=0.0 seconds",
    ):
        assert line in lines
    assert "Door(" not in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_help_is_folded_to_a_terminal_and_elsewhere_a_line_for_each_setting(monkeypatch, is_terminal):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    meaning = "seconds " * 20
    item = field(default=1.5, metadata={"meaning": meaning, "choices": ()})
    item.name = "latency"
    first, *others = setting_line(item, "dist.", 38).splitlines()
    assert first.startswith("  dist.latency=1.5  ")
    assert bool(others) == is_terminal
    assert all(line.startswith(" " * 42 + "seconds") and len(line) <= 80 for line in others)


def test_whole_numbers_are_read_however_they_are_written():
    assert parsed("a", "count=1e3").count == 1000
    assert parsed("a", "count=1_000", "seed=2.5e1") == Door("a", 1000, 25)
    assert "count: 1.5 is not a whole number" in refused("a", "count=1.5e0")


def test_version_names_ours_torch_s_and_hydra_s(capsys):
    with pytest.raises(SystemExit) as e:
        parse(Door, ["--version"], path="folder", usage=USAGE)
    assert not e.value.code
    expected = {"ddppo": ddppo.__version__, "torch": version("torch"), "hydra": version("hydra-core")}
    assert capsys.readouterr().out == "".join(f"{name} {number}\n" for name, number in expected.items())


def test_a_path_may_hold_what_reads_as_an_interpolation():
    assert parsed("${x}").folder == "${x}"
    assert parsed("folder=a${x").folder == "a${x"


def test_text_is_taken_as_it_stands():
    @dataclass
    class Texts:
        job: str | None = setting(None, "a job")
        size: int = setting(1, "a size")

    assert parse(Texts, ["job=12_3", "size=1_000"], usage="x") == Texts("12_3", 1000)
    assert parse(Texts, ["job=null"], usage="x") == Texts(None)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("a mistake"), 2, "error: a mistake\n"),
        (TrainingError("a fault"), 1, "error: a fault\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
    ],
)
def test_a_door_says_in_a_sentence_what_ended_it(capsys, error, code, said):
    with pytest.raises(SystemExit) as ended, door():
        raise error
    assert ended.value.code == code
    assert capsys.readouterr().err == said


def test_commands_of_the_wheel_are_doors_that_docs_usage_lists():
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
    page = (CHECKOUT / "docs" / "usage.md").read_text()
    assert "ddppo-serve" in scripts
    for name, where in scripts.items():
        module, _, function = where.partition(":")
        assert f"`{name}`" in page
        wing = ".".join(module.split(".")[:2])
        if importlib.util.find_spec(wing) is None:
            continue  # it is not there, as in a copy of the core alone
        assert callable(getattr(importlib.import_module(module), function))


SCRIPTS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_has_a_help_of_its_own_of_at_most_two_screens(script, monkeypatch, capsys):
    module, _, function = SCRIPTS[script].partition(":")
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with suppress(SystemExit):
        getattr(importlib.import_module(module), function)()
    text = capsys.readouterr().out
    assert 4 < len(text.splitlines()) <= 100
    assert script in text or script.replace("-", ".", 1).replace("-", "_") in text or "leftovers" in text
    assert ("  ppo.gamma=" in text) == (script == "ddppo-train")
