"""What is special of the step and network in C++; that it does what the eager step does is in test_compiled_step.py."""

import copy
import ctypes
import itertools

import numpy as np
import pytest
import torch

from ddppo import native
from ddppo.collectives.group import Group, sum_in_pairs
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.models.actor_critic import random_obs
from ddppo.models.build import build_model
from ddppo.ppo.advantages import Estimates, gae
from ddppo.ppo.cpp.learner import CppStep, returns_and_moments
from ddppo.ppo.cpp.network import CppNetwork, Differentiable, library, why_not_native
from ddppo.ppo.gradient_check import example, worst_error
from ddppo.ppo.minibatches import SampleBatch
from ddppo.ppo.normalization import moments
from ddppo.ppo.rollout import Rollout
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.unit.test_compiled_step import ENVS, STEPS, assert_equal, both, made, rollout

pytestmark = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
DISCRETE, BOX = ActionSpec("discrete", (3,)), ActionSpec("box", (2,))


def network_of(spec, config, dtype=torch.float32):
    model = build_model(spec, config, 0, dtype)
    parameters = FlatParameters(model)
    return model, CppNetwork(model, spec, parameters.vector), parameters


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "leaky_relu", "silu", "gelu"])
def test_every_activation_that_it_knows_is_torchs(activation, layer_norm, monkeypatch):
    assert_equal(
        both(
            EnvSpec(ArraySpec((4,)), DISCRETE),
            "native",
            monkeypatch,
            settings_of("model", activation=activation, layer_norm=layer_norm),
        )
    )


@pytest.mark.parametrize(
    ("hidden_sizes", "layer_norm"),
    [([1], False), ([70, 33], False), ([130, 9, 20, 5], False), ([70, 33, 4], True), ([130, 17], True)],
)
@pytest.mark.parametrize("obs_size", [1, 17, 65])
def test_every_width_is_torchs(hidden_sizes, layer_norm, obs_size, monkeypatch):
    assert_equal(
        both(
            EnvSpec(ArraySpec((obs_size,)), BOX),
            "native",
            monkeypatch,
            settings_of("model", hidden_sizes=hidden_sizes, layer_norm=layer_norm),
        )
    )


@pytest.mark.parametrize(
    ("action", "model"),
    [
        (DISCRETE, {"activation": "tanh"}),
        (BOX, {"activation": "tanh"}),
        (DISCRETE, {"activation": "silu"}),
        (BOX, {"activation": "gelu"}),
        (DISCRETE, {"layer_norm": True}),
        (BOX, {"layer_norm": True, "activation": "silu"}),
    ],
    ids=str,
)
def test_in_float32_it_is_autograds_gradient_up_to_rounding(action, model):
    spec = EnvSpec(ArraySpec((17,)), action)
    config = settings_of("model", hidden_sizes=[64, 64], **model)
    model, network, parameters = network_of(spec, config)
    step = CppStep(network, PPOSettings(), torch.optim.Adam([parameters.vector]), Group())
    assert worst_error(step, spec, model, PPOSettings()) < 2e-6


