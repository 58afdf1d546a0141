"""What an actor-critic is, and the multi-layer perceptron."""

import abc
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ddppo.config.model_settings import LayerSettings, MlpSettings, ModelSettings
from ddppo.models.distributions import (
    ActionDistribution,
    action_distribution,
    begin_log_std_,
    check_heads,
    num_action_params,
    num_noise,
    policy_outputs,
    policy_params,
)
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves

# -- Observations as tensors: what a model is given, and one vector of it for models that want no more.


Obs = torch.Tensor | dict[str, torch.Tensor]  # `[..., *shape]`, as spec.obs is one array or several by name


def tensor_dtype(leaf: ArraySpec, dtype: torch.dtype) -> torch.dtype:
    """Return the type that a model which computes in `dtype` is given an array in: pixels stay uint8."""
    return dtype if leaf.is_float else torch.uint8


def raw_dtype(leaf: ArraySpec, dtype: torch.dtype, *, is_normalized: bool) -> torch.dtype:
    """Return the type that an array is kept in as the task gave it: float64 until its mean is subtracted."""
    return torch.float64 if is_normalized and leaf.dtype == "float64" else tensor_dtype(leaf, dtype)


def flat_obs(obs: Obs, spec: EnvSpec, dtype: torch.dtype) -> torch.Tensor:
    """Return `[..., obs_size]`: all arrays flattened, in the order of the spec; pixels are scaled to [0, 1]."""
    parts = []
    for leaf, x in zip(leaves(spec.obs), leaves(obs), strict=True):
        flat = x.flatten(-len(leaf.shape)) if leaf.shape else x.unsqueeze(-1)
        parts.append(flat if leaf.is_float else flat.to(dtype) / 255)
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


def random_obs(
    spec: EnvSpec, num_rows: int, dtype: torch.dtype, generator: torch.Generator | None = None
) -> Obs:
    """Return `[num_rows, *shape]`, uniform on [0, 1), pixels from 0 to 255."""

    def random(leaf: ArraySpec) -> torch.Tensor:
        x = torch.rand(num_rows, *leaf.shape, dtype=torch.float64, generator=generator)
        return x.to(dtype) if leaf.is_float else (256 * x).to(torch.uint8)

    return each(random, spec.obs)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
}


