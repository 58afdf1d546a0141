"""Policies of continuous actions: Gaussian, squashed into bounds, with deviations of the observation; and Beta."""

import itertools
import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ddppo import native
from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.rank_rules import why_fast
from ddppo.config.rules import validate
from ddppo.config.settings import Config
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import MLP
from ddppo.models.build import build_model
from ddppo.models.distributions import action_distribution
from ddppo.policies.export.check import check
from ddppo.ppo.cpp.learner import CppStep
from ddppo.ppo.cpp.network import CppNetwork, why_not_cpp
from ddppo.ppo.gradient_check import worst_error
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from tests.unit.policy_tasks import run_folder
from tests.unit.test_compiled_step import assert_equal, both
from tests.unit.test_export import onnx_needed, tried

BOX = ActionSpec("box", (2,), (-2.0, 0.0), (2.0, 1.0))
VECTOR, IMAGE = EnvSpec(ArraySpec((3,)), BOX), EnvSpec(ArraySpec((2, 8, 8), "uint8"), BOX)
CNN = {"name": "cnn", "conv_layers": [[4, 4, 4]]}


@pytest.mark.parametrize(("spec", "kind"), [(VECTOR, {}), (IMAGE, CNN)], ids=["mlp", "cnn"])
def test_deviations_depend_on_what_is_observed_and_begin_alike(spec, kind):
    model = build_model(
        spec, settings_of("model", log_std="state", log_std_init=-1.5, **kind), 0, torch.float64
    )
    generator = torch.Generator().manual_seed(0)
    obs = (255 * torch.rand(5, *spec.obs.shape, generator=generator, dtype=torch.float64)).to(
        torch.uint8 if kind else torch.float64
    )
    params, _ = model(obs)
    torch.testing.assert_close(model.action_params(obs), params)
    log_std = params[:, 2:]
    assert log_std.std(dim=0).min() > 0
    assert (log_std + 1.5).abs().max() < 1
    with torch.no_grad():
        model.policy_head.bias[2:] += torch.tensor([99.0, -99.0])
    assert model.action_params(obs)[:, 2:].unique(dim=0).tolist() == [[2.0, -20.0]]


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"squash": "tanh"}, "torch"),
        ({"squash": "tanh", "log_std_init": -0.7, "layer_norm": True}, "native"),
        ({"log_std": "state"}, "torch"),
        ({"log_std": "state", "shared_trunk": True}, "native"),
        ({"squash": "tanh", "log_std": "state"}, "native"),
        ({"distribution": "beta", "layer_norm": True}, "native"),
        ({"distribution": "beta"}, "torch"),
    ],
)
def test_the_step_that_torch_compiles_or_that_is_in_cpp_is_the_eager_one(settings, kind, monkeypatch):
    if kind == "native" and (why := native.why_not()):
        pytest.skip(why)
    config = settings_of("model", hidden_sizes=[8], **settings)
    found = both(VECTOR, kind, monkeypatch, model_config=config, entropy_coef=0.01)
    assert_equal(found)


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=str)
@pytest.mark.parametrize("log_std", ["parameter", "state"])
@pytest.mark.parametrize("squash", ["none", "tanh"])
def test_cpp_has_the_gradient_of_autograd_up_to_rounding_also_where_deviations_are_cut(
    squash, log_std, dtype, error
):
    model = build_model(VECTOR, settings_of("model", squash=squash, log_std=log_std), 0, dtype)
    if log_std == "state":
        with torch.no_grad():
            model.policy_head.bias[2:] = torch.tensor([1.99, -0.5])  # about half the rows are beyond 2
    parameters, settings = FlatParameters(model), PPOSettings(entropy_coef=0.1)
    network = CppNetwork(model, VECTOR, parameters.vector)
    step = CppStep(network, settings, torch.optim.Adam([parameters.vector]), Group())
    assert worst_error(step, VECTOR, model, settings) < error


