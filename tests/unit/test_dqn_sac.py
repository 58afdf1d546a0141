"""Targets and losses of DQN and SAC by hand, and the mistakes that others made in them."""

import math

import numpy as np
import pytest
import torch

from ddppo.algorithms.contract import Share
from ddppo.algorithms.dqn import Dqn, EpsilonGreedy
from ddppo.algorithms.learner import LearnerStep
from ddppo.algorithms.replay import Batch
from ddppo.algorithms.sac import Sac
from ddppo.collectives.group import Group
from ddppo.config.model_settings import CnnSettings, MlpSettings
from ddppo.config.replay_settings import DqnSettings, SacSettings
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.errors import ConfigError
from ddppo.ppo.rollout import Transitions
from ddppo.scaling import BatchShape
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

TWO_NUMBERS = ArraySpec((2,))
CHOICES = EnvSpec(TWO_NUMBERS, ActionSpec("discrete", (3,)))
BOX = EnvSpec(TWO_NUMBERS, ActionSpec("box", (2,), (-2.0, 0.0), (2.0, 6.0)))


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def dqn(spec=CHOICES, orthogonal=None, **settings):
    settings, model = DqnSettings(**settings), MlpSettings(hidden_sizes=[4], orthogonal=orthogonal)
    torch.manual_seed(0)
    return Dqn(spec, settings, Dqn.networks(spec, settings, model, None).double())


def sac(spec=BOX, orthogonal=None, **settings):
    settings, model = SacSettings(**settings), MlpSettings(hidden_sizes=[4], orthogonal=orthogonal)
    torch.manual_seed(0)
    return Sac(spec, settings, Sac.networks(spec, settings, model, None).double())


def batch(obs, actions, returns, discounts, next_obs, next_mask=None):
    n = len(returns)
    return Batch(
        n, np.arange(n), obs, None, actions, tensor(*returns), tensor(*discounts), next_obs, next_mask
    )


class Values(torch.nn.Module):
    """Stands for a trunk and head: the observation's first number chooses a row of values."""

    def __init__(self, *rows):
        super().__init__()
        self.rows = torch.nn.Parameter(tensor(*rows))

    def action_params(self, obs):
        return self.rows[obs[:, 0].long()]

    def distribution(self, params, mask=None):
        return EpsilonGreedy(params, mask, 0.0)


def with_values(algorithm, online, target):
    algorithm.model, algorithm.target = Values(*online), Values(*target)
    return algorithm


# -- DQN.


ONLINE = [[1.0, 3.0, 2.0], [5.0, 0.0, 4.0]]
TARGET = [[10.0, 20.0, 30.0], [-1.0, -2.0, -3.0]]
NEXT = torch.tensor([[0.0, 0.0], [1.0, 0.0]])


def test_the_online_network_chooses_the_action_that_the_target_network_values():
    found = with_values(dqn(), ONLINE, TARGET).targets(
        batch(NEXT, torch.tensor([0, 0]), [1.0, 2.0], [0.9, 0.5], NEXT)
    )
    assert found.tolist() == pytest.approx([1 + 0.9 * 20, 2 - 0.5 * 1])
    found = with_values(dqn(double=False), ONLINE, TARGET).targets(
        batch(NEXT, torch.tensor([0, 0]), [1.0, 2.0], [0.9, 0.5], NEXT)
    )
    assert found.tolist() == pytest.approx([1 + 0.9 * 30, 2 - 0.5 * 1])


def test_a_forbidden_action_is_never_the_best_of_the_next_state():
    mask = torch.tensor([[True, False, True], [False, True, False]])
    found = with_values(dqn(), ONLINE, TARGET).targets(
        batch(NEXT, torch.tensor([0, 0]), [0.0, 0.0], [1.0, 1.0], NEXT, mask)
    )
    assert found.tolist() == [30.0, -2.0]


def test_the_loss_is_hubers_for_the_action_taken_and_its_shapes_fit():
    algorithm = with_values(dqn(), ONLINE, TARGET)
    loss, values = algorithm.loss(batch(NEXT, torch.tensor([1, 2]), [3.5, 10.0], [0.0, 0.0], NEXT))
    assert loss.item() == pytest.approx(
        0.5 * 0.5**2 + (6 - 0.5)
    )  # errors 0.5 and 6; [n] - [n, 1] would give [n, n]
    assert values.item() == 3.0 + 4.0
    loss.backward()
    assert algorithm.model.rows.grad.tolist() == [[0.0, -0.5, 0.0], [0.0, 0.0, -1.0]]
    assert algorithm.target.rows.grad is None


