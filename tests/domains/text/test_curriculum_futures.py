import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddppo.domains.text.curriculum.sampler import CURRICULA, make_curriculum
from ddppo.domains.text.curriculum.settings import TIERS

TASKS = {f"{tier.name}-{i}": tier.name for tier in TIERS for i in range(3)}


def life(curriculum, rng, num_rounds, skill, num_groups=1):
    """Train for some rounds, in each of which rollouts succeed with chance `skill`; return what happened."""
    told = []
    for _ in range(num_rounds):
        tasks = []
        for _ in range(num_groups):
            tasks.append(curriculum.choose(rng, besides=tasks))
        curriculum.record({task: rng.binomial(8, skill) / 8 for task in tasks})
        told.append((tasks, curriculum.metrics(), curriculum.table()))
    return told


@settings(max_examples=30)
@given(
    st.sampled_from(list(CURRICULA)),
    st.integers(0, 999),
    st.integers(0, 120),
    st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    st.sampled_from([1, 4]),
)
def test_a_restored_curriculum_has_the_same_future(name, seed, num_rounds, skill, num_groups):
    first, rng = make_curriculum(name, TASKS), np.random.default_rng(seed)
    life(first, rng, num_rounds, skill, num_groups)
    state = json.loads(json.dumps(first.state()))  # plain values, and no part of the first
    rng_state = rng.bit_generator.state
    future = life(first, rng, 40, skill, num_groups)

    second, other = make_curriculum(name, TASKS), np.random.default_rng()
    second.restore(state)
    other.bit_generator.state = rng_state
    np.testing.assert_equal(life(second, other, 40, skill, num_groups), future)  # rates of no rounds are NaN
    assert second.state() == first.state()


@pytest.mark.quick_cases("4-200", "1-800", "8-120")
@pytest.mark.parametrize(("num_groups", "num_rounds"), [(1, 800), (4, 200), (8, 120), (64, 30)])
def test_a_policy_that_can_do_everything_masters_all_of_60_tasks_and_keeps_them(num_groups, num_rounds):
    tasks = {f"{tier.name}-{i}": tier.name for tier in TIERS for i in range(12)}
    curriculum, rng = make_curriculum("tiers", tasks), np.random.default_rng(0)
    life(curriculum, rng, num_rounds, 1.0, num_groups)
    assert curriculum.metrics()["tier"] == len(TIERS) - 1
    kept = [metrics["mastered"] for _, metrics, _ in life(curriculum, rng, 400, 1.0, num_groups)]
    assert min(kept) == 60


def test_a_policy_that_achieves_nothing_stays_where_it_is_and_tries_all_tasks_alike():
    curriculum, rng = make_curriculum("tiers", TASKS), np.random.default_rng(1)
    tries = Counter(task for tasks, *_ in life(curriculum, rng, 60, skill=0.0) for task in tasks)
    assert tries == {task: 20 for task, tier in TASKS.items() if tier == TIERS[0].name}


@pytest.mark.parametrize(
    ("settings", "num_groups", "share"),
    [
        ({}, 1, 0.92),
        ({}, 6, 1 / 6),
        ({"recent": 60}, 1, 1 / 3),
        ({"recent": 60, "recent_rounds": 12}, 1, 0.08),
    ],
)
def test_a_task_out_of_reach_takes_the_rounds_that_nothing_else_needs(settings, num_groups, share):
    tasks = {f"task-{i}": TIERS[0].name for i in range(16)}
    curriculum, rng = make_curriculum("tiers", tasks, **settings), np.random.default_rng(0)
    tries = 0
    for round in range(400):
        chosen = []
        for _ in range(num_groups):
            chosen.append(curriculum.choose(rng, besides=chosen))
        tries += "task-0" in chosen and round >= 200
        curriculum.record({task: float(task != "task-0") for task in chosen})
    assert curriculum.metrics()["mastered"] == 15
    assert tries / 200 / num_groups == pytest.approx(share, abs=0.02)
