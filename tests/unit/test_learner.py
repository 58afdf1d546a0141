import dataclasses
import math

import pytest
import torch
from torch import nn

from ddppo.algorithms.grpo import GrpoLearner
from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import GrpoSettings
from ddppo.config.variants import keys_of, settings_of
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.errors import NonFiniteError
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.build import part_of
from ddppo.ppo.advantages import Gae
from ddppo.ppo.learner import Adam, Learner, Normalizers
from ddppo.ppo.losses import STATISTICS
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer, moments
from ddppo.ppo.rollout import Rollout
from ddppo.scaling import BatchShape
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

# One big minibatch, no discount: the advantage is reward - value and the return is the reward, so numbers are by hand.
SIMPLE = {
    "num_epochs": 1,
    "num_minibatches": 1,
    "gamma": 0.0,
    "normalize_advantages": "none",
    "lr_schedule": "none",
    "max_grad_norm": 1e6,
}
LN2 = math.log(2)


SPEC = EnvSpec(ArraySpec((1,)), ActionSpec("discrete", (2,)))


class Constant(ActorCritic):
    """The same two logits and the same value whatever is observed."""

    def __init__(self, value=0.0):
        super().__init__(SPEC, settings_of("model"))
        self.logits = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.level = nn.Parameter(torch.tensor([value], dtype=torch.float64))

    def forward(self, obs):
        return self.logits.expand(*obs.shape[:-1], 2), self.level.expand(obs.shape[:-1])

    def action_params(self, obs):
        return self(obs)[0]

    def value(self, obs):
        return self(obs)[1]


def learner(shape, model=None, *, scale=1.0, obs_normalizer=None, reward_normalizer=None, **settings):
    """A learner of T x E samples whose settings are SIMPLE but for `settings`."""
    wanted = {**SIMPLE, **settings}
    if wanted.get("algorithm") == "grpo":  # which has no value function to learn, and its own advantages
        wanted = {key: value for key, value in wanted.items() if key in keys_of(GrpoSettings)}
    config = settings_of("ppo", **wanted)
    steps, envs = shape
    model = model or Constant()
    parameters, group = FlatParameters(model), Group()
    sync = FlatSync(model, parameters, group)
    return (GrpoLearner if config.algorithm == "grpo" else Learner)(
        config,
        BatchShape(envs, steps, 1, config.num_minibatches, config.num_epochs, scale),
        model,
        sync,
        group,
        Normalizers(obs_normalizer, reward_normalizer),
        seed=0,
    )


def rollout(rewards, *, values=0.0, actions=0, ratio=1.0, valid=True, obs=0.0, mask=None):
    """Samples `[T, E]` of two equally likely actions; `ratio` is that of the current to the collecting policy."""
    rewards = torch.tensor(rewards, dtype=torch.float64)

    def like(x, dtype=torch.float64):
        return torch.as_tensor(x, dtype=dtype).expand(rewards.shape).clone()

    never = like(0, torch.bool)
    obs = like(obs).unsqueeze(-1)
    return Rollout(
        obs=obs,
        actions=like(actions, torch.int64),
        logprobs=-LN2 - like(ratio).log(),
        values=like(values),
        next_values=like(0.0),
        rewards=rewards,
        terminated=never,
        truncated=never,
        valid=like(valid, torch.bool),
        episode_start=never,
        action_mask=mask,
        raw_obs=obs,
    )


def means(update):
    """Return the statistics that every learner has; those of GRPO follow in `local_sums`."""
    return dict(zip(STATISTICS, (update.local_sums / update.num_samples).tolist(), strict=False))


def test_the_gradient_is_that_of_the_mean_loss_with_its_coefficients():
    made = learner((2, 1), Constant(value=5.0), value_coef=0.5)
    update = made.update(rollout([[1.0], [3.0]], actions=[[0], [1]]), iteration=1, progress=0.0)
    # policy: -mean(A (one_hot - 1/2)) for A = 1, 3; value: 0.5 * (5 - mean(1, 3)); a uniform policy's entropy is flat
    assert made.parameters.grad.tolist() == pytest.approx([0.5, -0.5, 1.5])
    assert update.grad_norm == pytest.approx((0.25 + 0.25 + 2.25) ** 0.5)


