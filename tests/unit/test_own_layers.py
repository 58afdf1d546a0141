"""Networks of a user's own in C++: which are read, which are not and why, and that both compute the same."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ddppo import native
from ddppo.collectives.group import Group
from ddppo.config.algorithm_settings import PPOSettings
from ddppo.config.model_settings import LOG_STD_RANGE
from ddppo.config.variants import settings_of
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.errors import TrainingError
from ddppo.models.actor_critic import MLP, ActorCritic, random_obs
from ddppo.ppo.cpp.learner import CppStep
from ddppo.ppo.cpp.network import OBS, CppNetwork, Differentiable, NotInCpp, is_as_in_torch, layers_of
from ddppo.ppo.gradient_check import worst_error
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec
from ddppo.study.bench.own import Plain

DISCRETE = EnvSpec(ArraySpec((4,)), ActionSpec("discrete", (3,)))
BOX = EnvSpec(ArraySpec((4,)), ActionSpec("box", (2,), low=(-1.0, -2.0), high=(1.0, 3.0)))
SEVERAL = EnvSpec({"at": ArraySpec((2, 3)), "speed": ArraySpec(()), "wind": ArraySpec((2,))}, DISCRETE.action)
IMAGE = EnvSpec(ArraySpec((2, 3)), ActionSpec("discrete", (3,)))


class Split(ActorCritic):
    """A shared layer, and more layers of policy and values, of other widths and activations, and one without a bias."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(spec.obs_size, 17), nn.LayerNorm(17), nn.GELU())
        self.actor = nn.ModuleList([nn.Linear(17, 9, bias=False), nn.Linear(9, self.num_outputs)])
        self.critic = nn.Sequential(nn.Linear(17, 5), nn.Identity(), nn.ReLU(inplace=True), nn.Linear(5, 1))

    @property
    def num_outputs(self):
        return self.num_params

    def forward(self, obs):
        return self.action_params(obs), self.value(obs)

    def action_params(self, obs):
        assert isinstance(obs, torch.Tensor)
        hidden = self.trunk(obs)
        for layer in self.actor[:-1]:
            hidden = F.leaky_relu(layer(hidden))
        return self.actor[-1](hidden)

    def value(self, obs):
        return self.critic(self.trunk(obs)).squeeze(-1)


class Linear(Split):
    """No hidden layer of the policy's own, one of the values', and two linear layers without an activation between."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.trunk = nn.Sequential(nn.Linear(spec.obs_size, 6), nn.Linear(6, 17))
        self.actor = nn.ModuleList([nn.Linear(17, self.num_outputs)])


class Alone(Split):
    """A linear policy on the observation, and values with a view of their own."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.trunk = nn.Identity()
        self.actor = nn.ModuleList([nn.Linear(4, self.num_outputs)])
        self.critic = nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 1))

    def value(self, obs):
        return self.critic(obs)[..., 0]


class Gaussian(Split):
    """Means of a layer, and log standard deviations that are one parameter for all observations."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.log_std = nn.Parameter(torch.full((1, 2), -0.3))

    @property
    def num_outputs(self):
        return 2

    def action_params(self, obs):
        mean = super().action_params(obs)
        return torch.cat([mean, self.log_std.expand(mean.shape[0], -1)], dim=-1)

    def value(self, obs):
        return self.critic(self.trunk(obs)).reshape(-1)


class Clamped(Split):
    """Log standard deviations that depend on the observation."""

    def action_params(self, obs):
        mean, log_std = super().action_params(obs).chunk(2, dim=-1)
        return torch.cat([mean, torch.clamp(log_std, *LOG_STD_RANGE)], dim=1)


class Derived(MLP):
    """ddppo's own network with other first weights."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        nn.init.uniform_(self.value_head.weight)


