"""A line does what it does in the AWS CLI: the same API calls, exit status, output and files (true_cli.py).

What the AWS CLI did is recorded in lines/seen.json. `make test-aws-cli` installs it, and tests the record.
"""

import json

import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.domains.cloud.cli import SERVICES, operations
from ddppo.domains.cloud.goals import CallGoal
from ddppo.domains.cloud.tasks import own_tasks
from ddppo.domains.cloud.world import CloudWorld
from tests.domains.cloud import true_cli
from tests.domains.cloud.command_lines import EXCLUDED, PLAIN, WRONG, accepted
from tests.domains.cloud.true_cli import (
    FILES,
    Ours,
    TrueCLI,
    canonical,
    changes,
    comparable,
    in_fork,
    only_reads,
    recorded,
    set_scene,
)

pytestmark = pytest.mark.filterwarnings("ignore:deprecated string literal syntax")  # of JMESPath: `a` for "a"
needs_aws_cli = pytest.mark.skipif(not true_cli.is_there(), reason="needs the AWS CLI: make test-aws-cli")
TASKS = own_tasks()


@pytest.fixture(scope="module")
def world():
    world = CloudWorld()
    yield world
    world.close()


@pytest.fixture(scope="module")
def ours(world):
    world.reset(0)
    set_scene(world)
    return Ours(world)


@pytest.fixture(scope="module")
def true(ours):
    return TrueCLI()


def differences(ours, lines):
    seen = recorded()
    found = {
        line: changes(comparable(ours.run(line, FILES, alone=not only_reads(seen[line])), line))
        for line in lines
    }
    return [
        f"{line}: {key}: the AWS CLI {seen[line][key]!r}, ours {what[key]!r}"
        for line, what in found.items()
        for key in what
        if what[key] != seen[line][key]
    ]


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 8))])
def test_a_line_does_what_it_does_in_the_aws_cli(ours, part):
    assert differences(ours, accepted()[part::8]) == []


def test_what_the_aws_cli_refuses_is_refused_in_its_words(ours):
    seen = recorded()
    assert all(seen[line]["status"] for line in WRONG)
    assert differences(ours, WRONG) == []


def test_enough_lines_are_compared():
    lines = accepted()
    assert set(recorded()) == {*lines, *WRONG}
    assert len(lines) >= 500
    assert len(WRONG) >= 100
    refusals = [line for line in lines if recorded()[line]["status"] not in (0, 1, 254)]
    assert len(lines) - len(refusals) >= 500
    typed = {tuple(line.split()[:2]) for line in PLAIN} | {tuple(line.split()[1:3]) for line in accepted()}
    missing = {(of, name) for of in SERVICES for name in operations(of)} - typed
    assert len(missing) < 30, missing


@pytest.mark.parametrize(("reason", "line"), EXCLUDED)
def test_what_is_left_out_is_refused(ours, reason, line):
    seen = ours.run(line, FILES)
    assert seen.status in (252, 254, 255), reason
    assert (seen.calls, seen.files) == ([], FILES)


@needs_aws_cli
def test_the_aws_cli_does_what_was_recorded(true):
    seen = recorded()
    for line in (*accepted()[::3], *WRONG[::3]):
        assert changes(comparable(true.run(line, FILES), line)) == seen[line], line


@needs_aws_cli
def test_what_is_refused_is_a_table(true):
    assert true_cli.REFUSED.read_text() == true_cli.refused(true)


@needs_aws_cli
@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_solved_by_the_aws_cli_as_by_ours(world, true, name):
    task = TASKS[name]
    world.reset(0)
    world.operate(task.setup, task.setup_files)
    for drift in task.drifts:
        world.operate(drift, task.setup_files)
    files = {file: content.decode("latin-1") for file, content in task.files.items()}

    def end(typed_by):
        calls = typed_by(task.solution)
        of_state = [goal for goal in task.goals if not isinstance(goal, CallGoal)]
        return json.dumps(
            [calls, canonical(world.holdings()), [goal.holds(world) for goal in of_state]], sort_keys=True
        )

    by_ours = in_fork(lambda: end(lambda lines: [Ours(world).type(line, files)["calls"] for line in lines]))
    by_true = in_fork(lambda: end(lambda lines: true.solve(lines, files)))
    assert by_ours == by_true
    assert all(json.loads(by_true)[2])
