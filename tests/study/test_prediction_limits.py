"""Limits and invariances of the formulas and the simulation, against slower ways to the same numbers."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddppo.study.predict import collective_cost
from ddppo.study.predict.fitting import nnls
from tests.study.test_prediction_simulation import LOAD, QUIET

WORLD_SIZES = (1, 2, 3, 4, 8, 16, 64, 256, 1024)


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


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.01), st.floats(1, 100))
def test_waiting_grows_with_w_and_begins_at_nothing(light, heavy, jitter, cores):
    parameters = replace(QUIET, late_light=light, late_heavy=heavy, jitter_s=jitter)
    loads = [replace(LOAD, world_size=w, cores=cores) for w in WORLD_SIZES]
    waits = [parameters.expected(load).parts["t_sync"] for load in loads]
    assert waits[0] == 0.0
    assert all(a <= b + 1e-12 for a, b in pairwise(waits))


@given(st.integers(1, 1024), st.floats(1, 1e9), st.floats(0, 1e-2), st.floats(0, 1e-6))
def test_no_all_reduce_beats_the_bounds_of_latency_and_bandwidth(world_size, num_bytes, latency_s, byte_s):
    # At least ceil(log2 W) messages one after the other, and 2 (W - 1) / W n bytes: Chan et al. 2007, lower bounds.
    messages = int(np.ceil(np.log2(world_size)))
    bound = max(messages * latency_s, 2 * (world_size - 1) / world_size * num_bytes * byte_s)
    seconds = collective_cost.ring(world_size, num_bytes).seconds(latency_s, byte_s)
    assert seconds >= bound * (1 - 1e-12)


@pytest.mark.parametrize("name", ["gather", "ring", "shared_memory"])
def test_collectives_do_not_get_cheaper_with_w(name):
    seconds = [getattr(collective_cost, name)(w, 1e5).seconds(1e-5, 1e-9) for w in WORLD_SIZES]
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
