from dataclasses import replace

import numpy as np
import pytest

from ddppo.study.predict.parameters import CostParameters, Work
from ddppo.study.predict.points import Load
from ddppo.study.read.record import PARTS
from tests.study import planted
from tests.study.simulation import simulate

# Three minibatches of an epoch and two gathers: 15 messages, and 3 * 3 * 111.1 bytes in the sums.
LOAD = Load(
    planted.run(planted.Truth(iterations=2), 4, 0),
    world_size=4,
    rollout_steps=10,
    local_num_envs=2,
    num_epochs=3,
    num_minibatches=1,
    num_parameters=1000 / 36,
    num_hosts=1,
    cores=64,
)
QUIET = CostParameters(
    Work(0.008, 0.001), Work(0.02, 0.0), other_s=0.003, call_s=2e-4, latency_s=2e-4, byte_s=1e-6
)


def both(parameters, load=LOAD, iterations=2):
    return parameters.expected(load), simulate(parameters, load, iterations).mean


def test_without_noise_an_iteration_is_the_sum_of_its_parts():
    # 10 (0.008 + 2 * 0.001), 3 * 0.02, 5 * 2e-4 + 15 * 2e-4 + 1000 * 1e-6
    for iteration in both(QUIET):
        assert iteration.parts == pytest.approx(
            {"t_rollout": 0.1, "t_learn": 0.06, "t_sync": 0.0, "t_comm": 0.005, "t_other": 0.003}, abs=1e-8
        )
        assert iteration.t_iter == pytest.approx(0.168)
        assert iteration.fps == pytest.approx(80 / 0.168)


def test_one_rank_neither_waits_nor_communicates():
    alone = replace(QUIET, late_light=0.5, late_heavy=0.5, jitter_s=0.01)
    for iteration in both(alone, replace(LOAD, world_size=1)):
        assert iteration.parts["t_sync"] == 0.0
        assert iteration.parts["t_comm"] == 0.0


def test_all_wait_for_a_rank_that_is_always_slow():
    slow = replace(QUIET, slow={3: (0.001, 0.1, 0.5)})
    for iteration in both(slow):
        assert iteration.parts["t_rollout"] == pytest.approx(0.1 + 0.02 / 4)
        assert iteration.parts["t_learn"] == pytest.approx(0.06 + 0.03 / 4)
        assert iteration.parts["t_sync"] == pytest.approx((0.02 + 0.03) * 3 / 4)


def test_all_wait_while_rank_0_writes():
    for iteration in both(replace(QUIET, writer_s=0.008)):
        assert iteration.parts["t_other"] == pytest.approx(0.003 + 0.002)
        assert iteration.parts["t_sync"] == pytest.approx(0.006)


def test_work_that_runs_through_is_waited_for_in_turns_and_longer_work_takes_longer_itself():
    # Three ranks a core. A minibatch of 2 ms runs through: 3 * 2 * 2 ms are waited; a rollout of 0.1 s takes, but for a
    # turn of 3 ms of it, three times as long, and 2 * 3 ms are waited.
    crowded = replace(QUIET, minibatch=Work(0.002, 0.0))
    for iteration in both(crowded, replace(LOAD, cores=4 / 3)):
        assert iteration.parts["t_learn"] == pytest.approx(0.006)
        assert iteration.parts["t_rollout"] == pytest.approx(0.1 * (1 + 2 * 0.97))
        assert iteration.parts["t_sync"] == pytest.approx(0.012 + 0.006)


def test_parts_add_up_to_the_iteration_of_every_rank():
    noisy = replace(QUIET, late_light=0.2, jitter_s=0.001, writer_s=0.01)
    times = simulate(noisy, LOAD, 20, common_cv=0.1).times
    np.testing.assert_allclose(sum(times[p] for p in PARTS), times["t_iter"])


@pytest.mark.parametrize("world_size", [2, 8, 64])
def test_formula_and_simulation_agree_within_two_percent(world_size):
    noisy = replace(QUIET, late_light=0.2, jitter_s=0.001, waiting_turn_s=0.0004)
    load = replace(LOAD, world_size=world_size, cores=world_size / 2)
    by_formula, simulated = noisy.expected(load), simulate(noisy, load, 1500, common_cv=0.1).mean
    assert by_formula.fps == pytest.approx(simulated.fps, rel=0.02)
    for part in PARTS:
        assert by_formula.parts[part] == pytest.approx(simulated.parts[part], rel=0.05)


def test_the_same_seed_simulates_the_same_iterations():
    noisy = replace(QUIET, late_light=0.2)
    first, same, other = (simulate(noisy, LOAD, 3, seed=seed).times["t_iter"] for seed in (7, 7, 8))
    assert (first == same).all()
    assert (first != other).any()
