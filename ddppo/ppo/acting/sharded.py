"""Acting in shards: the network is called for some environments after others, always for as many."""

from typing import Any

import torch

from ddppo.models import Obs
from ddppo.ppo.acting.collector import Collector
from ddppo.spaces import each


class ShardedCollector(Collector):
    """A collector whose network computes S shards of its environments one by one, consecutive ones alike.

    Kernels give other bits at other batch sizes, and some at other places in memory. So a shard's numbers come from
    copies of its own: they are the same whatever other shards this rank has. Environments are stepped all at once, for
    none hears of another's, and so is what C++ computes, for there every row is computed by itself (`NativeNetwork`).
    """

    def __init__(self, num_shards: int, **of_collector: Any) -> None:
        super().__init__(**of_collector)
        size = self.env.num_envs // num_shards
        self._shards = [slice(first, first + size) for first in range(0, self.env.num_envs, size)]

    def _act(self, t: int, noise: torch.Tensor) -> None:
        for envs in self._shards:
            obs = _own(self._obs_rows[t], envs)
            mask = None if self._mask_rows is None else _own(self._mask_rows[t], envs)
            params = self._params(t, obs, envs)
            if not self.model.values_are_of_actions:
                self._param_rows[t][envs] = params
            actions = self.model.distribution(params, mask).sample(_own(noise, envs))
            self._actions[t, envs] = actions.numpy()

    def _logprobs(
        self, params: torch.Tensor, masks: torch.Tensor | None, actions: torch.Tensor
    ) -> torch.Tensor:
        parts = []
        for envs in self._shards:
            mask = None if masks is None else _of_rows(masks, envs)
            parts.append(super()._logprobs(_of_rows(params, envs), mask, _of_rows(actions, envs)))
        return torch.cat(parts, dim=1)

    def _at(self, obs: Obs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at = super()._at
        parts = [at(_of_rows(obs, envs), _of_rows(actions, envs)) for envs in self._shards]
        params, values = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        return params, values

    def _state_values(self, obs: Obs, num_rows: int) -> torch.Tensor:
        if self._actor is not None:
            return super()._state_values(obs, num_rows)
        if self.memory is not None:
            row = each(lambda x: x[0], obs)
            return torch.cat([self.memory.values(_own(row, envs), envs) for envs in self._shards]).unsqueeze(
                0
            )
        parts = [
            self._values(_of_rows(obs, envs), (num_rows, envs.stop - envs.start)) for envs in self._shards
        ]
        return torch.cat(parts, dim=1)

    def _final_values(self, obs: Obs, envs: torch.Tensor) -> torch.Tensor:
        if self._actor is not None:
            return super()._final_values(obs, envs)
        values = torch.empty(len(envs), dtype=self.logprobs.dtype)
        for shard in self._shards:
            (mine,) = ((envs >= shard.start) & (envs < shard.stop)).nonzero(as_tuple=True)
            if len(mine):
                own = each(lambda x, mine=mine: x[mine], obs)
                if self.memory is None:
                    values[mine] = self._values(own, (len(mine),))
                else:
                    values[mine] = self.memory.final_values(own, mine)
        return values


def _own(row: Obs, envs: slice) -> Any:
    """Return a copy of what a row `[E, ...]` holds of some environments."""
    return each(lambda x: x[envs].clone(), row)


def _of_rows(x: Obs, envs: slice) -> Any:
    """Return a contiguous copy of what rows `[T, E, ...]` hold of some environments."""
    return each(lambda part: part[:, envs].clone(memory_format=torch.contiguous_format), x)
