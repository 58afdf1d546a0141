"""The whole chain on made-up studies whose truth is known; the long form is `python -m tests.study.fuzz 400`."""

import pytest

from tests.study import fuzz, planted


@pytest.mark.slow
def test_what_is_said_of_made_up_studies_is_true():
    findings = fuzz.judge(planted.studies(14, seed=1))  # one of each kind
    said = findings.text()
    assert findings.rate("main cause") >= 0.95, said
    assert findings.rate("share within .03") >= 0.98, said
    assert findings.rate("interval of fps") >= 0.85, said  # of 60, at 95 %
    assert findings.rate("interval of efficiency") >= 0.85, said
    assert findings.rate("prediction in its interval") >= 0.9, said
    assert findings.rate("the W recommended is no slower") == 1, said
    assert findings.rate("a remedy does not slow") == 1, said
