"""The cheap policy over rewrites, `model=pairs`: one softmax over all (node, rule) pairs that match.

The environment computes features of every pair in C++, where it matches rules (src/features.hpp). The logit of a pair
is a sum of weights from one table, so that a decision costs microseconds, and PPO learns the joint log-probability of
node and rule.
"""

import ctypes
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from ddppo.domains.circuits import PLUGIN
from ddppo.domains.circuits.settings import PairSettings
from ddppo.errors import ConfigError
from ddppo.loop.evaluation import Evaluator
from ddppo.models.actor_critic import ActorCritic, Obs, linear
from ddppo.spaces import EnvSpec

# A weight counts _STEP times in a logit. Adam moves every parameter by up to its learning rate, and a table, in which
# each weight is seen rarely, learns best at 30 times the learning rate of the value function (experiments/circuits).
_STEP = 30.0
_KEYS = ("features", "growth", "num_pairs", "num_weights", "status")


class PairPolicy(ActorCritic):
    """A linear policy over pairs, and a value function of the episode's state.

    logit of a pair = -prior * growth + limit * tanh(30 * sum of its weights / limit)

    growth: gates that the rule adds. All weights are 0 before learning: then the policy is the one of random rewriting
    with bias=prior. limit bounds what learning can change: no pair becomes more than e^(2 limit) times as likely, next
    to another, as it is at random. So the entropy has a floor, and the policy cannot collapse.
    """

    Settings = PairSettings
    values_are_beside = False
    stays_eager = "the sum of weights and its gradient are C++"

    def __init__(self, spec: EnvSpec, config: PairSettings) -> None:
        super().__init__(spec, config)
        self.num_weights = _num_weights(spec)
        self.prior, self.limit = config.prior, config.limit
        self.weights = nn.Parameter(torch.zeros(self.num_weights))
        width = config.value_width
        self.critic = nn.Sequential(linear(3, width, 2**0.5), nn.Tanh(), linear(width, 1, gain=0.1))

    def forward(self, obs: Obs) -> tuple[torch.Tensor, torch.Tensor]:
        return self.action_params(obs), self.value(obs)

    def action_params(self, obs: Obs) -> torch.Tensor:
        assert isinstance(obs, dict)
        learned = sum_of_weights(_STEP * self.weights, obs["features"], obs["num_pairs"])
        if self.limit is not None:
            learned = self.limit * torch.tanh(learned / self.limit)
        return learned - self.prior * obs["growth"]

    def table(self) -> np.ndarray:
        """Return the weights as they count in logits."""
        return (_STEP * self.weights.detach()).numpy(force=True)

    def value(self, obs: Obs) -> torch.Tensor:
        assert isinstance(obs, dict)
        return self.critic(obs["status"]).squeeze(-1)

    def num_products(self) -> int:
        return self.spec.action.sizes[0] + sum(p.numel() for p in self.critic.parameters())


def _num_weights(spec: EnvSpec) -> int:
    """Return the size of the table that the task's features name. Raises ConfigError for another task."""
    obs = spec.obs
    if not (isinstance(obs, dict) and set(obs) == set(_KEYS) and (num_weights := obs["num_weights"].high)):
        found = f"a dict of {', '.join(obs)}" if isinstance(obs, dict) else f"an array {list(obs.shape)}"
        raise ConfigError(
            f"model.name=pairs reads features of rewrites ({', '.join(_KEYS)}), but the task observes {found}: use "
            "env=circuit env.observe=features, or model=gnn for its graphs"
        )
    return num_weights


# -- The sum of weights of each pair, in C++ on CPUs and by torch elsewhere ------------------------------------------


def sum_of_weights(weights: torch.Tensor, features: torch.Tensor, num_pairs: torch.Tensor) -> torch.Tensor:
    """Return sum over f of weights[features[n, k, f]] `[n, K]` for the first num_pairs[n] pairs of each row, else 0.

    Args:
        weights: `[V]`.
        features: `[n, K, F]`, whole numbers from 0 to V - 1.
        num_pairs: `[n, 1]`.
    """
    if weights.device.type == "cpu" and weights.dtype in _SUFFIXES and PLUGIN.cpp.why_not() is None:
        if torch.is_grad_enabled():
            return _SumOfWeights.apply(weights, features, num_pairs)
        return _sums_in_cpp(weights, features.contiguous(), num_pairs.contiguous())
    places = features.long().clamp(0, len(weights) - 1)
    is_pair = torch.arange(features.shape[1], device=features.device) < num_pairs
    return weights[places].sum(-1) * is_pair


def _sums_in_cpp(weights: torch.Tensor, features: torch.Tensor, num_pairs: torch.Tensor) -> torch.Tensor:
    sums = weights.new_empty(features.shape[:2])
    pointers = [x.data_ptr() for x in (features, num_pairs, weights.contiguous(), sums)]
    _function("pair_logits", weights.dtype)(*features.shape, len(weights), *pointers)
    return sums


class _SumOfWeights(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: torch.Tensor, features: torch.Tensor, num_pairs: torch.Tensor
    ) -> torch.Tensor:
        inputs = [x.contiguous() for x in (features, num_pairs)]
        ctx.save_for_backward(*inputs)
        ctx.num_weights = len(weights)
        return _sums_in_cpp(weights, *inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        features, num_pairs = ctx.saved_tensors
        of_weights = gradient.new_zeros(ctx.num_weights)
        pointers = [x.data_ptr() for x in (features, num_pairs, gradient.contiguous(), of_weights)]
        _function("pair_logits_backward", gradient.dtype)(*features.shape, ctx.num_weights, *pointers)
        return of_weights, None, None


_SUFFIXES = {torch.float32: "float", torch.float64: "double"}


def _function(name: str, dtype: torch.dtype) -> Any:
    key = f"{name}_{_SUFFIXES[dtype]}"
    if key not in _declared:
        function = PLUGIN.cpp.load()[key]
        function.argtypes, function.restype = [ctypes.c_int64] * 4 + [ctypes.c_void_p] * 4, None
        _declared[key] = function
    return _declared[key]


_declared: dict[str, Any] = {}


# -- Evaluation: searches from the original circuit by actions that the policy draws ---------------------------------


_MOST_SEARCHES = 8  # of an evaluation: each takes thousands of steps


class SearchEvaluator(Evaluator):
    """Evaluates policies of `ddppo/Circuit-v0`: an episode is a search from the original circuit (CircuitEnv.reset).

    Actions are drawn: the likeliest ones soon go round in a circle. The return is the cost that the best circuit saves.
    """

    reset_options = MappingProxyType({"search": True})
    draws_actions = True

    def num_episodes(self, asked: int) -> int:
        return min(asked, _MOST_SEARCHES)
