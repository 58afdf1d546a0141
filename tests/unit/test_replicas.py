"""Which ranks are said to differ from the others."""

import math

import numpy as np
import pytest

from ddppo.errors import ReplicaMismatchError
from ddppo.records.reporting import _check_replicas


@pytest.mark.parametrize(
    ("hashes", "said"),
    [
        ([7, 7, 7, 5], "of rank 3 differ from those of the other 3 of 4"),
        ([5, 7, 7, 7], "of rank 0 differ from those of the other 3 of 4"),
        # Of as many on either side: whichever hash is the larger, those that are not as rank 0.
        ([5, 7], "of rank 1 differ from those of the other 1 of 2"),
        ([7, 5], "of rank 1 differ from those of the other 1 of 2"),
        ([7, 5, 5, 7], "of rank 1, 2 differ from those of the other 2 of 4"),
        ([math.nan, 7, 5], "of rank 2 differ from those of the other 1 of 2"),  # rank 0 holds none
    ],
)
def test_named_are_those_that_differ_from_the_most_common(hashes, said):
    with pytest.raises(ReplicaMismatchError, match=f"after iteration 9 the parameters {said} ranks"):
        _check_replicas(np.array(hashes, dtype=np.float64), 9, "parameters")


def test_equal_replicas_are_passed_over():
    _check_replicas(np.array([7.0, math.nan, 7.0]), 9, "parameters")