def test_the_entropy_bonus_pulls_the_policy_towards_uniform():
    model = Constant()
    model.logits.data[0] = 1.0
    made = learner((1, 1), model, entropy_coef=0.1, value_coef=0.0)
    made.update(rollout([[0.0]]), iteration=1, progress=0.0)
    # dH/dx_0 = -p_0 (ln p_0 + H) = -p (1 - p) ln(p / (1 - p)), with ln(p / (1 - p)) = 1
    p = 1 / (1 + math.exp(-1.0))
    assert made.parameters.grad.tolist() == pytest.approx([0.1 * p * (1 - p), -0.1 * p * (1 - p), 0.0])


def test_gradients_longer_than_the_limit_are_scaled_down_to_it_and_reported_as_they_were():
    made = learner((2, 1), Constant(value=5.0), value_coef=0.5, max_grad_norm=0.01)
    update = made.update(rollout([[1.0], [3.0]], actions=[[0], [1]]), iteration=1, progress=0.0)
    assert update.grad_norm == pytest.approx(2.75**0.5)
    assert made.parameters.grad.norm().item() == pytest.approx(0.01, rel=1e-5)


def test_statistics_are_sums_over_valid_samples():
    made = learner((2, 2), Constant(value=1.0))
    update = made.update(
        rollout(
            [[1.0, 3.0], [4.0, 99.0]],
            ratio=[[1.0, 1.1], [2.5, 9.0]],
            valid=[[True, True], [True, False]],
        ),
        iteration=1,
        progress=0.0,
    )
    assert update.num_samples == 3
    assert means(update) == {
        "policy_loss": pytest.approx(-(1.0 + 1.1 * 3.0 + 1.2 * 4.0) / 3),
        "value_loss": pytest.approx((0.0 + 2.0 + 4.5) / 3),
        "entropy": pytest.approx(LN2),
        "approx_kl": pytest.approx((0.1 - math.log(1.1) + 1.5 - math.log(2.5)) / 3),
        "clip_fraction": pytest.approx(1 / 3),
        "ratio_outliers": pytest.approx(1 / 3),
    }


@pytest.mark.parametrize("which", ["global", "local"])
def test_advantages_are_normalised_over_valid_samples(which):
    made = learner((3, 1), normalize_advantages=which)
    samples = rollout([[1.0], [3.0], [50.0]], ratio=[[1.1], [1.05], [1.0]], valid=[[True], [True], [False]])
    update = made.update(samples, iteration=1, progress=0.0)
    # Advantages 1 and 3 become -1 and 1: loss 1.1 - 1.05.
    assert means(update)["policy_loss"] == pytest.approx(0.05 / 2)


