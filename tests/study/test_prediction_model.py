"""The model is fitted to runs that the simulator made with known parameters."""

from dataclasses import replace

import numpy as np
import pytest

from ddppo.errors import ConfigError
from ddppo.study.predict.collective_cost import gather
from ddppo.study.predict.fitting import nnls
from ddppo.study.predict.model import WhatIf, fit
from ddppo.study.predict.parameters import CostParameters, Work
from ddppo.study.predict.points import points
from ddppo.study.read.record import PARTS, Origin, Run
from tests.study.simulation import simulate

TRUTH = CostParameters(
    step=Work(200e-6, 50e-6),
    minibatch=Work(500e-6, 5e-6),
    call_s=20e-6,
    latency_s=40e-6,
    byte_s=2e-9,
    other_s=300e-6,
    late_light=0.15,
)


def make_run(
    truth=TRUTH,
    *,
    world_size,
    rule="strong",
    num_parameters=10_000,
    cores=64,
    iterations=60,
    seed=0,
    **config,
):
    """Return a run that `truth` would have made: 16 environments (of all ranks, or of one), 32 steps, K = M = 4."""
    num_envs = 16 if rule == "strong" else 16 * world_size
    run = Run(
        path=f"{world_size}/{seed}",
        env_id="CartPole-v1",
        world_size=world_size,
        seed=seed,
        rule=rule,
        num_envs=num_envs,
        rollout_steps=32,
        num_epochs=4,
        num_minibatches=4,
        num_parameters=num_parameters,
        cores=cores,
        env_steps=num_envs * 32 * iterations,
        wall_s=1.0,
        fps=1.0,
        final_return=float("nan"),
        target_return=float("nan"),
        times={p: np.ones((2, world_size)) for p in ("t_iter", *PARTS)},
        steps=np.full(2, float(num_envs * 32)),
        evaluations=(),
        config=config,
    )
    (point,) = points([run])  # what it has to do
    made = simulate(truth, point.load, iterations, seed=100 * world_size + seed, common_cv=0.1)
    return replace(run, times=made.times, steps=made.steps, fps=made.fps)


def make_runs(world_sizes, seeds=2, **settings):
    return [make_run(world_size=w, seed=s, **settings) for w in world_sizes for s in range(seeds)]


def whole_episodes(run, length):
    """Return the run as one whose iterations are whole episodes of `length` steps, of at most the run's T."""
    return replace(run, whole_episodes=True, steps=np.full(2, float(run.num_envs * length)))


def test_the_load_of_whole_episodes_is_all_environments_and_the_mean_length_of_episodes():
    runs = [whole_episodes(make_run(world_size=w), 8) for w in (1, 2)]
    of_one, of_two = points(runs)
    assert (of_one.load.local_num_envs, of_one.load.rollout_steps) == (16, 8)
    assert (of_two.load.local_num_envs, of_two.load.rollout_steps) == (8, 8)
    model = fit(runs, replicates=2)
    assert model.shape(4).num_envs == 16
    assert model._load(4, WhatIf()).local_batch_size == 4 * 8
    assert model._load(4, WhatIf(rollout_steps=10)).local_batch_size == 4 * 10
    assert not model.divides(32)  # with steps, 32 ranks would have rollouts of half the length
    with pytest.raises(
        ConfigError, match=r"W=32 exceeds the 16 environments.*use at most 16, or num_envs=32"
    ):
        model.shape(32)


def test_parameters_are_recovered():
    fitted = fit(make_runs((1, 2, 4, 8)), replicates=2).parameters
    assert fitted.step.fixed_s == pytest.approx(TRUTH.step.fixed_s, rel=0.15)
    assert fitted.step.unit_s == pytest.approx(TRUTH.step.unit_s, rel=0.1)
    assert fitted.minibatch.fixed_s == pytest.approx(TRUTH.minibatch.fixed_s, rel=0.01)
    assert fitted.minibatch.unit_s == pytest.approx(TRUTH.minibatch.unit_s, rel=0.01)
    assert fitted.call_s == pytest.approx(TRUTH.call_s, rel=0.1)
    # With 40 kB at 2 ns a byte in 16 of 18 collectives, of which 1 ns is assumed: 40 us and as many taken for latency.
    assert fitted.latency_s == pytest.approx(40e-6 + 40e-6 * 16 / 18, rel=0.01)
    assert fitted.other_s == pytest.approx(TRUTH.other_s, rel=0.01)
    assert fitted.late_light + 0.4 * fitted.late_heavy == pytest.approx(0.15, rel=0.2)


def test_one_two_and_four_workers_predict_eight_within_five_percent():
    model = fit(make_runs((1, 2, 4)), replicates=20)
    measured = np.mean([r.fps for r in make_runs((8,))])
    (eight,) = model.predict([8])
    assert eight.fps == pytest.approx(measured, rel=0.05)
    assert eight.fps_low <= eight.fps <= eight.fps_high
    assert sum(eight.parts.values()) == pytest.approx(eight.t_iter)