class OneStep:
    """A learner that is alone: it counts the steps that are asked for, and moves no parameter."""

    def __init__(self):
        self.envs = torch.arange(2)
        self.share = Share(self.envs, 2, torch.ones(2, dtype=torch.bool))
        self.asked = []
        self.iteration = 0

    def __call__(self, loss, count, part="all"):
        self.asked.append((part, count))
        loss.backward()

    def sum(self, x):
        return torch.as_tensor(x, dtype=torch.float64)

    def stream(self, *numbers):
        return np.random.default_rng([self.iteration, *numbers])


def rollout(action, num_steps=4):
    shape = (num_steps, 2)
    flags, obs = torch.zeros(shape, dtype=torch.bool), torch.rand(*shape, 2, dtype=torch.float64)
    return Transitions(
        obs=obs, actions=action.expand(*shape, *action.shape), rewards=torch.ones(shape, dtype=torch.float64),
        terminated=flags, truncated=flags, valid=~flags, episode_start=flags, action_mask=None, raw_obs=obs,
        last_obs=obs[0], final_obs=obs[0, :0], ends=torch.zeros(0, 2, dtype=torch.int64),
    )  # fmt: skip


def test_updates_are_owed_to_the_integer_for_any_ratio_once_the_buffer_is_filled():
    algorithm, step = dqn(updates_per_step=0.3, learning_starts=20, capacity=80, batch_size=4), OneStep()
    made = []
    for _ in range(8):  # of 8 rows each
        algorithm.learn(rollout(torch.tensor(1)), step)
        made.append(len(step.asked))
    # 24 rows are there after the third, and 8, 16, ... rows owe updates from then on.
    assert made == [0, 0, *(math.floor(0.3 * 8 * k) for k in range(1, 7))]
    assert set(step.asked) == {("all", 4)}
    assert algorithm.kept["num_updates"] == made[-1]


def test_the_target_is_copied_after_so_many_updates_however_many_an_iteration_makes():
    """Not once in so many calls, nor only where an iteration ends at a multiple."""
    algorithm = dqn(updates_per_step=1.0, learning_starts=8, target_period_updates=6, batch_size=4)
    weights, copies = algorithm.model.head.bias, []

    def moved(loss, count, part="all"):
        with torch.no_grad():
            weights.fill_(float(algorithm.kept["num_updates"] + 1))
        copies.append(algorithm.kept["target.head.bias"][0].item())

    step_of = type("Moving", (OneStep,), {"__call__": lambda self, *args: moved(*args)})()
    for _ in range(2):  # 8 updates each
        algorithm.learn(rollout(torch.tensor(1)), step_of)
    assert copies[6:12] == [6.0] * 6  # before update 7, 8, ..., 12
    assert copies[12:] == [12.0] * 4
    assert not any(p.requires_grad for p in algorithm.target.parameters())


def test_counters_and_target_are_kept_so_that_a_checkpoint_has_them():
    kept = dqn().kept
    assert {"num_rows", "num_updates"} < kept.keys()
    assert {"target.head.weight", "target.head.bias"} < kept.keys()


def test_epsilon_and_step_size_follow_from_the_share_of_the_run_that_is_done():
    algorithm = dqn(
        epsilon_start=1.0, epsilon_end=0.1, epsilon_fraction=0.5, learning_rate=1e-3, learning_rate_end=0.0
    )
    for progress, epsilon in ((0.0, 1.0), (0.25, 0.55), (0.5, 0.1), (0.9, 0.1)):
        algorithm.progress = progress
        assert algorithm.epsilon == pytest.approx(epsilon)
        assert algorithm.parts()["all"].learning_rate == pytest.approx(1e-3 * (1 - progress))


def test_each_environment_explores_by_two_numbers_of_its_own():
    values = tensor([1.0, 3.0, 2.0]).expand(6, 3)
    noise = tensor([0.29, 0.0], [0.29, 0.34], [0.29, 0.99], [0.3, 0.0], [0.9, 0.9], [0.0, 0.67])
    assert EpsilonGreedy(values, None, 0.3).sample(noise).tolist() == [0, 1, 2, 1, 1, 2]
    mask = torch.tensor([True, False, True]).expand(6, 3)
    assert EpsilonGreedy(values, mask, 0.3).sample(noise).tolist() == [0, 0, 2, 2, 2, 2]
    # Alone, or among others: the same action.
    algorithm = dqn()
    algorithm.progress = 0.2
    obs = torch.rand(6, 2, dtype=torch.float64)
    together = algorithm.act(obs, None, noise, None).actions
    alone = [algorithm.act(obs[k : k + 1], None, noise[k : k + 1], None).actions.item() for k in range(6)]
    assert together.tolist() == alone


