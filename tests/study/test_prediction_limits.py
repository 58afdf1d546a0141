"""Limits and invariances of the formulas and the simulation, against slower ways to the same numbers."""

import heapq
from dataclasses import replace
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddppo.study.predict import collective_cost
from ddppo.study.predict.iteration import Preemption, System, expected
from ddppo.study.predict.least_squares import nnls
from ddppo.study.predict.order_statistics import lognormal
from ddppo.study.predict.simulate import simulate, stop_steps

WORLD_SIZES = (1, 2, 3, 4, 8, 16, 64, 256, 1024)
SYSTEM = System(
    world_size=8, rollout_steps=16, local_num_envs=4, step_s=0.01, num_segments=4, segment_s=0.02, sum_s=0.001
)


def ring_step_by_step(arrivals, num_steps, step_s):
    """When each rank ends a ring: a step begins once a rank ended its last one and its neighbour sent to it."""
    now = np.array(arrivals)
    for _ in range(num_steps):
        now = np.maximum(now, np.roll(now, 1)) + step_s
    return now


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_after_a_ring_all_ranks_have_waited_for_the_last(arrivals):
    world_size = len(arrivals)
    for num_steps in (world_size - 1, 2 * (world_size - 1)):
        ends = ring_step_by_step(arrivals, num_steps, 0.1)
        np.testing.assert_allclose(ends, max(arrivals) + num_steps * 0.1)


def stop_steps_by_events(durations, share, min_share):
    """The slow oracle: one event per step, in the order of their ends; ranks look around at each of their own."""
    num_steps, world_size = durations.shape
    events = [(durations[0, r], r, 1) for r in range(world_size)]
    heapq.heapify(events)
    stopped: dict[int, int] = {}
    while events:
        now, r, done = heapq.heappop(events)
        enough = done >= min_share * num_steps and len(stopped) >= share * world_size
        if done == num_steps or enough:
            stopped[r] = done
        else:
            heapq.heappush(events, (now + durations[done, r], r, done + 1))
    return [stopped[r] for r in range(world_size)]


@given(
    seed=st.integers(0, 10_000),
    world_size=st.integers(2, 9),
    num_steps=st.integers(1, 12),
    share=st.sampled_from((0.25, 0.5, 0.6, 0.9, 1.0)),
    min_share=st.sampled_from((0.0, 0.25, 0.5)),
)
def test_preemption_stops_ranks_as_an_event_queue_does(seed, world_size, num_steps, share, min_share):
    durations = np.random.default_rng(seed).lognormal(0, 0.7, (num_steps, world_size))
    stopped = stop_steps(np.cumsum(durations, axis=0), Preemption(share, min_share))
    assert stopped.tolist() == stop_steps_by_events(durations, share, min_share)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), share=st.floats(0.1, 1.0), cv=st.floats(0.0, 1.0))
def test_preemption_shortens_iterations_and_loses_steps(seed, share, cv):
    system = replace(SYSTEM, noise=lognormal(cv))
    whole = simulate(system, 3, seed)
    cut = simulate(replace(system, preemption=Preemption(share)), 3, seed)
    assert (cut.times["t_iter"] <= whole.times["t_iter"] + 1e-12).all()
    assert (cut.steps <= whole.steps).all()
    assert (cut.steps >= 0.25 * whole.steps).all()


@settings(max_examples=25, deadline=None)
@given(cv=st.floats(0.0, 1.0), jitter=st.floats(0.0, 0.01))
def test_waiting_grows_with_w_and_begins_at_nothing(cv, jitter):
    def wait(world_size):
        return expected(replace(SYSTEM, world_size=world_size, noise=lognormal(cv), jitter_s=jitter)).parts[
            "t_sync"
        ]

    waits = [wait(w) for w in WORLD_SIZES]
    assert waits[0] == 0.0
    assert all(a <= b + 1e-12 for a, b in pairwise(waits))


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_waiting_grows_with_the_spread(a, b):
    low, high = sorted((a, b))
    assert lognormal(low).expected_max(64) <= lognormal(high).expected_max(64) + 1e-9


