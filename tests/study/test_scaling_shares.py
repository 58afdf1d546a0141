"""Whatever the times are, the shares of the loss add up to it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddppo.statistics import median
from ddppo.study.explain.accounting import accounts
from ddppo.study.measure.speedup import first_reaching, study
from ddppo.study.read.record import PARTS, Evaluation, Run

SECONDS = st.floats(1e-4, 100.0)


@st.composite
def runs(draw, world_size, seed, steps):
    """A run whose ranks, iterations and wall clock take arbitrary times."""
    shape = (draw(st.integers(1, 3)), world_size)
    times = {
        part: np.array(
            draw(st.lists(SECONDS, min_size=shape[0] * world_size, max_size=shape[0] * world_size))
        )
        for part in PARTS
    }
    times = {part: values.reshape(shape) for part, values in times.items()}
    times["t_iter"] = sum(times.values())
    fps = steps / (float(times["t_iter"].mean()) * draw(st.floats(0.8, 1.2)))
    nan = float("nan")
    return Run(f"{world_size}/{seed}", "Task-v0", world_size, seed, "strong", 8, 10, 1, 1, 1, draw(st.integers(1, 8)),
               steps, 1.0, fps, nan, nan, times, np.full(shape[0], steps), ())  # fmt: skip


@settings(max_examples=60)
@given(st.data())
def test_shares_add_up_to_the_loss(data):
    steps = {w: data.draw(st.integers(1, 1000)) for w in (1, 2, 4)}
    drawn = [
        data.draw(runs(w, seed, steps[w])) for w in steps for seed in range(data.draw(st.integers(1, 3)))
    ]
    for account in accounts(study(drawn)):
        assert sum(account.shares.values()) == pytest.approx(
            account.loss, abs=1e-9 * max(1, abs(account.loss))
        )
        assert account.shares["cores"] >= 0


@settings(max_examples=60)
@given(st.data())
def test_only_what_the_clock_does_not_cover_is_unexplained(data):
    drawn = [data.draw(runs(w, 0, 80)) for w in (1, 2)]
    (account,) = accounts(study(drawn))
    wall = [float(run.steps.mean()) / run.fps for run in drawn]
    outside = [
        t - sum(float(run.times[part].mean()) for part in PARTS) for t, run in zip(wall, drawn, strict=True)
    ]
    expected = (outside[1] - outside[0] / 2) / wall[1]
    assert account.unexplained == pytest.approx(expected, abs=1e-9 * (1 + wall[0] / wall[1]))


@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(float("inf"))), min_size=1))
def test_a_median_is_the_middle_of_the_sorted_values(values):
    middle = sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]
    assert median(values) == pytest.approx(sum(middle) / len(middle))


@given(st.lists(st.floats(-100, 100), max_size=20), st.floats(-100, 100))
def test_nothing_before_the_first_reaching_point_is_at_the_target(scores, target):
    curve = [Evaluation(i, float(i), score) for i, score in enumerate(scores)]
    reached = first_reaching(curve, target)
    before = scores if reached is None else scores[: reached.env_steps]
    assert all(score < target for score in before)
    assert reached is None or reached.return_mean >= target