def test_advantages_are_normalised_over_the_valid_samples_of_each_minibatch_of_each_epoch():
    seen = []
    rewards = torch.arange(7.0, dtype=torch.float64)[:, None] ** 2
    valid = [[True]] * 6 + [[False]]
    made = learner((7, 1), normalize_advantages="minibatch", num_minibatches=2, num_epochs=3)
    epoch = made.step.epoch

    def watched(batch, order, bounds, counts):
        minibatches = batch.minibatches(order, bounds)
        seen.extend({name: x.clone() for name, x in minibatch.items()} for minibatch in minibatches)
        epoch(batch, order, bounds, counts)

    made.step.epoch = watched
    made.update(rollout(rewards.tolist(), valid=valid), iteration=1, progress=0.0)
    assert len(seen) == 6
    assert len({tuple(minibatch["returns"].tolist()) for minibatch in seen}) > 2
    for minibatch in seen:
        is_valid = minibatch["weights"] > 0
        returns = minibatch["returns"][is_valid]  # the advantages, for values are 0
        expected = (returns - returns.mean()) / returns.std(correction=0)
        torch.testing.assert_close(minibatch["advantages"][is_valid], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("which", ["global", "local", "minibatch"])
def test_the_advantage_of_a_sample_alone_is_left_as_it_is(which):
    made = learner((3, 1), normalize_advantages=which)
    samples = rollout([[3.0], [50.0], [7.0]], ratio=1.1, valid=[[True], [False], [False]])
    # Advantage 3 with a ratio of 1.1: less its mean it would be 0, and nothing would be learned.
    assert means(made.update(samples, iteration=1, progress=0.0))["policy_loss"] == pytest.approx(-3.3)


@pytest.mark.parametrize("which", ["global", "local", "minibatch"])
def test_advantages_that_are_all_alike_become_0(which):
    made = learner((4, 1), normalize_advantages=which)
    update = made.update(rollout([[3.0]] * 4, ratio=1.1), iteration=1, progress=0.0)
    assert means(update)["policy_loss"] == pytest.approx(0, abs=1e-6)


def test_explained_variance_compares_the_errors_with_the_returns():
    made = learner((2, 1))
    assert made.update(rollout([[1.0], [3.0]], values=[[1.0], [2.0]]), 1, 0.0).explained_variance == 0.75
    assert made.update(rollout([[1.0], [3.0]], values=[[1.0], [3.0]]), 2, 0.0).explained_variance == 1.0
    assert math.isnan(made.update(rollout([[2.0], [2.0]], values=[[1.0], [3.0]]), 3, 0.0).explained_variance)


def test_explained_variance_leaves_out_what_is_not_valid():
    samples = rollout([[1.0], [3.0], [70.0]], values=[[1.0], [2.0], [0.0]], valid=[[True], [True], [False]])
    assert learner((3, 1)).update(samples, 1, 0.0).explained_variance == 0.75


def test_every_epoch_takes_one_step_per_minibatch_whatever_the_batch_size():
    made = learner((7, 1), num_epochs=3, num_minibatches=4)
    update = made.update(rollout([[1.0]] * 7), iteration=1, progress=0.0)
    assert (update.num_samples, update.steps, update.epochs) == (21, 12, 3)


def test_a_minibatch_of_pseudo_steps_alone_takes_no_step():
    made = learner((4, 1), num_epochs=2, num_minibatches=4)
    samples = rollout([[1.0]] * 4, valid=[[True], [False], [True], [True]])
    update = made.update(samples, iteration=1, progress=0.0)
    assert (update.num_samples, update.steps, update.epochs) == (6, 6, 2)


def test_nothing_in_a_pseudo_step_reaches_the_parameters():
    valid = [[True, True], [False, True], [True, True]]
    results = []
    for garbage in (0.0, 1e3):
        rewards = [[1.0, 2.0], [garbage, -1.0], [0.5, 0.0]]
        made = learner(
            (3, 2),
            num_epochs=2,
            num_minibatches=2,
            normalize_advantages="global",
            obs_normalizer=ObsNormalizer(ArraySpec((1,)), torch.device("cpu"), torch.float64),
        )
        samples = rollout(
            rewards,
            values=[[0.0, 0.0], [garbage, 0.0], [0.0, 0.0]],
            ratio=[[1.0, 1.0], [1.0 + garbage, 1.0], [1.0, 1.0]],
            obs=[[1.0, 2.0], [garbage, 3.0], [4.0, 5.0]],
            valid=valid,
        )
        update = made.update(samples, iteration=1, progress=0.0)
        results.append((made.parameters.tolist(), made.obs_normalizer.state.tolist(), means(update)))
    assert results[0] == results[1]


def test_moments_of_observations_are_updated_once_per_iteration_from_what_was_observed():
    normalizer = ObsNormalizer(ArraySpec((1,)), torch.device("cpu"), torch.float64)
    made = learner((2, 1), num_epochs=3, obs_normalizer=normalizer)
    made.update(rollout([[0.0], [0.0]], obs=[[1.0], [5.0]]), 1, 0.0)
    made.update(rollout([[0.0], [0.0]], obs=[[2.0], [7.0]]), 2, 0.0)
    seen = torch.tensor([[1.0], [5.0], [2.0], [7.0]], dtype=torch.float64)
    torch.testing.assert_close(normalizer.state, moments(seen))


def test_normalised_rewards_are_what_is_learned_from():
    normalizer = RewardNormalizer(1, gamma=0.0, device=torch.device("cpu"))
    made = learner((2, 1), reward_normalizer=normalizer)
    update = made.update(rollout([[20.0], [60.0]]), iteration=1, progress=0.0)
    # The deviation of 20 and 60 is 20: returns 1 and 3, against a value of 0.
    assert means(update)["value_loss"] == pytest.approx((0.5 + 4.5) / 2)


def test_rewards_are_cut_for_learning_and_left_as_they_are_in_the_rollout():
    given = rollout([[5.0], [-3.0], [0.5]], actions=[[0], [1], [0]])
    cut = learner((3, 1), reward_clip=1.0)
    cut.update(given, iteration=1, progress=0.0)
    assert given.rewards.flatten().tolist() == [5.0, -3.0, 0.5]
    same = learner((3, 1))
    same.update(rollout([[1.0], [-1.0], [0.5]], actions=[[0], [1], [0]]), iteration=1, progress=0.0)
    assert torch.equal(cut.parameters.grad, same.parameters.grad)


def test_rewards_are_scaled_before_they_are_cut_and_left_as_they_are_in_the_rollout():
    given, actions = [[8.0], [-3.0], [0.5]], [[0], [1], [0]]
    samples = rollout(given, actions=actions)
    scaled = learner((3, 1), reward_scale=0.25, reward_clip=1.0)
    scaled.update(samples, iteration=1, progress=0.0)
    assert samples.rewards.tolist() == given
    same = learner((3, 1))
    same.update(rollout([[1.0], [-0.75], [0.125]], actions=actions), iteration=1, progress=0.0)
    assert torch.equal(scaled.parameters.grad, same.parameters.grad)


def test_action_masks_bound_the_policy_that_learns():
    mask = torch.tensor([[[True, False]], [[True, True]]])
    made = learner((2, 1))
    update = made.update(rollout([[1.0], [1.0]], mask=mask), iteration=1, progress=0.0)
    assert means(update)["entropy"] == pytest.approx(LN2 / 2)


@pytest.mark.parametrize(
    ("schedule", "expected"), [("none", [0.02, 0.02, 0.02]), ("linear", [0.02, 0.015, 0.002])]
)
def test_the_learning_rate_follows_its_schedule_from_the_scaled_start(schedule, expected):
    made = learner((1, 1), learning_rate=0.01, lr_schedule=schedule, scale=2.0)
    for iteration, (progress, rate) in enumerate(zip((0.0, 0.25, 0.9), expected, strict=True), start=1):
        update = made.update(rollout([[1.0]]), iteration, progress)
        assert update.learning_rate == pytest.approx(rate)
        assert made.optimizer.param_groups[0]["lr"] == pytest.approx(rate)


@pytest.mark.parametrize(("schedule", "ranges"), [("none", [0.2, 0.2, 0.2]), ("linear", [0.2, 0.1, 0.02])])
def test_the_clip_range_follows_its_schedule(schedule, ranges):
    made = learner((2, 1), learning_rate=1e-9, clip_coef=0.2, clip_schedule=schedule)
    samples = rollout([[1.0], [1.0]], ratio=[[1.05], [1.15]])
    for iteration, (progress, clip) in enumerate(zip((0.0, 0.5, 0.9), ranges, strict=True), start=1):
        found = means(made.update(samples, iteration, progress))
        assert found["policy_loss"] == pytest.approx(-sum(min(r, 1 + clip) for r in (1.05, 1.15)) / 2)
        assert found["clip_fraction"] == sum(r > 1 + clip for r in (1.05, 1.15)) / 2


def test_adams_epsilon_halves_the_step_of_a_gradient_of_its_own_size():
    # The value's gradient is value_coef * (V - R) = 0.5 * 2e-5; Adam's first step is lr * g / (|g| + eps).
    for eps, moved in ((1e-5, 0.005), (1e-8, 0.01 / 1.001)):
        made = learner((1, 1), Constant(value=1.0), learning_rate=0.01, value_coef=0.5, adam_eps=eps)
        made.update(rollout([[1.0 - 2e-5]], values=1.0), iteration=1, progress=0.0)
        assert 1.0 - made.parameters[2].item() == pytest.approx(moved, rel=1e-6)


def test_the_first_step_of_adam_is_as_long_as_the_learning_rate():
    made = learner((1, 1), Constant(value=5.0), learning_rate=0.01)
    before = made.parameters.detach().clone()
    made.update(rollout([[1.0]]), iteration=1, progress=0.0)
    assert (made.parameters - before).abs().tolist() == pytest.approx([0.01] * 3, rel=1e-4)


@pytest.mark.parametrize("weak", [1.0, 2.0])
def test_a_part_of_the_model_has_its_own_step_size_which_is_scaled_as_all_are(weak):
    made = learner(
        (1, 1), Constant(value=5.0), learning_rate=0.01, learning_rates={"level": 0.05}, scale=weak
    )
    before = made.parameters.detach().clone()
    update = made.update(rollout([[1.0]]), iteration=1, progress=0.0)
    moved = (made.parameters - before).abs().tolist()
    assert moved == pytest.approx([0.01 * weak, 0.01 * weak, 0.05 * weak], rel=1e-4)
    assert update.learning_rate == pytest.approx(0.01 * weak)


def test_each_part_moves_as_it_would_if_all_had_its_step_size_and_adam_remembers_the_same():
    def trained(**settings):
        made = learner((4, 1), Constant(value=5.0), num_epochs=3, num_minibatches=2, **settings)
        for iteration in range(1, 4):
            made.update(rollout([[1.0], [2.0], [-1.0], [0.5]], actions=[[0], [1], [0], [1]]), iteration, 0.0)
        state = made.optimizer.state[made.parameters]
        return made.parameters.detach(), torch.stack([state["exp_avg"], state["exp_avg_sq"]])

    # Here logits and level learn apart: neither's gradient depends on the other.
    slow, slow_state = trained(learning_rate=0.01)
    fast, fast_state = trained(learning_rate=0.05)
    mixed, mixed_state = trained(learning_rate=0.01, learning_rates={"level": 0.05})
    level = torch.tensor([False, False, True])
    torch.testing.assert_close(mixed, torch.where(level, fast, slow), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        mixed_state, torch.where(level, fast_state, slow_state), rtol=1e-12, atol=1e-12
    )
    assert not torch.allclose(slow, fast, atol=1e-3)


def test_of_parts_within_parts_the_smallest_counts_and_names_are_whole():
    parts = ["critic", "critic.0", "act"]
    names = ["critic.0.weight", "critic.1.weight", "critic", "critics.0.weight", "actor.weight", "act.weight"]
    expected = ["critic.0", "critic", "critic", None, None, "act"]
    assert [part_of(name, parts) for name in names] == expected


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("none", [0.0025, 0.005, 0.01, 0.01]), ("linear", [0.0025, 0.0046875, 0.008125, 0.0075])],
)
def test_step_sizes_rise_over_the_steps_of_warm_up_on_top_of_their_schedule(schedule, expected):
    settings = {"learning_rate": 0.01, "lr_schedule": schedule, "total_steps": 64}
    made = learner((4, 1), Constant(value=5.0), warmup_steps=16, **settings)
    found = []
    for iteration, steps_before in enumerate((0, 4, 12, 16), start=1):
        before = made.parameters.detach().clone()
        update = made.update(rollout([[1.0]] * 4), iteration, steps_before / 64)
        found.append(update.learning_rate)
        if iteration == 1:
            assert (made.parameters - before).abs().tolist() == pytest.approx([0.0025] * 3, rel=1e-4)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("total", "cold"), [(64, 3), (100_000, 8)])  # 28 / 100,000 * 100,000 is below 28
