"""How a collector calls its model: in PyTorch for all environments at once, or shard by shard.

The third way is `CppActing` (cpp/network.py). A collector has one of them, chosen before the first iteration.
"""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from ddppo.models.actor_critic import Obs
from ddppo.spaces import each, zipped

if TYPE_CHECKING:
    from ddppo.ppo.collector import Collector

# The most rows, and numbers in them, of one forward pass for values. They bound memory and do not change results.
_VALUE_ROWS, _VALUE_NUMBERS = 32_768, 2**24


class Acting(Protocol):
    """Fills rows of a collector's buffers, and computes values."""

    def begin(self, noise: np.ndarray) -> None:
        """Begin a rollout with action noise `[T, E, num_noise]`."""
        ...

    def act(self, t: int) -> None:
        """Write the actions of row t, and the parameters that they were drawn from."""
        ...

    def write_logprobs(self, num_rows: int, mask: torch.Tensor | None) -> torch.Tensor | None:
        """Write the log-probabilities of the first rows; return values `[T, E]` if these are values of actions."""
        ...

    def state_values(self, obs: Obs, num_rows: int) -> torch.Tensor:
        """Return values `[num_rows, E]` of rows of observations."""
        ...

    def final_values(self, obs: Obs, envs: torch.Tensor) -> torch.Tensor:
        """Return values `[n]` of final observations `[n, *shape]` of these environments `[n]`."""
        ...


