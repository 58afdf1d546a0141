"""What ends a rollout early, what is then left of it, and for how many ranks it pays to wait."""

import dataclasses
import math
import time

import numpy as np
import pytest
import torch

from ddppo import native
from ddppo.distributed.topologies.ddp import best_awaited
from ddppo.distributed.topologies.settings import PreemptSettings
from ddppo.ppo.minibatches import local_minibatches, of_first
from ddppo.ppo.rollout import Cut
from ddppo.scaling import BatchShape
from tests.unit import test_native_rollout as of_native
from tests.unit.test_collector import collector as counting_collector
from tests.unit.test_native_rollout import assert_equal


def after(steps):
    """A cut after so many steps, as others have ended theirs long ago."""
    return Cut(np.array([7, 7]), 7, 2, steps, math.inf)


def test_a_rollout_ends_once_enough_others_have_ended_theirs_and_it_has_its_least_steps():
    cells = np.zeros(4, np.int64)
    cut = Cut(cells, number=3, awaited=2, least_steps=5, deadline=math.inf)
    assert not cut(9)
    cells[:3] = 3, 2, 0  # of the iteration before
    assert not cut(9)
    cells[1] = 3
    assert not cut(4)
    assert cut(5)


def test_a_deadline_ends_it_too_but_not_before_its_least_steps():
    cut = Cut(np.zeros(1, np.int64), 1, 1, 5, deadline=time.perf_counter() - 1)
    assert not cut(4)
    assert cut(5)
    assert not dataclasses.replace(cut, deadline=time.perf_counter() + 1000)(6)


@pytest.mark.parametrize(
    ("frac", "world_size", "awaited"), [(0.6, 4, 3), (0.6, 5, 3), (0.4, 4, 2), (0.8, 4, 4), (0.01, 8, 1)]
)
def test_the_share_of_ranks_to_wait_for_is_rounded_up(frac, world_size, awaited):
    assert PreemptSettings(sync_frac=frac, world_size=world_size).awaited_ranks == awaited


def rollouts_of(made, noise, cuts):
    """Rollouts and episodes one after another, each cut after so many steps."""
    found = []
    for steps in cuts:
        made.cut = after(steps)
        rollout, episodes = made.collect(noise[: made.rollout_steps])
        copies = {f.name: getattr(rollout, f.name) for f in dataclasses.fields(rollout)}
        found.append(
            (
                type(rollout)(
                    **{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in copies.items()}
                ),
                episodes,
            )
        )
    return found


def assert_cut_is_short(long, short, noise, steps):
    """A rollout cut after `steps` is that of a collector which never does more, and so is what follows."""
    for (found, ended), (expected, expected_ended) in zip(
        rollouts_of(long, noise, [steps] * 4), rollouts_of(short, noise, [steps] * 4), strict=True
    ):
        assert len(found.rewards) == steps
        assert_equal(found, expected)
        assert [(e.step, e.env_index, e.length) for e in ended] == [
            (e.step, e.env_index, e.length) for e in expected_ended
        ]


@pytest.mark.parametrize("settings", [{}, {"masked": True}, {"next_step": True}], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_cut_rollout_is_the_whole_one_of_so_many_steps(settings, steps):
    long, short = (counting_collector(rollout_steps=n, **settings) for n in (9, steps))
    noise = np.random.default_rng(0).random((9, 2, 1))
    assert_cut_is_short(long, short, noise, steps)


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_a_rollout_in_cpp_is_cut_alike(name):
    env, steps = of_native.TASKS[name], 13
    long, short = (of_native.collector(env, steps=n) for n in (of_native.STEPS, steps))
    assert_cut_is_short(long, short, of_native.noise(long, 1), steps)


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
def test_a_rollout_in_cpp_keeps_to_cells_and_deadlines_too():
    made = of_native.collector(of_native.TASKS["cartpole"])
    noise = of_native.noise(made, 1)
    cells = np.array([3, 3, 4])
    for number, awaited, seconds, expected in (
        (4, 2, math.inf, of_native.STEPS),
        (4, 1, math.inf, 10),
        (3, 3, math.inf, 10),
        (9, 1, -1.0, 10),
        (9, 1, 1000.0, of_native.STEPS),
    ):
        made.cut = Cut(cells, number, awaited, 10, time.perf_counter() + seconds)
        assert len(made.collect(noise)[0].rewards) == expected
    made.cut = None
    assert len(made.collect(noise)[0].rewards) == of_native.STEPS


def test_minibatches_of_a_short_rollout_are_those_of_a_whole_one_without_what_is_missing():
    shape = BatchShape(num_envs=6, rollout_steps=10, world_size=2, num_minibatches=4, num_epochs=1)
    order, bounds = local_minibatches(0, 1, 0, shape, rank=1)
    short, its_bounds = of_first(4 * 3, order, bounds)
    for m in range(4):
        whole = order[bounds[m] : bounds[m + 1]]
        assert short[its_bounds[m] : its_bounds[m + 1]].tolist() == whole[whole < 12].tolist()
    assert sorted(short.tolist()) == list(range(12))


@pytest.mark.parametrize(
    ("step_s", "learn_s", "awaited"),
    [
        ([0.1, 0.1, 0.1, 1.0], 0.0, 3),  # 325 steps in 25 s beside 400 in 100 s
        ([0.1, 0.1, 0.1, 1.0], 1000.0, 4),  # 325 in 1,025 s beside 400 in 1,100 s: learning costs more
        ([0.1, 0.1, 0.1, 0.1], 0.0, 4),
        ([0.1, 0.1, 0.1, 0.105], 10.0, 3),  # 395 in 20 s beside 400 in 20.5 s
        ([0.1, 0.1, 0.1, 0.105], 100.0, 4),
        ([0.1, 1.0, 1.0, 1.0], 0.0, 1),  # 100 + 3 * 25 in 25 s beside 400 in 100 s
    ],
)
def test_the_throughput_rule_waits_for_as_many_as_brings_most_steps_a_second(step_s, learn_s, awaited):
    found = best_awaited(np.array([step_s]), np.array([learn_s]), steps=100, least_steps=25, cap_s=math.inf)
    assert found == awaited


def test_the_throughput_rule_judges_by_all_iterations_that_it_remembers():
    step_s = np.full((4, 4), 0.1)
    step_s[np.arange(4), np.arange(4)] = 1.0  # another one is late each time
    how = {"steps": 100, "least_steps": 25, "cap_s": math.inf}
    assert best_awaited(step_s, np.zeros(4), **how) == 3
    capped = best_awaited(
        np.array([[0.1, 0.1, 0.1, 9.0]]), np.zeros(1), **how | {"least_steps": 1, "cap_s": 5.0}
    )
    assert capped == 4  # the cap ends all alike
