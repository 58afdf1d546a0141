import json
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ddppo.curriculum import CURRICULA, TIERS, make_curriculum

TASKS = {f"{tier.name}-{i}": tier.name for tier in TIERS for i in range(3)}


def life(curriculum, rng, num_rounds, skill):
    """Train for some rounds, in each of which rollouts succeed with chance `skill`; return what happened."""
    told = []
    for _ in range(num_rounds):
        task = curriculum.choose(rng)
        curriculum.record(task, rng.binomial(8, skill) / 8)
        told.append((task, curriculum.chaos(task), curriculum.metrics(), curriculum.table()))
    return told


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(list(CURRICULA)),
    st.integers(0, 999),
    st.integers(0, 120),
    st.sampled_from([0.0, 0.5, 0.8, 1.0]),
)
def test_a_restored_curriculum_has_the_same_future(name, seed, num_rounds, skill):
    first, rng = make_curriculum(name, TASKS), np.random.default_rng(seed)
    life(first, rng, num_rounds, skill)
    state = json.loads(json.dumps(first.state()))  # plain values, and no part of the first
    rng_state = rng.bit_generator.state
    future = life(first, rng, 40, skill)

    second, other = make_curriculum(name, TASKS), np.random.default_rng()
    second.restore(state)
    other.bit_generator.state = rng_state
    np.testing.assert_equal(life(second, other, 40, skill), future)  # rates of no rounds are NaN
    assert second.state() == first.state()


def test_a_policy_that_can_do_everything_reaches_the_hardest_tier_and_keeps_most_of_what_it_mastered():
    curriculum, rng = make_curriculum("tiers", TASKS), np.random.default_rng(0)
    life(curriculum, rng, 200, skill=1.0)
    assert curriculum.metrics()["tier"] == len(TIERS) - 1
    kept = [metrics["mastered"] for _, _, metrics, _ in life(curriculum, rng, 200, skill=1.0)]
    assert min(kept) >= 12  # of 15


def test_a_policy_that_achieves_nothing_stays_where_it_is_and_tries_all_tasks_alike():
    curriculum, rng = make_curriculum("tiers", TASKS), np.random.default_rng(1)
    tries = Counter(task for task, *_ in life(curriculum, rng, 60, skill=0.0))
    assert tries == {task: 20 for task, tier in TASKS.items() if tier == TIERS[0].name}