def test_probabilities_of_the_policy_are_those_of_its_samples():
    policy = EpsilonGreedy(tensor(1.0, 3.0, 2.0, 0.0), torch.tensor([True, True, True, False]), 0.3)
    assert policy.probabilities.tolist() == pytest.approx([0.1, 0.8, 0.1, 0.0])
    noise = torch.rand(20_000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    many = EpsilonGreedy(
        tensor(1.0, 3.0, 2.0, 0.0).expand(20_000, 4),
        torch.tensor([[True, True, True, False]]).expand(20_000, 4),
        0.3,
    )
    shares = torch.bincount(many.sample(noise), minlength=4) / 20_000
    assert shares.tolist() == pytest.approx([0.1, 0.8, 0.1, 0.0], abs=0.01)
    assert policy.log_prob(torch.tensor(1)).item() == pytest.approx(math.log(0.8))
    assert policy.entropy().item() == pytest.approx(-(0.8 * math.log(0.8) + 0.2 * math.log(0.1)))


@pytest.mark.parametrize(
    ("made", "first"), [(dqn, "trunk.layers.0.bias"), (sac, "policy.0.bias"), (sac, "critics.1.0.bias")]
)
def test_layers_begin_as_torchs_own_unless_they_are_to_be_orthogonal(made, first):
    for orthogonal, is_zero in (
        (None, False),
        (False, False),
        (True, True),
    ):  # orthogonal layers have no bias
        biases = dict(made(orthogonal=orthogonal).model.named_parameters())[first]
        assert (biases == 0).all().item() is is_zero


@pytest.mark.parametrize(
    ("spec", "model", "message"),
    [
        (BOX, MlpSettings(), "algorithm=dqn values each of n actions, and this task's actions are box"),
        (CHOICES, MlpSettings(memory="gru"), "on the trunk of a model without memory"),
    ],
)
def test_dqn_refuses_what_it_cannot_value(spec, model, message):
    with pytest.raises(ConfigError, match=message):
        Dqn.networks(spec, DqnSettings(), model, None)


# -- SAC.


def test_log_probabilities_are_those_of_the_squashed_normal_also_where_tanh_is_1():
    networks = sac().model
    obs = torch.rand(5, 2, dtype=torch.float64)
    noise = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    actions, logprobs = networks.sampled(obs, noise)
    policy = networks.distribution(networks.action_params(obs))
    torch.testing.assert_close(actions, policy.sample(noise))
    torch.testing.assert_close(logprobs, policy.log_prob(actions))
    # log(1 - a^2 + eps) in float32 is log(eps) from u = 9 on; here it is that of float64 to rounding.
    small = networks.float()
    with torch.no_grad():
        small.policy[-1].bias[:2] = 12.0
    _, far = small.sampled(obs.float(), noise.float())
    exact = small.double().sampled(obs, noise)[1]
    torch.testing.assert_close(far.double(), exact, rtol=1e-5, atol=1e-4)


def test_the_target_holds_the_entropy_inside_of_what_nothing_follows():
    """Behind a terminal state there is no entropy, and gamma^m discounts value and entropy alike."""
    algorithm = sac()
    with torch.no_grad():
        algorithm.model.log_alpha.fill_(math.log(0.5))
    obs, noise = torch.rand(3, 2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    actions, logprobs = algorithm.model.sampled(obs, noise)
    values = algorithm.model.q_values(obs, actions, algorithm.target)
    soft = torch.minimum(values[0], values[1]) - 0.5 * logprobs
    found = algorithm.targets(batch(obs, actions, [1.0, 2.0, 3.0], [0.0, 0.9, 0.81], obs), noise)
    assert found.shape == (3,)
    assert found[0].item() == 1.0
    torch.testing.assert_close(found, tensor(1.0, 2.0, 3.0) + tensor(0.0, 0.9, 0.81) * soft)
    assert not found.requires_grad


def test_critics_see_actions_in_the_same_units_as_the_policy_makes_them():
    networks = sac().model
    seen = []
    networks.critics[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][..., 2:]))
    networks.q_values(torch.zeros(3, 2, dtype=torch.float64), tensor([-2.0, 0.0], [0.0, 3.0], [2.0, 6.0]))
    assert seen[0].tolist() == [[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]]