def test_crowded_cores_are_predicted_from_less_crowded_ones():
    truth = replace(TRUTH, turn_s=100e-6, waiting_turn_s=50e-6)
    model = fit(make_runs((1, 2, 4), truth=truth, cores=2), replicates=2)
    measured = np.mean([r.fps for r in make_runs((8,), truth=truth, cores=2)])
    assert model.predict([8])[0].fps == pytest.approx(measured, rel=0.1)


def test_cores_of_their_own_undo_the_crowding():
    # Of waits by chance and waits for turns, both growing with W on a machine, little more than the sum is known.
    truth = replace(TRUTH, turn_s=1e-3, latency_s=1e-6, byte_s=1e-10)
    model = fit(make_runs((1, 2, 4, 8), truth=truth, cores=2), replicates=2)
    free = np.mean([r.fps for r in make_runs((8,), truth=truth, cores=64)])
    assert model.predict([8])[0].fps < 0.6 * free
    assert model.predict([8], WhatIf(cores_per_worker=1))[0].fps == pytest.approx(free, rel=0.2)


def test_turns_on_crowded_cores_are_told_from_latency():
    runs = make_runs((1, 2, 4, 8, 16), truth=replace(TRUTH, turn_s=200e-6), cores=4)
    fitted = fit(runs, replicates=2).parameters
    assert fitted.turn_s == pytest.approx(200e-6, rel=0.05)
    # With 40 kB at 2 ns a byte, of which 1 ns is assumed: 40 us and as many that are taken for latency.
    assert fitted.latency_s == pytest.approx(80e-6, rel=0.1)


def test_ranks_that_have_a_core_each_keep_it_at_w_not_measured():
    # 16 ranks were given the 8 cores of the nearest W, and 54 % of their throughput.
    runs = [run for w in (1, 2, 4, 8) for run in make_runs((w,), cores=w)]
    model = fit(runs, replicates=20)
    (sixteen,) = model.predict([16])
    truth = np.mean([r.fps for r in make_runs((16,), cores=16)])
    assert sixteen.fps == pytest.approx(truth, rel=0.05)
    assert "1 core for each worker" in model.cores_rule
    shared = fit([replace(run, cores=8) for run in runs], replicates=2)
    assert shared.predict([16])[0].fps < 0.8 * truth
    assert "share 8 cores" in shared.cores_rule
    asked = fit([replace(run, cores=8) for run in runs], cores_per_worker=1, replicates=2)
    assert asked.predict([16])[0].fps == pytest.approx(truth, rel=0.05)


def test_slept_environments_do_not_take_turns_on_the_cores():
    sleeping = replace(TRUTH, env_sleep_s=2e-3, env_step_s=2e-3, step=Work(200e-6, 20e-6), late_light=0.001)
    env = {"kwargs": {"step_time_s": 2e-3}}
    runs = [
        replace(r, env_id="ddppo/Synthetic-v0", config={"env": env})
        for r in make_runs((1, 2, 4), truth=sleeping, cores=2)
    ]
    model = fit(runs, replicates=2)
    assert model.parameters.step.unit_s < 100e-6
    assert model.predict([8])[0].parts["t_rollout"] == pytest.approx(32 * (200e-6 + 2 * 2.02e-3), rel=0.05)
    slower = model.predict([8], WhatIf(env_step_s=4e-3))[0]
    assert slower.parts["t_rollout"] == pytest.approx(32 * (200e-6 + 2 * 4.02e-3), rel=0.05)


def test_what_one_world_size_cannot_tell_is_said_and_widens_the_interval():
    few = fit(make_runs((2,)), replicates=40)
    many = fit(make_runs((1, 2, 4)), replicates=40)
    said = " ".join(few.notes)
    assert "the cost of an environment cannot be told apart" in said
    assert "the fixed cost of a minibatch" in said
    assert "the cost of each further rank" in said
    assert few.errors.doubling > 2 * many.errors.doubling  # a law that was never checked
    width = [(p.fps_high - p.fps_low) / p.fps for m in (few, many) for p in m.predict([8])]
    assert width[0] > 2 * width[1]


def test_one_worker_alone_leaves_communication_unknown():
    model = fit(make_runs((1,)), replicates=2)
    assert any("communication and waiting are unknown" in n for n in model.notes)
    assert model.predict([1])[0].speedup == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("slow", [(2e-3, 0.0, 0.0), (0.0, 2.0, 0.0), (0.0, 0.0, 1.0)])