def test_the_adaptive_learning_rate_stays_until_warm_up_is_over(total, cold):
    adaptive = {"lr_schedule": "adaptive", "adaptive_kl": 0.01, "learning_rate": 3e-4}
    made = learner((4, 1), **adaptive, warmup_steps=4 * cold, total_steps=total)
    samples = rollout([[1.0]] * 4, ratio=1.6)
    rates = [made.update(samples, k + 1, 4 * k / total).learning_rate for k in range(cold + 1)]
    assert rates == pytest.approx([3e-4 * (k + 1) / cold for k in range(cold)] + [2e-4])


# (r - 1) - ln r is 0.0004 at 1.03, 0.0102 at 1.15 and 0.130 at 1.6; the target is 0.01.
@pytest.mark.parametrize(
    ("ratio", "start", "after"),
    [(1.6, 3e-4, 2e-4), (1.15, 3e-4, 3e-4), (1.03, 3e-4, 4.5e-4), (1.03, 9e-3, 1e-2), (1.6, 1.2e-6, 1e-6)],
)
def test_the_adaptive_learning_rate_steers_towards_its_divergence_within_bounds(ratio, start, after):
    made = learner((4, 1), lr_schedule="adaptive", adaptive_kl=0.01, learning_rate=start)
    update = made.update(rollout([[1.0]] * 4, ratio=ratio), iteration=1, progress=0.5)
    assert update.learning_rate == start
    assert made.learning_rate == pytest.approx(after)


