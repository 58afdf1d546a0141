"""The whole chain on made-up studies whose truth is known; the long form is `python -m tests.study.fuzz`."""

import pytest

from tests.study import fuzz, planted

_SAID_AT_ONCE = (
    "base slow in stretches", "base slow throughout", "many stalls", "step within runs", "trend within runs",
    "another processor", "other hosts", "overlapping runs", "odd seed", "a step and crowded cores",
)  # fmt: skip


def test_of_each_way_to_measure_badly_the_reason_is_told_and_no_cause():
    kinds = {kind: fuzz.KINDS[kind] for kind in _SAID_AT_ONCE}
    findings = fuzz.judge(planted.studies(len(kinds), seed=1, kinds=kinds))
    said = "\n".join([*findings.misjudged, findings.text()])
    assert findings.rate("doubted") == 1, said
    assert findings.rate(fuzz.MAIN) == 1, said
    assert findings.false_per_page() == 0, said


@pytest.mark.slow
def test_what_is_said_of_made_up_studies_is_true():
    findings = fuzz.judge(planted.studies(len(fuzz.KINDS), seed=1, kinds=fuzz.KINDS))  # one of each kind
    said = "\n".join([*findings.misjudged, findings.text()])
    assert findings.false_per_page() <= 0.05, said  # of 45 pages
    assert findings.rate(fuzz.MAIN) >= 0.95, said
    assert findings.rate("share within .03") >= 0.98, said
    for interval in fuzz.INTERVALS:
        assert findings.rate(interval) >= 0.88, said  # at 95 %
    assert findings.rate(*fuzz.ADVICE) == 1, said
