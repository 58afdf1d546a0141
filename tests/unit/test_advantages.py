import dataclasses
import math

import pytest
import torch

from ddppo.algorithms.grpo import Reference
from ddppo.errors import TrainingError
from ddppo.models.actor_critic import EvaluateActions
from ddppo.ppo.advantages import Gae, gae
from ddppo.ppo.losses import STATISTICS, statistic_names
from ddppo.ppo.rollout import ENDS
from tests.unit.test_learner import LN2, Constant, learner, means, rollout

GRPO = {"algorithm": "grpo", "group_size": 2}
# Two groups of two rollouts: returns 3 and 1, in three rows and in one; 2 and 2.
REWARDS = [[1.0, 1.0, 2.0, 1.0], [1.0, 9.0, 9.0, 1.0], [1.0, 9.0, 9.0, 9.0]]
VALID = [[True] * 4, [True, False, False, True], [True, False, False, False]]


def grpo(shape=(3, 4), model=None, **settings):
    return learner(shape, model, **{**GRPO, **settings})


def estimates(made, samples):
    return made.estimator(samples, made._scaled_rewards(samples))


def test_all_steps_of_a_rollout_share_the_advantage_that_its_return_has_in_its_group():
    found = estimates(grpo(), rollout(REWARDS, valid=VALID))
    assert found.advantages.tolist() == [[1.0, -1.0, 0.0, 0.0]] * 3
    assert found.weights.tolist() == [[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    assert found.metrics == {
        "rollout/failed": 0.0,
        "rollout/group_return_mean": 2.0,
        "rollout/group_return_std": 0.5,
        "train/groups_without_spread": 0.5,
    }


@pytest.mark.parametrize("scale", [1.0, 0.001])
def test_large_returns_that_differ_by_one_teach_in_float32_as_well(scale):
    """30,000,000 and 30,000,001 are one number in float32, in which all else is computed."""
    told = torch.tensor([[3e7, 3e7, 5.0, 5.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    samples = dataclasses.replace(
        rollout(told.tolist()), rewards=told, logprobs=torch.zeros(2, 4, dtype=torch.float32)
    )
    found = estimates(grpo((2, 4), reward_scale=scale), samples)
    assert found.advantages.dtype == found.weights.dtype == torch.float32
    assert found.advantages[0].tolist() == [1.0, -1.0, 0.0, 0.0]
    assert found.metrics["train/groups_without_spread"] == 0.5


@pytest.mark.parametrize(
    ("token_mean", "gradient"),
    [
        ("tokens", (3 - 1) / 4),
        ("episodes", (1 - 1) / 2),  # each rollout's mean is its advantage
        ("constant", (3 - 1) / 3 / 2),  # sums over 3 rows, over 2 rollouts
    ],
)
def test_the_gradient_is_that_of_the_mean_that_is_asked_for(token_mean, gradient):
    made = grpo(token_mean=token_mean)
    update = made.update(rollout(REWARDS, valid=VALID), 1, 0.0)
    # d(-r A)/d logit_0 = -A / 2 for every step, of which all took action 0
    assert made.parameters.grad.tolist() == pytest.approx([-gradient / 2, gradient / 2, 0.0])
    assert update.steps == 1
    assert means(update)["entropy"] == pytest.approx(LN2)


def test_minibatches_hold_no_step_that_teaches_nothing():
    made = grpo(num_minibatches=3, num_epochs=2)
    update = made.update(rollout(REWARDS, valid=VALID), 1, 0.0)
    assert update.num_samples == 8  # 4 steps, twice
    assert update.epochs == 2


def test_the_value_function_neither_learns_nor_is_told_of():
    model = Constant(value=3.0)
    update = grpo(model=model, learning_rate=0.1).update(rollout(REWARDS, valid=VALID), 1, 0.0)
    assert model.level.item() == 3.0
    assert model.logits[0] != 0.0
    assert update.explained_variance is None


def test_a_failed_rollout_is_compared_with_nobody_and_not_learned_from():
    valid = [[True, False, True, True]] * 3
    found = estimates(
        grpo((3, 4), group_size=4), rollout([[3.0, 99.0, 1.0, 2.0], *[[0.0] * 4] * 2], valid=valid)
    )
    root = math.sqrt(1.5)
    assert found.advantages[0].tolist() == pytest.approx([root, 0.0, -root, 0.0])
    assert found.weights[:, 1].tolist() == [0.0, 0.0, 0.0]
    assert found.metrics["rollout/failed"] == 1.0


def test_an_iteration_without_spread_moves_nothing_and_knows_no_means():
    made = grpo()
    before = made.parameters.detach().clone()
    update = made.update(rollout([[1.0] * 4] * 3), 1, 0.0)
    assert torch.equal(made.parameters.detach(), before)
    assert (update.steps, update.num_samples) == (0, 0.0)
    assert math.isnan(update.grad_norm)
    assert update.metrics["train/groups_without_spread"] == 1.0


def test_one_whose_rollouts_all_failed_does_no_harm_either():
    update = grpo().update(rollout([[1.0] * 4] * 3, valid=False), 1, 0.0)
    assert update.steps == 0
    assert update.metrics == {"rollout/failed": 4.0}


def with_reference(model, **settings):
    made = grpo((1, 2), model, **settings)
    made.reference = Reference(made.parameters, model.distribution, EvaluateActions(model))
    return made


def test_the_divergence_from_the_reference_is_k3_and_pulls_towards_it():
    model = Constant()
    made = with_reference(model, kl_coef=0.5)
    model.logits.data[0] = LN2  # 2/3 and 1/3, where the reference has 1/2
    samples = rollout([[1.0, 1.0]], actions=[[0, 1]])
    samples = dataclasses.replace(samples, logprobs=torch.tensor([[2 / 3, 1 / 3]], dtype=torch.float64).log())

    class Zero(Gae):
        learns_values = False

        def __call__(self, rollout, rewards):
            zero = torch.zeros(1, 2, dtype=torch.float64)
            return dataclasses.replace(
                super().__call__(rollout, rewards), advantages=zero, returns=None, moments=None
            )

    made.estimator = Zero(made.config)
    update = made.update(samples, 1, 0.0)
    expected = (3 / 4 - math.log(3 / 4) - 1) + (3 / 2 - math.log(3 / 2) - 1)
    assert update.local_sums[-1].item() == pytest.approx(expected)
    # d k3 / d logprob = 1 - pi_ref / pi: 1/4 and -1/2; d logprob / d logit_0: 1/3 and -2/3; halved twice
    assert made.parameters.grad.tolist()[0] == pytest.approx(0.5 * (0.25 / 3 + 0.5 * 2 / 3) / 2)


def test_the_reference_stays_what_it_was_and_leaves_the_parameters_what_they_are():
    model = Constant()
    made = with_reference(model, kl_coef=0.1, learning_rate=0.1, num_epochs=3)
    before = made.reference.vector.clone()
    made.update(rollout([[1.0, 2.0]], actions=[[0, 1]]), 1, 0.0)
    assert model.logits[1] > 0
    assert torch.equal(made.reference.vector, before)


def test_over_an_episodes_own_tokens_the_trace_passes_over_what_was_read():
    def column(*numbers, dtype=torch.float64):
        return torch.tensor(numbers, dtype=dtype)[:, None]

    # Own rows 1, 3 and 4; what stands in the others is nobody's.
    own = column(0, 1, 0, 1, 1, 0, dtype=torch.bool)
    ended = column(0, 0, 0, 0, 1, 0, dtype=torch.bool)
    rewards, values = column(7.0, 0.0, 7.0, 1.0, 2.0, 7.0), column(7.0, 0.5, 7.0, 1.0, 1.5, 7.0)
    next_values = column(7.0, 1.0, 7.0, 1.5, 0.0, 7.0)
    found = gae(
        rewards, values, next_values, ended, torch.zeros_like(ended), own,
        gamma=0.5, gae_lambda=0.5, skips_gaps=True,
    )  # fmt: skip
    last = 2.0 - 1.5
    middle = 1.0 + 0.5 * 1.5 - 1.0 + 0.25 * last
    first = 0.0 + 0.5 * 1.0 - 0.5 + 0.25 * middle
    assert found[:, 0].tolist() == [0.0, first, 0.0, middle, last, 0.0]


# -- The loss of GRPO: settings of the ratio and of its clipping.


def one_group(*rows, rewards, valid, ended_by=None, **more):
    """Two rollouts of one group, `[T, 2]`, with the ratios of current to collecting policy in `rows`."""
    samples = rollout(rewards, ratio=torch.tensor(rows, dtype=torch.float64), valid=valid, **more)
    places = (
        None if ended_by is None else torch.tensor([ENDS.index(word) for word in ended_by], dtype=torch.int8)
    )
    return dataclasses.replace(samples, ended_by=places)


SEQUENCE = {"ratio": "sequence", "token_mean": "episodes", "scale_by": "none", "clip_coef": 0.2}


def test_a_rollout_has_one_ratio_and_one_clipping_if_asked():
    """Returns 1 and 0: advantages .5 and -.5. Rollout 0 has a step of ratio 1.5, rollout 1 two of 2 and 1/2: s = 1."""
    made = grpo((2, 2), group_size=2, **SEQUENCE)
    valid = torch.tensor([[True, True], [False, True]])
    samples = one_group([1.5, 2.0], [7.0, 0.5], rewards=[[1.0, 0.0], [0.0, 0.0]], valid=valid)
    update = made.update(samples, 1, 0.0)
    found = dict(zip(statistic_names(made.config), (update.local_sums / 2).tolist(), strict=True))
    assert update.num_samples == 2
    # -min(.5 x 1.5, .5 x 1.2) = -.6, clipped; -min(-.5 x 1, -.5 x 1) = .5. The mean over rollouts is -.05.
    assert found["train/policy_loss"] == pytest.approx(-0.05)
    assert found["train/clip_fraction"] == pytest.approx(0.5)
    assert found["train/clip_fraction_low"] == 0.0
    assert found["train/clip_fraction_high"] == pytest.approx(0.5)
    # Rollout 0 has no gradient. That of rollout 1 is .5 x s x the mean of d log pi, (1/2, -1/2); its share is 1/2.
    assert made.parameters.grad.tolist()[:2] == pytest.approx([0.125, -0.125])


def test_by_token_the_same_steps_are_clipped_one_by_one():
    made = grpo((2, 2), group_size=2, **{**SEQUENCE, "ratio": "token"})
    valid = torch.tensor([[True, True], [False, True]])
    samples = one_group([1.5, 2.0], [7.0, 0.5], rewards=[[1.0, 0.0], [0.0, 0.0]], valid=valid)
    update = made.update(samples, 1, 0.0)
    found = dict(zip(statistic_names(made.config), (update.local_sums / 2).tolist(), strict=True))
    # Rollout 1: -min(-.5 x 2, -.5 x 1.2) = 1, and -min(-.5 x .5, -.5 x .8) = .4, clipped: their mean is .7.
    assert found["train/policy_loss"] == pytest.approx((-0.6 + 0.7) / 2)
    assert found["train/clip_fraction"] == pytest.approx(1.0)  # outside of [.8, 1.2] are all
    assert found["train/clip_fraction_low"] == pytest.approx(0.25)
    assert found["train/clip_fraction_high"] == pytest.approx(0.5)
    assert made.parameters.grad.tolist()[:2] == pytest.approx([0.5 * 0.5 * 1.0 * 0.5, -0.5 * 0.5 * 1.0 * 0.5])


def test_clip_coef_high_is_a_range_of_its_own_that_the_schedule_changes_too():
    samples = one_group([1.25, 1.0], rewards=[[1.0, 0.0]], valid=True)
    for progress, loss in ((0.0, -0.5 * 1.25), (0.5, -0.5 * 1.14)):
        made = grpo((1, 2), group_size=2, scale_by="none", clip_coef_high=0.28, clip_schedule="linear")
        update = made.update(samples, 1, progress)
        assert update.local_sums[0].item() == pytest.approx(loss + 0.5)
        names = statistic_names(made.config)
        assert update.local_sums[names.index("train/clip_fraction_high")] == (progress == 0.5)


def test_cispo_moves_the_policy_where_the_surrogate_is_clipped():
    samples = one_group([1.5, 1.0], rewards=[[1.0, 0.0]], valid=True, actions=[[0, 1]])
    gradients = {}
    for loss in ("clip", "cispo"):
        made = grpo((1, 2), group_size=2, scale_by="none", loss=loss)
        update = made.update(samples, 1, 0.0)
        gradients[loss] = made.parameters.grad.tolist()[0]
        assert update.local_sums[STATISTICS.index("clip_fraction")] == 1
    # d log pi(0) / d logit 0 = 1/2. Rollout 1, A = -.5 at action 1 and ratio 1: its share is -.5 x -(-.5) x -1/2 ...
    of_other = 0.5 * 0.5 * -0.5
    assert gradients["clip"] == pytest.approx(of_other)
    assert gradients["cispo"] == pytest.approx(
        of_other - 0.5 * 1.2 * 0.5 * 0.5
    )  # ... and that of rollout 0, weight 1.2


def test_truncated_rollouts_are_not_learned_from_and_count_in_their_group():
    words = ["terminated", "tokens", "max_turns", "time_limit"]
    rewards = [[4.0, 0.0, 0.0, 4.0]]
    made = grpo((1, 4), mask_truncated=True, group_size=4, scale_by="none")
    samples = one_group([1.0] * 4, rewards=rewards, valid=True, ended_by=words)
    found = estimates(made, samples)
    assert found.advantages.tolist() == [[2.0, -2.0, -2.0, 2.0]]  # of the mean of all four
    assert found.weights.tolist() == [[1.0, 0.0, 0.0, 1.0]]  # a time limit of the task cuts none
    assert found.counts.sum() == 2
    assert found.metrics["rollout/group_return_mean"] == 2.0
    update = made.update(one_group([1.0] * 4, rewards=rewards, valid=True, ended_by=["tokens"] * 4), 1, 0.0)
    assert (update.steps, update.num_samples) == (0, 0)
    with pytest.raises(TrainingError, match=r"does not say why its rollouts ended"):
        estimates(made, one_group([1.0] * 4, rewards=rewards, valid=True))
