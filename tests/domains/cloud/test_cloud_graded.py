"""Each task is solved by right ways of many spellings, and by none of its near misses (graded_cases.py, graded/).

Random edits of right states are judged as by an independent oracle (adversary.py, oracle.py).
"""

import dataclasses

import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.domains.cloud.env import CloudEnv
from ddppo.domains.cloud.tasks import own_tasks
from tests.domains.cloud.adversary import EDITS, search
from tests.domains.cloud.graded_cases import files_of, near_misses, right_ways, written

TASKS = own_tasks()
QUICK = (
    "sqs_purge_queue",
    "iam_role_with_policy",
    "s3_expiring_journals",
    "sns_to_sqs",
    "ssm_plain_password",
)


@pytest.fixture(scope="module")
def env():
    env = CloudEnv(chaos=False)
    # All of a drift at once: else a near miss may miss what has not drifted.
    env.tasks = {
        name: dataclasses.replace(task, num_drifts=len(task.drifts), files=files_of(task))
        for name, task in TASKS.items()
    }
    yield env
    env.close()


def ends_well(env, name, lines):
    """Type lines until the episode ends; return whether the task is achieved then."""
    env.reset(seed=0, options={"task": name})
    total = 0.0
    for line in lines:
        _, reward, terminated, truncated, info = env.step(line)
        total += reward
        if terminated or truncated:
            break
    assert (total == pytest.approx(1.0)) == info["is_success"]
    return info["is_success"]


def graded_right(env, name):
    wrong = [
        f"refused: {way}: {lines}"
        for way, lines in right_ways(TASKS[name]).items()
        if not ends_well(env, name, lines)
    ]
    return wrong + [
        f"passed: {way}: {lines}"
        for way, lines in near_misses(TASKS[name]).items()
        if ends_well(env, name, lines)
    ]


@pytest.mark.quick_cases(*QUICK)
@pytest.mark.parametrize("name", TASKS)
def test_what_means_the_same_is_right_and_what_nearly_does_is_wrong(env, name):
    assert graded_right(env, name) == []


def test_every_task_has_three_right_ways_and_five_near_misses():
    assert set(written()) == set(TASKS)
    for task in TASKS.values():
        assert len(right_ways(task)) >= 3, task.name
        assert len(near_misses(task)) >= 5, task.name


@pytest.mark.quick_cases("sns", "secretsmanager")
@pytest.mark.parametrize("family", EDITS)
def test_random_edits_of_right_states_find_none_that_is_judged_wrongly(env, family):
    judged, wrong = search(env._world, family, edits=45, seed=0)
    assert wrong == []
    assert judged["right, passed"] > 0
    assert judged["wrong, refused"] > 0