def test_what_a_compiler_is_handed_squashes_without_constants_that_export_would_lose():
    def function(params, actions):
        distribution = action_distribution(BOX, params, is_squashed=True)
        return distribution.log_prob(actions), distribution.entropy()

    inputs = torch.randn(4, 4), torch.tensor([[0.3, 0.7]]).repeat(4, 1)
    traced = make_fx(function, tracing_mode="symbolic")(*inputs)
    assert not [name for name, _ in traced.named_buffers()]
    for found, expected in zip(traced(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("settings", "outputs"),
    [
        ({"squash": "tanh", "log_std": "state"}, {"mean", "log_std"}),
        ({"distribution": "beta"}, {"alpha", "beta"}),
    ],
    ids=["squashed", "beta"],
)
@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_a_file_acts_within_the_bounds_as_the_policy_does(tmp_path, format, settings, outputs):
    if format == "onnx":
        onnx_needed()
    folder = run_folder(tmp_path, "WholeEnv", **settings)
    policy, run, inputs, rows = tried(folder, format)
    assert policy.trained.policy.model.is_squashed == ("squash" in settings)
    assert set(check(policy, run, inputs, rows).outputs) == {"action", *outputs}


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float64, 1e-10)], ids=str)
@pytest.mark.parametrize("spread", [1.0, 200.0])
def test_cpp_has_the_gradient_of_betas_that_autograd_finds(spread, dtype, error):
    """In float64 the difference is that of torch: its trigamma function has an error of 1e-9."""
    model = build_model(VECTOR, settings_of("model", distribution="beta"), 0, dtype)
    with torch.no_grad():
        model.policy_head.weight.mul_(spread)
        model.policy_head.bias.copy_(torch.tensor([0.0, 30.0, -9.0, 20.0]))
    parameters, settings = FlatParameters(model), PPOSettings(entropy_coef=0.1)
    step = CppStep(
        CppNetwork(model, VECTOR, parameters.vector), settings, torch.optim.Adam([parameters.vector]), Group()
    )
    assert worst_error(step, VECTOR, model, settings) < error


@pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))
@pytest.mark.parametrize(
    ("action", "settings"),
    [
        (action, {"shared_trunk": shared, "layer_norm": norm, **head})
        for shared, norm in itertools.product([False, True], repeat=2)
        for action, head in [
            (ActionSpec("discrete", (3,)), {"hidden_sizes": [9], "activation": "gelu"}),
            (ActionSpec("multi_discrete", (3, 2)), {"hidden_sizes": [9, 8, 7, 6], "activation": "silu"}),
            (BOX, {"hidden_sizes": [9, 8, 7], "orthogonal": False}),
            (BOX, {"squash": "tanh", "orthogonal": True}),
            (BOX, {"log_std": "state"}),
            (BOX, {"distribution": "beta"}),
        ]
    ],
    ids=str,
)
def test_what_people_change_first_is_learned_in_cpp_with_ordered_sums(action, settings):
    obs = {"near": ArraySpec((3,)), "far": ArraySpec((2, 2))}
    model = build_model(EnvSpec(obs, action), settings_of("model", **settings), 0, torch.float32)
    config = Config(model=settings_of("model", **settings), ppo=PPOSettings())
    config.env.num_envs, config.device = 8, "cpu"
    assert why_not_cpp(config, model, torch.device("cpu"), "flat") is None
    assert why_fast(config) is None


class Own(MLP):
    def distribution(self, params, mask=None):
        return super().distribution(params, mask)


UNBOUNDED = ActionSpec("box", (2,))


@pytest.mark.parametrize(
    ("action", "settings", "said"),
    [
        (UNBOUNDED, {"squash": "tanh"}, "needs actions with a finite low < high"),
        (
            ActionSpec("discrete", (2,)),
            {"squash": "tanh"},
            "model.squash=tanh has no effect on actions that are disc",
        ),
        (ActionSpec("multi_binary", (2,)), {"log_std": "state"}, "model.log_std=state has no effect"),
        (
            UNBOUNDED,
            {"distribution": "beta"},
            "model.distribution=beta needs actions with a finite low < high",
        ),
        (
            ActionSpec("discrete", (2,)),
            {"distribution": "beta"},
            "has no effect on actions that are discrete",
        ),
        (BOX, {"squash": "tanh", "name": "tests.unit.test_heads:Own"}, "brings a distribution of its own"),
    ],
)
def test_what_makes_no_sense_is_said(action, settings, said):
    with pytest.raises(ConfigError, match=said):
        build_model(EnvSpec(ArraySpec((3,)), action), settings_of("model", **settings), 0, torch.float32)


def test_a_deviation_begins_where_it_can_be():
    config = Config(model=settings_of("model", log_std="state", log_std_init=3.0), ppo=PPOSettings())
    config.env.id = "Pendulum-v1"
    with pytest.raises(
        ConfigError, match=r"model.log_std_init=3.0 with model.log_std=state, which is cut to \[-20, 2\]"
    ):
        validate(config)


def test_a_squashed_action_is_worth_what_the_plain_one_is_where_tanh_is_a_line():
    model = build_model(
        VECTOR, settings_of("model", squash="tanh", log_std_init=math.log(1e-3)), 0, torch.float64
    )
    policy = model.distribution(model.action_params(torch.zeros(1, 3, dtype=torch.float64)))
    plain = policy.normal
    torch.testing.assert_close(
        policy.mode(), torch.tensor([[0.0, 0.5]]).double() + torch.tensor([2, 0.5]) * plain.mean
    )
    halves = math.log(2.0) + math.log(0.5)
    torch.testing.assert_close(policy.entropy(), plain.entropy() + halves, rtol=0, atol=1e-5)
