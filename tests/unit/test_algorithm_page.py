"""The page about algorithms of one's own says what the contract has, and shows a file that tests run."""

import dataclasses
import re

import pytest

from ddppo.algorithms.contract import Algorithm, Step
from ddppo.ppo.rollout import Transitions
from tests.support import CHECKOUT

PAGE = (CHECKOUT / "docs" / "guide" / "algorithm.md").read_text()


def listed(heading):
    """Return the names in the first column of a table."""
    table = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(?:step\.)?(\w+)", cell)]


def public(kind):
    names = {*vars(kind), *vars(kind).get("__annotations__", {})}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(
    ("heading", "has"),
    [
        ("The class", public(Algorithm) | {"kept"}),
        ("The rollout", {item.name for item in dataclasses.fields(Transitions)}),
        ("The step", public(Step) | {"step"}),
    ],
)
def test_the_page_lists_what_the_contract_has_and_nothing_else(heading, has):
    found = listed(heading)
    assert len(found) == len(set(found))
    assert set(found) == has


def test_the_algorithm_of_the_page_is_the_one_that_runs_under_every_topology():
    (code,) = re.findall(r"`algos\.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert code == (CHECKOUT / "tests" / "unit" / "own_reinforce.py").read_text()


def test_it_is_short():
    assert len((CHECKOUT / "tests" / "unit" / "own_reinforce.py").read_text().splitlines()) < 80
    assert len((CHECKOUT / "ddppo" / "algorithms" / "reinforce.py").read_text().splitlines()) < 80
