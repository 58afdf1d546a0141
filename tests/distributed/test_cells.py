"""Any work runs under any topology, but for the cells of docs/topologies.md that give a reason."""

import importlib.util
import re

import pytest

from tests.support import CHECKOUT, door, summary

spec = importlib.util.spec_from_file_location("topologies_page", CHECKOUT / "docs" / "topologies.py")
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)

ALL = [(work, topology) for work in page.WORK for topology in page.RANKS]


@pytest.fixture(scope="module")
def cells():
    """Cells as the page has them: {(work, topology): why it is refused, None where it runs}."""
    _, begin, rest = page.PAGE.read_text().partition(page.BEGIN)
    table, end, _ = rest.partition(page.END)
    assert begin, f"{page.PAGE} has no line {page.BEGIN}"
    assert end, f"{page.PAGE} has no line {page.END}"
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", table, re.MULTILINE))
    found = {}
    for work, *row in rows[2:]:  # after the heading and the line below it
        for topology, cell in zip(page.RANKS, row, strict=True):
            number = re.fullmatch(r" (?:yes|no \((\d+)\)) ", cell)[1]
            found[work.strip(), topology] = number and reasons[number]
    return found


def test_the_page_has_every_cell_and_few_are_refused(cells):
    assert cells.keys() == set(ALL)
    assert sum(why is not None for why in cells.values()) <= 12


def test_the_page_is_laid_out_as_its_program_does_it(cells):
    """The next test takes every cell and reason from a command, so the page is the one that the program writes."""
    text = page.PAGE.read_text()
    assert page.with_table(text, lambda *cell: cells[cell]) == text, "run python docs/topologies.py"


@pytest.mark.slow
@pytest.mark.parametrize(("work", "topology"), ALL, ids=[" under ".join(cell) for cell in ALL])
def test_a_cell_trains_or_is_refused_in_the_words_of_the_page(cells, work, topology, tmp_path):
    result = door(*page.arguments(work, topology), "eval.final_episodes=0", run_dir=tmp_path / "run")
    why = cells[work, topology]
    assert result.code == (0 if why is None else 2), result.stderr
    if why is None:
        assert summary(tmp_path / "run")["status"] == "completed"
    else:
        assert result.stderr == f"error: {why}\n"
