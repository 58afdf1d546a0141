"""A sample of generated wrong command lines; `python -m tests.conf.wrong_command_lines 300` tries as many as wanted."""

import pytest

from tests.conf.wrong_algorithms import LINES as OF_ALGORITHMS
from tests.conf.wrong_checkpoints import LINES as OF_CHECKPOINTS
from tests.conf.wrong_command_lines import Case, Playground, cases
from tests.conf.wrong_details import LINES as OF_DETAILS
from tests.conf.wrong_devices import LINES as OF_DEVICES
from tests.conf.wrong_extensions import LINES as OF_EXTENSIONS
from tests.conf.wrong_faults import LINES as OF_FAULTS
from tests.conf.wrong_memories import LINES as OF_MEMORIES
from tests.conf.wrong_orders import LINES as OF_ORDER
from tests.conf.wrong_pixels import LINES as OF_PIXELS
from tests.conf.wrong_rewards import LINES as OF_REWARDS
from tests.conf.wrong_searches import LINES as OF_SEARCHES
from tests.conf.wrong_sweeps import LINES as OF_SWEEPS
from tests.conf.wrong_topologies import LINES

SAMPLE = cases(40, seed=3)


@pytest.fixture(scope="module")
def playground(tmp_path_factory):
    return Playground(tmp_path_factory.mktemp("playground"))


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_a_wrong_command_line_costs_one_paragraph_and_leaves_nothing(playground, case):
    faults, answer = playground.faults(case)
    assert not faults, answer


@pytest.mark.parametrize("line", LINES)
def test_a_topology_that_cannot_be_is_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert LINES[line] in answer


@pytest.mark.parametrize("line", OF_ALGORITHMS)
def test_algorithms_that_cannot_be_are_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_ALGORITHMS[line] in answer


@pytest.mark.parametrize("line", OF_MEMORIES)
def test_memories_that_cannot_be_are_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_MEMORIES[line] in answer


@pytest.mark.parametrize("line", OF_SEARCHES)
def test_searches_that_cannot_be_are_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_SEARCHES[line] in answer


@pytest.mark.parametrize("line", OF_DETAILS)
def test_details_that_are_none_are_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_DETAILS[line] in answer


@pytest.mark.parametrize("line", OF_EXTENSIONS)
def test_extensions_that_cannot_be_are_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_EXTENSIONS[line] in answer


@pytest.mark.parametrize("line", OF_FAULTS)
def test_faults_that_cannot_be_met_so_are_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_FAULTS[line] in answer


@pytest.mark.parametrize("line", OF_ORDER)
def test_an_order_that_cannot_be_is_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_ORDER[line] in answer


@pytest.mark.parametrize("line", OF_REWARDS)
def test_what_cannot_be_made_of_rewards_and_advantages_is_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_REWARDS[line] in answer


@pytest.mark.parametrize("line", OF_PIXELS)
def test_encoders_that_cannot_be_are_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_PIXELS[line] in answer


@pytest.mark.parametrize("line", OF_CHECKPOINTS)
def test_what_a_run_cannot_begin_with_or_go_on_from_is_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_CHECKPOINTS[line] in answer


@pytest.mark.parametrize("line", OF_SWEEPS)
def test_a_sweep_that_cannot_be_chosen_is_a_sentence_with_its_remedy(playground, line):
    arguments = ("-m", "hydra/sweeper=gp_ucb", *line.split(), "sweep=new")
    faults, answer = playground.faults(Case("train", arguments, ""))
    assert not faults, answer
    assert OF_SWEEPS[line] in answer


@pytest.mark.parametrize("line", list(LINES)[::7])
def test_its_fragments_are_the_same_sentence(playground, line):
    faults, answer = playground.faults(Case("fragments", tuple(line.split()), ""))
    assert not faults, answer
    assert LINES[line] in answer


def test_the_same_seed_draws_the_same_command_lines():
    assert cases(40, seed=3) == SAMPLE
    assert cases(40, seed=4) != SAMPLE


@pytest.mark.parametrize("line", OF_DEVICES)
def test_environments_on_a_device_that_cannot_be_are_a_sentence_with_its_remedy(playground, line):
    faults, answer = playground.faults(Case("train", tuple(line.split()), ""))
    assert not faults, answer
    assert OF_DEVICES[line] in answer
