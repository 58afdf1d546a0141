"""central_inference: each rank is an agent, which acts and learns; its observers only step environments.

Observers go at their own pace. Those that wait are answered by one forward of the agent: a batch closes when all are
there, or max_wait_ms after the first. Every environment makes its T steps with its own noise, so what is collected does
not depend on who waited for whom. Espeholt et al. 2020, "SEED RL", arXiv:1910.06591; the agents and observers of Li et
al. 2023, "Quarl", arXiv:2307.10120.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ddppo.collectives.group import Group
from ddppo.distributed.topologies.ddp import Ddp
from ddppo.distributed.topologies.settings import CentralInferenceSettings
from ddppo.envs.backends.observers import Observers
from ddppo.envs.vec_env import EnvNames
from ddppo.models.actor_critic import flat_obs
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.rollout import FinishedEpisode, Rollout
from ddppo.spaces import each, leaves


class Agent(Ddp):
    """A rank with its observers."""

    collector: "CentralCollector"
    env: Observers

    def _acting(self) -> "CentralCollector":
        context, config = self._context, self._context.config
        names = EnvNames(context.env_indices, context.group.rank)
        dist = config.dist
        assert isinstance(dist, CentralInferenceSettings), dist
        settings = replace(context.env_config, num_workers=dist.observers or config.env.num_workers)
        env = Observers(
            settings, context.spec, names, context.env_timeout_s, context.cores, context.max_restarts
        )
        wait = dist.max_wait_ms
        return CentralCollector(
            **context.of_collector(env, context.env_indices.start),
            group=context.group,
            max_wait_s=None if wait is None else wait / 1000,
        )

    def measured(self) -> dict[str, float]:
        rows = self._context.shape.local_batch_size
        batch = {"rollout/inference_batch": rows / self.collector.num_forwards}
        return batch | super().measured()


class CentralCollector(Collector):
    """A collector whose observers are each in a row of their own. num_forwards: of the last rollout.

    Waiting for observers and what travels to and from them is noted in the group.
    """

    env: Observers

    def __init__(self, *, group: Group, max_wait_s: float | None, **of_collector: Any) -> None:
        super().__init__(**of_collector)
        self.num_forwards = 0
        self._group = group
        self._max_wait_s = max_wait_s
        self._network: CppNetwork | None = None

    def act_by(self, network: CppNetwork) -> None:
        self._network = network

    @torch.inference_mode()
    def _collect(self, noise: np.ndarray) -> tuple[Rollout, list[FinishedEpisode]]:
        if self._network is not None:
            self._network.refresh()
        masks = None if self.masks is None else self.masks[-1].numpy()
        self._receive(0, each(lambda x: x[-1], self._raw_obs), masks)
        draws = torch.from_numpy(noise).to(self.logprobs.dtype)
        if self.memory is not None:
            self.memory.begin()
        ends: list[Any] = []
        self._num_acted, self.num_forwards = self.rollout_steps, 0
        self._life_losses.clear()
        rows = [0] * len(self.env.parts)  # that each observer is in
        waiting = list(range(len(rows)))
        busy = 0
        while True:
            acting = [k for k in waiting if rows[k] < self.rollout_steps]
            if acting:
                self._answer(acting, rows, draws)
            busy += len(acting)
            if not busy:
                break
            with self._group.wait_for("observer"):
                waiting = self.env.ready(self._max_wait_s)
            busy -= len(waiting)
            for k in waiting:
                self._note(k, rows[k], ends)
                rows[k] += 1
        self._check(ends)
        self._num_steps += self.rollout_steps
        return self._finish(ends), self._count(ends)

    def _answer(self, acting: list[int], rows: list[int], draws: torch.Tensor) -> None:
        """Act for these observers in one forward."""
        parts = [self.env.parts[k] for k in acting]
        sizes = [part.stop - part.start for part in parts]
        t = torch.from_numpy(np.repeat([rows[k] for k in acting], sizes))
        e = torch.from_numpy(np.concatenate([np.arange(part.start, part.stop) for part in parts]))
        obs = each(lambda x: x[t.to(x.device), e.to(x.device)], self.obs)
        mask = None if self.masks is None else self.masks[t, e].to(self.device)
        params = self._policy(obs, t, e)
        actions = self.model.distribution(params, mask).sample(draws[t, e]).cpu().numpy()
        if not self.model.values_are_of_actions:
            self.params[t.to(self.device), e.to(self.device)] = params
        self._actions[t.numpy(), e.numpy()] = actions
        self.num_forwards += 1
        start = 0
        for k, size in zip(acting, sizes, strict=True):
            of_observer = actions[start : start + size]
            self.env.ask(k, of_observer)
            self._group.sends.append(of_observer.nbytes)
            start += size

    def _policy(self, obs: Any, t: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        if self._network is not None:
            flat = flat_obs(obs, self.env.spec, self.logprobs.dtype).contiguous()
            return self._network.policy(flat, flat.new_empty(len(flat), self.params.shape[-1]))
        if self._acted_values is None:
            return self.model.action_params(obs)
        params, values = self.model(obs) if self.memory is None else self.memory.act(obs, e.to(self.device))
        self._acted_values[t.to(self.device), e.to(self.device)] = values
        return params

    def _note(self, observer: int, row: int, ends: list[Any]) -> None:
        """Write what an observer answered to its actions of `row`."""
        step, part = self.env.answer(observer), self.env.parts[observer]
        each(lambda out, x: out.__setitem__((row + 1, part), x), self._raw_obs, step.obs)
        raw = each(lambda x: x[row + 1, part].to(self.device), self.raw_obs)
        if self.normalizer is not None:
            each(lambda out, x: out[row + 1, part].copy_(x), self.obs, self.normalizer(raw))
        elif not self._is_on_cpu:
            each(lambda out, x: out[row + 1, part].copy_(x), self.obs, raw)
        if self.masks is not None and step.action_mask is not None:
            self.masks[row + 1, part] = torch.from_numpy(step.action_mask)
        self.rewards[row, part] = step.rewards
        for flag, values in zip(self.flags, (step.terminated, step.truncated, step.valid), strict=False):
            flag[row, part] = values
        if len(step.ended):
            ends.append((row, part.start + step.ended, each(np.ndarray.copy, step.final_obs)))
        if self.memory is not None:
            starts = np.zeros(self.env.num_envs, bool)
            starts[part] = step.terminated | step.truncated | ~step.valid
            self.memory.stepped(row, part.start + step.ended, starts, part)
        arrays = [*leaves(step.obs), *leaves(step.final_obs), step.rewards, step.terminated, step.truncated]
        arrays += [] if step.action_mask is None else [step.action_mask]
        self._group.sends.append(sum(x.nbytes for x in arrays))
