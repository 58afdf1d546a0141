"""The universal scalability law beside the model, how far either may be off, and what is made of that."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from ddppo.errors import ConfigError
from ddppo.study.measure.speedup import study
from ddppo.study.predict.model import fit
from ddppo.study.predict.outlook import held_out, judged, outlook
from ddppo.study.predict.usl import Usl, fit_usl, fit_usl_with_errors
from tests.study import planted

SMALL = planted.Truth(iterations=30, run_cv=0.0)


def ahead(runs, **settings):
    known = {
        "what_if": {},
        "predict_to": None,
        "cores_per_worker": None,
        "efficiency_floor": 0.7,
        "price_per_worker_hour": None,
    }
    return outlook(study(runs), **(known | settings))


def alone(runs):
    """The same runs, of which W and FPS alone are known."""
    return [replace(run, times={}, steps=np.zeros(0)) for run in runs]


def test_the_law_that_made_the_throughputs_is_found_again():
    # sigma 0.05, kappa 0.001, gamma 1000: the peak is at sqrt(0.95 / 0.001) = 30.8.
    fps = {w: [1000 * w / (1 + 0.05 * (w - 1) + 0.001 * w * (w - 1))] for w in (1, 2, 4, 8)}
    usl = fit_usl(fps)
    assert (usl.sigma, usl.kappa, usl.fps(1)) == pytest.approx((0.05, 0.001, 1000))
    assert usl.peak == pytest.approx(30.82, abs=0.01)
    assert "peaks at W=30.8" in str(usl)
    assert usl.fps(64) == pytest.approx(64_000 / (1 + 0.05 * 63 + 0.001 * 64 * 63))


def test_two_w_tell_contention_alone_and_one_nothing():
    usl = fit_usl({1: [1000.0], 4: [2500.0]})  # 4 / (1 + 3 sigma) = 2.5
    assert (usl.sigma, usl.kappa, usl.peak) == pytest.approx((0.2, 0.0, inf))
    assert "has no peak" in str(usl)
    with pytest.raises(ConfigError, match="only W=4 was measured"):
        fit_usl({4: [1000.0]})


@pytest.mark.parametrize(
    ("usl", "peak"), [(Usl(1.0, 2.0, 0.0), 1.0), (Usl(1.0, 2.0, 0.1), 1.0), (Usl(1.0, 0.0, 0.0), inf)]
)
def test_a_second_worker_that_slows_makes_one_the_peak(usl, peak):
    assert usl.peak == peak


def test_more_seeds_and_more_w_make_intervals_narrower():
    def width(world_sizes, seeds):
        rng = np.random.default_rng(0)
        fps = {w: list(1000 * w * np.exp(0.05 * rng.standard_normal(seeds))) for w in world_sizes}
        (p,) = fit_usl_with_errors(fps).predict([32])
        return (p.fps_high - p.fps_low) / p.fps

    assert width((1, 2, 4, 8, 16), 8) < width((1, 2, 4, 8, 16), 2) < width((1, 2), 2)


@pytest.mark.slow
def test_predictions_lie_in_their_own_intervals():
    held = asked = 0
    for made in planted.studies(26, seed=4):
        model = fit(made.runs(), replicates=40)
        for p in model.predict([w * made.world_sizes[-1] for w in (2, 4)]):
            held += p.fps_low <= planted.true_fps(made.truth, p.world_size, 100) <= p.fps_high
            asked += 1
    assert held >= 0.9 * asked


def test_the_speedup_of_the_smallest_w_over_itself_is_exactly_one():
    for world_sizes in ((1, 2, 4), (2, 4, 8)):
        model = fit(planted.runs(replace(SMALL, run_cv=0.05), world_sizes, 2), replicates=5)
        (p,) = model.predict(world_sizes[:1])
        assert (p.speedup, p.speedup_low, p.speedup_high, p.efficiency) == (1.0, 1.0, 1.0, 1.0)


def test_every_w_is_judged_and_not_only_the_one_held_out():
    assert judged({1: 0.2, 2: -0.01}).startswith(
        "Predicted against measured, where the law was fitted: W=1 +20.0 % (NOT within), W=2 -1.0 %"
    )


def test_the_model_beats_the_law_without_parts_where_w_is_held_out():
    errors, simple = [], []
    for made in planted.studies(13, seed=2):
        runs = made.runs()
        known = fit([run for run in runs if run.world_size < made.world_sizes[-1]], replicates=2)
        if len(known.fps) > 1:
            (check,) = held_out(known, runs)
            errors.append(abs(check.error))
            simple.append(abs(check.usl_error))
    assert f"(the universal scalability law by {100 * check.usl_error:+.1f} %)" in str(check)
    assert np.median(errors) < 0.5 * np.median(simple)


def test_a_table_of_w_and_throughput_gets_predictions_a_peak_and_a_recommendation():
    said = ahead(alone(planted.runs(replace(SMALL, other_s=2e-3), (1, 2, 4, 8), 2)))
    assert {p.world_size for p in said.as_measured} == {1, 2, 4, 8, 16}
    assert all(p.fps_low <= p.fps <= p.fps_high and p.parts == {} for p in said.as_measured)
    assert said.remarks[0].startswith("Predictions are by the universal scalability law")
    assert [check.world_size for check in said.checks] == [2, 4, 8]
    assert said.recommendation.chosen is not None
    with pytest.raises(ConfigError, match="has no effect"):
        ahead(alone(planted.runs(SMALL, (1, 2), 1)), what_if={"latency_s": 1.0})


def test_means_over_ranks_are_enough_for_the_model():
    runs = planted.runs(SMALL, (1, 2, 4, 8), 2)
    means = [
        replace(r, times={p: np.full_like(t[:, :1], t.mean()) for p, t in r.times.items()}) for r in runs
    ]
    rows = [
        replace(r, times={p: t[:1] for p, t in r.times.items()}, steps=r.steps[:1], config={}) for r in means
    ]
    whole, *parts = (fit(some, replicates=5).predict([16])[0] for some in (runs, means, rows))
    assert [part.fps for part in parts] == pytest.approx([whole.fps] * 2, rel=0.05)


def test_a_w_that_was_not_measured_is_recommended_only_beside_checks_that_held():
    good = ahead(planted.runs(SMALL, (1, 2, 4, 8), 3))
    assert good.trusted
    assert good.recommendation.fastest.world_size == 16
    runs = planted.runs(SMALL, (1, 2, 4, 8), 3)
    disturbed = [replace(run, fps=run.fps / (2 if run.world_size == 8 else 1)) for run in runs]
    bad = ahead(disturbed)
    assert not bad.trusted
    assert all(c is None or c.measured for c in (bad.recommendation.chosen, bad.recommendation.fastest))
    assert "NOT within 15 %" in " ".join(bad.quality)


def test_one_w_alone_has_no_outlook():
    said = ahead(planted.runs(SMALL, (1,), 2))
    assert (said.as_measured, said.usl, said.recommendation) == ((), None, None)


def test_cores_that_were_asked_for_are_given_to_w_not_measured():
    runs = planted.runs(replace(SMALL, cores=4), (1, 2, 4, 8), 2)
    shared, own = ahead(runs), ahead(runs, cores_per_worker=1)
    assert "share 4 cores" in shared.cores_rule
    assert "1 core for each worker, as asked" in own.cores_rule
    at = {p.world_size: p.fps for p in shared.as_measured}
    assert all(p.fps > 1.1 * at[p.world_size] for p in own.as_measured if p.world_size > 8)


def test_a_w_that_would_crowd_cores_as_no_measured_one_did_is_not_predicted_and_that_is_told():
    said = ahead(planted.runs(replace(SMALL, cores=4), (1, 2, 4), 1))
    assert {p.world_size for p in said.as_measured} == {1, 2, 4}
    assert any("W=8 cannot be predicted from these W" in remark for remark in said.remarks)


def test_an_interval_that_says_nothing_is_no_prediction():
    fps = {1: [1000.0, 10.0], 2: [300.0, 5000.0]}
    runs = [replace(run, fps=fps[run.world_size][run.seed]) for run in alone(planted.runs(SMALL, (1, 2), 2))]
    said = ahead(runs)
    assert {p.world_size for p in said.as_measured} <= {1, 2}
    assert any("the interval would say nothing" in remark for remark in said.remarks)
