"""docs/design.md is true: its picture is that of the imports, and every link leads to the line that it names."""

import importlib.util
import re

import pytest

from tests.support import CHECKOUT

spec = importlib.util.spec_from_file_location("design", CHECKOUT / "docs" / "design.py")
design = importlib.util.module_from_spec(spec)
spec.loader.exec_module(design)

REMEDY = "run python docs/design.py"


def test_the_picture_is_the_one_that_the_imports_give():
    assert design.PICTURE.read_text() == design.picture(), REMEDY


def test_every_link_leads_to_the_line_of_what_it_names():
    assert design.PAGE.read_text() == design.with_line_numbers(design.PAGE.read_text()), REMEDY


def test_every_subject_has_a_box():
    drawn = set(re.findall(r'font-weight="bold">(\w+)<', design.PICTURE.read_text()))
    assert drawn == {design._box(s) for subjects in design.ORDER for s in subjects} - {
        *design._GROUND,
        "__init__",
    }


def test_the_page_says_where_to_change_at_least_twenty_things():
    table = design.PAGE.read_text().partition("## Where do I change")[2]
    assert table.count("\n| ") >= 20


def test_a_link_to_a_name_that_is_gone_is_an_error():
    page = "[`Collector.gone`](../ddppo/ppo/collector.py#L1)"
    with pytest.raises(KeyError, match=r"has no Collector\.gone"):
        design.with_line_numbers(page)
