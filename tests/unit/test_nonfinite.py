"""What is not finite changes nothing where it is to be skipped, whatever takes the step; and is counted and bounded."""

import math

import pytest
import torch

from ddppo import native
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.errors import NonFiniteError
from ddppo.ppo.nonfinite import NonFiniteGuard
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.unit import test_learner
from tests.unit.test_compiled_step import made, rollout

SPEC = EnvSpec(ArraySpec((4,)), ActionSpec("discrete", (3,)))


@pytest.fixture(params=["eager", "native", "torch"])
def learner_and_model(request, monkeypatch):
    if request.param == "native" and (why := native.why_not()):
        pytest.skip(why)
    config = PPOSettings(num_epochs=2, num_minibatches=2, learning_rate=1e-2, lr_schedule="none")
    learner, model = made(SPEC, config, kind=request.param, monkeypatch=monkeypatch)
    learner.guard = NonFiniteGuard("skip_batch", most=2)
    return learner, model


def spoiled(samples, row=-1):
    """The rollout with one reward that is NaN, in the last row: whatever minibatch it is in, others come before."""
    samples.rewards[row, 0] = math.nan
    samples.valid[row, 0] = True
    return samples


def test_a_batch_that_is_skipped_leaves_all_as_if_it_had_not_been_there(learner_and_model):
    learner, model = learner_and_model
    samples = rollout(SPEC, model)
    learner.update(samples, 1, 0.0)
    before = [
        x.clone() for x in (learner.parameters.data, *learner.optimizer.state[learner.parameters].values())
    ]
    update = learner.update(spoiled(rollout(SPEC, model)), 2, 0.0)
    after = [learner.parameters.data, *learner.optimizer.state[learner.parameters].values()]
    assert all(torch.equal(x, y) for x, y in zip(after, before, strict=True))
    assert (update.steps, update.epochs, update.num_samples) == (0, 0, 0)
    assert update.metrics["train/skipped_batches"] == 1
    assert not update.local_sums.any()
    assert math.isnan(update.grad_norm)
    assert learner.update(samples, 3, 0.0).metrics["train/skipped_batches"] == 1
    assert not torch.equal(learner.parameters.data, before[0])
    assert learner.guard.state() == [1, 0, 0]


def test_too_many_in_a_row_are_the_end_and_the_parameters_stay_finite(learner_and_model):
    learner, model = learner_and_model
    learner.update(spoiled(rollout(SPEC, model)), 1, 0.0)
    learner.update(rollout(SPEC, model), 2, 0.0)
    for iteration in (3, 4):
        learner.update(spoiled(rollout(SPEC, model)), iteration, 0.0)
    with pytest.raises(NonFiniteError, match="2 batches in a row were skipped before"):
        learner.update(spoiled(rollout(SPEC, model)), 5, 0.0)
    assert learner.parameters.isfinite().all()
    assert learner.guard.skipped == 3


def test_normalisers_forget_a_batch_that_was_skipped():
    obs_normalizer = ObsNormalizer(ArraySpec((1,)), torch.device("cpu"), torch.float64)
    reward_normalizer = RewardNormalizer(1, 0.9, torch.device("cpu"))
    made = test_learner.learner((2, 1), obs_normalizer=obs_normalizer, reward_normalizer=reward_normalizer)
    made.guard = NonFiniteGuard("skip_batch")
    bad = test_learner.rollout([[1.0], [1.0]], ratio=[[1.0], [math.nan]], obs=[[3.0], [5.0]])
    made.update(bad, 1, 0.0)
    assert not obs_normalizer.state.any()
    assert not reward_normalizer.state.any()
    obs = torch.tensor([[7.0]], dtype=torch.float64)
    assert torch.equal(obs_normalizer(obs), obs)
    made.update(test_learner.rollout([[1.0], [2.0]], obs=[[3.0], [5.0]]), 2, 0.0)
    known = obs_normalizer.state.clone()
    made.update(bad, 3, 0.0)
    assert torch.equal(obs_normalizer.state, known)
    assert obs_normalizer(obs).item() == pytest.approx(3.0)


def test_parameters_that_a_finite_gradient_made_infinite_are_found_before_anything_is_saved():
    model = test_learner.Constant()
    model.logits.data.fill_(1.7e308)
    made = test_learner.learner((2, 1), model, learning_rate=1e308)
    with pytest.raises(
        NonFiniteError, match=r"^a parameter or normaliser, though no gradient, is not finite in iteration 4"
    ):
        made.update(test_learner.rollout([[1.0], [3.0]], actions=[[0], [1]]), 4, 0.0)


def test_every_way_back_makes_steps_smaller():
    made = test_learner.learner((2, 1), lr_schedule="none", learning_rate=0.1)
    made.guard = NonFiniteGuard("restore", factor=0.5, restored=2)
    update = made.update(test_learner.rollout([[1.0], [3.0]]), 1, 0.0)
    assert update.learning_rate == pytest.approx(0.025)
    assert update.metrics["train/restores"] == 2
    assert made.parameters.abs().max().item() == pytest.approx(
        0.025, rel=1e-3
    )  # Adam's first step is its step size
