"""A policy and all around it, from what a task observes to what it takes, as one module of torch's own operations."""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from torch import nn

from ddppo.envs.encoding.gym_spaces import MASK, path_name, space_leaves, without_mask
from ddppo.loop.evaluation import Policy
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
_CLIP = 10.0  # as ddppo.ppo.normalization does

Arrays = dict[str, np.ndarray]  # by the names of inputs or outputs, `[n, ...]`


class Input(NamedTuple):
    """A part of what is observed: its name as an input, its place in an observation, its space, and its type."""

    name: str
    path: tuple[Any, ...]
    space: gym.Space
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.space.shape or ())


class Portable(nn.Module):
    """Named inputs `[n, ...]` to named outputs: the likeliest action as the task takes it, and its distribution.

    Inputs: obs, or obs.<path> for each part of a Dict or Tuple, as the task hands it over; action_mask, bool, where it
    has masks. Outputs: action; logits, the least number there is for a forbidden choice, or mean and log_std.
    A policy with memory has the input state `[n, S]`, 0 where an episode starts, and the output next_state.
    """

    def __init__(self, policy: Policy, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        self.model = policy.model
        self.mask_size = policy.spec.mask_size
        dtype = next(policy.model.parameters()).dtype
        self.state_dtype = np.dtype(str(dtype).removeprefix("torch."))
        specs = leaves(policy.spec.obs)
        self.is_dict = isinstance(policy.spec.obs, dict)
        self.parts: list[Input] = []
        for (path, space), leaf in zip(space_leaves(without_mask(observation_space)), specs, strict=True):
            is_choice = isinstance(space, (Discrete, MultiDiscrete))
            name = ".".join(("obs", path_name(path))) if path else "obs"
            self.parts.append(Input(name, path, space, np.dtype(np.int64 if is_choice else leaf.dtype)))
        moments = offsets = [None] * len(specs)
        if policy.normalizer is not None:
            moments, offsets = leaves(policy.normalizer.mean_and_scale), leaves(policy.normalizer.offsets)
        self.encoders = nn.ModuleList(
            _Encoder(part.space, dtype if leaf.is_float else torch.uint8, mean_and_scale, offset)
            for part, leaf, mean_and_scale, offset in zip(self.parts, specs, moments, offsets, strict=True)
        )
        self.decoder = _Decoder(action_space)

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
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
        """Return type and shape of one row of every input, by name, in order."""
        found = {part.name: (part.dtype, part.shape) for part in self.parts}
        if self.mask_size is not None:
            found[MASK] = (np.dtype(bool), (self.mask_size,))
        if self.model.state_size:
            found[STATE] = (self.state_dtype, (self.model.state_size,))
        return found

    def named(self, observations: list[Any], masks: np.ndarray | None) -> Arrays:
        """Return the inputs of observations as the task hands them over, and masks `[n, mask_size]`, at a start."""
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
    return {"params": params}  # of a model that brings its own policy


class _Encoder(nn.Module):
    """What ddppo.envs.encoding.observations makes of a part of an observation, normalised."""

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
        self.sizes: list[int] = []  # of choices, one-hot
        if isinstance(space, Discrete):
            self.sizes = [int(space.n)]
            self.register_buffer("first", torch.tensor([int(space.start)]))
        elif isinstance(space, MultiDiscrete):
            self.sizes = [int(n) for n in space.nvec.reshape(-1)]
            self.register_buffer("first", torch.from_numpy(space.start.reshape(-1).astype(np.int64)))
        self.is_normalized, self.is_offset = mean_and_scale is not None, offset is not None
        if offset is not None:
            self.register_buffer("offset", offset.clone())
        if mean_and_scale is not None:
            self.register_buffer("mean", mean_and_scale[0].clone())
            self.register_buffer("scale", mean_and_scale[1].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sizes:
            choices = x.reshape(x.shape[0], len(self.sizes)) - self.first
            numbers = [torch.arange(n, device=x.device) for n in self.sizes]
            x = torch.cat([choices[:, i : i + 1] == n for i, n in enumerate(numbers)], dim=-1)
        x = (x - self.offset if self.is_offset else x).to(self.dtype)
        return ((x - self.mean) * self.scale).clamp(-_CLIP, _CLIP) if self.is_normalized else x


class _Decoder(nn.Module):
    """What ddppo.envs.encoding.gym_spaces.decode_actions makes of a model's actions."""

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
        if not self.is_box:
            return (actions + self.low).reshape(-1, *self.shape).to(self.dtype)
        actions = actions.reshape(-1, *self.shape).clamp(self.low, self.high)
        return (actions.round() if self.is_whole else actions).to(self.dtype)


def _at(obs: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        obs = obs[key]
    return obs