def test_actions_at_the_start_are_uniform_over_the_bounds():
    algorithm = sac(total_steps=1000, uniform_steps=100)
    noise = torch.randn(20_000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    obs = torch.zeros(20_000, 2, dtype=torch.float64)
    algorithm.progress = 99 / 1000
    uniform = algorithm.act(obs, None, noise, None).actions
    for dimension, (low, high) in enumerate(((-2.0, 2.0), (0.0, 6.0))):
        shares = torch.histc(uniform[:, dimension], bins=10, min=low, max=high) / 20_000
        assert shares.sum().item() == pytest.approx(1)
        assert shares.tolist() == pytest.approx([0.1] * 10, abs=0.01)
    algorithm.progress = 100 / 1000
    sampled = algorithm.act(obs, None, noise, None).actions
    torch.testing.assert_close(sampled, algorithm.model.sampled(obs, noise)[0].detach())


def test_the_target_entropy_is_minus_the_number_of_dimensions_and_alpha_grows_while_entropy_is_below_it():
    algorithm = sac()
    assert algorithm.target_entropy == -2.0
    assert sac(target_entropy=0.5).target_entropy == 0.5
    for entropy, sign in (
        (-3.0, -1),
        (-1.0, 1),
    ):  # the loss falls where log alpha grows if the entropy is too small
        algorithm.model.log_alpha.grad = None
        algorithm.alpha_loss(tensor(-entropy, -entropy)).backward()
        assert algorithm.model.log_alpha.grad.item() == pytest.approx(
            sign * 2 * 1.0
        )  # alpha, not its logarithm


def test_each_step_moves_its_own_part_though_the_policys_loss_has_gradients_for_the_critics():
    algorithm = sac(learning_starts=8, batch_size=4, updates_per_step=1.0)
    parameters, step = FlatParameters(algorithm.model), OneStep()
    parts = algorithm.parts()
    slices = {name: parameters.slices(part.parameters) for name, part in parts.items()}
    covered = sorted(bounds for part in slices.values() for bounds in part)
    assert sum(end - start for start, end in covered) == len(parameters.vector)
    algorithm.learn(rollout(tensor(0.0, 3.0)), step)
    assert [part for part, _ in step.asked] == ["critic", "policy", "alpha"] * 8
    assert algorithm.synchronised == ("policy",)


def test_a_step_computes_the_gradient_of_its_own_part_alone():
    """The policy's loss reaches the critics, and their half of the work would be thrown away."""
    algorithm = sac()
    sync = FlatSync(algorithm.model, FlatParameters(algorithm.model), Group())
    step = LearnerStep(algorithm, BatchShape(2, 4, 1, 1, 1), sync, Group(), seed=0)
    step.begin(1, algorithm.parts(), 1.0)
    obs, noise = torch.rand(3, 2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    before = {name: p.detach().clone() for name, p in algorithm.model.named_parameters()}
    step(algorithm.policy_loss(obs, noise)[0], 3, "policy")
    for name, p in algorithm.model.named_parameters():
        of_policy = name.startswith("policy.")
        assert bool(p.grad.any()) is of_policy
        assert bool((p != before[name]).any()) is of_policy


def test_frozen_parameters_stay_as_they_are_and_the_others_of_their_part_move():
    algorithm = dqn()
    for p in algorithm.model.trunk.parameters():
        p.requires_grad_(False)
    sync = FlatSync(algorithm.model, FlatParameters(algorithm.model), Group())
    step = LearnerStep(algorithm, BatchShape(2, 4, 1, 1, 1), sync, Group(), seed=0)
    before = {name: p.detach().clone() for name, p in algorithm.model.named_parameters()}
    step.begin(1, algorithm.parts(), 1.0)
    step(algorithm.model.action_params(NEXT.double()).square().sum(), 2.0)
    moved = {name for name, p in algorithm.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"head.weight", "head.bias"}


def test_targets_follow_the_critics_by_tau_at_each_update():
    algorithm, step = sac(learning_starts=8, batch_size=4, updates_per_step=0.25, tau=0.1), OneStep()
    with torch.no_grad():
        for p in algorithm.model.critics.parameters():
            p.add_(1.0)
    before = {name: x.clone() for name, x in algorithm.kept.items() if name.startswith("target")}
    algorithm.learn(rollout(tensor(0.0, 3.0)), step)  # two updates, in which no parameter moves
    for name, x in before.items():
        torch.testing.assert_close(algorithm.kept[name] - x, torch.full_like(x, 1 - 0.9**2))


@pytest.mark.parametrize(
    ("spec", "model", "message"),
    [
        (CHOICES, MlpSettings(), "this task's actions are discrete: use algorithm=dqn"),
        (EnvSpec(TWO_NUMBERS, ActionSpec("box", (2,))), MlpSettings(), "a Box without them"),
        (BOX, CnnSettings(), "use model=mlp without memory"),
    ],
)
def test_sac_refuses_what_it_cannot_control(spec, model, message):
    with pytest.raises(ConfigError, match=message):
        Sac.networks(spec, SacSettings(), model, None)


def test_a_uniform_number_that_was_rounded_to_1_chooses_the_last_allowed_action():
    values = torch.zeros(1, 3)
    mask = torch.tensor([[True, True, False]])
    noise = torch.tensor([[0.0, 1.0]])
    assert EpsilonGreedy(values, None, 1.0).sample(noise).item() == 2
    assert EpsilonGreedy(values, mask, 1.0).sample(noise).item() == 1
