"""central_inference: every rank is an agent that acts and learns; its observers, processes, only step environments.

Read `CentralCollector.collect`: one forward pass of the agent computes the actions of all observers that wait. A batch
closes when all observers wait, or dist.max_wait_ms after the first one. Observers go at their own pace, each in its own
row t of the rollout. Every environment still makes T steps with its own noise, so the rollout does not depend on which
observers share a batch. Espeholt et al. 2020, "SEED RL", arXiv:1910.06591; agents and observers as in Li et al. 2023,
"Quarl", arXiv:2307.10120.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ddppo.algorithms.grpo import EpisodeCollector
from ddppo.collectives.group import Group
from ddppo.distributed.topologies.ddp import Ddp
from ddppo.distributed.topologies.settings import CentralInferenceSettings
from ddppo.envs.backends.observers import Observers
from ddppo.envs.vec_env import End, EnvNames
from ddppo.models.actor_critic import flat_obs
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.rollout import FinishedEpisode, Transitions
from ddppo.spaces import each, leaves


class Agent(Ddp):
    """A rank with its observers."""

    collector: "CentralCollector"
    env: Observers

    def _make_collector(self) -> "CentralCollector":
        context, config = self._context, self._context.config
        names = EnvNames(context.env_indices, context.group.rank)
        dist = config.dist
        assert isinstance(dist, CentralInferenceSettings), dist
        settings = replace(context.env_config, num_workers=dist.observers or config.env.num_workers)
        env = Observers(
            settings, context.spec, names, context.env_timeout_s, context.cores, context.max_restarts
        )
        kind = CentralEpisodes if context.has_whole_episodes else CentralCollector
        collector = context.collector(env, context.env_indices.start, kind)
        assert isinstance(collector, CentralCollector)
        collector.group = context.group
        collector.max_wait_s = None if dist.max_wait_ms is None else dist.max_wait_ms / 1000
        return collector

    def measured(self) -> dict[str, float]:
        batch = {"rollout/inference_batch": self.collector.num_acted / self.collector.num_forwards}
        return batch | super().measured()


class CentralCollector(Collector):
    """A collector in which every observer is in a row of its own. Its maker sets `group` and `max_wait_s`."""

    env: Observers
    group: Group  # all ranks; it records the waits for observers, and the bytes to and from them
    max_wait_s: float | None  # how long a batch waits for further observers after the first; None: for all
    num_forwards = 0  # forward passes of the last rollout
    num_acted = 0  # actions of the last rollout
    _network: CppNetwork | None = None  # computes the policy in C++, if set

    def use_cpp(self, network: CppNetwork) -> None:
        self._network = network

    @torch.inference_mode()
    def collect(self, noise: np.ndarray) -> tuple[Transitions, list[FinishedEpisode]]:
        ends = self._collect_rows(noise)
        self._check(ends)
        self._num_steps += self.rollout_steps
        return self._finish(ends), self._count_episodes(ends)

    def _collect_rows(self, noise: np.ndarray) -> list[End]:
        """Step every observer until it is done; return the ends of episodes."""
        if self._network is not None:
            self._network.refresh()
        # The last row of the previous rollout is row 0 of this one.
        masks = None if self.masks is None else self.masks[-1].numpy()
        self._receive(0, each(lambda x: x[-1], self._raw_obs), masks)
        draws = torch.from_numpy(noise).to(self.logprobs.dtype)
        if self.memory is not None:
            self.memory.begin()
        if self.by_algorithm is not None:
            self.by_algorithm.begin(noise)
        ends: list[End] = []
        self._num_taken, self.num_forwards, self.num_acted = self.rollout_steps, 0, 0
        self._life_losses.clear()
        rows = [0] * len(self.env.parts)  # the row of each observer
        waiting = list(range(len(rows)))  # observers that have sent their observations
        num_busy = 0  # observers that step their environments
        while True:
            # An observer that is done receives no further actions.
            acting = [k for k in waiting if not self._is_done(k, rows[k])]
            if acting:
                self._act_for(acting, rows, draws)
            num_busy += len(acting)
            if not num_busy:
                break
            with self.group.wait_for("observer"):
                waiting = self.env.ready(self.max_wait_s)
            num_busy -= len(waiting)
            for k in waiting:
                self._receive_step(k, rows[k], ends)
                rows[k] += 1
        return ends

    def _is_done(self, observer: int, num_rows: int) -> bool:
        return num_rows == self.rollout_steps

    def _act_for(self, acting: list[int], rows: list[int], draws: torch.Tensor) -> None:
        """Compute the actions of these observers in one forward pass, and send each observer its own."""
        computed = acting
        if self.max_wait_s is None:
            # Kernels give other bits for other batch sizes. So a batch that waits for all also has the environments of
            # observers that are done early; the rows that this fills come after their episodes and are not valid.
            # Then results do not depend on how many observers there are, which a measured time of a step may decide.
            done = [k for k in range(len(rows)) if rows[k] < self.rollout_steps and self._is_done(k, rows[k])]
            computed = sorted([*acting, *done])
        slices = [self.env.parts[k] for k in computed]  # the environments of each observer
        sizes = [envs.stop - envs.start for envs in slices]
        # One index (t, e) per environment: observers are in different rows.
        t = torch.from_numpy(np.repeat([rows[k] for k in computed], sizes))
        e = torch.from_numpy(np.concatenate([np.arange(envs.start, envs.stop) for envs in slices]))
        obs = each(lambda x: x[t.to(x.device), e.to(x.device)], self.obs)
        mask = None if self.masks is None else self.masks[t, e].to(self.device)
        if self.by_algorithm is not None:
            actions = self.by_algorithm.act_for(t, e, obs, mask)
        else:
            params = self._policy(obs, t, e)
            actions = self.model.distribution(params, mask).sample(draws[t, e]).cpu().numpy()
            if not self.model.values_are_of_actions:
                self.params[t.to(self.device), e.to(self.device)] = params
            self.np_actions[t.numpy(), e.numpy()] = actions
        self.num_forwards += 1
        self.num_acted += len(t)
        start = 0
        for k, size in zip(computed, sizes, strict=True):
            observer_actions = actions[start : start + size]
            if k in acting:
                self.env.ask(k, observer_actions)
                self.group.sends.append(observer_actions.nbytes)
            start += size

    def _policy(self, obs: Any, t: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        """Return action parameters `[n, P]`; store values in rows t if the model computes both at once."""
        if self._network is not None:
            flat = flat_obs(obs, self.env.spec, self.logprobs.dtype).contiguous()
            return self._network.policy(flat, flat.new_empty(len(flat), self.params.shape[-1]))
        if self.acted_values is None:
            return self.model.action_params(obs)
        params, values = self.model(obs) if self.memory is None else self.memory.act(obs, e.to(self.device))
        self.acted_values[t.to(self.device), e.to(self.device)] = values
        return params

    def _receive_step(self, observer: int, row: int, ends: list[End]) -> None:
        """Store the results of an observer's actions of `row`; its new observations go to row + 1."""
        step, envs = self.env.answer(observer), self.env.parts[observer]
        each(lambda out, x: out.__setitem__((row + 1, envs), x), self._raw_obs, step.obs)
        raw = each(lambda x: x[row + 1, envs].to(self.device), self.raw_obs)
        if self.normalizer is not None:
            each(lambda out, x: out[row + 1, envs].copy_(x), self.obs, self.normalizer(raw))
        elif not self._is_on_cpu:
            each(lambda out, x: out[row + 1, envs].copy_(x), self.obs, raw)
        if self.masks is not None and step.action_mask is not None:
            self.masks[row + 1, envs] = torch.from_numpy(step.action_mask)
        self.rewards[row, envs] = step.rewards
        for flag, values in zip(self.flags, (step.terminated, step.truncated, step.valid), strict=False):
            flag[row, envs] = values
        # `step.ended` counts from the observer's first environment, `ends` from the rank's.
        if len(step.ended):
            ends.append((row, envs.start + step.ended, each(np.ndarray.copy, step.final_obs)))
        if self.memory is not None:
            starts = np.zeros(self.env.num_envs, bool)
            starts[envs] = step.terminated | step.truncated | ~step.valid
            self.memory.stepped(row, envs.start + step.ended, starts, envs)
        arrays = [*leaves(step.obs), *leaves(step.final_obs), step.rewards, step.terminated, step.truncated]
        arrays += [] if step.action_mask is None else [step.action_mask]
        self.group.sends.append(sum(x.nbytes for x in arrays))


class CentralEpisodes(CentralCollector, EpisodeCollector):
    """Collects one episode of each environment. An observer is done once those of its environments are over."""

    _is_over: np.ndarray  # [E] whether the episode has ended
    _last: np.ndarray  # [E] row in which it ended

    @torch.inference_mode()
    def collect(self, noise: np.ndarray) -> tuple[Transitions, list[FinishedEpisode]]:
        self._is_over = np.zeros(self.env.num_envs, dtype=bool)
        self._last = np.full(self.env.num_envs, self.rollout_steps - 1)
        ends = self._collect_rows(noise)
        self._check(ends)
        return self._finished(self._is_over, self._last, ends)

    def _is_done(self, observer: int, num_rows: int) -> bool:
        return super()._is_done(observer, num_rows) or bool(self._is_over[self.env.parts[observer]].all())

    def _receive_step(self, observer: int, row: int, ends: list[End]) -> None:
        num_ends = len(ends)
        super()._receive_step(observer, row, ends)
        for _, ended, _ in ends[num_ends:]:
            first = ended[~self._is_over[ended]]
            self._is_over[first], self._last[first] = True, row
