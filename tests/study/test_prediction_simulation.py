from dataclasses import replace

import numpy as np
import pytest

from ddppo.study.predict.iteration import Preemption, System, expected
from ddppo.study.predict.order_statistics import lognormal
from ddppo.study.predict.simulate import simulate, stop_steps
from ddppo.study.runs import PARTS

QUIET = System(
    world_size=4,
    rollout_steps=10,
    local_num_envs=2,
    step_s=0.01,
    num_segments=3,
    segment_s=0.02,
    sum_s=0.001,
    gathers_s=0.002,
    other_s=0.003,
)


def test_without_noise_an_iteration_is_the_sum_of_its_parts():
    # 10 * 0.01 + 3 * 0.02 + 3 * 0.001 + 0.002 + 0.003
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
    slow = replace(QUIET, slow_step_s={3: 0.002})
    for iteration in (expected(slow), simulate(slow, 2).mean):
        assert iteration.parts["t_rollout"] == pytest.approx(0.1 + 0.02 / 4)
        assert iteration.parts["t_sync"] == pytest.approx(0.02 * 3 / 4)


def test_all_wait_while_rank_0_writes():
    writing = replace(QUIET, writer_s=0.008)
    for iteration in (expected(writing), simulate(writing, 2).mean):
        assert iteration.parts["t_other"] == pytest.approx(0.003 + 0.002)
        assert iteration.parts["t_sync"] == pytest.approx(0.006)


def test_two_slow_ranks_and_a_writing_one_among_noisy_ones():
    system = replace(QUIET, noise=lognormal(0.1), slow_step_s={2: 0.001, 3: 0.002}, writer_s=0.015)
    assert expected(system).t_iter == pytest.approx(simulate(system, 3000).mean.t_iter, rel=0.005)


def test_parts_add_up_to_the_iteration_of_every_rank():
    noisy = replace(QUIET, noise=lognormal(0.2), jitter_s=0.001, step_cv=0.3, common_cv=0.1, writer_s=0.01)
    times = simulate(noisy, 20).times
    np.testing.assert_allclose(sum(times[p] for p in PARTS), times["t_iter"])


def test_formula_and_simulation_agree_within_two_percent():
    noisy = replace(
        QUIET,
        world_size=64,
        noise=lognormal(0.2),
        jitter_s=0.001,
        queue_s=0.002,
        common_cv=0.1,
        writer_s=0.01,
    )
    by_formula, simulated = expected(noisy), simulate(noisy, 1500).mean
    assert by_formula.fps == pytest.approx(simulated.fps, rel=0.02)
    for part in PARTS:
        assert by_formula.parts[part] == pytest.approx(simulated.parts[part], rel=0.05)


def test_formula_and_simulation_agree_on_noise_of_single_steps():
    noisy = replace(QUIET, world_size=32, rollout_steps=64, step_cv=0.5)
    assert expected(noisy).fps == pytest.approx(simulate(noisy, 500).mean.fps, rel=0.02)


def test_ranks_that_see_enough_others_done_stop_after_their_step():
    # Ranks need 1, 1.1 and 3 s a step for 4 steps. With a share of 2/3 the signal is rank 1's end at 4.4 s; rank 2 is
    # in its second step, which ends at 6 s.
    ends = np.cumsum(np.tile([1.0, 1.1, 3.0], (4, 1)), axis=0)
    assert stop_steps(ends, Preemption(share=2 / 3)).tolist() == [4, 4, 2]
    assert stop_steps(ends, Preemption(share=2 / 3, min_share=0.75)).tolist() == [4, 4, 3]
    assert stop_steps(ends, Preemption(share=1.0)).tolist() == [4, 4, 4]
    assert stop_steps(ends, None).tolist() == [4, 4, 4]


def test_preemption_cuts_off_a_rank_that_is_ten_times_slower():
    # Others end at 0.1 s; the slow rank's steps at 0.1, 0.2, ...: it stops after 3 (min_share 0.25 of 10), at 0.3 s.
    slow = replace(QUIET, slow_step_s={0: 0.09}, preemption=Preemption(0.6))
    preempted = simulate(slow, 1)
    assert preempted.steps.tolist() == [(3 * 10 + 3) * 2]
    assert preempted.times["t_rollout"].max() == pytest.approx(0.3)
    assert preempted.fps > 2 * simulate(replace(slow, preemption=None), 1).fps


def test_what_the_formula_cannot_do_is_refused():
    with pytest.raises(ValueError, match="simulate"):
        expected(replace(QUIET, preemption=Preemption()))


def test_a_share_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"preemption=1\.5"):
        Preemption(1.5)


def test_the_same_seed_simulates_the_same_iterations():
    noisy = replace(QUIET, noise=lognormal(0.2))
    assert (simulate(noisy, 3, seed=7).times["t_iter"] == simulate(noisy, 3, seed=7).times["t_iter"]).all()
    assert (simulate(noisy, 3, seed=7).times["t_iter"] != simulate(noisy, 3, seed=8).times["t_iter"]).any()
