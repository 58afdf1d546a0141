import math

import numpy as np
import pytest

from ddppo.statistics import iqm, median
from ddppo.study.measure.speedup import study, time_to_target
from ddppo.study.measure.statistics import difference, estimate, ratio, t_quantile, time_estimate
from tests.study.scaling_folders import make_run, points

INF = math.inf


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([INF, 30.0, 10.0, INF, 20.0], 30.0),  # 2 of 5 seeds never got there: the third is the middle one
        ([10.0, INF, INF], INF),
        ([10.0, 20.0, INF, INF], INF),  # between 20 and never
        ([10.0, 20.0, 40.0, INF], 30.0),
        ([], math.nan),
    ],
)
def test_a_median_is_exact_with_censored_seeds(values, expected):
    assert median(values) == expected or (math.isnan(expected) and math.isnan(median(values)))


def test_iqm_is_the_one_of_the_run_summary():
    values = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0]
    assert iqm(values) == 5.4  # one value is dropped at either end


def test_time_to_target_is_the_first_evaluation_at_or_above_it_without_interpolation():
    run = make_run(1, fps=1.0, evaluations=points(10, 49.9, 50.0, 80), target_return=50.0)
    assert time_to_target(run) == 30.0


def test_a_run_that_never_reaches_the_target_is_censored():
    run = make_run(1, fps=1.0, evaluations=points(10, 20), target_return=50.0)
    assert time_to_target(run) == INF


def test_without_evaluations_on_the_way_training_returns_tell_the_time_to_target():
    run = make_run(
        1, fps=1.0, evaluations=points(0, 0, 90)[-1:], returns=points(10, 60, 90), target_return=50.0
    )
    assert time_to_target(run) == 20.0


def test_a_final_evaluation_at_the_target_counts_where_training_returns_stay_below():
    last = points(0, 0, 90)[-1:]
    run = make_run(1, fps=1.0, evaluations=last, returns=points(10, 20, 30), target_return=50.0)
    assert time_to_target(run) == 30.0


def test_without_a_target_there_is_no_time_to_it():
    assert math.isnan(time_to_target(make_run(1, fps=1.0, evaluations=points(1, 2))))


def test_the_median_time_to_target_over_seeds_with_two_of_five_censored_is_the_third_crossing():
    curves = [(0, 0, 60), (60, 0, 0), (0, 0, 0), (0, 60, 60), (0, 0, 0)]
    runs = [
        make_run(1, seed, fps=1.0, evaluations=points(*scores), target_return=50.0)
        for seed, scores in enumerate(curves)
    ]
    row = study(runs).rows[0]
    assert row.time_to_target.median == 30.0
    assert row.num_reached == 3


def test_students_quantiles_are_those_of_the_tables():
    for (p, df), expected in {
        (0.975, 1): 12.706,
        (0.975, 4): 2.776,
        (0.995, 9): 3.250,
        (0.975, 500): 1.965,
    }.items():
        assert t_quantile(p, df) == pytest.approx(expected, abs=6e-4)


def test_an_interval_of_a_mean_is_students():
    low, high = difference([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-3)


def test_an_interval_of_a_difference_is_welchs():
    # Variances 1/3 and 4/3, so df = (5/3)^2 / ((1/9 + 16/9) / 2) = 50/17.
    low, high = difference([1.0, 2.0, 3.0], [10.0, 12.0, 14.0])
    half = t_quantile(0.975, 50 / 17) * (5 / 3) ** 0.5
    assert (low, high) == pytest.approx((-10 - half, -10 + half))


def test_values_that_are_all_alike_differ_by_exactly_their_difference():
    assert difference([3.0, 3.0], [1.0, 1.0]) == (2.0, 2.0)


def test_fewer_than_three_seeds_have_no_interval_but_are_kept_as_they_are():
    for values in ([5.0], [5.0, 6.0]):
        found = estimate(values)
        assert math.isnan(found.low)
        assert math.isnan(found.high)
        assert found.values == tuple(values)


def test_times_that_are_never_reached_have_intervals_by_order_from_six_seeds_on():
    five = time_estimate([1.0, 2.0, 3.0, 4.0, INF])
    assert math.isnan(five.low)
    six = time_estimate([5.0, 1.0, 2.0, 3.0, 4.0, INF])
    assert (six.median, six.low, six.high) == (3.5, 1.0, INF)  # 1 - 2 / 64 of such intervals hold the median
    nine = time_estimate([float(i) for i in range(1, 10)])
    assert (nine.low, nine.high) == (2.0, 8.0)  # 1 - 20 / 512


def test_a_ratio_to_or_of_something_never_reached_is_not_known():
    for pair in (([10.0], [INF]), ([INF], [10.0])):
        assert math.isnan(ratio(*pair).median)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_95_percent_intervals_hold_the_truth_in_94_to_96_of_100_cases(seeds):
    rng = np.random.default_rng(seeds)
    cases = 6000
    above, below = np.exp(0.1 * rng.standard_normal((2, cases, seeds)))
    hits = {"mean": 0, "ratio": 0}
    for a, b in zip(above, below, strict=True):
        means, ratios = estimate(np.log(a).tolist()), ratio(a.tolist(), b.tolist())
        hits["mean"] += means.low <= 0 <= means.high
        hits["ratio"] += ratios.low <= 1 <= ratios.high
    assert 0.94 <= hits["mean"] / cases <= 0.96
    assert 0.94 <= hits["ratio"] / cases <= 0.965  # Welch's degrees of freedom are a little cautious


@pytest.mark.parametrize("seeds", [6, 9, 12])
def test_intervals_of_the_median_time_hold_it_in_at_least_95_of_100_cases(seeds):
    times = np.random.default_rng(seeds).exponential(size=(4000, seeds))
    found = [time_estimate(row.tolist()) for row in times]
    assert np.mean([f.low <= math.log(2) <= f.high for f in found]) >= 0.945


def test_the_interval_of_positive_values_is_one_of_logarithms_and_stays_above_0():
    found = estimate([72.0, 300.0, 310.0], positive=True)
    assert found.median == 300.0
    assert 0 < found.low < 72
    assert estimate([72.0, 300.0, 310.0]).low < 0
    doubled = estimate([144.0, 600.0, 620.0], positive=True)
    assert (doubled.low, doubled.high) == pytest.approx((2 * found.low, 2 * found.high))