@pytest.mark.parametrize(
    ("action", "changed"),
    [
        (DISCRETE, {}),
        (DISCRETE, {"layer_norm": True}),
        (BOX, {"shared_trunk": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_dict", [False, True])
def test_a_loss_in_torch_differentiates_the_network_in_cpp_as_it_does_torchs_layers(action, changed, is_dict):
    """A loss that calls the model twice, reads a parameter, and differentiates a gradient."""
    spec = EnvSpec({"a": ArraySpec((2,)), "b": ArraySpec((3,))} if is_dict else ArraySpec((5,)), action)
    model, _, parameters = network_of(
        spec, settings_of("model", hidden_sizes=[9, 7], **changed), torch.float64
    )
    obs = [random_obs(spec, 130, torch.float64, torch.Generator().manual_seed(seed)) for seed in (0, 1)]

    def gradient():
        parameters.gradient.zero_()
        (params, values), (others, _) = model(obs[0]), model(obs[1])
        loss = (params * others).sum() + (values * params.sum(dim=1)).sin().sum()
        (slope,) = torch.autograd.grad(values.sum(), [model.value_head.weight], create_graph=True)
        (loss + model.policy_head.weight.square().sum() + slope.square().sum()).backward()
        return parameters.gradient.clone()

    in_torch = gradient()
    model.in_cpp = Differentiable(model, spec, parameters.vector)
    assert model.in_cpp.takes(obs[0])
    torch.testing.assert_close(gradient(), in_torch, rtol=1e-9, atol=1e-9)
    assert copy.deepcopy(model).in_cpp is None
    others = {name: 2 * p for name, p in model.named_parameters()}
    found, _ = torch.func.functional_call(model, others, (obs[0],))  # parameters that C++ does not know
    model.in_cpp = None
    expected, _ = torch.func.functional_call(model, others, (obs[0],))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_policy_and_values_are_the_models(layer_norm):
    spec = EnvSpec(ArraySpec((5,)), BOX)
    config = settings_of("model", log_std_init=-0.5, layer_norm=layer_norm)
    model, network, _ = network_of(spec, config, torch.float64)
    obs = torch.rand(7, 3, 5, dtype=torch.float64)
    network.refresh()
    params = network.policy(obs.reshape(-1, 5), torch.empty(21, 4, dtype=torch.float64))
    torch.testing.assert_close(
        params, model.action_params(obs.reshape(-1, 5)).detach(), rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(network.values(obs), model.value(obs).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_row_does_not_depend_on_the_rows_beside_it_to_the_bit(layer_norm):
    spec = EnvSpec(ArraySpec((4,)), DISCRETE)
    _, network, _ = network_of(spec, settings_of("model", hidden_sizes=[64, 64], layer_norm=layer_norm))
    obs = torch.randn(1000, 4)
    network.refresh()
    whole, values = network.policy(obs, torch.empty(1000, 3)), network.values(obs)
    for start, end in ((0, 1), (1, 8), (8, 105), (105, 1000)):
        part = obs[start:end].clone()
        assert torch.equal(network.policy(part, torch.empty(end - start, 3)), whole[start:end])
        assert torch.equal(network.values(part), values[start:end])


def test_values_saturate_and_extreme_logits_give_no_nan():
    spec = EnvSpec(ArraySpec((4,)), DISCRETE)
    model, network, parameters = network_of(spec, settings_of("model", hidden_sizes=[8]))
    with torch.no_grad():
        parameters.vector.mul_(300)
    step = CppStep(network, PPOSettings(entropy_coef=0.1), torch.optim.Adam([parameters.vector]), Group())
    minibatch = example(spec, model, 50, torch.Generator().manual_seed(0))
    minibatch["obs"] *= 1e4
    assert step.gradient(minibatch).isfinite().all()


OWN_TERM = {"own": {"term": "tests.unit.test_own_losses:everything", "coef": 0.3}}


@pytest.mark.parametrize(
    ("action", "model", "losses"),
    [
        (DISCRETE, {"shared_trunk": True}, {}),
        (DISCRETE, {"layer_norm": True}, OWN_TERM),
        (BOX, {}, {}),
        (BOX, {"layer_norm": True}, {}),
        (BOX, {"shared_trunk": True}, OWN_TERM),
    ],
    ids=str,
)
def test_the_gradient_of_a_shard_is_the_same_bits_beside_any_others(action, model, losses):
    spec, sizes = EnvSpec(ArraySpec((17,)), action), (70, 0, 130, 5)
    model, network, _ = network_of(spec, settings_of("model", hidden_sizes=[64, 33], **model))
    samples = example(spec, model, sum(sizes), torch.Generator().manual_seed(0))
    ends = np.cumsum((0, *sizes)).tolist()

    def gradients(of, *, adds=False):
        """Return the gradients `[n, P]` of n shards, each with a range of the samples, and what CppStep returns."""
        group = Group()
        step = CppStep(
            network,
            PPOSettings(losses=losses),
            torch.optim.Adam([network.parameters]),
            group,
            num_shards=len(of),
        )
        network.use_shards(step._ordered.rows, adds=adds)
        fields = {k: v[of[0][0] : of[-1][1]] for k, v in samples.items()}
        columns, addresses = step._columns(fields)
        ends = [*[a - of[0][0] for a, _ in of], of[-1][1] - of[0][0]]
        bounds = (ctypes.c_int64 * len(ends))(*ends)
        own = step._own.begin(fields, torch.arange(ends[-1]), ends) if losses else None
        library().network_gradient(network.handle, addresses, None, bounds, 100.0, 0, own, step._addresses)
        return step._ordered.rows.clone(), network.gradient.clone(), step.sums.clone(), columns

    parts = list(itertools.pairwise(ends))
    together, _, sums, _ = gradients(parts)
    for s, part in enumerate(parts):
        alone, _, own, _ = gradients([part])
        assert torch.equal(together[s], alone[0])
        assert torch.equal(sums[s], own[0])
    _, added, _, _ = gradients(parts, adds=True)
    assert torch.equal(added, sum_in_pairs(together))


def test_a_fault_in_the_sum_over_ranks_ends_the_epoch_and_is_raised(monkeypatch):
    spec = EnvSpec(ArraySpec((4,)), DISCRETE)
    learner, model = made(spec, PPOSettings(num_minibatches=3), kind="eager", monkeypatch=monkeypatch)
    calls = []

    class Two(Group):
        world_size = 2

        def sum_(self, tensor):
            calls.append(tensor)
            if len(calls) == 2:
                raise ConnectionError("a peer is gone")
            return tensor

    network = CppNetwork(model, spec, learner.parameters)
    learner.step = CppStep(network, learner.config, learner.optimizer, Two())
    with pytest.raises(ConnectionError, match="a peer is gone"):
        learner.update(rollout(spec, model), 1, 0.0)
    assert len(calls) == 2
    assert learner.optimizer.state[learner.parameters]["step"] == 1


def test_a_minibatch_without_samples_here_or_on_any_rank_takes_the_step_it_should(monkeypatch):
    spec = EnvSpec(ArraySpec((4,)), DISCRETE)
    learner, model = made(spec, PPOSettings(), kind="native", monkeypatch=monkeypatch)
    samples = rollout(spec, model)
    batch = SampleBatch(samples, Estimates(samples.values, samples.valid.to(samples.values), samples.values))
    order = torch.arange(STEPS * ENVS)
    learner.step.begin(1e-3, 0.2, 0.0)
    before = learner.parameters.detach().clone()
    learner.step.epoch(batch, order, [0, 0], [0])
    assert learner.optimizer.state[learner.parameters]["step"] == 0
    learner.step.epoch(batch, order, [0, 0], [3])  # other ranks had three
    assert learner.optimizer.state[learner.parameters]["step"] == 1
    assert torch.equal(learner.parameters, before)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (settings_of("model", hidden_sizes=[1024, 1024]), "more than 524,288 weights"),
        (settings_of("model", name="tests.unit.test_compiled_step:Own"), "frozen.weight does not learn"),
    ],
)
def test_what_it_cannot_compute_is_named(config, why):
    model = build_model(EnvSpec(ArraySpec((4,)), DISCRETE), config, 0, torch.float32)
    assert why in why_not_native(model, torch.device("cpu"))
    plain = build_model(EnvSpec(ArraySpec((4,)), DISCRETE), settings_of("model"), 0, torch.float32)
    assert "CPU" in why_not_native(plain, torch.device("cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_returns_and_their_moments_are_those_of_the_formulas(dtype):
    generator = torch.Generator().manual_seed(0)
    rewards, values, next_values = (torch.randn(40, 3, generator=generator, dtype=dtype) for _ in range(3))
    terminated, truncated = (torch.rand(40, 3, generator=generator) < 0.1 for _ in range(2))
    valid = torch.rand(40, 3, generator=generator) < 0.9
    samples = Rollout(
        obs=values, actions=values, logprobs=values, values=values, next_values=next_values, rewards=rewards,
        terminated=terminated, truncated=truncated, valid=valid, episode_start=valid, action_mask=None, raw_obs=values,
    )  # fmt: skip
    advantages, returns, found = returns_and_moments(samples, rewards, gamma=0.97, gae_lambda=0.9)
    expected = gae(rewards, values, next_values, terminated, truncated, valid, gamma=0.97, gae_lambda=0.9)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(advantages, expected, rtol=tolerance, atol=tolerance)
    columns = [x[valid] for x in (expected, expected + values, expected + values - values)]
    torch.testing.assert_close(returns, expected + values, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found[0], moments(torch.stack(columns, -1)), rtol=tolerance, atol=tolerance)
