"""Rollouts on a device whose kernels start by one call: acting, and the steps of the environments.

A step of a small policy and of a task as tensors is some hundred kernels of microseconds each. The host takes longer
to start them than the device to compute them. Recorded as a graph, they start by one call. Both classes are compared
with the eager code before they are used.
"""

from typing import TYPE_CHECKING, Any, cast

import torch

from ddppo.envs.tensor_env import TensorStep, TensorVecEnv
from ddppo.models.actor_critic import random_obs
from ddppo.models.distributions import DeviceDistribution
from ddppo.ppo import compiled
from ddppo.ppo.acting import TensorActing
from ddppo.spaces import each, leaves

if TYPE_CHECKING:
    from ddppo.ppo.device_collector import DeviceCollector

_TRIED_STEPS = 3  # of the environments, both ways


class RecordedActing(TensorActing):
    """`TensorActing` with its kernels recorded once, so that the host starts those of a step by one call.

    Recorded kernels use the memory that they were recorded with: the collector's buffers, the memory of the model and
    its parameters, which learning changes in place. Noise is copied into memory of its own, and the row is a number on
    the device that the kernels count up.
    """

    def __init__(self, collector: "DeviceCollector") -> None:
        super().__init__(collector)
        c = collector
        self._row = torch.zeros(1, dtype=torch.int64, device=c.device)
        self._all_noise = c.logprobs.new_zeros(*c.logprobs.shape, c.model.num_noise)
        self._written = [c.params, c.actions]
        if c.acted_values is not None:
            self._written.append(c.acted_values)
        if c.memory is not None:
            self._written.append(c.memory.state)
        before = [x.clone() for x in self._written]
        with torch.inference_mode():
            try:
                self._start = compiled.record(self._act_in_row)
            finally:
                self._put_back(before)
            self._compare(before)

    def begin(self, noise: Any) -> None:
        self._all_noise.copy_(noise)
        self._row.zero_()

    def act(self, t: int) -> None:
        self._start()

    def _act_in_row(self) -> None:
        """Do what `TensorActing.act` does in the row that the device knows, and go on to the next row."""
        c, row = self.collector, self._row
        obs = each(lambda x: x.index_select(0, row).squeeze(0), c.obs)
        params = self._params(cast(Any, row), obs, slice(None))
        distribution = cast(DeviceDistribution, self.model.distribution(params))
        actions = distribution.sample_on_device(self._all_noise.index_select(0, row).squeeze(0))
        c.params.index_copy_(0, row, params.to(c.params.dtype).unsqueeze(0))
        c.actions.index_copy_(0, row, actions.to(c.actions.dtype).unsqueeze(0))
        row += 1

    def _compare(self, before: list[torch.Tensor]) -> None:
        """Act in the first rows on random observations, both ways. Raises CannotRecord if the results differ."""
        c, generator = self.collector, torch.Generator().manual_seed(0)
        num_rows, num_envs = min(2, len(c.obs_rows) - 1), c.env.num_envs
        for row in c.obs_rows[:num_rows]:  # a rollout writes these rows before it reads them
            each(torch.Tensor.copy_, row, random_obs(c.env.spec, num_envs, c.logprobs.dtype, generator))
        noise = torch.rand(self._all_noise.shape, generator=generator).to(self._all_noise)
        eager = TensorActing(cast("DeviceCollector", c))
        found = []
        for acting in (eager, self):
            acting.begin(noise)
            for t in range(num_rows):
                acting.act(t)
            found.append([x[:num_rows].clone() for x in self._written])
            self._put_back(before)
        if not all(_are_close(x, y) for x, y in zip(*found, strict=True)):
            raise compiled.CannotRecord("recorded kernels give other actions than the model does")

    def _put_back(self, before: list[torch.Tensor]) -> None:
        for x, kept in zip(self._written, before, strict=True):
            x.copy_(kept)


class RecordedTask:
    """A task that says `is_recordable`, with the kernels of its step recorded.

    Recorded kernels use the memory that they were recorded with: a tensor of actions of this class, and the task's own
    tensors. So every step returns the same tensors, with new numbers. Making it resets the environments.
    """

    def __init__(self, task: TensorVecEnv, action_dtype: torch.dtype) -> None:
        self._task = task
        self._actions = torch.zeros(
            task.num_envs, *task.spec.action.shape, dtype=action_dtype, device=task.device
        )
        self._found: TensorStep | None = None
        self._begin()
        with torch.no_grad():
            eager = self._tried(task.step)
            self._start = compiled.record(self._step)
            recorded = self._tried(self.step)
        if not all(_are_close(x, y) for x, y in zip(eager, recorded, strict=True)):
            raise compiled.CannotRecord("recorded kernels step the environments otherwise than the task does")

    def __getattr__(self, name: str) -> Any:
        """Give all that is no step: `spec`, `reset`, `state`, ..., and what the simulator has beside the contract."""
        return getattr(self._task, name)

    def step(self, actions: torch.Tensor) -> TensorStep:
        self._actions.copy_(actions)
        self._start()
        found = self._found
        assert found is not None, "a step was recorded when this object was made"
        # The collector keeps metrics until the rollout ends, and copies all else.
        metrics = {name: x.clone() for name, x in found.metrics.items()}
        return TensorStep(
            found.obs, found.rewards, found.terminated, found.truncated, found.final_obs, metrics
        )

    def _step(self) -> None:
        self._found = self._task.step(self._actions)

    def _begin(self) -> None:
        self._task.reset(torch.arange(self._task.num_envs, device=self._task.device))

    def _tried(self, step: Any) -> list[torch.Tensor]:
        """Return copies of all tensors of the first steps of new episodes, with actions that are drawn alike."""
        self._begin()
        generator, kept = torch.Generator().manual_seed(0), list[torch.Tensor]()
        for _ in range(_TRIED_STEPS):
            drawn = torch.rand(self._actions.shape, generator=generator)
            actions = drawn if self._actions.is_floating_point() else (drawn < 0.5).to(self._actions.dtype)
            found = step(actions.to(self._actions))
            kept += [
                x.clone()
                for x in (
                    *leaves(found.obs), found.rewards, found.terminated, found.truncated,
                    *(() if found.final_obs is None else leaves(found.final_obs)), *found.metrics.values(),
                )
            ]  # fmt: skip
        self._begin()
        return kept


def _are_close(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.is_floating_point():
        return torch.allclose(x, y, rtol=1e-3, atol=1e-5)
    return bool((x != y).double().mean() < 0.01)  # a choice may change by rounding
