"""The list of tests that make test leaves out: how it is made, and that it names tests that are there."""

import re

from tests.slowest import slowest
from tests.support import CHECKOUT

SAID = """
============================= slowest durations ==============================
2.00s call     tests/unit/test_a.py::test_b[1.50s call x]
1.20s setup    tests/unit/test_a.py::test_c
1.10s call     tests/unit/test_a.py::test_c
0.10s teardown tests/unit/test_a.py::test_c
2.30s call     tests/unit/test_a.py::test_d
3 passed in 6.70s
"""


def test_a_test_takes_as_long_as_its_call_and_what_it_sets_up_together():
    assert slowest(SAID.splitlines(), 2.35) == ["tests/unit/test_a.py::test_c"]
    assert slowest(SAID.splitlines(), 2.0)[0] == "tests/unit/test_a.py::test_b[1.50s call x]"


def test_every_test_of_the_list_is_in_its_file():
    for node in (CHECKOUT / "tests" / "slow.txt").read_text().splitlines():
        path, _, name = node.partition("::")
        assert re.search(rf"^def {name.partition('[')[0]}\(", (CHECKOUT / path).read_text(), re.M), node