def test_epochs_end_once_the_divergence_exceeds_its_target():
    for target, epochs in (
        (0.12, 1),
        (0.14, 4),
        (None, 4),
    ):  # 0.130 from the start; steps of 1e-9 change nothing
        made = learner((4, 1), num_epochs=4, num_minibatches=2, target_kl=target, learning_rate=1e-9)
        update = made.update(rollout([[1.0]] * 4, ratio=1.6), iteration=1, progress=0.0)
        assert (update.epochs, update.steps, update.num_samples) == (epochs, 2 * epochs, 4 * epochs)


def test_a_loss_that_is_not_finite_stops_before_the_optimizer_moves():
    made = learner((2, 1))
    before = made.parameters.detach().clone()
    samples = rollout([[1.0], [1.0]], ratio=[[1.0], [math.nan]])
    with pytest.raises(NonFiniteError, match=r"^the loss of rank 0 is not finite in iteration 12; .*\[nan\]"):
        made.update(samples, iteration=12, progress=0.0)
    assert torch.equal(made.parameters, before)
    assert not any(x.any() for x in made.optimizer.state[made.parameters].values())


class SquareRoot(Constant):
    """A finite value whose derivative is infinite at 0."""

    def forward(self, obs):
        params, level = super().forward(obs)
        return params, level.sqrt()


