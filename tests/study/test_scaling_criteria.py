"""The verdict: each criterion passes, fails, or is not certain, as made-up studies let expect."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ddppo.study.explain.criteria import (
    FAIL,
    PASS,
    UNCERTAIN,
    UNKNOWN,
    returns_agree,
    speedup_increases,
)
from ddppo.study.measure.growth import not_faster
from ddppo.study.measure.speedup import study
from tests.study.scaling_folders import make_run


def of(*runs):
    return study(list(runs))


def at_speeds(*fps_by_world_size, cores=64):
    """A study of W=1, 2, 4, ... with these steps/s, one list per W."""
    return of(
        *(
            make_run(2**i, seed, fps=fps, cores=cores)
            for i, speeds in enumerate(fps_by_world_size)
            for seed, fps in enumerate(speeds)
        )
    )


@pytest.mark.parametrize(
    ("speeds", "result", "said"),
    [
        ([[100, 101, 99], [150, 151, 149], [200, 201, 199]], PASS, "S(4)=2"),
        ([[100], [180], [300]], PASS, "S(4)=3"),
        ([[100], [100.04]], UNCERTAIN, "W=2 is 0.871 to 1.15 times as fast as W=1"),
        ([[100] * 3, [100.04] * 3], UNCERTAIN, "more seeds would tell"),
        ([[100, 90, 110], [115, 105, 125]], UNCERTAIN, "more seeds would tell"),
        ([[100, 101], [150, 151], [140, 141]], FAIL, "W=4 is no faster than W=2"),
        ([[100], [150], [145]], UNCERTAIN, "one seed"),
        ([[100], [150], [100]], FAIL, "2 compute threads on each of 2 cores"),
        ([[1.0]], UNKNOWN, "only W=1"),
    ],
)
def test_speedup_must_rise_beyond_noise_at_every_step(speeds, result, said):
    verdict = speedup_increases(at_speeds(*speeds, cores=2))
    assert verdict.result == result
    assert said in verdict.reason or said == "one seed"


def test_noise_of_iterations_counts_where_there_is_one_seed():
    rng = np.random.default_rng(0)
    noisy = make_run(2, parts={"t_rollout": 1.0}, iterations=40)
    times = {**noisy.times, "t_iter": np.repeat(rng.lognormal(0, 2, (40, 1)), 2, axis=1)}
    found = of(make_run(1, fps=60.0), replace(noisy, times=times, fps=80.0))
    assert speedup_increases(found).result == UNCERTAIN
    assert speedup_increases(of(make_run(1, fps=60.0), replace(noisy, fps=80.0))).result == PASS


def with_returns(at_1, at_2):
    runs = [make_run(1, seed, fps=1.0, final_return=float(r)) for seed, r in enumerate(at_1)]
    return of(*runs, *(make_run(2, seed, fps=2.0, final_return=float(r)) for seed, r in enumerate(at_2)))


@pytest.mark.parametrize(
    ("at_1", "at_2", "options", "result", "said"),
    [
        ([100, 101], [99, 100], {}, PASS, "within the tolerance"),
        ([100, 101], [60, 61], {}, FAIL, "below the tolerance"),
        ([100, 101], [140, 141], {}, PASS, "better"),
        ([100, 150], [100, 150], {}, PASS, "in every seed"),
        ([100, 101], [60, 110], {}, UNCERTAIN, "but not clearly: 2 seeds find a loss of 10.1"),
        ([100, 101], [90, 110], {}, UNCERTAIN, "the interval reaches beyond it: 2 seeds find"),
        ([100, 101], [60, 61], {"absolute": 50.0}, PASS, "tolerance 50"),
        ([100], [99], {}, UNCERTAIN, "one seed"),
        ([100], [10], {}, UNCERTAIN, "one seed"),
        ([0, 0], [-1, -1], {}, FAIL, "return_tolerance_abs"),
        ([math.nan], [math.nan], {}, UNKNOWN, "no final return"),
    ],
)
def test_final_returns_must_not_fall_by_more_than_the_tolerance(at_1, at_2, options, result, said):
    verdict = returns_agree(with_returns(at_1, at_2), relative=0.05, **options)
    assert verdict.result == result
    assert said in verdict.reason


def test_the_power_that_is_told_is_that_of_made_up_studies():
    rng = np.random.default_rng(0)
    told = returns_agree(with_returns([95, 105] * 3, [94, 106] * 3), relative=0.05)  # a deviation of 6
    assert "6 seeds find a loss of 10, twice the tolerance, in 22 % of studies" in told.reason
    assert "would in 80 %" in told.reason
    found = 0
    for _ in range(400):
        at_1, at_2 = rng.normal(100, 6.0, 6), rng.normal(90, 6.0, 6)
        found += returns_agree(with_returns(at_1, at_2), relative=0.0, absolute=5.0).result == FAIL
    assert found / 400 == pytest.approx(0.25, abs=0.08)  # of a known deviation of 6


@pytest.mark.parametrize(
    ("speeds", "refused"),
    [
        ([[100, 101, 99], [150, 151, 149], [120, 121, 119]], {4}),
        ([[100, 101, 99], [150, 151, 149], [149, 152, 151]], set()),
    ],
)
def test_a_w_that_is_certainly_no_faster_than_a_smaller_one_is_known(speeds, refused):
    assert not_faster(at_speeds(*speeds)) == refused


def test_two_seeds_that_differ_much_tell_no_number():
    verdict = speedup_increases(at_speeds([100, 10], [150, 300]))
    assert verdict.result == UNCERTAIN
    assert "cannot be told from W=1" in verdict.reason


@pytest.mark.parametrize("seeds", [1, 2, 3, 5, 10])
def test_equal_returns_fail_in_at_most_5_percent_of_studies_and_a_third_less_is_found(seeds):
    rng = np.random.default_rng(seeds)
    failed = found = 0
    studies = 200
    for _ in range(studies):
        runs = [make_run(w, seed, fps=float(w)) for w in (1, 2, 4, 8, 16) for seed in range(seeds)]
        returns = rng.normal(100, 10, len(runs))
        equal = [replace(run, final_return=float(r)) for run, r in zip(runs, returns, strict=True)]
        worse = [replace(run, final_return=run.final_return - 34 * (run.world_size == 16)) for run in equal]
        failed += returns_agree(of(*equal), relative=0.0, absolute=0.0).result == FAIL
        found += returns_agree(of(*worse), relative=0.05).result == FAIL
    assert failed <= (0 if seeds == 1 else 0.05 * studies + 6)  # 2 standard deviations
    assert found >= {1: 0, 2: 0, 3: 0.1, 5: 0.6, 10: 0.95}[seeds] * studies