class Several(Split):
    """A network for a task that observes several arrays."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.trunk[0] = nn.Identity()

    order = ("at", "speed", "wind")

    def forward(self, obs):
        return self.action_params(obs), self.value(obs)

    def joined(self, obs):
        parts = {"at": obs["at"].flatten(1), "speed": obs["speed"].unsqueeze(-1), "wind": obs["wind"]}
        return torch.cat([parts[key] for key in self.order], dim=-1)

    def action_params(self, obs):
        return super().action_params(self.joined(obs))

    def value(self, obs):
        return super().value(self.joined(obs))


class Swapped(Several):
    """Arrays in another order than that of the task."""

    order = ("at", "wind", "speed")


class Block(nn.Module):
    """x + f(x), with layer normalisation in front (SimBa: Lee et al. 2024)."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + self.layers(x)


class Blocks(Split):
    """Residual blocks that policy and values share, behind a linear layer, and a norm behind the last block."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.trunk = nn.Sequential(nn.Linear(spec.obs_size, 17), Block(17), Block(17), nn.LayerNorm(17))


class Added(Split):
    """Activations before and behind additions, a sum of three, and values from two layers joined."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.trunk = nn.ModuleList([nn.Linear(spec.obs_size, 17), nn.Linear(17, 17), nn.Linear(17, 17)])
        self.narrow, self.wide = nn.Linear(17, 4), nn.Linear(4, 17)
        self.critic = nn.Linear(17 + 4, 1)

    def hidden(self, obs):
        x = F.silu(self.trunk[0](obs))
        y = self.trunk[1](x)
        x = F.gelu(torch.add(x, y.tanh())) + y
        x = (x + F.elu(self.trunk[2](x))).relu()
        narrow = obs + self.narrow(x)
        return x, narrow

    def action_params(self, obs):
        x, narrow = self.hidden(obs)
        return self.actor[1](self.actor[0](x.add(self.wide(narrow))))

    def value(self, obs):
        return self.critic(torch.cat(self.hidden(obs)[::-1], dim=-1)).squeeze(-1)


