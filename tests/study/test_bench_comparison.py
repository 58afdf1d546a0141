"""Ratios, their exact intervals, and what they let one say."""

import itertools
import math

import pytest

from ddppo.errors import ConfigError
from ddppo.study.bench.results import Ratio, check_rounds, middle, paired_ratio, unpaired_ratio


def test_the_median_of_an_even_number_is_the_mean_of_the_two_in_the_middle():
    assert middle([3.0, 1.0, 2.0]) == 2.0
    assert middle([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_pairs_are_divided_round_by_round():
    # The machine was twice as fast in the second round, and half as fast in the third.
    found = paired_ratio([90, 180, 45, 95, 80], [100, 200, 50, 100, 100])
    assert found == Ratio(0.9, 0.8, 0.95, 5)


@pytest.mark.parametrize(
    ("count", "rank"),  # of the lowest ratio's place in order: tables of the sign test, one side, 5 %
    [(5, 1), (7, 1), (8, 2), (10, 2), (11, 3), (13, 4), (16, 5), (20, 6)],
)
def test_the_interval_of_pairs_is_that_of_the_sign_test(count, rank):
    found = paired_ratio([float(i) for i in range(1, count + 1)], [1.0] * count)
    assert (found.low, found.high) == (rank, count + 1 - rank)


def test_fewer_pairs_than_five_bound_nothing():
    assert paired_ratio([1.0] * 4, [2.0] * 4) == Ratio(0.5, 0.0, math.inf, 4)


@pytest.mark.parametrize(
    ("m", "n", "critical"), [(3, 3, 0), (4, 4, 1), (5, 5, 4), (5, 3, 1), (7, 6, 8), (8, 8, 15)]
)
def test_the_interval_of_two_samples_is_that_of_the_tables_of_mann_and_whitney(m, n, critical):
    """The tables give the largest U that is significant, one side, 5 %: the interval begins at the ratio after it."""
    ours = [2.0**i for i in range(m)]
    theirs = [2.0 ** (-i * m) for i in range(n)]  # all ratios differ
    ratios = sorted(a / b for a, b in itertools.product(ours, theirs))
    found = unpaired_ratio(ours, theirs)
    assert (found.low, found.high) == (ratios[critical], ratios[m * n - 1 - critical])


def test_two_against_three_bound_nothing():
    found = unpaired_ratio([1.0, 1.0], [2.0, 2.0, 2.0])
    assert found == Ratio(0.5, 0.0, math.inf, 2)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Ratio(0.90, 0.85, 0.97, 7), "slower"),
        (Ratio(0.90, 0.80, 1.02, 7), "unclear"),  # may be chance
        (Ratio(0.97, 0.96, 0.98, 7), "same"),  # slower for certain, but not by 5 %
        (Ratio(0.97, 0.90, 1.04, 7), "unclear"),
        (Ratio(1.00, 0.95, 1.05, 7), "same"),
        (Ratio(1.10, 1.02, 1.20, 7), "faster"),
        (Ratio(0.5, 0.0, math.inf, 2), "unclear"),
    ],
)
def test_a_verdict_asks_for_size_and_for_certainty(ratio, verdict):
    assert ratio.verdict(0.05) == verdict


def test_fewer_rounds_than_could_tell_are_refused():
    check_rounds(5, paired=True)
    check_rounds(3, paired=False)
    with pytest.raises(ConfigError, match="rounds=4 can tell no slowdown from chance"):
        check_rounds(4, paired=True)
    with pytest.raises(ConfigError, match=r"rounds=2 .* needs rounds=3"):
        check_rounds(2, paired=False)