def test_a_rank_that_is_always_slow_is_named_and_can_be_taken_away(slow):
    env = {"slow_ranks": {3: slow[0]} if slow[0] else {}}  # a sleep that was asked for is known
    runs = make_runs((1, 2, 4, 8), truth=replace(TRUTH, slow={3: slow}), env=env)
    model = fit(runs, replicates=2)
    assert model.parameters.slow[3] == pytest.approx(slow, rel=0.15)
    assert any("rank 3" in n for n in model.notes)
    healthy = np.mean([r.fps for r in make_runs((8,))])
    assert model.predict([8], WhatIf(slow_factor=1))[0].fps == pytest.approx(healthy, rel=0.05)


def test_rollouts_stepped_otherwise_are_left_out_and_named():
    runs = [
        replace(run, origin=Origin(env_backend="sync")) for run in make_runs((2, 4), env={"backend": "auto"})
    ]
    alone = replace(make_run(world_size=1, env={"backend": "auto"}), origin=Origin(env_backend="pool"))
    model = fit([alone, *runs], replicates=2)
    assert any("rollouts at W=1 are left out" in n for n in model.notes)
    assert set(model.errors.misfit) == {2, 4}


def test_weak_scaling_keeps_the_batch_of_a_rank():
    model = fit(make_runs((1, 2, 4), rule="weak"), replicates=2)
    assert model.shape(64).local_num_envs == 16
    measured = np.mean([r.fps for r in make_runs((8,), rule="weak")])
    assert model.predict([8])[0].fps == pytest.approx(measured, rel=0.05)


def test_changes_of_the_network_change_only_communication():
    model = fit(make_runs((1, 2, 4)), replicates=2)
    before = model.predict([64], WhatIf(rule="weak"))[0]
    after = model.predict([64], WhatIf(rule="weak", latency_s=400e-6))[0]
    changed = {p for p in PARTS if before.parts[p] != after.parts[p]}
    assert changed == {"t_comm"}


def test_exchanges_cost_what_the_formula_says():
    model = fit(make_runs((1, 2, 4)), replicates=2)
    costly, free = (
        model.predict([4], what_if)[0].parts["t_comm"]
        for what_if in (WhatIf(latency_s=1e-4, bandwidth=1e9), WhatIf(latency_s=0, bandwidth=1e15))
    )
    # 16 sums and 2 gathers, W - 1 = 3 messages each, 40,000 bytes in each of a sum.
    sums = gather(4, 40_000).times(16).seconds(1e-4, 1e-9)
    assert costly - free == pytest.approx(sums + 6e-4, rel=0.02)


def test_more_ranks_than_environments_that_do_not_divide_the_batch_are_refused_with_the_remedy():
    model = fit(make_runs((1, 2)), replicates=2)
    world_size = model.shape(1).batch_size - 1
    with pytest.raises(ConfigError, match="does not divide"):
        model.predict([world_size])
    assert not model.divides(world_size)


def test_ranks_wait_for_those_with_an_environment_more():
    model = fit(make_runs((1, 2, 4)), replicates=2)
    num_envs = model.shape(1).num_envs
    fewer, equal = model.predict([num_envs // 2 + 1, num_envs // 2])
    assert model.shape(num_envs // 2 + 1).local_num_envs == model.shape(num_envs // 2).local_num_envs == 2
    # The first rank has two environments in both worlds, so an iteration takes as long and learns from as much.
    assert fewer.parts["t_rollout"] < equal.parts["t_rollout"]
    both = [p.parts["t_rollout"] + p.parts["t_learn"] + p.parts["t_sync"] for p in (fewer, equal)]
    assert both[0] == pytest.approx(both[1], rel=0.05)
    assert fewer.fps == pytest.approx(equal.fps, rel=0.1)


def test_runs_without_times_cannot_be_fitted():
    whole = make_run(world_size=1)
    unknown = {**whole.times, "t_comm": np.full_like(whole.times["t_comm"], np.nan)}
    for times in ({}, unknown):
        with pytest.raises(ConfigError, match="times of its iterations"):
            fit([replace(whole, times=times)])
    assert any(
        "1 of 2 runs are left out" in n for n in fit([whole, replace(whole, times={})], replicates=2).notes
    )


def test_runs_of_two_tasks_are_refused():
    with pytest.raises(ConfigError, match="one task"):
        fit([make_run(world_size=1), replace(make_run(world_size=2), env_id="Acrobot-v1")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "week"}, "did you mean weak"),
        ({"slow_factor": 0.5}, "at least 1"),
        ({"latency_s": -1.0}, "at least 0"),
    ],
)
def test_a_change_that_cannot_be_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        WhatIf(**change)


def test_least_squares_with_no_negative_coefficient():
    one, x = np.ones(4), np.array([0.0, 1.0, 2.0, 3.0])
    sigma = np.ones(4)
    assert nnls([one, x], 2 + 3 * x, sigma).tolist() == pytest.approx([2, 3])
    # The unconstrained line through these falls; without a slope the mean is best.
    assert nnls([one, x], np.array([3.0, 2.0, 1.0, 0.0]), sigma).tolist() == pytest.approx([1.5, 0])
