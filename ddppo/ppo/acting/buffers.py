"""What a rollout is written to, allocated once."""

from typing import Any

import numpy as np
import torch

from ddppo.envs.vec_env import VecEnv
from ddppo.models import ActorCritic, Obs, raw_dtype, tensor_dtype
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves, zipped


class RolloutBuffers:
    """Room for T steps of E environments, and views of its rows.

    raw_obs `[T + 1, E, *shape]` is what was observed and obs what the model is given: one tensor, or a dict of them.
    They share memory where the two are the same.
    """

    def __init__(
        self,
        env: VecEnv,
        model: ActorCritic,
        rollout_steps: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        is_normalized: bool,
    ) -> None:
        self.device = device
        self._is_on_cpu = device.type == "cpu"
        steps, envs, spec = rollout_steps, env.num_envs, env.spec
        self.rollout_steps = steps
        is_box = spec.action.kind == "box"

        def buffer(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(steps, envs, *shape, dtype=kind, device=device)

        # flat_obs: what obs are views of, `[T + 1, E, obs_size]`, where all of them are floats.
        self.raw_obs, self.flat_obs = obs_buffers(spec, (steps + 1, envs), dtype, torch.device("cpu"))
        if is_normalized and any(leaf.dtype == "float64" for leaf in leaves(spec.obs)):

            def raw(leaf: ArraySpec) -> torch.Tensor:
                kind = raw_dtype(leaf, dtype, is_normalized=True)
                return torch.zeros(steps + 1, envs, *leaf.shape, dtype=kind)

            self.raw_obs = each(raw, spec.obs)
        self.obs = self.raw_obs
        if is_normalized or not self._is_on_cpu:
            given, self.flat_obs = obs_buffers(spec, (steps + 1, envs), dtype, device)
            self.obs = each(
                lambda leaf, raw, x: raw if self._is_on_cpu and not leaf.is_float else x,
                *(spec.obs, self.raw_obs, given),
            )
        self.actions = buffer(*spec.action.shape, kind=dtype if is_box else torch.int64)
        self._acted = self.actions if device.type == "cpu" else torch.empty_like(self.actions, device="cpu")
        self._actions = self._acted.numpy()
        self.params = buffer(0 if model.values_are_of_actions else model.num_params)
        self.logprobs = buffer()
        # Written by numpy on the CPU, one row a step, and moved once per rollout.
        self.rewards = np.zeros((steps, envs))
        self.flags = np.zeros((4, steps, envs), dtype=bool)  # terminated, truncated, valid, episode_start
        self._flag_rows = [tuple(self.flags[:3, t]) for t in range(steps)]
        self.masks = None
        if spec.mask_size is not None:
            self.masks = torch.ones(steps + 1, envs, spec.mask_size, dtype=torch.bool)
        # One row of each, made once: a view of a tensor costs a microsecond.
        raw_rows = each(torch.unbind, self.raw_obs)
        obs_rows = each(
            lambda x, raw, rows: rows if x is raw else x.unbind(), self.obs, self.raw_obs, raw_rows
        )
        self._raw_rows: list[Obs] = zipped(raw_rows)
        self._obs_rows: list[Any] = zipped(obs_rows)
        self._param_rows = self.params.unbind()
        self._mask_rows = self.masks.unbind() if self.masks is not None else None
        self._raw_obs: Any = each(torch.Tensor.numpy, self.raw_obs)

    def _end_after(self, num_steps: int) -> None:
        """Have what was observed after so many steps where the next rollout looks for it."""
        each(lambda x: x[-1].copy_(x[num_steps]), self.raw_obs)
        if self.masks is not None:
            self.masks[-1] = self.masks[num_steps]


def obs_buffers(
    spec: EnvSpec, batch: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Obs, torch.Tensor | None]:
    """Return buffers of observations `[*batch, *shape]`, and what they are views of where all are floats."""
    parts = leaves(spec.obs)
    if not all(leaf.is_float for leaf in parts):

        def zeros(leaf: ArraySpec) -> torch.Tensor:
            return torch.zeros(*batch, *leaf.shape, dtype=tensor_dtype(leaf, dtype), device=device)

        return each(zeros, spec.obs), None
    flat = torch.zeros(*batch, spec.obs_size, dtype=dtype, device=device)
    columns = iter(flat.split([leaf.size for leaf in parts], dim=-1))
    return each(lambda leaf: next(columns).view(*batch, *leaf.shape), spec.obs), flat