@pytest.mark.parametrize("world_size", [2, 4, 16])
def test_the_expected_maximum_of_a_coin_with_two_sides_is_worked_by_hand(world_size):
    # 1 with probability 3/4, 2 with 1/4: E[max] = 2 - (3/4)^W.
    noise = lognormal(0.0).with_stragglers(0.25, 2.0)
    assert noise.expected_max(world_size) == pytest.approx(2 - 0.75**world_size, rel=2e-3)


@pytest.mark.parametrize(("world_size", "share"), [(4, 0.5), (8, 0.6), (16, 0.25)])
def test_a_preempted_iteration_lasts_as_long_as_the_order_statistic(world_size, share):
    # With many short steps all stop when rank k = ceil(share W) ends: E[X_(k)], P(X_(k) <= x) by binomial sums.
    noise = lognormal(0.3)
    k = int(np.ceil(share * world_size))
    x = np.linspace(0.1, 4.0, 4000)
    cdf = noise._cdf(x)
    below = sum(
        comb(world_size, j) * cdf**j * (1 - cdf) ** (world_size - j) for j in range(k, world_size + 1)
    )
    order_statistic = 0.1 + float(((1 - below)[:-1] * np.diff(x)).sum())
    system = System(
        world_size=world_size,
        rollout_steps=400,
        local_num_envs=1,
        step_s=1 / 400,
        num_segments=1,
        segment_s=0.0,
        noise=noise,
        preemption=Preemption(share, min_share=0.0),
    )
    assert simulate(system, 600).mean.t_iter == pytest.approx(order_statistic, rel=0.02)


@settings(max_examples=10, deadline=None)
@given(
    world_size=st.sampled_from((2, 8, 32)),
    cv=st.floats(0.0, 0.5),
    writer=st.floats(0.0, 0.05),
    slow=st.floats(0.0, 0.01),
)
def test_formula_and_simulation_agree_within_two_percent(world_size, cv, writer, slow):
    system = replace(
        SYSTEM,
        world_size=world_size,
        noise=lognormal(cv),
        writer_s=writer,
        slow_step_s={1: slow},
        jitter_s=0.001,
    )
    assert expected(system).fps == pytest.approx(simulate(system, 1500).mean.fps, rel=0.02)


@given(st.integers(1, 1024), st.floats(1, 1e9), st.floats(0, 1e-2), st.floats(0, 1e-6))
def test_no_all_reduce_beats_the_bounds_of_latency_and_bandwidth(world_size, num_bytes, latency_s, byte_s):
    # At least ceil(log2 W) messages one after the other, and 2 (W - 1) / W n bytes: Chan et al. 2007, lower bounds.
    messages = int(np.ceil(np.log2(world_size)))
    bound = max(messages * latency_s, 2 * (world_size - 1) / world_size * num_bytes * byte_s)
    for name in ("ring", "tree", "double_tree", "halving_doubling"):
        seconds = collective_cost.ALGORITHMS[name](world_size, num_bytes).seconds(latency_s, byte_s)
        assert seconds >= bound * (1 - 1e-12)


@pytest.mark.parametrize("name", collective_cost.ALGORITHMS)
def test_collectives_do_not_get_cheaper_with_w(name):
    seconds = [collective_cost.ALGORITHMS[name](w, 1e5).seconds(1e-5, 1e-9) for w in WORLD_SIZES]
    assert seconds[0] == 0.0
    assert all(a <= b + 1e-15 for a, b in pairwise(seconds))


@given(st.integers(0, 10_000))
def test_least_squares_is_no_worse_than_any_other_coefficients(seed):
    rng = np.random.default_rng(seed)
    columns, y = rng.normal(size=(2, 5)), rng.normal(size=5)
    sigma = rng.uniform(0.5, 2, size=5)
    x = nnls(list(columns), y, sigma)
    assert (x >= 0).all()

    def error(c):
        return (((c @ columns - y) / sigma) ** 2).sum()

    for other in rng.exponential(size=(50, 2)) * rng.integers(0, 2, size=(50, 2)):
        assert error(x) <= error(other) + 1e-9
