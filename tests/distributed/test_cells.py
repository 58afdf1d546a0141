"""Any work runs under any topology, but for the cells of docs/topologies.md that give a reason."""

import importlib.util

import pytest

from tests.support import CHECKOUT, door, summary

spec = importlib.util.spec_from_file_location("topologies_page", CHECKOUT / "docs" / "topologies.py")
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)

# Cells as the page has them: {(work, topology): whether it runs}.
_ROWS = page.PAGE.read_text().partition(page.BEGIN)[2].partition(page.END)[0].strip().splitlines()
CELLS = {
    (work, topology): cell == "yes"
    for row in _ROWS[2:]
    if row.startswith("|")
    for work, *cells in [[part.strip() for part in row.strip("|").split("|")]]
    for topology, cell in zip(page.RANKS, cells, strict=True)
}


def test_the_page_has_every_cell_and_few_are_refused():
    assert CELLS.keys() == {(work, topology) for work in page.WORK for topology in page.RANKS}
    assert sum(not runs for runs in CELLS.values()) <= 12


@pytest.mark.slow
def test_the_page_is_what_the_checks_say():
    assert page.PAGE.read_text() == page.with_table(page.PAGE.read_text()), "run python docs/topologies.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "topology"), [cell for cell, runs in CELLS.items() if runs], ids=" under ".join
)
def test_a_cell_that_is_allowed_trains(work, topology, tmp_path):
    result = door(*page.arguments(work, topology), "eval.final_episodes=0", run_dir=tmp_path / "run")
    assert result.code == 0, result.stderr
    assert summary(tmp_path / "run")["status"] == "completed"