class EagerActing:
    """PyTorch, one forward pass per row."""

    def __init__(self, collector: "Collector") -> None:
        self.collector = collector
        self.model = collector.model
        self._noise: tuple[torch.Tensor, ...] = ()

    def begin(self, noise: np.ndarray) -> None:
        self._noise = torch.from_numpy(noise).to(self.collector.logprobs.dtype).unbind()

    def act(self, t: int) -> None:
        c = self.collector
        mask = c.mask_rows[t].to(c.device) if c.mask_rows is not None else None
        params = self._params(t, c.obs_rows[t], slice(None))
        if not self.model.values_are_of_actions:
            c.param_rows[t].copy_(params)
        c.np_actions[t] = self.model.distribution(params, mask).sample(self._noise[t]).numpy()

    def _params(self, t: int, obs: Obs, envs: slice) -> torch.Tensor:
        """Return action parameters for row t of some environments; store values if the model computes both at once."""
        c = self.collector
        if c.acted_values is None:
            return self.model.action_params(obs)
        params, values = self.model(obs) if c.memory is None else c.memory.act(obs, envs)
        c.acted_values[t, envs] = values
        return params

    def write_logprobs(self, num_rows: int, mask: torch.Tensor | None) -> torch.Tensor | None:
        c, values = self.collector, None
        params, actions = c.params[:num_rows], c.actions[:num_rows]
        if self.model.values_are_of_actions:
            params, values = self._evaluate(each(lambda x: x[:num_rows], c.obs), actions)
        c.logprobs[:num_rows] = self._logprobs(params, mask, actions)
        return values

    def _logprobs(
        self, params: torch.Tensor, mask: torch.Tensor | None, actions: torch.Tensor
    ) -> torch.Tensor:
        return self.model.distribution(params, mask).log_prob(actions)

    def _evaluate(self, obs: Obs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[T, E, P]` and values `[T, E]` of the actions taken."""
        chunks = map(self.model.evaluate_actions, self._chunks(obs, 2), self._chunks(actions, 2))
        params, values = (torch.cat(x).unflatten(0, actions.shape[:2]) for x in zip(*chunks, strict=True))
        return params, values

    def state_values(self, obs: Obs, num_rows: int) -> torch.Tensor:
        c = self.collector
        if c.memory is not None:  # it gave the values of all other rows while it acted
            return c.memory.values(each(lambda x: x[0], obs)).unsqueeze(0)
        return self._values(obs, (num_rows, c.env.num_envs))

    def final_values(self, obs: Obs, envs: torch.Tensor) -> torch.Tensor:
        if self.collector.memory is not None:
            return self.collector.memory.final_values(obs)
        return self._values(obs, (len(envs),))

    def _values(self, obs: Obs, batch: tuple[int, ...]) -> torch.Tensor:
        """Return values `[*batch]` of obs `[*batch, *shape]`."""
        return torch.cat([self.model.value(rows) for rows in self._chunks(obs, len(batch))]).reshape(batch)

    def _chunks(self, x: Obs, num_dims: int) -> list[Any]:
        """Return x with its first `num_dims` dimensions flattened, cut into parts of rows."""
        num_rows = min(_VALUE_ROWS, max(1, _VALUE_NUMBERS // self.collector.env.spec.obs_size))
        return zipped(each(lambda part: part.flatten(0, num_dims - 1).split(num_rows), x))


class ShardedActing(EagerActing):
    """PyTorch, one forward pass per row and shard (dist.reduction=ordered).

    Kernels give other bits for other batch sizes, and some for other addresses. So each shard of E / S neighbouring
    environments is computed by itself, from copies of its own: its bits do not depend on how many shards a rank has.
    """

    def __init__(self, collector: "Collector", num_shards: int) -> None:
        super().__init__(collector)
        num_envs = collector.env.num_envs
        size = num_envs // num_shards
        self._shards = [slice(first, first + size) for first in range(0, num_envs, size)]

    def act(self, t: int) -> None:
        c = self.collector
        for envs in self._shards:
            obs = _own(c.obs_rows[t], envs)
            mask = None if c.mask_rows is None else _own(c.mask_rows[t], envs)
            params = self._params(t, obs, envs)
            if not self.model.values_are_of_actions:
                c.param_rows[t][envs] = params
            actions = self.model.distribution(params, mask).sample(_own(self._noise[t], envs))
            c.np_actions[t, envs] = actions.numpy()

    def _logprobs(
        self, params: torch.Tensor, mask: torch.Tensor | None, actions: torch.Tensor
    ) -> torch.Tensor:
        parts = []
        for envs in self._shards:
            own_mask = None if mask is None else _of_rows(mask, envs)
            parts.append(super()._logprobs(_of_rows(params, envs), own_mask, _of_rows(actions, envs)))
        return torch.cat(parts, dim=1)

    def _evaluate(self, obs: Obs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        evaluate = super()._evaluate
        parts = [evaluate(_of_rows(obs, envs), _of_rows(actions, envs)) for envs in self._shards]
        params, values = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        return params, values

    def state_values(self, obs: Obs, num_rows: int) -> torch.Tensor:
        memory = self.collector.memory
        if memory is not None:
            row = each(lambda x: x[0], obs)
            return torch.cat([memory.values(_own(row, envs), envs) for envs in self._shards]).unsqueeze(0)
        parts = [
            self._values(_of_rows(obs, envs), (num_rows, envs.stop - envs.start)) for envs in self._shards
        ]
        return torch.cat(parts, dim=1)

    def final_values(self, obs: Obs, envs: torch.Tensor) -> torch.Tensor:
        memory = self.collector.memory
        values = torch.empty(len(envs), dtype=self.collector.logprobs.dtype)
        for shard in self._shards:
            (own,) = ((envs >= shard.start) & (envs < shard.stop)).nonzero(as_tuple=True)
            if len(own):
                shard_obs = each(lambda x, own=own: x[own], obs)
                if memory is None:
                    values[own] = self._values(shard_obs, (len(own),))
                else:
                    values[own] = memory.final_values(shard_obs, own)
        return values


def _own(row: Obs, envs: slice) -> Any:
    """Return a copy of some environments' part of a row `[E, ...]`."""
    return each(lambda x: x[envs].clone(), row)


def _of_rows(x: Obs, envs: slice) -> Any:
    """Return a contiguous copy of some environments' part of rows `[T, E, ...]`."""
    return each(lambda part: part[:, envs].clone(memory_format=torch.contiguous_format), x)
