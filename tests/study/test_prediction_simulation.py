from dataclasses import replace

import numpy as np
import pytest

from ddppo.study.predict.iteration import System, expected
from ddppo.study.predict.order_statistics import lognormal
from ddppo.study.runs import PARTS
from tests.study.simulation import simulate

QUIET = System(
    world_size=4, batch_size=80, rollout_s=0.1, num_segments=3, segment_s=0.02, comm_s=0.005, other_s=0.003
)


def test_without_noise_an_iteration_is_the_sum_of_its_parts():
    for iteration in (expected(QUIET), simulate(QUIET, 2).mean):
        assert iteration.parts == pytest.approx(
            {"t_rollout": 0.1, "t_learn": 0.06, "t_sync": 0.0, "t_comm": 0.005, "t_other": 0.003}, abs=1e-8
        )
        assert iteration.t_iter == pytest.approx(0.168)
        assert iteration.fps == pytest.approx(80 / 0.168)


def test_one_rank_neither_waits_nor_communicates():
    alone = replace(QUIET, world_size=1, noise=lognormal(0.5), jitter_s=0.01, queue_s=0.1)
    for iteration in (expected(alone), simulate(alone, 5).mean):
        assert iteration.parts["t_sync"] == 0.0
        assert iteration.parts["t_comm"] == 0.0


def test_all_wait_for_a_rank_that_is_always_slow():
    slow = replace(QUIET, late={3: 0.02}, late_segments={3: 0.5})
    for iteration in (expected(slow), simulate(slow, 2).mean):
        assert iteration.parts["t_rollout"] == pytest.approx(0.1 + 0.02 / 4)
        assert iteration.parts["t_learn"] == pytest.approx(0.06 + 0.03 / 4)
        assert iteration.parts["t_sync"] == pytest.approx((0.02 + 0.03) * 3 / 4)


def test_all_wait_while_rank_0_writes():
    writing = replace(QUIET, writer_s=0.008)
    for iteration in (expected(writing), simulate(writing, 2).mean):
        assert iteration.parts["t_other"] == pytest.approx(0.003 + 0.002)
        assert iteration.parts["t_sync"] == pytest.approx(0.006)


def test_two_slow_ranks_and_a_writing_one_among_noisy_ones():
    system = replace(QUIET, noise=lognormal(0.1), late={2: 0.01, 3: 0.02}, writer_s=0.015)
    assert expected(system).t_iter == pytest.approx(simulate(system, 3000).mean.t_iter, rel=0.005)


def test_parts_add_up_to_the_iteration_of_every_rank():
    noisy = replace(QUIET, noise=lognormal(0.2), jitter_s=0.001, writer_s=0.01)
    times = simulate(noisy, 20, common_cv=0.1).times
    np.testing.assert_allclose(sum(times[p] for p in PARTS), times["t_iter"])


def test_formula_and_simulation_agree_within_two_percent():
    noisy = replace(QUIET, world_size=64, noise=lognormal(0.2), jitter_s=0.001, queue_s=0.006, writer_s=0.01)
    by_formula, simulated = expected(noisy), simulate(noisy, 1500, common_cv=0.1).mean
    assert by_formula.fps == pytest.approx(simulated.fps, rel=0.02)
    for part in PARTS:
        assert by_formula.parts[part] == pytest.approx(simulated.parts[part], rel=0.05)


def test_the_same_seed_simulates_the_same_iterations():
    noisy = replace(QUIET, noise=lognormal(0.2))
    assert (simulate(noisy, 3, seed=7).times["t_iter"] == simulate(noisy, 3, seed=7).times["t_iter"]).all()
    assert (simulate(noisy, 3, seed=7).times["t_iter"] != simulate(noisy, 3, seed=8).times["t_iter"]).any()