class ActorCritic(nn.Module, abc.ABC):
    """What PPO needs of a model, which is built as `Model(spec, config)`. P = num_params.

    obs are what spec.obs describes, n at once: a tensor `[n, *shape]`, or a dict of them where spec.obs is one. Floats
    come in the type of the parameters; pixels come as uint8, and the model scales them.

    A policy that chooses in stages, of which some do not learn, brings its own `distribution` and `evaluate_actions`:
    actions are sampled from the output of `forward`; the output of `evaluate_actions` gives log_prob and entropy of the
    stages that learn.
    """

    values_are_beside = False  # forward costs hardly more than action_params: acting takes values along
    # True: a rollout records the values of `evaluate_actions`, those of the actions taken, and not the values of
    # `forward` and `value`, which estimate a state's return.
    values_are_of_actions = False
    # Import paths, `module:attribute`, of what a kind of models needs otherwise than the core has it; None: the core's.
    # All three are inherited, and docs/design.md says what each of the classes has to have.
    collector_class: str | None = None  # acts with the model, a ddppo.ppo.rollout.RolloutCollector
    minibatch_class: str | None = None  # of a rollout, a ddppo.ppo.minibatches.Minibatches
    check_class: str | None = None  # tries the model before a run, a ddppo.models.model_check.Trial
    takes_text = False  # observations and actions are text, of which the model's collector makes arrays
    state_size = (
        0  # S, numbers remembered of each environment; 0 for a model without memory (models/recurrent.py)
    )
    stays_eager: str | None = None  # why the learner's step cannot be compiled, or would gain nothing by it
    compiles_by_itself = True  # whether compile=auto has it compiled; else only who asks for it

    is_squashed = False  # actions are a box, and tanh brings them within its bounds

    # The dataclass of model's keys, of which `config` is one: the constructor reads what a command line sets.
    Settings: ClassVar[type[ModelSettings]] = MlpSettings

    @abc.abstractmethod
    def __init__(self, spec: EnvSpec, config: ModelSettings) -> None:
        super().__init__()
        self.spec = spec
        brings_own_policy = type(self).distribution is not ActorCritic.distribution
        check_heads(spec.action, config, brings_own_policy=brings_own_policy)
        self.is_squashed = isinstance(config, LayerSettings) and config.squash == "tanh"

    @abc.abstractmethod
    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]` and values `[n]`."""

    def evaluate_actions(self, obs: Obs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `forward` does, or what of it actions `[n, *action.shape]` need; used in learning."""
        return self(obs)

    def evaluate_minibatch(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `evaluate_actions` of a minibatch, given the "inputs" that `minibatch_class` makes."""
        obs, actions = inputs
        return self.evaluate_actions(obs, actions)

    @abc.abstractmethod
    def action_params(self, obs: Obs) -> torch.Tensor:
        """Return action parameters `[n, P]` alone; used in acting."""

    def portable_params(self, obs: Obs) -> torch.Tensor:
        """Return what `action_params` does by operations that other programs know, whatever n is; used in export."""
        return self.action_params(obs)

    @abc.abstractmethod
    def value(self, obs: Obs) -> torch.Tensor:
        """Return values `[n]` alone; used for bootstrapping."""

    @property
    def num_params(self) -> int:
        """P, numbers that describe the distribution of one action."""
        return num_action_params(self.spec.action)

    @property
    def num_noise(self) -> int:
        """Return how many random numbers one action takes: uniform on [0, 1), standard normal where it is a box."""
        return num_noise(self.spec.action)

    def distribution(self, params: torch.Tensor, mask: torch.Tensor | None = None) -> ActionDistribution:
        """Return the distribution that `params` `[..., P]` describe; `mask` `[..., mask_size]` bool allows choices."""
        return action_distribution(self.spec.action, params, mask, is_squashed=self.is_squashed)

    def step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]`, values `[n]` and the state `[n, S]` that follows `state` `[n, S]`.

        Used in acting, where state_size is above 0; zeros are the state at the start of an episode.
        """
        raise NotImplementedError

    def unroll(
        self, obs: Obs, state: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[T, m, P]` and values `[T, m]` of T steps in a row in m environments.

        obs `[T, m, *shape]`; state `[m, S]` before row 0; starts `[T, m]` bool: rows that start an episode, before
        which the state is 0, whatever it was. Each row is what `step` says. Used in learning, where state_size is
        above 0.
        """
        raise NotImplementedError

    def portable_step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the action parameters and the state that `step` does, as portable_params does; used in export."""
        params, _, state = self.step(obs, state)
        return params, state

    def unchanged(self) -> AbstractContextManager[None]:
        """Return a context in which no parameter changes, so that what is derived from them may be kept."""
        return nullcontext()

    def num_products(self) -> int:
        """Return how many products of weights one observation takes: one of each, unless the model says otherwise."""
        return sum(p.numel() for p in self.parameters())


class EvaluateActions(nn.Module):
    """A model called as it learns, as modules are; its parameters and buffers are its own, behind "model.".

    It is given obs and actions, or the `inputs` of minibatches of the model's own, or with memory what `unroll` reads.
    """

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.unroll(*inputs) if self.model.state_size else self.model.evaluate_minibatch(*inputs)


class MLP(ActorCritic):
    """Multi-layer perceptron over all that is observed, flattened, with separate or shared hidden layers.

    The logarithm of the standard deviation of Gaussian actions does not depend on the observation, unless
    model.log_std=state.
    Orthogonal initialisation with gain sqrt(2) in hidden layers, 0.01 in the policy head and 1 in the value head
    (Andrychowicz et al. 2021, arXiv:2006.05990; Huang et al. 2022, "The 37 implementation details of PPO"), unless
    model.orthogonal is false: then torch.nn.Linear's, as in settings that were tuned with ortho_init=False.
    """

    def __init__(self, spec: EnvSpec, config: MlpSettings) -> None:
        super().__init__(spec, config)
        self.is_vector = isinstance(spec.obs, ArraySpec) and len(spec.obs.shape) == 1 and spec.obs.is_float
        self.is_box = spec.action.kind == "box"
        self.shared_trunk = config.shared_trunk
        self.activation = config.activation
        sizes = list(config.hidden_sizes)
        self.policy_trunk = hidden_layers(spec.obs_size, sizes, config.activation)
        self.value_trunk = self.policy_trunk
        if not config.shared_trunk:
            self.value_trunk = hidden_layers(spec.obs_size, sizes, config.activation)
        self.policy_head = linear(config.hidden_sizes[-1], policy_outputs(spec.action, config), gain=0.01)
        self.value_head = linear(config.hidden_sizes[-1], 1, gain=1.0)
        if not config.orthogonal:
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        self.log_std = begin_log_std_(self.policy_head, spec.action, config)

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        inputs: Any = obs if self.is_vector else self._flat(obs)
        hidden = self.policy_trunk(inputs)
        value_hidden = hidden if self.shared_trunk else self.value_trunk(inputs)
        return self._head(hidden), self.value_head(value_hidden).squeeze(-1)

    def action_params(self, obs: Obs) -> torch.Tensor:
        inputs: Any = obs if self.is_vector else self._flat(obs)
        return self._head(passed(self.policy_trunk, inputs))

    def value(self, obs: Obs) -> torch.Tensor:
        inputs: Any = obs if self.is_vector else self._flat(obs)
        return self.value_head(passed(self.value_trunk, inputs)).squeeze(-1)

    def _flat(self, obs: Obs) -> torch.Tensor:
        return flat_obs(obs, self.spec, self.value_head.weight.dtype)

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        return policy_params(self.policy_head(hidden), self.log_std, is_box=self.is_box)


def hidden_layers(inputs: int, sizes: list[int], activation: str) -> nn.Sequential:
    """Return a layer of as many units as each of `sizes`, with orthogonal weights, and what is not linear behind it."""
    layers: list[nn.Module] = []
    for outputs in sizes:
        layers += [linear(inputs, outputs, gain=2**0.5), ACTIVATIONS[activation]()]
        inputs = outputs
    return nn.Sequential(*layers)


def passed(layers: nn.Sequential, inputs: torch.Tensor) -> torch.Tensor:
    """Return layers(inputs). In inference mode on a CPU, tanh is NumPy's: 10 times as fast as torch's."""
    if not (torch.is_inference_mode_enabled() and inputs.device.type == "cpu"):
        return layers(inputs)
    hidden = inputs
    for layer in layers:
        if isinstance(layer, nn.Linear):
            hidden = F.linear(hidden, layer.weight, layer.bias)
        elif isinstance(layer, nn.Tanh):
            array = hidden.numpy()
            np.tanh(array, out=array)
        else:
            hidden = layer(hidden)
    return hidden


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Return a layer with orthogonal weights and no bias to begin with."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


# -- What a trunk is, and the multi-layer perceptron as one.


class Trunk(nn.Module, abc.ABC):
    """From observations, n at once as a model is given them, to features `[n, num_features]`.

    Features are in the type of the parameters. A trunk knows no actions, so policy, values and memory stand on any.
    num_features: F. num_products: products of weights that one observation takes. computes_images: whether most of
    them are convolutions, which nothing compiles faster than they are.
    """

    num_features: int
    num_products: int
    computes_images = False

    @abc.abstractmethod
    def forward(self, obs: Obs) -> torch.Tensor: ...

    def plain(self, obs: Obs) -> torch.Tensor:
        """Return what `forward` does by operations that other programs know, in the type of the parameters."""
        return self(obs)

    def unchanged(self) -> AbstractContextManager[None]:
        """Return a context in which no parameter changes, so that what is derived from them is kept."""
        return nullcontext()


class Flat(Trunk):
    """Hidden layers over all that is observed, flattened; pixels count from 0 to 1."""

    def __init__(self, spec: EnvSpec, config: LayerSettings, sizes: list[int]) -> None:
        super().__init__()
        self.spec = spec
        self.layers = hidden_layers(spec.obs_size, sizes, config.activation)
        self.num_features = sizes[-1]
        self.num_products = sum(p.numel() for p in self.layers.parameters() if p.dim() == 2)

    def forward(self, obs: Obs) -> torch.Tensor:
        return passed(self.layers, flat_obs(obs, self.spec, next(self.parameters()).dtype))
