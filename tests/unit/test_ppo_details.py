"""docs/ppo_details.md names files, functions, settings, defaults and tests: all are there."""

import ast
import functools
import re

import pytest
import yaml

from ddppo.config.settings import Config
from ddppo.config.variants import SECTIONS_WITH_VARIANTS, keys_of, owners_of, settings_class
from tests.support import CHECKOUT

PAGE = (CHECKOUT / "docs" / "ppo_details.md").read_text()
ROWS = [
    [cell.strip() for cell in line[1:-1].split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| a?\d+ \|", line)
]
CODE = re.compile(r"`([^`]+)`")
GROUPS = {"distributed": "dist"}


@functools.cache
def names_in(path):
    """Return what a file of Python defines at its top, and in its classes behind a dot."""
    found = set()
    for node in ast.parse((CHECKOUT / path).read_text()).body:
        match node:
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name):
                found |= {name, *(f"{name}.{x.name}" for x in node.body if isinstance(x, ast.FunctionDef))}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


def default_of(words):
    """Return the value of a setting by itself, as [ppo.gamma], or of a preset, as [env=atari, env.kwargs.noop_max]."""
    *presets, name = words
    section, *keys = name.split(".")
    value = getattr(Config(), section)
    if presets:
        group, preset = presets[0].split("=")
        assert GROUPS.get(group, group) == section
        value = yaml.safe_load((CHECKOUT / "conf" / group / f"{preset}.yaml").read_text())
    if not presets and section in SECTIONS_WITH_VARIANTS and keys[0] not in keys_of(type(value)):
        value = settings_class(section, owners_of(section, keys[0])[0])()  # of the first variant that has it
    for key in keys:
        value = value[key] if isinstance(value, dict) else getattr(value, key)
    return value


def number(row):
    return row[0]


def test_it_has_all_37_and_the_four_more_in_their_order():
    assert [row[0] for row in ROWS] == [*map(str, range(1, 38)), "a1", "a2", "a3", "a4"]
    assert all(len(row) == 5 for row in ROWS)


@pytest.mark.parametrize("place", sorted(set(re.findall(r"`((?:ddppo|tests)/[^`]+)`", PAGE))))
def test_every_place_and_test_that_it_names_is_there(place):
    path, name = re.fullmatch(r"([^:]+\.py)(?:::?(.+))?", place).groups()
    assert name is None or name in names_in(path), place


@pytest.mark.parametrize("row", ROWS, ids=number)
def test_every_detail_has_a_place_and_a_test_and_its_default_is_true(row):
    _, _, where, setting, test = row
    assert CODE.search(where), row
    assert CODE.fullmatch(test), row
    for said in CODE.findall(setting):
        if "=" in said:
            words, _, value = said.rpartition("=")
            assert default_of(words.split()) == yaml_value(value), said


def yaml_value(text):
    """Return what Hydra takes a value for; YAML itself reads 1e-5 as a string."""
    try:
        return float(text)
    except ValueError:
        return yaml.safe_load(text)
