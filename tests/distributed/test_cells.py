"""Any work runs under any topology, but for the cells of docs/topologies.md that give a reason."""

import importlib.util

import pytest

from tests.support import CHECKOUT, door, summary

spec = importlib.util.spec_from_file_location("topologies_page", CHECKOUT / "docs" / "topologies.py")
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)

ALL = [(work, topology) for work in page.WORK for topology in page.RANKS]


@pytest.fixture(scope="module")
def cells():
    """Cells as the page has them: {(work, topology): whether it runs}."""
    _, begin, rest = page.PAGE.read_text().partition(page.BEGIN)
    table, end, _ = rest.partition(page.END)
    assert begin, f"{page.PAGE} has no line {page.BEGIN}"
    assert end, f"{page.PAGE} has no line {page.END}"
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    found = {}
    for work, *row in rows[2:]:  # after the heading and the line below it
        for topology, cell in zip(page.RANKS, row, strict=True):
            found[work.strip(), topology] = cell.strip() == "yes"
    return found


def test_the_page_has_every_cell_and_few_are_refused(cells):
    assert cells.keys() == set(ALL)
    assert sum(not runs for runs in cells.values()) <= 12


@pytest.mark.slow
def test_the_page_is_what_the_checks_say():
    assert page.PAGE.read_text() == page.with_table(page.PAGE.read_text()), "run python docs/topologies.py"


@pytest.mark.slow
@pytest.mark.parametrize(("work", "topology"), ALL, ids=[" under ".join(cell) for cell in ALL])
def test_a_cell_trains_or_is_refused_as_the_page_says(cells, work, topology, tmp_path):
    result = door(*page.arguments(work, topology), "eval.final_episodes=0", run_dir=tmp_path / "run")
    assert result.code == (0 if cells[work, topology] else 2), result.stderr
    if cells[work, topology]:
        assert summary(tmp_path / "run")["status"] == "completed"
    else:
        assert result.stderr.startswith(f"error: distributed={topology} with ")
