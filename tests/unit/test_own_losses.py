"""ppo.losses: terms of a user's own, weighed and reported as PPO's are."""

import pytest
import torch

from ddppo import native
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.variants import settings_of
from ddppo.errors import ConfigError, NonFiniteError
from ddppo.ppo.gradient_check import check_losses
from ddppo.ppo.losses import STATISTICS, statistic_names
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.unit.test_compiled_step import assert_equal, both, made, rollout

in_cpp = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
SPEC = EnvSpec(ArraySpec((4,)), ActionSpec("discrete", (3,)))
HERE = "tests.unit.test_own_losses"


def entropy(samples):
    return -samples.policy.entropy()


def late(samples):
    """Not finite once the policy has moved."""
    moved = samples.policy.log_prob(samples.actions) - samples.old_logprobs
    return samples.values / (0.0 if moved.abs().max() > 0.35 else 1.0)


def everything(samples):
    """Depends on each field that a term may read."""
    moved = samples.policy.log_prob(samples.actions) - samples.old_logprobs
    pulled = (samples.params.square().sum(-1) + samples.values) * samples.advantages.tanh()
    return moved.square() + pulled + samples.obs.sum(-1) * (samples.values - samples.returns)


def pull(samples):
    """Of the values alone."""
    return (samples.values - samples.old_values).square()


def mean(samples):
    return samples.values.mean()


def centred(samples):
    return samples.values - samples.values.mean()


def text(samples):
    return "0"


def fixed(samples):
    return samples.advantages


def failing(samples):
    raise KeyError("camera")


number = 3


def losses(*names, coef=0.5):
    return {name: {"term": f"{HERE}:{name}", "coef": coef} for name in names}


def learned(monkeypatch, **settings):
    learner, model = made(SPEC, PPOSettings(num_epochs=2, **settings), kind="eager", monkeypatch=monkeypatch)
    update = learner.update(rollout(SPEC, model), 1, 0.0)
    return learner.parameters.detach(), update.local_sums / update.num_samples


def test_a_term_that_is_ours_too_does_what_ours_does(monkeypatch):
    ours, our_sums = learned(monkeypatch, entropy_coef=0.5)
    theirs, their_sums = learned(monkeypatch, entropy_coef=0.0, losses=losses("entropy"))
    torch.testing.assert_close(theirs, ours, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(their_sums[: len(our_sums)], our_sums)
    assert their_sums[-1] == pytest.approx(-our_sums[STATISTICS.index("entropy")].item())
    assert statistic_names(PPOSettings(losses=losses("entropy")))[-1] == "loss/entropy"


def test_one_that_is_not_finite_is_named_and_nothing_moves(monkeypatch):
    config = PPOSettings(num_epochs=8, learning_rate=0.1, losses=losses("entropy", "late"))
    learner, model = made(SPEC, config, kind="eager", monkeypatch=monkeypatch)
    with pytest.raises(
        NonFiniteError,
        match=r"^ppo\.losses\.late, a part of the loss of rank 0, is not finite in iteration 1",
    ):
        learner.update(rollout(SPEC, model), 1, 0.0)
    assert learner.parameters.isfinite().all()


@in_cpp
@pytest.mark.parametrize(
    "action", [ActionSpec("discrete", (3,)), ActionSpec("box", (2,))], ids=lambda a: a.kind
)
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_beside_a_step_in_cpp_terms_give_the_eager_steps_parameters_and_sums(
    action, shared_trunk, monkeypatch
):
    spec, model = EnvSpec(ArraySpec((4,)), action), settings_of("model", shared_trunk=shared_trunk)
    own = losses("everything", "pull", coef=0.3)
    assert_equal(both(spec, "native", monkeypatch, model, losses=own, num_minibatches=3))


@in_cpp
def test_beside_a_step_in_cpp_a_term_that_fails_or_is_not_finite_ends_the_update(monkeypatch):
    config = PPOSettings(num_epochs=8, learning_rate=0.1, losses=losses("entropy", "late"))
    learner, model = made(SPEC, config, kind="native", monkeypatch=monkeypatch)
    with pytest.raises(
        NonFiniteError, match=r"^ppo\.losses\.late, a part of the loss of rank 0, is not finite"
    ):
        learner.update(rollout(SPEC, model), 1, 0.0)
    assert learner.parameters.isfinite().all()
    learner, model = made(SPEC, PPOSettings(losses=losses("failing")), kind="native", monkeypatch=monkeypatch)
    with pytest.raises(KeyError, match="camera"):
        learner.update(rollout(SPEC, model), 1, 0.0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mean", r"losses.mean returned a tensor \[\] for 8 samples: it must be \[8\], not reduced"),
        ("text", "losses.text returned a str: it must be a tensor"),
        ("fixed", "losses.fixed.term: returned numbers without a gradient"),
        ("failing", "losses.failing.term: raised KeyError: 'camera'"),
        ("number", "is of type int: it must be a function"),
        ("missing", "cannot be imported: AttributeError"),
    ],
)
def test_what_is_no_term_is_said_before_anything_starts(name, said):
    with pytest.raises(ConfigError, match=said):
        check_losses(losses(name), SPEC, settings_of("model"), torch.float64)


def test_samples_that_mix_are_warned_of():
    assert check_losses(losses("entropy"), SPEC, settings_of("model"), torch.float64) is None
    assert "ppo.losses.centred: a sample's number depends" in check_losses(
        losses("entropy", "centred"), SPEC, settings_of("model"), torch.float64
    )
