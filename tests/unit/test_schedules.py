"""Schedules of coefficients: their values, how they are written, and that every step learns by them."""

import math
import re

import pytest

from ddppo.config.algorithm_settings import PPOSettings, ReinforceSettings
from ddppo.config.schedules import Schedule, check_schedule
from ddppo.errors import ConfigError, TrainingError
from tests.unit import test_learner
from tests.unit.test_learner import means, rollout

HERE = "tests.unit.test_schedules"


def to_the_power(done, start, power=2):
    return start * (1 - done) ** power


def below_zero(done, start):
    return -1.0


@pytest.mark.parametrize(
    ("given", "expected"),  # at 0, 1/4, 1/2, 3/4 of total_steps, from 8
    [
        ("none", [8, 8, 8, 8]),
        ("linear", [8, 6, 4, 2]),
        ("cosine", [8, 4 + 4 / math.sqrt(2), 4, 4 - 4 / math.sqrt(2)]),
        ({"shape": "linear", "to": 4.0}, [8, 7, 6, 5]),
        ({"shape": "linear", "until": 0.5}, [8, 4, 0, 0]),
        ({"shape": "none", "warmup": 0.5}, [0, 4, 8, 8]),
        ({"shape": "cosine", "warmup": 0.25, "until": 0.75, "to": 2.0}, [0, 8, 5, 2]),
        ([[0, 3.0], [0.5, 1.0]], [3, 2, 1, 1]),
        ([[0, 3.0], [0.5, 3.0], [0.5, 1.0]], [3, 3, 1, 1]),  # a jump halfway
        ([[0.25, 5.0]], [5, 5, 5, 5]),
        (f"{HERE}:to_the_power", [8, 4.5, 2, 0.5]),
        ({"path": f"{HERE}:to_the_power", "power": 1}, [8, 6, 4, 2]),
    ],
)
def test_a_schedule_gives_a_value_for_the_share_of_total_steps_that_is_done(given, expected):
    check_schedule("ppo.lr_schedule", given, 8.0)
    schedule, doubled = (
        Schedule("ppo.lr_schedule", given, 8.0),
        Schedule("ppo.lr_schedule", given, 8.0, scale=2.0),
    )
    shares = [0.0, 0.25, 0.5, 0.75]
    assert [schedule.at(done) for done in shares] == pytest.approx(expected)
    assert [doubled.at(done) for done in shares] == pytest.approx([2 * x for x in expected])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("liner", "must be one of none, linear, cosine (did you mean linear"),
        (0.5, "a schedule is none, linear or cosine"),
        ([[0, 1.0], [2, 0.0]], "shares that rise from 0 to 1"),
        ([[0.5, 1.0], [0.2, 0.0]], "shares that rise from 0 to 1"),
        ([], "shares that rise from 0 to 1"),
        ([0, 1.0], "points are [share of total_steps, value]"),
        ([[0, -1.0]], "values must be at least 0"),
        ({"shape": "cosin"}, "shape must be one of none, linear, cosine (did you mean cosine"),
        ({"untill": 1}, "there is no untill (did you mean until"),
        ({"shape": "linear", "until": 2}, "until must be a share of total_steps, from 0 to 1"),
        ({"shape": "linear", "warmup": 0.5, "until": 0.5}, "warmup must end before until"),
        ({"path": "sqrt"}, "path must be an import path like my_pkg.schedules:sqrt"),
    ],
)
def test_what_is_no_schedule_is_named_with_the_rule(given, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_schedule("ppo.clip_schedule", given, 0.2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kl_schedule": "linear"}, "ppo.kl_schedule=linear has no effect without the setting"),
        ({"entropy_schedule": "linear"}, "ppo.entropy_schedule=linear has no effect, for the setting"),
        ({"clip_schedule": "adaptive"}, "ppo.clip_schedule=adaptive: must be one of none, linear, cosine"),
    ],
)
def test_a_schedule_without_a_value_to_schedule_is_a_mistake(settings, said):
    with pytest.raises(ConfigError, match=said):
        PPOSettings(**settings).check()


def test_a_function_that_is_missing_or_wrong_is_named():
    with pytest.raises(ConfigError, match=r"ppo\.lr_schedule=nowhere:sqrt: cannot be imported"):
        Schedule("ppo.lr_schedule", "nowhere:sqrt", 1.0)
    with pytest.raises(TrainingError, match=r"returned -1 for the share 0\.5: it must be a finite number"):
        Schedule("ppo.lr_schedule", f"{HERE}:below_zero", 1.0).at(0.5)


def test_entropy_and_the_kl_target_of_an_update_follow_their_schedules():
    samples = rollout([[1.0], [1.0]], ratio=[[1.05], [1.15]])
    made = test_learner.learner(
        (2, 1), learning_rate=1e-9, entropy_coef=0.1, entropy_schedule="linear", target_kl=1.0, num_epochs=3,
        kl_schedule=[[0, 1.0], [0.5, 1.0], [0.5, 1e-6]], num_minibatches=1,
    )  # fmt: skip
    early, late = made.update(samples, 1, 0.25), made.update(samples, 2, 0.5)
    assert (early.metrics["train/entropy_coef"], early.epochs) == (pytest.approx(0.075), 3)
    assert (late.metrics["train/entropy_coef"], late.epochs) == (pytest.approx(0.05), 1)
    assert late.metrics["train/target_kl"] == 1e-6
    assert "train/clip_coef" not in late.metrics
    assert means(late)["entropy"] == pytest.approx(math.log(2))


def test_another_algorithm_steps_by_its_own_rule_or_by_a_schedule():
    own = ReinforceSettings()
    assert not own.coefficients()["learning_rate"].is_reported
    scheduled = ReinforceSettings(learning_rate=0.5, lr_schedule="cosine").coefficients()["learning_rate"]
    assert (scheduled.is_reported, scheduled.at(0.5)) == (True, pytest.approx(0.25))
    with pytest.raises(
        ConfigError, match=r"algorithm\.lr_schedule=linea: must be one of none, linear, cosine, own"
    ):
        ReinforceSettings(lr_schedule="linea").check()
