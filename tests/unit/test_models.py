import pytest
import torch
from torch import nn

from ddppo.config.variants import settings_of
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ActorCritic, random_obs
from ddppo.models.build import build_model
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

DISCRETE = EnvSpec(ArraySpec((5,)), ActionSpec("discrete", (3,)))
BOX = EnvSpec(ArraySpec((5,)), ActionSpec("box", (2,)))


class Tiny(ActorCritic):
    """A model of a user's own, found by its import path."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.layer = nn.Linear(spec.obs_size, spec.action.sizes[0] + 1)

    def forward(self, obs):
        return self.action_params(obs), self.value(obs)

    def action_params(self, obs):
        return self.layer(obs)[..., 1:]

    def value(self, obs):
        return self.layer(obs)[..., 0]


def model(spec=DISCRETE, seed=0, dtype=torch.float64, **settings):
    return build_model(spec, settings_of("model", **settings), seed, dtype)


def linears(trunk):
    return [layer for layer in trunk if isinstance(layer, nn.Linear)]


def assert_orthogonal(weight, gain):
    rows, columns = weight.shape
    gram = weight @ weight.T if rows <= columns else weight.T @ weight
    expected = gain**2 * torch.eye(min(rows, columns), dtype=weight.dtype)
    torch.testing.assert_close(gram, expected, rtol=1e-5, atol=1e-5 * gain**2)


def test_layers_start_orthogonal_with_the_gains_of_their_place_and_without_bias():
    built = model(hidden_sizes=[16, 8])
    for layer in linears(built.policy_trunk) + linears(built.value_trunk):
        assert_orthogonal(layer.weight.detach(), 2**0.5)
    assert_orthogonal(built.policy_head.weight.detach(), 0.01)
    assert_orthogonal(built.value_head.weight.detach(), 1.0)
    assert all((p == 0).all() for name, p in built.named_parameters() if name.endswith("bias"))


def test_layers_may_start_as_torch_s_own_do():
    built = model(hidden_sizes=[16, 8], orthogonal=False)
    layers = linears(built.policy_trunk) + linears(built.value_trunk) + [built.policy_head, built.value_head]
    for layer in layers:
        bound = layer.in_features**-0.5
        assert 0.5 * bound < layer.weight.abs().max() <= bound
        assert 0 < layer.bias.abs().max() <= bound
    assert torch.equal(
        built.policy_head.weight, model(hidden_sizes=[16, 8], orthogonal=False).policy_head.weight
    )


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_layers_are_normalised_before_their_activation_and_begin_with_the_weights_of_plain_ones(memory):
    settings = {"hidden_sizes": [16, 8], "memory": memory, "shared_trunk": memory != "none"}
    normed, plain = model(layer_norm=True, **settings), model(**settings)
    trunk, other_trunk = (b.policy_trunk if memory == "none" else b.trunk.layers for b in (normed, plain))
    assert [type(layer) for layer in trunk] == [nn.Linear, nn.LayerNorm, nn.Tanh] * 2
    for one, other in zip(linears(trunk), linears(other_trunk), strict=True):
        assert torch.equal(one.weight, other.weight)
    x = torch.randn(7, 16, dtype=torch.float64)
    z = x - x.mean(1, keepdim=True)
    torch.testing.assert_close(trunk[1](x), z / (z.square().mean(1, keepdim=True) + 1e-5).sqrt())


@pytest.mark.parametrize("sizes", [[4], [8, 4], [3, 5, 7, 9]])
def test_hidden_layers_are_as_many_and_as_wide_as_asked(sizes):
    built = model(hidden_sizes=sizes, activation="relu")
    assert [layer.out_features for layer in linears(built.policy_trunk)] == sizes
    assert sum(isinstance(layer, nn.ReLU) for layer in built.value_trunk) == len(sizes)
    params, values = built(torch.zeros(2, 7, 5, dtype=torch.float64))
    assert (params.shape, values.shape) == ((2, 7, 3), (2, 7))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("spec", [DISCRETE, BOX])
def test_acting_and_bootstrapping_compute_what_learning_computes(spec, shared, layer_norm):
    built = model(spec, shared_trunk=shared, layer_norm=layer_norm)
    obs = torch.randn(6, 5, dtype=torch.float64)
    params, values = built(obs)
    torch.testing.assert_close(built.action_params(obs), params, rtol=0, atol=0)
    torch.testing.assert_close(built.value(obs), values, rtol=0, atol=0)


def test_a_shared_trunk_is_one_and_learns_from_the_value_loss_and_separate_ones_are_two():
    shared, separate = model(shared_trunk=True), model(shared_trunk=False)
    assert shared.policy_trunk is shared.value_trunk
    trunk_size = 5 * 64 + 64 + 64 * 64 + 64
    sizes = [sum(p.numel() for p in built.parameters()) for built in (shared, separate)]
    assert sizes[1] - sizes[0] == trunk_size
    for built, learns in ((shared, True), (separate, False)):
        built.value(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
        assert (built.policy_trunk[0].weight.grad is not None) is learns


def test_the_deviation_of_gaussian_actions_is_a_parameter_that_no_observation_changes():
    built = model(BOX, log_std_init=-0.5)
    params = built.action_params(torch.randn(9, 5, dtype=torch.float64))
    assert params.shape == (9, 4)
    assert (params[:, 2:] == -0.5).all()
    params[:, 2:].sum().backward()
    assert built.log_std.grad.tolist() == [9.0, 9.0]


def parameters_of(built):
    return torch.cat([p.detach().flatten() for p in built.parameters()])


def test_parameters_follow_from_the_seed_alone_whatever_the_number_of_threads():
    before = torch.get_num_threads()
    built = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            built.append(parameters_of(model(hidden_sizes=[256, 256])))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(built[0], built[1])
    assert torch.equal(built[0], built[2])
    assert not torch.equal(built[0], parameters_of(model(hidden_sizes=[256, 256], seed=1)))


def test_building_a_model_leaves_torchs_own_random_stream_where_it_was():
    before = torch.random.get_rng_state()
    model()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_parameters_have_the_asked_type_and_round_to_the_same_numbers():
    double, single = parameters_of(model(dtype=torch.float64)), parameters_of(model(dtype=torch.float32))
    assert (double.dtype, single.dtype) == (torch.float64, torch.float32)
    assert torch.equal(double.float(), single)


def test_a_model_of_ones_own_is_found_by_its_import_path():
    assert isinstance(model(name="test_models:Tiny"), Tiny)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "mpl",
            "neither one of mlp, cnn, resnet, dict,? .*nor an import path like my_pkg",
        ),
        (
            "no_such_package:Model",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        (
            "test_models:Missing",
            "cannot be imported: AttributeError: module 'test_models' has no attribute 'Missing'",
        ),
        ("test_models:DISCRETE", "must be a subclass of ddppo.models.actor_critic.ActorCritic"),
    ],
)
def test_a_model_that_does_not_exist_is_a_config_error_that_says_why(name, message):
    with pytest.raises(ConfigError, match=f"model.name={name}: {message}"):
        model(name=name)


# -- Policy and value function that read different arrays (EnvSpec.policy_keys, value_keys).

GROUPS = EnvSpec(
    {"actor": ArraySpec((3,)), "critic": ArraySpec((2,)), "other": ArraySpec((1,))},
    ActionSpec("box", (2,)),
    policy_keys=("actor",),
    value_keys=("actor", "critic"),
)


def test_the_policy_depends_on_its_own_arrays_only_and_so_does_the_value_function():
    model = build_model(GROUPS, settings_of("model", hidden_sizes=[8]), 0, torch.float64)
    obs = random_obs(GROUPS, 5, torch.float64)
    for x in obs.values():
        x.requires_grad_()
    params, values = model(obs)
    for output, read in ((params, {"actor"}), (values, {"actor", "critic"})):
        found = torch.autograd.grad(output.square().sum(), list(obs.values()), allow_unused=True)
        moved = {key for key, x in zip(obs, found, strict=True) if x is not None and x.abs().sum() > 0}
        assert moved == read
    assert torch.equal(params, model.action_params(obs))
    torch.testing.assert_close(values, model.value(obs))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"shared_trunk": True}, "use model.shared_trunk=false"),
        ({"memory": "lstm"}, "model.memory=lstm: this task lets its value function read other arrays"),
        ({"name": "dict"}, "model.name=dict: this task lets its value function read other arrays"),
    ],
)
def test_models_that_read_the_same_for_both_are_refused_such_tasks(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build_model(GROUPS, settings_of("model", **settings), 0, torch.float32)