class Encoders(Several):
    """An encoder of each array, joined with an array as it is; the values also see halves in another order."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.at, self.wind = nn.Sequential(nn.Flatten(), nn.Linear(6, 9), nn.SiLU()), nn.Linear(2, 7)
        self.trunk[1], self.critic[0] = nn.Linear(7 + 9 + 1, 17), nn.Linear(17 + 18, 5)

    def joined(self, obs):
        return torch.cat([self.wind(obs["wind"]).relu(), self.at(obs["at"]), obs["speed"].unsqueeze(1)], 1)

    def value(self, obs):
        first, rest = (x := self.trunk(self.joined(obs)))[:, :8], x[:, 8:]
        a, b = (self.at(obs["at"])[:, 1:]).chunk(2, dim=-1)
        halves = torch.cat(
            [
                rest,
                first,
                b + a,
                obs["at"].flatten(1)[:, :5],
                first + rest[..., 1:],
                obs["speed"].unsqueeze(1),
            ],
            1,
        )
        return self.critic(halves).squeeze(-1)


def made(kind, spec=DISCRETE, dtype=torch.float32, **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(spec, settings_of("model", hidden_sizes=[16, 8], **settings)).to(dtype)


def step_of(model):
    parameters = FlatParameters(model)
    network = CppNetwork(model, model.spec, parameters.vector)
    return CppStep(network, PPOSettings(), torch.optim.Adam([parameters.vector]), Group())


in_cpp = pytest.mark.skipif(native.why_not() is not None, reason=str(native.why_not()))


@in_cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("kind", "spec", "settings"),
    [
        (Plain, DISCRETE, {}),
        (Split, DISCRETE, {}),
        (Split, IMAGE, {}),
        (Several, SEVERAL, {}),
        (Swapped, SEVERAL, {}),
        (Encoders, SEVERAL, {}),
        (Blocks, BOX, {"distribution": "beta"}),
        (Added, DISCRETE, {}),
        (Derived, SEVERAL, {}),
        (Linear, DISCRETE, {}),
        (Alone, DISCRETE, {}),
        (Gaussian, BOX, {"squash": "tanh"}),
        (Clamped, BOX, {}),
        (Split, BOX, {"distribution": "beta"}),
        (Derived, BOX, {"log_std": "state", "layer_norm": True}),
        (Derived, BOX, {"shared_trunk": True}),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else None,
)
def test_outputs_and_gradients_are_the_networks_own(kind, spec, settings, dtype):
    model = made(kind, spec, dtype, **settings)
    names = list(model.state_dict())
    step = step_of(model)
    assert worst_error(step, spec, model, PPOSettings()) < (1e-6 if dtype == torch.float32 else 1e-12)
    for _ in range(3):  # forward, action_params and value
        step.network.check_unchanged()
    assert list(model.state_dict()) == names
    # A loss that torch computes calls them, too.
    obs = random_obs(spec, 37, dtype, torch.Generator().manual_seed(0))
    model.in_cpp = Differentiable(model, spec, step.network.parameters)
    assert model.in_cpp.takes(obs)
    assert is_as_in_torch(model.in_cpp, model, obs)
    assert type(model(obs)[0].grad_fn).__name__ == "_OutputsBackward"


def test_layers_in_common_are_shared_however_often_they_are_called():
    layers = layers_of(made(Split))
    assert [(layer.linear, [source.layer for source in layer.sources]) for layer in layers.layers] == [
        ("trunk.1", [OBS]),
        ("actor.0", [0]),
        ("critic.0", [0]),
    ]
    assert (layers.policy, layers.value) == (1, 2)
    assert (layers.policy_head, layers.value_head) == ("actor.1", "critic.3")
    assert layers_of(made(Derived, shared_trunk=True)) == layers_of(made(MLP, shared_trunk=True))


# -- What stays in torch.


def with_dropout(model):
    model.policy.insert(1, nn.Dropout(0.5))


def with_hook(model):
    model.policy[0].register_forward_hook(lambda *_: None)


def frozen(model):
    model.critic[0].weight.requires_grad_(False)


def tied(model):
    model.critic[0].weight = model.policy[0].weight


def parametrized(model):
    nn.utils.parametrizations.orthogonal(model.policy[0])


def replaced(model):
    model.policy[0].forward = lambda obs: obs[:, :1].expand(-1, 16)


def unused(model):
    model.more = nn.Linear(2, 2)


def steeper(model):
    model.policy[1] = nn.LeakyReLU(0.2)


def approximate(model):
    model.policy[1] = nn.GELU(approximate="tanh")


def half(model):
    model.policy[0].half()


def subclassed(model):
    class Other(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model.policy[0] = Other(4, 16)


def uncopied(model):
    model.generator = (x for x in ())


CHANGED = {
    with_dropout: r"Plain.forward calls Dropout policy.1 \(own.py:\d+\), which C\+\+ does not have",
    with_hook: "policy.0 has a hook",
    frozen: r"critic.0.weight does not learn \(requires_grad=False\)",
    tied: "critic.0.weight is the parameter of two layers",
    parametrized: "policy.0.weight is parametrized",
    replaced: "policy.0.forward is set on the object",
    unused: "more.weight has no part in forward",
    steeper: r"Plain.forward calls LeakyReLU policy.1 \(own.py",
    approximate: r"Plain.forward calls GELU policy.1 \(own.py",
    half: "policy.0.weight is float16",
    subclassed: r"Plain.forward reads policy.0.weight \(test_own_layers.py:\d+\)",
    uncopied: "Plain cannot be copied: ",
}


@pytest.mark.parametrize("change", CHANGED, ids=lambda x: x.__name__)
def test_a_layer_that_cpp_does_not_have_is_named(change):
    model = made(Plain)
    change(model)
    with pytest.raises(NotInCpp, match=CHANGED[change]):
        layers_of(model)


class Residual(Plain):
    def action_params(self, obs):
        return self.policy(obs + obs.sin())


class Shifted(Plain):
    def action_params(self, obs):
        return self.policy(obs + 1.0)


class Stacked(Plain):
    def action_params(self, obs):
        return self.policy(torch.stack([obs, obs], dim=1).flatten(1)[:, :4])


class Deciding(Plain):
    def forward(self, obs):
        return super().forward(obs if obs.sum() > 0 else -obs)


class Counting(Plain):
    calls = 0

    def forward(self, obs):
        self.calls += 1
        return super().forward(obs)


class Filling(Plain):
    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, obs):
        self.calls.add_(1)
        return super().forward(obs)


class InTraining(Plain):
    def forward(self, obs):
        return self.action_params(obs), self.value(obs)

    def action_params(self, obs):
        hidden = self.policy[1](self.policy[0](obs))
        return self.policy[4](
            self.policy[3](self.policy[2](hidden)) if self.training else self.policy[2](hidden)
        )


class Other(Plain):
    def action_params(self, obs):
        return self.policy(obs).tanh()


class Bounded(Plain):
    def forward(self, obs):
        return self.policy(obs).tanh(), super().value(obs)

    def action_params(self, obs):
        return self.policy(obs).tanh()


class Twice(Plain):
    def value(self, obs):
        return self.critic(obs.flatten(1)).squeeze(-1)

    def forward(self, obs):
        return self.action_params(obs), self.value(obs)

    def action_params(self, obs):
        return self.policy[4](self.policy[2](self.policy[2](self.policy[0](obs)).relu()))


class Failing(Plain):
    def forward(self, obs):
        return self.missing(obs)


class OwnChoice(Plain):
    def evaluate_actions(self, obs, actions):
        return super().evaluate_actions(obs, actions)


REFUSED = {
    Residual: r"Residual.action_params calls sin \(test_own_layers.py:\d+\), which C\+\+ does not have",
    Shifted: r"Shifted.action_params calls add \(test_own_layers.py:\d+\), which C\+\+ does not have",
    Stacked: r"Stacked.action_params calls stack \(test_own_layers.py:\d+\), which C\+\+ does not have",
    Deciding: r"Deciding.forward decides by what is in a tensor at test_own_layers.py:\d+",
    Counting: "Counting changes its attribute calls when it is called",
    Filling: r"Filling.forward reads calls \(test_own_layers.py:\d+\)",
    InTraining: r"InTraining computes something else after eval\(\)",
    Other: "Other.action_params does not compute what Other.forward does",
    Bounded: "Bounded.forward returns action parameters that do not come straight from a linear layer",
    Failing: r"Failing.forward cannot be read at test_own_layers.py:\d+: .*missing",
    OwnChoice: "OwnChoice has its own evaluate_actions",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda x: x.__name__)
def test_an_operation_that_cpp_does_not_have_is_named_with_its_line(kind):
    with pytest.raises(NotInCpp, match=REFUSED[kind]):
        layers_of(made(kind))


def test_a_layer_that_is_called_twice_is_not_read():
    model = made(Twice)
    model.policy[2] = nn.Linear(16, 16)
    model.policy[4] = nn.Linear(16, 3)
    with pytest.raises(NotInCpp, match=r"policy\.2 is called twice"):
        layers_of(model)


def test_log_standard_deviations_without_limits_stay_in_torch():
    with pytest.raises(NotInCpp, match="neither a parameter nor clamped to -20 to 2"):
        layers_of(made(Split, BOX))


def test_reading_a_network_leaves_it_as_it_was():
    model = made(Counting)
    before = copy.deepcopy(vars(model))
    with pytest.raises(NotInCpp):
        layers_of(model)
    assert vars(model).keys() == before.keys()
    assert model.calls == 0


@in_cpp
@pytest.mark.parametrize("change", [replaced, steeper, with_hook], ids=lambda x: x.__name__)
def test_a_network_that_changes_during_a_run_ends_it(change):
    step = step_of(model := made(Plain))
    change(model)
    with pytest.raises(TrainingError, match=re.escape("use compile=off for a network that changes")):
        step.begin(1e-3, 0.2, 0.0)


@in_cpp
def test_a_network_that_changes_ends_a_run_with_a_loss_in_torch_too():
    model = made(Plain)
    model.in_cpp = Differentiable(model, DISCRETE, FlatParameters(model).vector)
    replaced(model)
    with pytest.raises(TrainingError, match=re.escape("use compile=off for a network that changes")):
        [model(torch.zeros(5, *DISCRETE.obs.shape)) for _ in range(100)]
