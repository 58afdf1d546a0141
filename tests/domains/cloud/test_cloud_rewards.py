"""What a step is worth, and what strikes or has drifted, by hand."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("moto", reason="needs the extra cloud: pip install '.[cloud]'")
pytest.importorskip("boto3", reason="needs the extra cloud: pip install '.[cloud]'")

from ddppo.domains.cloud.tasks import GradedStep, gain, is_retry, score, score_parts
from ddppo.domains.cloud.world import CHANCE, FIRST, LAST, drawn, drifted


@pytest.mark.parametrize(
    ("step", "worth"),
    [
        (GradedStep(1.0, achieved=True), 1.0),
        (GradedStep(1.0, achieved=True, survived=True), 1.05),
        (GradedStep(1.0, achieved=True, num_hints=1), 0.85),
        (GradedStep(1.0, achieved=True, num_hints=3), 0.614125),
        (GradedStep(1.0, achieved=True, failed=True, undone=True), 1.0),
        (GradedStep(0.0), 0.0),
        (GradedStep(0.5), 0.4),
        (GradedStep(0.5, rose=True), 0.5),
        (GradedStep(0.5, failed=True), 0.2),
        (GradedStep(0.5, rose=True, failed=True), 0.25),
        (GradedStep(0.5, undone=True), 0.3),
        (GradedStep(0.5, failed=True, retried=True), 0.22),
        (GradedStep(0.0, undone=True), 0.0),
        (GradedStep(1.0, rose=True), 0.9),
        (GradedStep(1.0, rose=True, retried=True), 0.92),
        (GradedStep(0.5, num_hints=2), 0.289),
        (GradedStep(0.5, survived=True), 0.4),
    ],
)
def test_the_score_of_a_step(step, worth):
    assert score(step) == pytest.approx(worth, abs=1e-12)
    assert sum(score_parts(step).values()) == pytest.approx(worth, abs=1e-12)


def test_the_parts_of_a_score_by_hand():
    names = ["progress", "achievement", "survival", "rise", "failure", "undone", "retry", "bounds", "hints"]

    def parts(*step, **flags):
        found = score_parts(GradedStep(*step, **flags))
        assert list(found) == names
        return {name: round(part, 12) for name, part in found.items() if part}

    assert parts(0.0) == {}
    assert parts(0.5, rose=True, failed=True) == {"progress": 0.4, "rise": 0.1, "failure": -0.25}
    assert parts(1.0, achieved=True, survived=True, num_hints=1) == {
        "progress": 0.8, "achievement": 0.2, "survival": 0.05, "hints": -0.1575,
    }  # fmt: skip
    assert parts(0.0, undone=True) == {"undone": -0.1, "bounds": 0.1}
    assert parts(0.5, retried=True, num_hints=2) == {"progress": 0.4, "retry": 0.02, "hints": -0.11655}


def test_short_of_the_end_a_score_is_between_0_and_99_hundredths():
    for progress in (0.0, 0.3, 1.0):
        for bits in range(16):
            flags = [bool(bits >> at & 1) for at in range(4)]
            step = GradedStep(progress, rose=flags[0], failed=flags[1], undone=flags[2], retried=flags[3])
            assert 0.0 <= score(step) <= 0.99


def test_gains_sum_to_the_last_score():
    scores = [0.0, 0.5, 0.2, 0.4, 1.0]
    assert sum(gain(b, a) for a, b in pairwise(scores)) == pytest.approx(1.0)


def test_a_retry_counts_once_and_only_of_what_exists():
    assert is_retry("BucketAlreadyOwnedByYou", had_before=False)
    assert not is_retry("BucketAlreadyOwnedByYou", had_before=True)
    assert not is_retry("NoSuchBucket", had_before=False)
    assert not is_retry("", had_before=False)


@pytest.mark.parametrize("tier", CHANCE)
def test_chaos_strikes_as_often_as_its_tier_says(tier):
    random = np.random.default_rng(0)
    struck = [drawn(CHANCE[tier], (("a",), ("b",)), random) for _ in range(4000)]
    hits = [strike for strike in struck if strike is not None]
    assert len(hits) / 4000 == pytest.approx(CHANCE[tier], abs=0.03)
    assert {strike.after for strike in hits} <= set(range(FIRST, LAST + 1))
    if hits:
        assert {strike.commands for strike in hits} == {("a",), ("b",)}


def test_a_task_without_faults_is_never_struck():
    assert all(drawn(1.0, (), np.random.default_rng(seed)) is None for seed in range(50))


def test_drifts_are_different_in_order_and_all_drawn_at_some_seed():
    drifts = (("a",), ("b", "c"), ("d",))
    found = {drifted(2, drifts, np.random.default_rng(seed)) for seed in range(50)}
    assert found == {("a", "b", "c"), ("a", "d"), ("b", "c", "d")}
    assert drifted(0, (), np.random.default_rng(0)) == ()
