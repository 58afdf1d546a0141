"""How a collector acts: PPO in PyTorch for all environments at once or shard by shard, or by another algorithm's `act`.

PPO's third way is `CppActing` (cpp/network.py). A collector has one of them, chosen before the first iteration.
"""

from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch

from ddppo.errors import TrainingError
from ddppo.models.actor_critic import Obs
from ddppo.models.distributions import DeviceDistribution
from ddppo.spaces import each, zipped

if TYPE_CHECKING:
    from ddppo.algorithms.contract import Acted, Algorithm
    from ddppo.ppo.collector import Collector
    from ddppo.ppo.device_collector import DeviceCollector

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


class TensorActing(EagerActing):
    """PyTorch, one forward pass per row, of a DeviceCollector: noise and actions stay on the device."""

    def __init__(self, collector: "DeviceCollector") -> None:
        super().__init__(cast(Any, collector))  # it has the buffers that EagerActing fills
        self._actions = collector.action_rows

    def begin(self, noise: Any) -> None:
        self._noise = noise.to(self.collector.logprobs.dtype).unbind()

    def act(self, t: int) -> None:
        c = self.collector
        params = self._params(t, c.obs_rows[t], slice(None))
        c.param_rows[t].copy_(params)
        distribution = cast(DeviceDistribution, self.model.distribution(params))
        self._actions[t].copy_(distribution.sample_on_device(self._noise[t]))


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


# -- Acting by an algorithm of its own.


class AlgorithmActing:
    """Fills the rows of a collector's buffers by `Algorithm.act`, with what it records beside the actions."""

    def __init__(self, collector: "Collector", algorithm: "Algorithm") -> None:
        self.collector = collector
        self.algorithm = algorithm
        self.extras: dict[str, torch.Tensor] = {}  # [T, E, ...], allocated at the first step
        self.memory: torch.Tensor | None = None  # [E, S] before the row that is acted on next
        if size := algorithm.model.state_size:
            self.memory = collector.logprobs.new_zeros(collector.env.num_envs, size)
        self._noise = torch.empty(0)

    def reset(self) -> None:
        """Forget: every environment begins a new episode."""
        if self.memory is not None:
            self.memory.zero_()

    def begin(self, noise: np.ndarray) -> None:
        self._noise = torch.from_numpy(noise).to(self.collector.logprobs.dtype)

    def act(self, t: int) -> None:
        c = self.collector
        mask = c.mask_rows[t].to(c.device) if c.mask_rows is not None else None
        if self.memory is not None and t > 0:
            terminated, truncated, valid = c.flags[:3, t - 1]
            self.memory[torch.from_numpy(terminated | truncated | ~valid)] = 0
        elif self.memory is not None:
            self.memory[torch.from_numpy(c.starts)] = 0
        acted = self.algorithm.act(c.obs_rows[t], mask, self._noise[t], self.memory)
        self.record(acted, t, slice(None))
        self.memory = acted.memory

    def act_for(self, t: torch.Tensor, envs: torch.Tensor, obs: Obs, mask: torch.Tensor | None) -> np.ndarray:
        """Act for environments `[n]` that are in rows t `[n]` of their own; return their actions."""
        memory = None
        if self.memory is not None:
            c, rows, columns = self.collector, t.numpy(), envs.numpy()
            terminated, truncated, valid = c.flags[:3, rows - 1, columns]
            starts = np.where(rows > 0, terminated | truncated | ~valid, c.starts[columns])
            memory = self.memory[envs].masked_fill(
                torch.from_numpy(starts).to(self.memory.device).unsqueeze(1), 0
            )
        acted = self.algorithm.act(obs, mask, self._noise[t, envs], memory)
        self.record(acted, t, envs)
        if self.memory is not None:
            assert acted.memory is not None
            self.memory[envs] = acted.memory
        return self.collector.np_actions[t.numpy(), envs.numpy()]

    def record(self, acted: "Acted", t: Any, envs: Any) -> None:
        """Store actions and extras of environments `envs` in row t, or in rows t of each."""
        c = self.collector
        if acted.extras.keys() != self.extras.keys():
            self._allocate(acted)
        c.cpu_actions[t, envs] = acted.actions.to(c.cpu_actions)
        for name, x in acted.extras.items():
            self.extras[name][t, envs] = x

    def _allocate(self, acted: "Acted") -> None:
        if self.extras:
            raise TrainingError(
                f"{type(self.algorithm).__name__}.act recorded {sorted(self.extras)}, and now {sorted(acted.extras)}: "
                "it must record the same extras in every call"
            )
        size = (self.collector.rollout_steps, self.collector.env.num_envs)
        with torch.inference_mode(mode=False):  # learning differentiates through what is computed from them
            self.extras = {
                name: torch.zeros(*size, *x.shape[1:], dtype=x.dtype, device=x.device)
                for name, x in acted.extras.items()
            }

    def write_logprobs(self, num_rows: int, mask: torch.Tensor | None) -> torch.Tensor | None:
        raise AssertionError("only PPO and GRPO record log-probabilities")

    def state_values(self, obs: Obs, num_rows: int) -> torch.Tensor:
        raise AssertionError("only PPO records values")

    def final_values(self, obs: Obs, envs: torch.Tensor) -> torch.Tensor:
        raise AssertionError("only PPO records values")

    def successors(self, num_rows: int, final_obs: Obs | None, ends: torch.Tensor) -> dict[str, Any]:
        """Return the fields of `Transitions` that name the successors, or none if the algorithm needs none."""
        c = self.collector
        if not self.algorithm.needs_successors:
            return {}
        if final_obs is None:  # no episode ended
            final_obs = each(lambda x: x[0, :0], c.obs)
        return {
            "last_obs": each(lambda x: x[num_rows].clone(), c.obs),
            "last_mask": None if c.masks is None else c.masks[num_rows].to(c.device),
            "final_obs": final_obs,
            "ends": ends,
        }
