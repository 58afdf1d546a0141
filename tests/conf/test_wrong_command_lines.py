"""A sample of generated wrong command lines; `python -m tests.conf.wrong_command_lines 300` tries as many as wanted."""

import pytest

from tests.conf.wrong_command_lines import Playground, cases

SAMPLE = cases(40, seed=3)


@pytest.fixture(scope="module")
def playground(tmp_path_factory):
    return Playground(tmp_path_factory.mktemp("playground"))


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_wrong_command_line_costs_one_paragraph_and_leaves_nothing(playground, case):
    faults, answer = playground.faults(case)
    assert not faults, answer


def test_the_same_seed_draws_the_same_command_lines():
    assert cases(40, seed=3) == SAMPLE
    assert cases(40, seed=4) != SAMPLE
