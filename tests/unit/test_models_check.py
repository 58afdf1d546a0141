"""A model of a user's own is tried before it is trained."""

import pytest
import torch
from torch import nn

from ddppo.config.variants import settings_of
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.model_check import check_model
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(ArraySpec((4,)), ActionSpec("discrete", (2,)))


class Plain(ActorCritic):
    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.layer = nn.Linear(spec.obs_size, 3)
        self.add()

    def add(self):
        pass

    def forward(self, obs):
        return self.action_params(obs), self.value(obs)

    def action_params(self, obs):
        return self.layer(obs)[..., 1:]

    def value(self, obs):
        return self.layer(obs)[..., 0]


class Wide(Plain):
    def action_params(self, obs):
        return self.layer(obs)


class NaNInForward(Plain):
    def forward(self, obs):
        return self.action_params(obs) * torch.nan, self.value(obs)


class Column(Plain):
    def value(self, obs):
        return self.layer(obs)[..., :1]


class ColumnInForward(Plain):
    def forward(self, obs):
        return self.action_params(obs), self.value(obs).unsqueeze(-1)


class One(Plain):
    def forward(self, obs):
        return self.action_params(obs)


class Three(Plain):
    def forward(self, obs):
        return self.action_params(obs), self.value(obs), None


class NotATensor(Plain):
    def value(self, obs):
        return 0.0


class Unbuilt(Plain):
    def add(self):
        raise KeyError("width")


class Raising(Plain):
    def action_params(self, obs):
        return self.layer(obs.reshape(7, -1))


class OneBatchSize(Plain):
    def value(self, obs):
        return self.layer(obs).reshape(8, 3)[:, 0]


class Empty(Plain):
    def __init__(self, spec, config):
        super().__init__(spec, config)
        del self.layer


class Frozen(Plain):
    def add(self):
        self.requires_grad_(False)


class TwoTypes(Plain):
    def add(self):
        self.table = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)


class Lazy(Plain):
    def add(self):
        self.head = nn.LazyLinear(2)


class OtherType(Plain):
    def value(self, obs):
        return super().value(obs).bfloat16()


class Disagreeing(Plain):
    def forward(self, obs):
        return self.action_params(obs), self.value(obs) + 1


class Detached(Plain):
    def forward(self, obs):
        return self.action_params(obs), self.value(obs).detach()


class InPlace(Plain):
    def action_params(self, obs):
        return super().action_params(obs.mul_(2))


class Huge(Plain):
    def add(self):
        self.big = nn.Linear(2_000_000, 2_000_000)


class Unused(Plain):
    def add(self):
        self.spare = nn.Linear(3, 3)


class HalfFrozen(Plain):
    def add(self):
        self.layer.bias.requires_grad = False


class Normed(Plain):
    def add(self):
        self.trunk = nn.Sequential(nn.BatchNorm1d(4), nn.Tanh())

    def action_params(self, obs):
        return super().action_params(self.trunk(obs))


class Dropped(Plain):
    def add(self):
        self.drop = nn.Dropout(0.1)

    def value(self, obs):
        return super().value(self.drop(obs))


class Centred(Plain):
    def action_params(self, obs):
        return super().action_params(obs - obs.mean(dim=0))


class Counting(Plain):
    def add(self):
        self.register_buffer("calls", torch.zeros(()))

    def value(self, obs):
        self.calls += 1
        return super().value(obs)


class Noisy(Plain):
    def action_params(self, obs):
        return super().action_params(obs + torch.rand_like(obs))


def check(kind, num_envs=8, spec=SPEC, **more):
    name = f"test_models_check:{kind.__name__}"
    return check_model(spec, settings_of("model", name=name), torch.float32, num_envs=num_envs, **more)