def test_a_gradient_that_is_not_finite_stops_though_the_loss_is():
    made = learner((1, 1), SquareRoot())
    with pytest.raises(NonFiniteError, match=r"^the gradient, though no loss, is not finite in iteration 1"):
        made.update(rollout([[1.0]]), iteration=1, progress=0.0)
    assert made.parameters.tolist() == [0.0, 0.0, 0.0]


def test_no_part_moves_by_its_own_step_size_either():
    made = learner((1, 1), SquareRoot(), learning_rates={"level": 0.1})
    with pytest.raises(NonFiniteError):
        made.update(rollout([[1.0]]), iteration=1, progress=0.0)
    assert made.parameters.tolist() == [0.0, 0.0, 0.0]


def test_the_better_action_becomes_more_likely_and_the_value_approaches_the_return():
    model = Constant()
    made = learner((2, 1), model, learning_rate=0.05, num_epochs=4)
    for iteration in range(1, 6):
        made.update(rollout([[1.0], [0.0]], actions=[[0], [1]]), iteration, 0.0)
    assert model.logits[0] > 0.3
    assert model.logits[1] < -0.3
    assert 0.3 < model.level.item() < 0.7


@pytest.mark.parametrize(("correction", "returned"), [("vtrace", 1.5), ("clip", 3.0)])
def test_what_another_policy_acted_counts_by_its_ratio_and_never_more_than_once(correction, returned):
    made = learner((1, 2))
    made.estimator = Gae(made.config, correction)
    of_other = dataclasses.replace(
        rollout([[3.0, 3.0]]), ratios=torch.tensor([[0.5, 4.0]], dtype=torch.float64)
    )
    found = made.estimator(of_other, made._scaled_rewards(of_other))
    assert found.advantages.tolist() == [[1.5, 3.0]]
    assert found.returns.tolist() == [[returned, 3.0]]


def test_adam_is_torchs_to_the_bit_and_a_gradient_that_is_not_finite_changes_nothing():
    both = []
    for kind, more in ((Adam, {}), (torch.optim.Adam, {"betas": (0.9, 0.999), "fused": True})):
        generator, own = (
            torch.Generator().manual_seed(0),
            [torch.nn.Parameter(torch.ones(n)) for n in (70, 3)],
        )
        optimizer = kind(own, lr=0.01, eps=1e-5, **more)
        for is_bad in (False, False, True, False):
            for p in own:
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.found_inf = torch.tensor(float(is_bad))
            optimizer.step()
        both.append([*own, *(x for state in optimizer.state.values() for x in state.values())])
    assert all(torch.equal(x, y) for x, y in zip(*both, strict=True))
    assert both[0][2] == 3  # steps
