"""The interface of models, `ActorCritic`, and the default model, a multi-layer perceptron.

Read `ActorCritic` first: PPO calls nothing else. Then `MLP`. `Trunk` at the end is the part below the heads that the
models for images and for memory share.
"""

import abc
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ddppo.config.model_settings import LayerSettings, MlpSettings, ModelSettings
from ddppo.errors import ConfigError
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

# -- Observations as tensors.


Obs = torch.Tensor | dict[str, torch.Tensor]  # `[..., *shape]`, one tensor or several by name, as spec.obs is


def tensor_dtype(leaf: ArraySpec, dtype: torch.dtype) -> torch.dtype:
    """Return the type in which a model that computes in `dtype` gets an array: pixels stay uint8."""
    return dtype if leaf.is_float else torch.uint8


def raw_dtype(leaf: ArraySpec, dtype: torch.dtype, *, is_normalized: bool) -> torch.dtype:
    """Return the type in which a rollout keeps an array before normalisation.

    float64 observations stay float64 until their mean is subtracted: a float32 would lose the digits that differ.
    """
    return torch.float64 if is_normalized and leaf.dtype == "float64" else tensor_dtype(leaf, dtype)


def flat_obs(obs: Obs, spec: EnvSpec, dtype: torch.dtype) -> torch.Tensor:
    """Return one vector `[..., obs_size]`: all arrays flattened, in the order of the spec; pixels scaled to [0, 1]."""
    parts = []
    for leaf, x in zip(leaves(spec.obs), leaves(obs), strict=True):
        flat = x.flatten(-len(leaf.shape)) if leaf.shape else x.unsqueeze(-1)
        parts.append(flat if leaf.is_float else flat.to(dtype) / 255)
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


def read_by_policy(spec: EnvSpec) -> EnvSpec:
    """Return the spec with the arrays that the policy reads (`EnvSpec.policy_keys`); `spec` itself if it reads all."""
    return _only(spec, spec.policy_keys)


def read_by_values(spec: EnvSpec) -> EnvSpec:
    """Return the spec with the arrays that the value function reads; `spec` itself if it reads all."""
    return _only(spec, spec.value_keys)


def is_asymmetric(spec: EnvSpec) -> bool:
    """Return whether policy and value function read different arrays."""
    return read_by_policy(spec) != read_by_values(spec)


def _only(spec: EnvSpec, keys: tuple[str, ...] | None) -> EnvSpec:
    if keys is None:
        return spec
    assert isinstance(spec.obs, dict), spec
    return replace(spec, obs={key: spec.obs[key] for key in keys}, policy_keys=None, value_keys=None)