MISTAKES = {
    Wide: "action_params returned action parameters of shape [8, 3] for obs [8, 4], but they must be [8, 2]",
    Column: "value returned values of shape [8, 1] for obs [8, 4], but they must be [8]: add .squeeze(-1)",
    ColumnInForward: "forward returned values of shape [8, 1] for obs [8, 4], but they must be [8]: add .squeeze(-1)",
    One: "forward returned one Tensor for obs [8, 4]: it must return two, action parameters [8, 2] and values [8]",
    Three: "forward returned 3 things for obs [8, 4]: it must return two",
    NotATensor: "value returned a float for values: it must be a tensor [8]",
    Unbuilt: "__init__ raised KeyError: 'width', in add (",
    Raising: "action_params raised for obs [8, 4]: RuntimeError",
    OneBatchSize: "value raised for obs [17, 4]: RuntimeError",
    Empty: "__init__ makes no parameter that can learn: it has none",
    Frozen: "__init__ makes no parameter that can learn: none requires a gradient",
    TwoTypes: "types or devices (int64 on cpu: table; float32 on cpu: layer.weight, layer.bias): keep what does",
    Lazy: "__init__ leaves head.weight, head.bias without a shape",
    OtherType: "value returned values of torch.bfloat16 on cpu, but they must be torch.float32 on cpu",
    Disagreeing: "forward returned values that differ from those of Disagreeing.value by 1: acting and learning must",
    Detached: "forward returned values without a gradient",
    InPlace: "action_params changes the observations that it gets",
    Huge: "Huge has 4,000,002,000,015 parameters and buffers, which need",
}


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_a_mistake_in_a_model_is_one_sentence_with_its_class_and_method(kind):
    with pytest.raises(ConfigError) as caught:
        check(kind)
    message = str(caught.value)
    assert message.startswith(f"model.name=test_models_check:{kind.__name__}")
    assert MISTAKES[kind] in message
    assert "\n" not in message


def test_a_step_size_of_no_part_of_the_model_is_refused_with_the_parts_it_has():
    assert check(Plain, learning_rates={"layer": 1e-3, "layer.bias": 2e-3}) is None
    with pytest.raises(
        ConfigError, match=r"ppo.learning_rates={lay: 0.001}: no parameter of Plain .* use layer, or"
    ):
        check(Plain, learning_rates={"lay": 1e-3})


@pytest.mark.parametrize("kind", [Plain, HalfFrozen], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("num_envs", [1, 2, 8])
def test_a_sound_model_is_taken_in_silence(kind, num_envs):
    assert check(kind, num_envs, ranks_here=4, overlaps_from=0) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "action", [ActionSpec("discrete", (2,)), ActionSpec("box", (3,)), ActionSpec("multi_discrete", (2, 3))]
)
def test_the_built_in_model_passes_with_any_action_and_type(action, dtype):
    assert check_model(EnvSpec(ArraySpec((4,)), action), settings_of("model"), dtype, num_envs=1) is None


def test_building_a_model_to_check_it_leaves_torchs_random_stream_where_it_was():
    before = torch.random.get_rng_state()
    check(Dropped)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_unused_parameters_are_refused_only_where_gradients_are_reduced_one_by_one():
    assert check(Unused) is None
    assert check(Unused, overlaps_from=1_000_000) is None
    with pytest.raises(
        ConfigError, match=r"Unused.forward does not use spare.weight, spare.bias, .*grad_sync=flat"
    ):
        check(Unused, overlaps_from=0)


def test_hidden_layers_beyond_memory_are_refused_before_they_are_allocated():
    config = settings_of("model", hidden_sizes=[3_000_000, 3_000_000])
    with pytest.raises(
        ConfigError,
        match=r"model.hidden_sizes=\[3000000, 3000000\]: MLP has 18,000,\d+,\d+,?\d* para.*this machine has",
    ):
        check_model(SPEC, config, torch.float32, num_envs=8, ranks_here=2)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            Normed,
            "layers trunk.0 (BatchNorm1d) of Normed compute with the rest of the batch or with statistics",
        ),
        (Dropped, "layers drop (Dropout) of Dropped draw numbers of their own"),
        (Centred, "Centred lets observations of a batch mix"),
        (Counting, "Counting changes its buffers calls"),
        (Noisy, "Noisy returns other outputs for the same observations"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_makes_results_depend_on_w_is_a_warning_with_its_name(kind, said):
    warning = check(kind)
    assert said in warning
    assert "dist.world_size" in warning


def test_batch_norm_is_refused_where_a_rank_acts_on_one_environment_and_warned_of_elsewhere():
    assert "it fails for a batch of one observation" in check(Normed, num_envs=2)
    with pytest.raises(
        ConfigError, match=r"Normed.action_params raised for obs .1, 4.: ValueError: Expected more than 1"
    ):
        check(Normed, num_envs=1)


def test_numbers_that_are_none_are_called_so():
    config = settings_of("model", name=f"{__name__}:NaNInForward")
    with pytest.raises(
        ConfigError, match=r"that are no numbers \(NaN\) where those of NaNInForward.action_params"
    ):
        check_model(SPEC, config, torch.float32, num_envs=4)
