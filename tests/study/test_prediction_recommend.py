from math import inf, nan

import numpy as np
import pytest

from ddppo.errors import ConfigError
from ddppo.study.predict.recommend import Study, recommend
from ddppo.study.runs import Run


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


class Doubling:
    """A model for which W workers are 0.8 W times as fast as one of 1000 steps/s."""

    def predict(self, world_sizes, what_if=None):
        from types import SimpleNamespace

        return [SimpleNamespace(world_size=w, fps=800.0 * w) for w in world_sizes]

    def divides(self, world_size, what_if=None):
        return world_size <= 8


RUNS = [run(1, 1000), run(2, 1800), run(4, 2400)]


def test_by_throughput_the_fastest_the_cheapest_and_the_one_worth_it():
    # Hours for 3.6 M steps: 1, 0.5556, 0.4167; worker-hours: 1, 1.111, 1.667; efficiency: 1, 0.9, 0.6.
    chosen = recommend(Study(RUNS), None, efficiency_floor=0.7, price_per_worker_hour=2.0)
    assert chosen.fastest.world_size == 4
    assert chosen.fastest.hours == pytest.approx(1 / 2.4)
    assert chosen.efficient.world_size == 2
    assert chosen.cheapest.world_size == 1
    assert [c.cost for c in chosen.table] == pytest.approx([2.0, 2 * 2 / 1.8, 2 * 4 / 2.4])
    assert [c.pareto for c in chosen.table] == [True, True, True]
    assert "throughput alone decides" in chosen.text()


def test_time_to_target_decides_where_it_is_measured():
    # W=4 is fastest per step but learns worse; W=2 beats W=1 in time and W=4 in both.
    chosen = recommend(Study(RUNS, {1: 3600.0, 2: 2160.0, 4: 2500.0}))
    assert chosen.fastest.world_size == 2
    assert [c.hours for c in chosen.table] == pytest.approx([1.0, 0.6, 2500 / 3600])
    assert [c.pareto for c in chosen.table] == [True, True, False]
    assert "Shortest time: W=2 (0.6 h, cost 1.2" in chosen.text()


def test_a_w_that_never_gets_there_is_not_recommended():
    chosen = recommend(Study(RUNS, {1: 3600.0, 2: inf, 4: inf}))
    assert chosen.fastest.world_size == chosen.cheapest.world_size == 1
    assert "never" in chosen.text()


def test_where_no_w_gets_there_nothing_is_recommended():
    chosen = recommend(Study(RUNS, dict.fromkeys((1, 2, 4), inf)))
    assert chosen.fastest is chosen.cheapest is chosen.efficient is None
    assert "No W is known to reach the target" in chosen.text()


def test_a_predicted_w_needs_the_steps_of_its_measured_neighbour():
    chosen = recommend(Study(RUNS, {1: 3600.0, 2: 2000.0, 4: 1500.0}), Doubling())
    assert [c.world_size for c in chosen.table] == [1, 2, 4, 8]
    eight = chosen.table[-1]
    assert not eight.measured
    assert eight.hours == pytest.approx(1500 * 2400 / 6400 / 3600)
    assert any("same batch at every W" in r for r in chosen.remarks)


def test_under_weak_scaling_time_to_target_is_not_predicted():
    weak = [run(1, 1000, rule="weak"), run(2, 1800, rule="weak")]
    chosen = recommend(Study(weak, {1: 3600.0, 2: 2500.0}), Doubling())
    assert [c.world_size for c in chosen.table] == [1, 2]
    assert any("batch grows with W" in r for r in chosen.remarks)


def test_fps_is_the_median_over_seeds():
    chosen = recommend(Study([run(1, 900), run(1, 1000, seed=1), run(1, 5000, seed=2)]))
    assert chosen.table[0].fps == 1000


def test_an_efficiency_floor_that_none_keeps():
    chosen = recommend(Study(RUNS[1:]), None, efficiency_floor=1.0)
    assert chosen.efficient.world_size == 2  # the smallest measured is the baseline
    chosen = recommend(Study(RUNS, {1: inf, 2: 100.0, 4: 90.0}), efficiency_floor=0.95)
    assert chosen.efficient is None
    assert "no W that reaches the target keeps it" in chosen.text()


@pytest.mark.parametrize("setting", [{"efficiency_floor": 1.5}, {"price_per_worker_hour": -1.0}])
def test_a_floor_or_price_that_cannot_be_is_refused(setting):
    with pytest.raises(ConfigError, match="must be"):
        recommend(Study(RUNS), **setting)
