from math import inf, nan

import numpy as np
import pytest

from ddppo.study.predict.intervals import Prediction
from ddppo.study.predict.recommend import recommend
from ddppo.study.read.record import Run


def run(world_size, fps, rule="strong", seed=0):
    return Run(
        path=f"{world_size}",
        env_id="CartPole-v1",
        world_size=world_size,
        seed=seed,
        rule=rule,
        num_envs=8,
        rollout_steps=16,
        num_epochs=4,
        num_minibatches=4,
        num_parameters=1000,
        cores=8,
        env_steps=3_600_000,
        wall_s=1.0,
        fps=fps,
        final_return=nan,
        target_return=nan,
        times={},
        steps=np.zeros(0),
        evaluations=(),
    )


def predicted(world_size, fps, low, high):
    return Prediction(world_size, 1, fps, low, high, nan, nan, nan, nan, {})


RUNS = [run(1, 1000), run(2, 1800), run(4, 2400)]
EIGHT = predicted(8, 6400, 6000, 7000)


def test_by_throughput_the_fastest_the_cheapest_and_the_one_worth_it():
    # Seconds for 3.6 M steps: 3600, 2000, 1500; worker-hours: 1, 1.111, 1.667; efficiency: 1, 0.9, 0.6.
    made = recommend(RUNS, {}, efficiency_floor=0.7, price_per_worker_hour=2.0)
    assert made.fastest.world_size == 4
    assert made.fastest.seconds == pytest.approx(1500)
    assert made.chosen.world_size == 2
    assert made.cheapest.world_size == 1
    assert [c.cost for c in made.table] == pytest.approx([2.0, 2 * 2 / 1.8, 2 * 4 / 2.4])
    assert "throughput alone decides" in made.text()
    assert made.text().startswith(
        "W=2 is the fastest that keeps an efficiency of 70 %: 33.3 min, cost 2.22, efficiency 0.90, measured."
    )


def test_time_to_target_decides_where_it_is_measured():
    # W=4 is fastest per step but learns worse; W=2 beats W=1 in time and W=4 in both.
    made = recommend(RUNS, {1: 7.2, 2: 4.3, 4: 5.0})
    assert made.fastest.world_size == 2
    assert "4.3 s, 8.6 s of workers" in made.text()


def test_without_a_price_nothing_costs_anything_but_the_workers_time():
    made = recommend(RUNS, {})
    assert {c.cost for c in made.table} == {None}
    assert "cost" not in made.text()


def test_a_w_that_never_gets_there_is_not_recommended():
    made = recommend(RUNS, {1: 3600.0, 2: inf, 4: inf})
    assert made.fastest.world_size == made.cheapest.world_size == made.chosen.world_size == 1


def test_where_no_w_gets_there_nothing_is_recommended():
    made = recommend(RUNS, dict.fromkeys((1, 2, 4), inf))
    assert made.chosen is made.fastest is made.cheapest is None
    assert "No W is known to reach the target" in made.text()


def test_a_predicted_w_needs_the_steps_of_its_measured_neighbour():
    made = recommend(RUNS, {1: 3600.0, 2: 2000.0, 4: 1500.0}, [EIGHT], trusted=True)
    eight = made.table[-1]
    assert not eight.measured
    assert eight.seconds == pytest.approx(1500 * 2400 / 6400)
    assert made.chosen is eight
    assert "as many steps to the target as the nearest measured one" in made.text()


def test_predictions_that_failed_their_check_are_not_recommended():
    made = recommend(RUNS, {}, [predicted(1, 9000, 8900, 9100), EIGHT], trusted=False)
    assert made.fastest.world_size == 4
    assert made.chosen.world_size == 2
    assert "W=8 is predicted to take" in made.text()
    assert "not confirmed by a W that was held out: measure it" in made.text()


def test_a_predicted_w_whose_interval_reaches_a_measured_one_gives_way_to_it():
    made = recommend(RUNS, {}, [predicted(8, 2600, 2300, 2900)], trusted=True)
    assert made.fastest.world_size == 4
    assert "its interval does not lie above what was measured" in made.text()


def test_a_w_below_all_measured_is_never_recommended_and_the_smallest_measured_is_the_base():
    made = recommend(RUNS[1:], {}, [predicted(1, 5000, 4900, 5100)], trusted=True)
    assert [c.world_size for c in made.table] == [2, 4]
    assert [c.efficiency for c in made.table] == pytest.approx([1.0, 2 / 3])


def test_under_weak_scaling_time_to_target_is_not_predicted():
    weak = [run(1, 1000, rule="weak"), run(2, 1800, rule="weak")]
    made = recommend(weak, {1: 3600.0, 2: 2500.0}, [EIGHT], trusted=True)
    assert [c.world_size for c in made.table] == [1, 2]


def test_fps_is_the_median_over_seeds():
    made = recommend([run(1, 900), run(1, 1000, seed=1), run(1, 5000, seed=2)], {})
    assert made.table[0].fps == 1000


def test_an_efficiency_floor_that_none_keeps():
    made = recommend(RUNS, {1: inf, 2: 100.0, 4: 90.0}, efficiency_floor=0.95)
    assert made.chosen.world_size == 4
    assert "W=4 is the fastest; no W keeps an efficiency of 95 %" in made.text()