def random_obs(
    spec: EnvSpec, num_rows: int, dtype: torch.dtype, generator: torch.Generator | None = None
) -> Obs:
    """Return random observations `[num_rows, *shape]`: floats uniform on [0, 1), pixels from 0 to 255."""

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
    """The interface between a policy with a value function and PPO. Built as `Model(spec, config)`.

    n: batch size. P = num_params: numbers that describe the distribution of one action. obs are what spec.obs
    describes: a tensor `[n, *shape]`, or a dict of such tensors. Floats have the type of the parameters; pixels are
    uint8, and the model scales them.

    A subclass defines forward, action_params and value (or derives from `ddppo.models.recurrent.Recurrent`). A policy
    that chooses in stages, some of which do not learn, also brings its own `distribution` and `evaluate_actions`:
    actions are sampled from the output of `forward`; the output of `evaluate_actions` gives log_prob and entropy of the
    stages that learn.
    """

    # -- How the collector acts with the model.

    # True: forward costs hardly more than action_params, so the collector records values while acting.
    values_are_beside = False
    # True: a rollout records the values of `evaluate_actions`, those of the actions taken, and not the values of
    # `forward` and `value`, which estimate a state's return.
    values_are_of_actions = False
    takes_text = False  # observations and actions are text, which the model's collector turns into arrays
    state_size = 0  # S, numbers that the model remembers of each environment (models/recurrent.py)
    # For a Box, by the settings: normal; normal and then mapped into the bounds by tanh; or Beta.
    is_gaussian = is_squashed = is_beta = False

    # -- Classes that a kind of models brings instead of the core's: import paths "module:attribute", None for the
    # core's. Subclasses inherit them. docs/seams.md lists what each class has to have.

    collector_class: str | None = None  # acts: a ddppo.ppo.rollout.RolloutCollector
    minibatch_class: str | None = (
        None  # cuts a rollout into minibatches: a ddppo.ppo.minibatches.OwnMinibatches
    )
    check_class: str | None = None  # checks the model before a run: a ddppo.models.model_check.ModelCheck
    rollout_writer_class: str | None = (
        None  # records rollouts in the run folder: a ddppo.ppo.rollout.OwnWriter
    )

    exporter: str | None = None  # ddppo.export with format=huggingface: a function of its ExportConfig

    # -- Compilation of the learner's step.

    stays_eager: str | None = None  # why it is not compiled: it cannot be, or would gain nothing
    compiles_by_itself = True  # False: compile=auto leaves it eager, compile=on compiles it

    # The same network in C++ (ddppo/ppo/cpp/network.py:Differentiable), for a loss that torch computes.
    in_cpp: Any = None

    # The dataclass of the keys of `model` in the configuration; `config` is an instance of it.
    Settings: ClassVar[type[ModelSettings]] = MlpSettings

    @abc.abstractmethod
    def __init__(self, spec: EnvSpec, config: ModelSettings) -> None:
        super().__init__()
        self.spec = spec
        # Settings of the default distribution have no effect on a model with its own.
        brings_own_policy = type(self).distribution is not ActorCritic.distribution
        check_heads(spec.action, config, brings_own_policy=brings_own_policy)
        if isinstance(config, LayerSettings):
            self.is_beta, self.is_squashed = config.distribution == "beta", config.squash == "tanh"
        self.is_gaussian = spec.action.kind == "box" and not self.is_beta

    def __call__(self, *inputs: Any, **more: Any) -> Any:
        """Call `forward`, or the network in C++ that computes the same."""
        if self.in_cpp is not None and self.in_cpp.takes(*inputs, **more):
            return self.in_cpp(*inputs)
        return super().__call__(*inputs, **more)

    @abc.abstractmethod
    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]` and values `[n]`."""

    @abc.abstractmethod
    def action_params(self, obs: Obs) -> torch.Tensor:
        """Return action parameters `[n, P]` alone; used in acting."""

    @abc.abstractmethod
    def value(self, obs: Obs) -> torch.Tensor:
        """Return values `[n]` alone; used for bootstrapping."""

    def evaluate_actions(self, obs: Obs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters and values as `forward` does, for actions `[n, *action.shape]`; used in learning.

        A model may compute only the outputs on which these actions depend.
        """
        return self(obs)

    def evaluate_minibatch(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `evaluate_actions` of a minibatch, given the "inputs" that `minibatch_class` makes."""
        obs, actions = inputs
        return self.evaluate_actions(obs, actions)

    # -- The distribution of actions.

    @property
    def num_params(self) -> int:
        """P, numbers that describe the distribution of one action."""
        return num_action_params(self.spec.action)

    @property
    def num_noise(self) -> int:
        """Random numbers that sampling one action takes: standard normal for a Box, else uniform on [0, 1)."""
        return num_noise(self.spec.action)

    def distribution(self, params: torch.Tensor, mask: torch.Tensor | None = None) -> ActionDistribution:
        """Return the distribution with `params` `[..., P]`; `mask` `[..., mask_size]` bool, True = allowed choice."""
        return action_distribution(
            self.spec.action, params, mask, is_squashed=self.is_squashed, is_beta=self.is_beta
        )

    # -- Models with memory (state_size > 0).

    def step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]`, values `[n]` and the next state `[n, S]`, from `state` `[n, S]`.

        Used in acting. The state is 0 at the start of an episode.
        """
        raise NotImplementedError

    def unroll(
        self, obs: Obs, state: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[T, m, P]` and values `[T, m]` of T successive steps in m environments.

        Used in learning. Each row equals the output of `step`.

        Args:
            obs: `[T, m, *shape]`.
            state: `[m, S]` before row 0.
            starts: `[T, m]` bool, True if the row starts an episode: the state before it is 0.
        """
        raise NotImplementedError

    # -- Export (ddppo/policies/export), by operations that ONNX and torch.export know, for any batch size n.

    def portable_params(self, obs: Obs) -> torch.Tensor:
        """Return `action_params` by portable operations."""
        return self.action_params(obs)

    def portable_step(self, obs: Obs, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the action parameters and the next state of `step` by portable operations."""
        params, _, state = self.step(obs, state)
        return params, state

    # -- Speed.

    def unchanged(self) -> AbstractContextManager[None]:
        """Return a context in which parameters do not change, so that the model may cache what it derives from them."""
        return nullcontext()

    def num_products(self) -> int:
        """Return the number of multiplications with a weight that one observation takes."""
        return sum(p.numel() for p in self.parameters())


class EvaluateActions(nn.Module):
    """A module; its forward is the call that learning differentiates. Wraps a model for DistributedDataParallel.

    Inputs: obs and actions, or the "inputs" of the model's own minibatches, or the arguments of `unroll` for a model
    with memory. Parameters have the prefix "model.".
    """

    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.unroll(*inputs) if self.model.state_size else self.model.evaluate_minibatch(*inputs)


class MLP(ActorCritic):
    """Multi-layer perceptron over the flattened observation, with separate or shared hidden layers.

    The log standard deviation of Gaussian actions is a parameter that does not depend on the observation, unless
    model.log_std=state.

    Initialisation is orthogonal with gain sqrt(2) in hidden layers, 0.01 in the policy head and 1 in the value head
    (Andrychowicz et al. 2021, arXiv:2006.05990; Huang et al. 2022, "The 37 implementation details of PPO"). With
    model.orthogonal=false it is that of torch.nn.Linear, for settings that were tuned with ortho_init=False.
    """

    def __init__(self, spec: EnvSpec, config: MlpSettings) -> None:
        super().__init__(spec, config)
        self.is_vector = isinstance(spec.obs, ArraySpec) and len(spec.obs.shape) == 1 and spec.obs.is_float
        self.shared_trunk = config.shared_trunk
        self.activation, self.layer_norm = config.activation, config.layer_norm
        sizes = list(config.hidden_sizes)
        # The order in which layers are made decides their random initialisation: trunks, then heads.
        self.policy_spec, self.value_spec = read_by_policy(spec), read_by_values(spec)
        self.policy_trunk = hidden_layers(
            self.policy_spec.obs_size, sizes, config.activation, layer_norm=config.layer_norm
        )
        self.value_trunk = self.policy_trunk
        if not config.shared_trunk:
            self.value_trunk = hidden_layers(
                self.value_spec.obs_size, sizes, config.activation, layer_norm=config.layer_norm
            )
        elif is_asymmetric(spec) and isinstance(self.value_spec.obs, dict):
            raise ConfigError(
                "model.shared_trunk=true: this task lets its value function read other arrays than its policy "
                f"({', '.join(self.value_spec.obs)}): use model.shared_trunk=false"
            )
        self.policy_head = linear(config.hidden_sizes[-1], policy_outputs(spec.action, config), gain=0.01)
        self.value_head = linear(config.hidden_sizes[-1], 1, gain=1.0)
        if config.orthogonal is False:  # null is true
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        self.log_std = begin_log_std_(self.policy_head, spec.action, config)

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = self._inputs(obs, self.policy_spec)
        hidden = self.policy_trunk(inputs)
        if not self.shared_trunk:
            if self.value_spec is not self.policy_spec:
                inputs = self._inputs(obs, self.value_spec)
            value_hidden = self.value_trunk(inputs)
        else:
            value_hidden = hidden
        return self._head(hidden), self.value_head(value_hidden).squeeze(-1)

    def action_params(self, obs: Obs) -> torch.Tensor:
        return self._head(passed(self.policy_trunk, self._inputs(obs, self.policy_spec)))

    def value(self, obs: Obs) -> torch.Tensor:
        return self.value_head(passed(self.value_trunk, self._inputs(obs, self.value_spec))).squeeze(-1)

    def _inputs(self, obs: Obs, spec: EnvSpec) -> torch.Tensor:
        """Return the arrays of `spec` as one vector. One vector of floats, the usual case, needs no flattening."""
        if self.is_vector:
            assert isinstance(obs, torch.Tensor)
            return obs
        if isinstance(spec.obs, dict) and isinstance(obs, dict):
            obs = {key: obs[key] for key in spec.obs}
        return flat_obs(obs, spec, self.value_head.weight.dtype)

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        return policy_params(self.policy_head(hidden), self.log_std, is_gaussian=self.is_gaussian)


def hidden_layers(
    inputs: int, sizes: list[int], activation: str, *, layer_norm: bool = False
) -> nn.Sequential:
    """Return linear layers with `sizes` units and orthogonal weights, each followed by the activation.

    layer_norm: layer normalisation, with a gain of 1 and a shift of 0 at first, comes between the two.
    """
    layers: list[nn.Module] = []
    for outputs in sizes:
        norm = [nn.LayerNorm(outputs)] if layer_norm else []
        layers += [linear(inputs, outputs, gain=2**0.5), *norm, ACTIVATIONS[activation]()]
        inputs = outputs
    return nn.Sequential(*layers)


def passed(layers: nn.Sequential, inputs: torch.Tensor) -> torch.Tensor:
    """Return layers(inputs). In inference mode on a CPU, NumPy computes tanh: 10 times as fast as torch."""
    if not (torch.is_inference_mode_enabled() and inputs.device.type == "cpu"):
        return layers(inputs)
    # Acting on a few rows is dominated by the cost of calls, and by tanh.
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
    """Return a linear layer with orthogonal weights and zero biases."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


# -- The part of a model below its heads.


class Trunk(nn.Module, abc.ABC):
    """Computes features `[n, num_features]`, in the type of the parameters, from observations.

    A trunk knows nothing of actions, so the policy head, the value head and a recurrent core fit on any trunk.
    """

    num_features: int  # F
    num_products: int  # multiplications with a weight that one observation takes
    computes_images = False  # most of them are in convolutions, which compiling makes no faster

    @abc.abstractmethod
    def forward(self, obs: Obs) -> torch.Tensor: ...

    def plain(self, obs: Obs) -> torch.Tensor:
        """Return the features by portable operations, in the type of the parameters (ActorCritic.portable_params)."""
        return self(obs)

    def unchanged(self) -> AbstractContextManager[None]:
        """Return a context in which parameters do not change (see ActorCritic.unchanged)."""
        return nullcontext()


class Flat(Trunk):
    """Hidden layers over the flattened observation; pixels are scaled to [0, 1]."""

    def __init__(self, spec: EnvSpec, config: LayerSettings, sizes: list[int]) -> None:
        super().__init__()
        self.spec = spec
        layer_norm = isinstance(config, MlpSettings) and config.layer_norm
        self.layers = hidden_layers(spec.obs_size, sizes, config.activation, layer_norm=layer_norm)
        self.num_features = sizes[-1]
        self.num_products = sum(p.numel() for p in self.layers.parameters() if p.dim() == 2)

    def forward(self, obs: Obs) -> torch.Tensor:
        return passed(self.layers, flat_obs(obs, self.spec, next(self.parameters()).dtype))
