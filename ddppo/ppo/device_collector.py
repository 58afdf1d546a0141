"""Collecting a rollout on a device: observations, actions and rewards never leave it (env.backend=device).

`DeviceCollector.collect` acts, steps and stores T times without waiting for the device: no flag is read by Python, and
which episodes ended is a mask. At the end of the rollout one copy brings rewards, flags and the simulator's metrics to
the host (`HostCopy`), which counts episodes, looks for NaN, and learns which rows were truncated.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from ddppo.device import wide_dtype
from ddppo.envs.backends.device import DeviceEnvs
from ddppo.envs.tensor_env import TensorStep
from ddppo.envs.vec_env import Options, check_finite
from ddppo.errors import EnvError
from ddppo.models.actor_critic import ActorCritic, Obs, raw_dtype
from ddppo.ppo.acting import TensorActing
from ddppo.ppo.collector import obs_buffers
from ddppo.ppo.cpp.network import CppActing, CppNetwork
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import FinishedEpisode, RecurrentState, Rollout, Transitions
from ddppo.spaces import ArraySpec, each, leaves, zipped


class DeviceCollector:
    """Steps environments on a device with a model, and keeps their state from one rollout to the next.

    Values of all observations are computed in one batch at the end, as `Collector` does. So are those of final
    observations, of truncated rows only; for that the final observations of all rows are kept, `[T, E, *shape]`.
    Environments without final observations get V of the state that was acted in, as rsl_rl does.
    """

    whole_episodes = False  # those that a simulator ends go on from one rollout to the next

    def __init__(
        self,
        env: DeviceEnvs,
        model: ActorCritic,
        normalizer: ObsNormalizer | None,
        *,
        rollout_steps: int,
        first_env: int,  # global index of the first environment
        dtype: torch.dtype,
        sequence_length: int | None = None,
        learns_by_ratio: bool = True,  # PPO or GRPO learns, which need log-probabilities of what acted
    ) -> None:
        self.env = env
        self.learns_by_ratio = learns_by_ratio
        self.wide = wide_dtype(env.device)
        self.model = model
        self.normalizer = normalizer
        self.first_env = first_env
        self.rollout_steps, self.device = rollout_steps, env.device
        steps, num_envs, spec, device = rollout_steps, env.num_envs, env.spec, env.device

        def buffer(*shape: int, kind: torch.dtype = dtype, rows: int = steps) -> torch.Tensor:
            return torch.zeros(rows, num_envs, *shape, dtype=kind, device=device)

        # [T + 1, E, *shape]: as the environments returned them, and as the model gets them; one memory if equal.
        self.obs, self.flat_obs = obs_buffers(spec, (steps + 1, num_envs), dtype, device)
        self.raw_obs = self.obs
        if normalizer is not None:

            def raw(leaf: ArraySpec) -> torch.Tensor:
                kind = raw_dtype(leaf, dtype, is_normalized=True)
                return buffer(*leaf.shape, kind=kind, rows=steps + 1)

            self.raw_obs = each(raw, spec.obs)
        # [T, E, *shape] last observations where an episode ended, anything elsewhere; not normalised.
        self.final_obs: Obs | None = None
        if env.has_final_obs:

            def final(leaf: ArraySpec) -> torch.Tensor:
                kind = raw_dtype(leaf, dtype, is_normalized=normalizer is not None)
                return buffer(*leaf.shape, kind=kind)

            self.final_obs = each(final, spec.obs)
        self.actions = buffer(*spec.action.shape, kind=dtype if spec.action.kind == "box" else torch.int64)
        self.params = buffer(model.num_params)
        self.logprobs = buffer()
        self.rewards = buffer()
        # [3, T, E]: terminated, truncated, start
        self.flags = torch.zeros(3, steps, num_envs, dtype=torch.bool, device=device)
        self._valid = torch.ones(steps, num_envs, dtype=torch.bool, device=device)
        # Views of single rows, made once: making a view costs a microsecond.
        self.obs_rows: list[Any] = zipped(each(torch.unbind, self.obs))
        self._raw_rows: list[Any] = zipped(each(torch.unbind, self.raw_obs))
        self._final_rows: list[Any] = (
            [] if self.final_obs is None else zipped(each(torch.unbind, self.final_obs))
        )
        self.param_rows, self.action_rows = self.params.unbind(), self.actions.unbind()
        self._reward_rows = self.rewards.unbind()
        self._terminated, self._truncated = self.flags[0].unbind(), self.flags[1].unbind()
        # The episodes under way, on the host: whether row 0 starts one, and their returns and lengths before it. [E]
        self.starts = np.ones(num_envs, dtype=bool)
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, dtype=np.int64)
        self.memory: RecurrentState | None = None
        self.acted_values: torch.Tensor | None = None
        if model.state_size or model.values_are_beside:
            self.acted_values = torch.zeros_like(self.logprobs)
        self._last_memory: torch.Tensor | None = None  # [T, E, S] memory after each row, before resets
        if model.state_size:
            self.memory = RecurrentState(model, self.logprobs, num_envs, steps, sequence_length)
            if env.has_final_obs:
                self._last_memory = buffer(model.state_size)
        self.masks = self.mask_rows = None  # environments on a device have no action masks
        self.acts_in_torch = True
        self.acting: Any = TensorActing(self)
        # (sum, number of steps) of this rollout, by name
        self.env_metrics: dict[str, tuple[float, float]] = {}
        self._num_steps = 0  # of each environment before this rollout
        self.num_steps = steps * num_envs  # of all environments in this rollout, that are learned from

    def use_cpp(self, network: CppNetwork) -> None:
        """Compute the policy in C++ from the next rollout on; the device is a CPU."""
        self.acts_in_torch = False
        self.acting = CppActing(cast(Any, self), network)

    def record_acting(self) -> None:
        """Start the kernels of acting by one call a step, from the next rollout on. Raises CannotRecord."""
        from ddppo.ppo.recorded_rollout import RecordedActing  # loads torch's compiler, which few runs need

        self.acting = RecordedActing(self)

    def record_env(self) -> None:
        """Start the kernels of the environments by one call a step. They are reset. Raises CannotRecord."""
        from ddppo.ppo.recorded_rollout import RecordedTask

        self.env.envs = RecordedTask(self.env.envs, self.actions.dtype)

    def reset(self, seeds: Sequence[int], options: Options | None = None) -> None:
        """Begin an episode in every environment, each from its own seed."""
        if options and any(options):
            raise EnvError(
                f"{self.env.names(0)} takes no options at a reset: env.backend=device passes none on"
            )
        self._num_steps = 0
        self._receive(self.rollout_steps, self.env.reset(seeds))
        if not self.whole_episodes:
            self.env.scatter_ages()
        if self.memory is not None:
            self.memory.reset()
        self.starts[:] = True
        self.returns[:] = 0
        self.lengths[:] = 0

    def collect(self, noise: Any) -> tuple[Transitions, list[FinishedEpisode]]:
        """Step T times with action noise `[T, E, num_noise]`; return the rollout and the finished episodes.

        Raises EnvError if an environment fails, or returned NaN or infinity.
        """
        host = self._played(noise)
        with torch.inference_mode():
            rollout = self._finish(host)
        self._num_steps += self.rollout_steps
        self.starts = host.terminated[-1] | host.truncated[-1]
        return rollout, host.count_(self.returns, self.lengths, self.first_env)

    def _played(self, noise: Any) -> "HostCopy":
        """Act and step until the rollout is full, or done; return what the host learns of it."""
        # 1. The last row of the previous rollout becomes row 0, normalised again because the moments have moved.
        self.acting.begin(noise if self.acts_in_torch else noise.numpy())
        self._receive(0, self._raw_rows[-1])
        if self.memory is not None:
            self.memory.begin()
        logged: dict[str, list[torch.Tensor]] = {}
        # 2. Act, step, store. The task's own tensors are no inference tensors, so that it may change them anywhere.
        for t in range(self.rollout_steps):
            with torch.inference_mode():
                self.acting.act(t)
            with torch.no_grad():
                self._step(t, logged)
                if self._is_done(t):
                    break
        # 3. The one copy to the host; values and log-probabilities follow.
        with torch.inference_mode():
            host = HostCopy(self, logged, t + 1)
            self._check(host)
        self.env_metrics = host.metrics
        return host

    def _is_done(self, t: int) -> bool:
        """Return whether the rollout ends before it is full, after row t."""
        return False

    def measured(self) -> dict[str, float]:
        return {}

    def _step(self, t: int, logged: dict[str, list[torch.Tensor]]) -> None:
        step: TensorStep = self.env.step(self.action_rows[t])
        # Copies, because the environments reuse their tensors.
        self._receive(t + 1, step.obs)
        self._reward_rows[t].copy_(step.rewards)
        self._terminated[t].copy_(step.terminated)
        self._truncated[t].copy_(step.truncated)
        if self._final_rows:
            each(torch.Tensor.copy_, self._final_rows[t], step.final_obs)
        for name, x in step.metrics.items():
            logged.setdefault(name, []).append(x)
        if self.memory is not None:
            self._step_memory(t, self._terminated[t] | self._truncated[t])

    def _step_memory(self, t: int, ended: torch.Tensor) -> None:
        assert self.memory is not None
        with torch.inference_mode():
            if self._last_memory is not None:
                self._last_memory[t].copy_(self.memory.state)
            self.memory.stepped_on_device(t, ended)

    def _receive(self, row: int, obs: Obs) -> None:
        """Store observations `[E, *shape]` in a row, and normalise them if needed."""
        each(torch.Tensor.copy_, self._raw_rows[row], obs)
        if self.normalizer is not None:
            self.normalizer(self._raw_rows[row], out=self.obs_rows[row])

    # -- The end of a rollout.

    def _check(self, host: "HostCopy") -> None:
        """Raise EnvOutputError for NaN or infinity. One number says whether to look: it is not finite then."""
        if host.is_finite:
            return
        ended, steps = host.terminated | host.truncated, len(host.rewards)
        ends = []
        for t in np.flatnonzero(ended.any(axis=1)).tolist() if self.final_obs is not None else ():
            (envs,) = np.nonzero(ended[t])
            ends.append((t, envs, each(lambda x, t=t, envs=envs: x[t].cpu().numpy()[envs], self.final_obs)))
        obs = each(lambda x: x[1 : steps + 1].cpu().numpy(), self.raw_obs)
        check_finite(self.env.names, self._num_steps + 1, obs, host.rewards, ends)
        first = each(lambda x: x[:1].cpu().numpy(), self.raw_obs)
        check_finite(self.env.names, self._num_steps, first, np.zeros_like(host.rewards[:1]), [])

    def _finish(self, host: "HostCopy") -> Transitions:
        steps = self.rollout_steps
        terminated, truncated, starts = self.flags
        starts[0].copy_(torch.from_numpy(self.starts), non_blocking=True)
        torch.logical_or(terminated[:-1], truncated[:-1], out=starts[1:])
        fields: dict[str, Any] = {
            "obs": each(lambda x: x[:steps], self.obs),
            "actions": self.actions,
            "rewards": self.rewards,
            "terminated": terminated,
            "truncated": truncated,
            "valid": self._valid,
            "episode_start": starts,
            "action_mask": None,
            "raw_obs": each(lambda x: x[:steps], self.raw_obs),
        }
        if not self.learns_by_ratio:
            return Transitions(**fields)
        self.acting.write_logprobs(steps, None)
        # Values of observations 0 to T, or of T alone if the model gave the others while it acted.
        first = 0 if self.acted_values is None else steps
        values = self.acting.state_values(each(lambda x: x[first:], self.obs), steps + 1 - first)
        if self.acted_values is not None:
            values = torch.cat([self.acted_values, values])
        return Rollout(
            **fields,
            logprobs=self.logprobs,
            values=values[:-1],
            next_values=self._next_values(values, host),
            is_full=True,
            state=None if self.memory is None else self.memory.kept,
        )

    def _next_values(self, values: torch.Tensor, host: "HostCopy") -> torch.Tensor:
        """Return V of the true successors `[T, E]`; those of terminated rows are not read."""
        if self.final_obs is None:
            return torch.where(self.flags[1], values[:-1], values[1:])
        next_values = values[1:].clone()
        # The host knows the truncated rows, so the device need not be asked for their number.
        rows = np.flatnonzero(host.truncated & ~host.terminated)
        if len(rows):
            index = torch.from_numpy(rows).to(self.device, non_blocking=True)
            final_obs = each(lambda x: x.flatten(0, 1)[index], self.final_obs)
            if self.normalizer is not None:
                final_obs = self.normalizer(final_obs)
            next_values.view(-1)[index] = self._final_values(final_obs, index)
        return next_values

    def _final_values(self, obs: Obs, index: torch.Tensor) -> torch.Tensor:
        if self._last_memory is not None:
            return self.model.step(obs, self._last_memory.flatten(0, 1)[index])[1]
        return self.acting.final_values(obs, index)


class HostCopy:
    """All that the host learns of a rollout, by one copy: rewards, flags, the simulator's metrics, and finiteness."""

    def __init__(
        self, collector: DeviceCollector, logged: dict[str, list[torch.Tensor]], num_rows: int
    ) -> None:
        steps, num_envs = num_rows, collector.env.num_envs
        rewards, (terminated, truncated, _) = collector.rewards[:steps], collector.flags[:, :steps]
        ended = terminated | truncated
        # A sum is finite only if every term is; it may overflow too, and then each number is looked at.
        sums = [x[: steps + 1].sum() for x in leaves(collector.raw_obs) if x.is_floating_point()]
        if collector.final_obs is not None:
            by_row = [x[:steps].reshape(steps, num_envs, -1) for x in leaves(collector.final_obs)]
            sums += [x.sum(-1).where(ended, 0.0).sum() for x in by_row if x.is_floating_point()]
        sums.append(rewards.sum())
        means = [torch.stack([x.to(rewards) for x in values]).mean() for values in logged.values()]
        parts = [
            rewards.flatten(),
            terminated.flatten().to(rewards.dtype),
            truncated.flatten().to(rewards.dtype),
            torch.stack([x.to(rewards.dtype) for x in (*sums, *means)]),
        ]
        numbers = torch.cat(parts).cpu().numpy()
        size = steps * num_envs
        self.rewards = numbers[:size].reshape(steps, num_envs)
        self.terminated = numbers[size : 2 * size].reshape(steps, num_envs) > 0
        self.truncated = numbers[2 * size : 3 * size].reshape(steps, num_envs) > 0
        rest = numbers[3 * size :]
        self.is_finite = bool(np.isfinite(rest[: len(sums)]).all())
        self.metrics = {
            name: (float(mean) * len(logged[name]), float(len(logged[name])))
            for name, mean in zip(logged, rest[len(sums) :], strict=True)
        }

    def count_(self, returns: np.ndarray, lengths: np.ndarray, first_env: int) -> list[FinishedEpisode]:
        """Return the finished episodes in order of their rows; returns and lengths `[E]` go on with those under way."""
        num_steps, num_envs = self.rewards.shape
        # Sums from row 0 on, with what the episodes under way had before: an episode is the difference of two ends.
        so_far = returns + self.rewards.astype(np.float64).cumsum(axis=0)
        steps_so_far = lengths + np.arange(1, num_steps + 1)[:, None]
        envs, rows = np.nonzero((self.terminated | self.truncated).T)  # by environment, then by row
        totals, steps = so_far[rows, envs], steps_so_far[rows, envs]
        is_first = np.ones(len(envs), bool)
        is_first[1:] = envs[1:] != envs[:-1]
        episode_returns, episode_lengths = totals.copy(), steps.copy()
        later = np.flatnonzero(~is_first)
        episode_returns[later] -= totals[later - 1]
        episode_lengths[later] -= steps[later - 1]
        # The episodes under way: the sum since their last end.
        base, base_steps = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        base[envs], base_steps[envs] = totals, steps  # the last of several ends stays
        returns[:], lengths[:] = so_far[-1] - base, steps_so_far[-1] - base_steps
        order = np.lexsort((envs, rows))
        columns = (x[order].tolist() for x in (rows, envs + first_env, episode_returns, episode_lengths))
        return list(map(FinishedEpisode, *columns))
