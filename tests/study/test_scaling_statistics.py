import math

import pytest
from scaling_folders import make_run, points

from ddppo import statistics
from ddppo.statistics import bootstrap, estimate, iqm, means, median, medians, ratio
from ddppo.study.measure.speedup import study
from ddppo.study.measure.time_to_target import time_to_target

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


def test_an_interval_of_two_values_reaches_from_one_to_the_other():
    assert bootstrap(medians, [1.0, 3.0]) == (1.0, 3.0)


def test_an_interval_is_the_same_every_time_and_contains_the_sample_median():
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    low, high = bootstrap(medians, values)
    assert (low, high) == bootstrap(medians, values)
    assert 1.0 <= low < median(values) < high <= 9.0


def test_one_seed_has_no_interval():
    found = estimate([5.0])
    assert found.median == found.iqm == 5.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_an_interval_over_censored_seeds_may_end_at_infinity_without_a_warning():
    low, high = bootstrap(medians, [10.0, 20.0, INF])
    assert low == 10.0
    assert high == INF


def test_the_interval_of_a_difference_resamples_both_samples():
    low, high = bootstrap(lambda a, b: means(a) - means(b), [1.0, 2.0], [10.0, 20.0])
    assert (low, high) == (-19.0, -8.0)


def test_a_ratio_to_something_never_reached_is_0_and_of_it_undefined():
    assert ratio([10.0], [INF]).median == 0.0
    assert math.isnan(ratio([INF], [10.0]).median)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    generator = statistics.np.random.default_rng(1)
    samples = generator.normal(size=(100, 20))
    hits = sum(low <= 0 <= high for low, high in (bootstrap(means, s, num_resamples=400) for s in samples))
    assert 85 <= hits <= 99
