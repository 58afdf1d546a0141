"""The exported network: a policy with its encoding, normalisation and decoding, from observations to actions.

`Portable` is one torch module of torch's own operations only, so that exporters can trace it. It computes what
LoadedPolicy (policies/acting.py) computes in steps: encode, normalise, model, distribution, decode.
"""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import nn

from ddppo.envs.encoding.gym_spaces import MASK, path_name, space_leaves, without_mask
from ddppo.loop.evaluation import Policy
from ddppo.models.beta import Beta
from ddppo.models.distributions import (
    ActionDistribution,
    Bernoulli,
    Categorical,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
)
from ddppo.spaces import leaves

ACTION, STATE, NEXT_STATE = "action", "state", "next_state"
_CLIP = 10.0  # of normalised observations, as in ddppo.ppo.normalization

Arrays = dict[str, np.ndarray]  # inputs or outputs `[n, ...]`, by name


class Input(NamedTuple):
    """One array of an observation, as an input of the network."""

    name: str  # obs, or obs.<path>
    path: tuple[Any, ...]  # keys that lead to it in an observation
    space: gym.Space
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.space.shape or ())


class Portable(nn.Module):
    """Maps named inputs to named outputs, each `[n, ...]`.

    Inputs:
        obs             the task's observation; for a Dict or Tuple, obs.<path> for each of its arrays
        action_mask     bool `[n, mask_size]`, if the task has masks
        state           `[n, S]`, if the policy has memory; 0 where an episode starts

    Outputs:
        action          the likeliest action, in the task's own form
        logits          of the distribution; the smallest number of the type for a forbidden choice
        mean, log_std   of a distribution over numbers, instead of logits; or alpha, beta
        next_state      if the policy has memory
    """

    def __init__(self, policy: Policy, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        self.model = policy.model
        self.mask_size = policy.spec.mask_size
        dtype = next(policy.model.parameters()).dtype
        self.state_dtype = np.dtype(str(dtype).removeprefix("torch."))
        # One input, and one encoder, for each array of an observation.
        specs = leaves(policy.spec.obs)
        self.is_dict = isinstance(policy.spec.obs, dict)
        self.parts: list[Input] = []
        for (path, space), leaf in zip(space_leaves(without_mask(observation_space)), specs, strict=True):
            is_choice = isinstance(space, (Discrete, MultiDiscrete))
            name = ".".join(("obs", path_name(path))) if path else "obs"
            self.parts.append(Input(name, path, space, np.dtype(np.int64 if is_choice else leaf.dtype)))
        # Statistics of the normaliser become buffers of the module.
        moments = offsets = [None] * len(specs)
        if policy.normalizer is not None:
            moments, offsets = leaves(policy.normalizer.mean_and_scale), leaves(policy.normalizer.offsets)
        self.encoders = nn.ModuleList(
            _Encoder(part.space, dtype if leaf.is_float else torch.uint8, mean_and_scale, offset)
            for part, leaf, mean_and_scale, offset in zip(self.parts, specs, moments, offsets, strict=True)
        )
        self.decoder = _Decoder(action_space)

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        # Encode, run the model, form the distribution, decode.
        arrays = [encode(inputs[part.name]) for part, encode in zip(self.parts, self.encoders, strict=True)]
        keys = [path_name(part.path) for part in self.parts]
        obs = dict(zip(keys, arrays, strict=True)) if self.is_dict else arrays[0]
        remembered = {}
        if self.model.state_size:
            params, remembered[NEXT_STATE] = self.model.portable_step(obs, inputs[STATE])
        else:
            params = self.model.portable_params(obs)
        distribution = self.model.distribution(params, inputs.get(MASK))
        return {ACTION: self.decoder(distribution.mode()), **described(distribution, params), **remembered}

    @property
    def inputs(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """The type and the shape of one row of every input, by name, in order."""
        # Observations, the mask, the memory.
        found = {part.name: (part.dtype, part.shape) for part in self.parts}
        if self.mask_size is not None:
            found[MASK] = (np.dtype(bool), (self.mask_size,))
        if self.model.state_size:
            found[STATE] = (self.state_dtype, (self.model.state_size,))
        return found

    def named(self, observations: list[Any], masks: np.ndarray | None) -> Arrays:
        """Return the inputs for n of the task's observations, and masks `[n, mask_size]`, at the start of episodes."""
        arrays = {
            part.name: np.stack([np.asarray(_at(obs, part.path), part.dtype) for obs in observations])
            for part in self.parts
        }
        if masks is not None:
            arrays[MASK] = masks
        if self.model.state_size:
            arrays[STATE] = np.zeros((len(observations), self.model.state_size), self.state_dtype)
        return arrays


def described(distribution: ActionDistribution, params: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the parameters `[n, ...]` of a distribution by name."""
    match distribution:
        case Categorical() | Bernoulli():
            return {"logits": distribution.logits}
        case MultiCategorical():
            return {"logits": torch.cat([part.logits for part in distribution.components], dim=-1)}
        case Gaussian():
            return {"mean": distribution.mean, "log_std": distribution.log_std}
        case TanhGaussian():
            return {"mean": distribution.normal.mean, "log_std": distribution.normal.log_std}
        case Beta():
            return {"alpha": distribution.alpha.to(params.dtype), "beta": distribution.beta.to(params.dtype)}
    return {"params": params}  # the model has a distribution of its own


class _Encoder(nn.Module):
    """Encodes one array of an observation as ddppo.envs.encoding.observations does, and normalises it."""

    first: torch.Tensor
    mean: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor

    def __init__(
        self,
        space: gym.Space,
        dtype: torch.dtype,
        mean_and_scale: tuple[torch.Tensor, torch.Tensor] | None,
        offset: torch.Tensor | None,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.sizes: list[int] = []  # numbers of choices, if they are encoded one-hot
        if isinstance(space, Discrete):
            self.sizes = [int(space.n)]
            self.register_buffer("first", torch.tensor([int(space.start)]))
        elif isinstance(space, MultiDiscrete):
            self.sizes = [int(n) for n in space.nvec.reshape(-1)]
            self.register_buffer("first", torch.from_numpy(space.start.reshape(-1).astype(np.int64)))
        # Buffers only for what this array needs: exporters store them all.
        self.is_normalized, self.is_offset = mean_and_scale is not None, offset is not None
        if offset is not None:
            self.register_buffer("offset", offset.clone())
        if mean_and_scale is not None:
            self.register_buffer("mean", mean_and_scale[0].clone())
            self.register_buffer("scale", mean_and_scale[1].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sizes:
            # One-hot: compare each choice with all its numbers.
            choices = x.reshape(x.shape[0], len(self.sizes)) - self.first
            numbers = [torch.arange(n, device=x.device) for n in self.sizes]
            x = torch.cat([choices[:, i : i + 1] == n for i, n in enumerate(numbers)], dim=-1)
        x = (x - self.offset if self.is_offset else x).to(self.dtype)
        return ((x - self.mean) * self.scale).clamp(-_CLIP, _CLIP) if self.is_normalized else x


class _Decoder(nn.Module):
    """Decodes a model's actions as ddppo.envs.encoding.gym_spaces.decode_actions does."""

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, space: gym.Space) -> None:
        super().__init__()
        self.shape = tuple(space.shape or ())
        self.dtype = getattr(torch, np.dtype(space.dtype).name)
        self.is_box = isinstance(space, Box)
        self.is_whole = np.dtype(space.dtype).kind in "iu"
        if isinstance(space, Box):
            self.register_buffer("low", torch.from_numpy(space.low))
            self.register_buffer("high", torch.from_numpy(space.high))
        elif isinstance(space, (Discrete, MultiDiscrete)):
            self.register_buffer("low", torch.as_tensor(np.asarray(space.start, np.int64)))
        else:
            self.register_buffer("low", torch.tensor(0))

    def forward(self, actions: torch.Tensor) -> torch.Tensor:
        # Choices begin at the space's start; numbers are clipped to its bounds.
        if not self.is_box:
            return (actions + self.low).reshape(-1, *self.shape).to(self.dtype)
        actions = actions.reshape(-1, *self.shape).clamp(self.low, self.high)
        return (actions.round() if self.is_whole else actions).to(self.dtype)


def _at(obs: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        obs = obs[key]
    return obs
