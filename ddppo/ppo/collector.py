"""Acting: T steps of E environments into one Rollout."""

import numpy as np
import torch

from ddppo.envs.batched.native_tasks import NativeEnvs
from ddppo.envs.faults import check_finite, check_masks
from ddppo.envs.vec_env import VecEnv
from ddppo.models import ActorCritic, action_distribution, num_action_params
from ddppo.ppo.native_network import NativeNetwork
from ddppo.ppo.native_rollout import NativeRollout
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Episode, Rollout

_VALUE_CHUNK = 32_768  # rows of one forward pass when values are computed; bounds memory, not results


class Collector:
    """Steps its environments with a model and keeps their current state between iterations.

    Buffers are allocated once. Acting needs only the policy; values of all T + 1 observations and of the final
    observations are computed in one batch at the end, with the same parameters.
    """

    def __init__(
        self,
        env: VecEnv,
        model: ActorCritic,
        normalizer: ObsNormalizer | None,
        *,
        rollout_steps: int,
        first_env: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.env = env
        self.model = model
        self.normalizer = normalizer
        self.device = device
        self.first_env = first_env
        steps, envs, spec = rollout_steps, env.num_envs, env.spec
        self.rollout_steps = steps
        is_box = spec.action.kind == "box"

        def buffer(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(steps, envs, *shape, dtype=kind, device=device)

        self.raw_obs = torch.zeros(steps + 1, envs, spec.obs_size, dtype=dtype)
        self.obs = torch.zeros(steps + 1, envs, spec.obs_size, dtype=dtype, device=device)
        if normalizer is None and device.type == "cpu":
            self.obs = self.raw_obs
        self.actions = buffer(*spec.action.shape, kind=dtype if is_box else torch.int64)
        self._acted = self.actions if device.type == "cpu" else torch.empty_like(self.actions, device="cpu")
        self._actions = self._acted.numpy()
        self.params = buffer(num_action_params(spec.action))
        self.logprobs = buffer()
        # Written by numpy on the CPU, one row a step, and moved once per rollout.
        self.rewards = np.zeros((steps, envs))
        self.flags = np.zeros((4, steps, envs), dtype=bool)  # terminated, truncated, valid, episode_start
        self._flag_rows = [tuple(self.flags[:3, t]) for t in range(steps)]
        self.masks = None
        if spec.mask_size is not None:
            self.masks = torch.ones(steps + 1, envs, spec.mask_size, dtype=torch.bool)
        # One row of each, made once: a view of a tensor costs a microsecond.
        self._obs_rows, self._param_rows = self.obs.unbind(), self.params.unbind()
        self._mask_rows = self.masks.unbind() if self.masks is not None else None
        self._raw_obs = self.raw_obs.numpy()
        self.starts = np.ones(envs, dtype=bool)  # of episodes, in row 0
        self.returns = np.zeros(envs)  # of the episodes under way, before row 0
        self.lengths = np.zeros(envs, dtype=np.int64)
        self._num_steps = 0  # of each environment before this rollout
        self._num_acted = 0  # in this rollout
        self._network: NativeNetwork | None = None
        self._native_rollout: NativeRollout | None = None

    def act_by(self, network: NativeNetwork) -> None:
        """Compute the model in C++ from the next rollout on, and where tasks are stepped there too, the rollout."""
        self._network = network
        if isinstance(self.env, NativeEnvs):
            self._native_rollout = NativeRollout(self, self.env, network)

    def reset(self, seeds: list[int]) -> None:
        """Start every environment anew from its own seed."""
        obs, mask = self.env.reset(seeds)
        self._num_steps = 0
        check_finite(self.env.names, 0, obs[None], np.zeros((1, len(obs))), [])
        self._receive(self.rollout_steps, obs, mask)
        self.starts[:] = True
        self.returns[:] = 0
        self.lengths[:] = 0

    def collect(self, noise: np.ndarray) -> tuple[Rollout, list[Episode]]:
        """Step T times with action noise `[T, E, num_noise]`; return the rollout and the episodes that ended.

        Raises EnvError if an environment fails, or if one returned NaN, infinity or a mask without choices.
        """
        if self._native_rollout is not None:
            return self._native_rollout.record(noise)
        return self._collect(noise)

    @torch.inference_mode()
    def _collect(self, noise: np.ndarray) -> tuple[Rollout, list[Episode]]:
        if self._network is not None:
            self._network.refresh()
        # Not at the end of the last call: the rollout it returned shares these rows.
        masks = None if self.masks is None else self.masks[-1].numpy()
        self._receive(0, self.raw_obs[-1].numpy(), masks)  # normalised anew: the moments have moved since
        ends: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._num_acted = 0
        try:
            for t, step_noise in enumerate(torch.from_numpy(noise).to(self.logprobs.dtype).unbind()):
                self._step(t, step_noise, ends)
                self._num_acted = t + 1
        except Exception:  # of a model or task that met what another step should not have returned
            self._check(ends)
            raise
        self._check(ends)
        self._num_steps += self.rollout_steps
        return self._finish(ends), self._count(ends)

    def _step(self, t: int, noise: torch.Tensor, ends: list[tuple[int, np.ndarray, np.ndarray]]) -> None:
        """Act on row t with noise `[E, num_noise]`, and write the rest of it and the observations of row t + 1."""
        mask = self._mask_rows[t].to(self.device) if self._mask_rows is not None else None
        params = self._param_rows[t]
        if self._network is not None:
            self._network.policy(self._obs_rows[t], out=params)
        else:
            params.copy_(self.model.action_params(self._obs_rows[t]))
        actions = action_distribution(self.env.spec.action, params, mask).sample(noise).numpy()
        self._actions[t] = actions
        step = self.env.step(actions)
        self._receive(t + 1, step.obs, step.action_mask)
        self.rewards[t] = step.rewards
        terminated, truncated, valid = self._flag_rows[t]
        terminated[:], truncated[:], valid[:] = step.terminated, step.truncated, step.valid
        if len(step.ended):
            ends.append((t, step.ended.copy(), step.final_obs.copy()))

    def _check(self, ends: list[tuple[int, np.ndarray, np.ndarray]]) -> None:
        """Check what the steps taken returned: once for all of them, for it would cost much at each."""
        taken, names = self._num_acted, self.env.names
        obs = self.raw_obs[1 : taken + 1].numpy()
        check_finite(names, self._num_steps + 1, obs, self.rewards[:taken], ends)
        if self.masks is not None:
            rows = min(
                taken + 1, self.rollout_steps
            )  # the last was acted on, though its step may have failed
            acted_on = np.ones((rows, self.env.num_envs), bool)
            acted_on[:taken] = self.flags[2, :taken]  # a pseudo-step asks for no action
            check_masks(names, self._num_steps, self.masks[:rows].numpy(), acted_on, self.env.spec.action)

    def _receive(self, row: int, obs: np.ndarray, mask: np.ndarray | None) -> None:
        self._raw_obs[row] = obs
        if self.normalizer is not None:
            self.normalizer(self.raw_obs[row].to(self.device), out=self._obs_rows[row])
        elif self.obs is not self.raw_obs:
            self._obs_rows[row].copy_(self.raw_obs[row])
        if self._mask_rows is not None:
            assert mask is not None, "spec.mask_size is set, so every step carries a mask"
            self._mask_rows[row].copy_(torch.from_numpy(mask))

    def _count(self, ends: list[tuple[int, np.ndarray, np.ndarray]]) -> list[Episode]:
        """Return the episodes that ended in this rollout, and keep count of those under way."""
        valid = self.flags[2]
        rewards = np.where(valid, self.rewards, 0.0)
        first_rows = np.zeros(self.env.num_envs, dtype=np.int64)  # of the episodes under way
        episodes: list[Episode] = []
        for t, ended, _ in ends:
            for i in ended.tolist():
                rows = slice(first_rows[i], t + 1)
                episode_return = float(self.returns[i] + rewards[rows, i].sum())
                length = int(self.lengths[i] + valid[rows, i].sum())
                episodes.append(Episode(t, self.first_env + i, episode_return, length))
                self.returns[i], self.lengths[i], first_rows[i] = 0.0, 0, t + 1
        is_under_way = np.arange(self.rollout_steps)[:, None] >= first_rows
        self.returns += (rewards * is_under_way).sum(axis=0)
        self.lengths += (valid & is_under_way).sum(axis=0)
        return episodes

    def _finish(self, ends: list[tuple[int, np.ndarray, np.ndarray]]) -> Rollout:
        """Compute log-probabilities from the parameters acted with, and values; freeze the rollout."""
        if self.actions is not self._acted:
            self.actions.copy_(self._acted)
        masks = self.masks[:-1].to(self.device) if self.masks is not None else None
        self.logprobs.copy_(
            action_distribution(self.env.spec.action, self.params, masks).log_prob(self.actions)
        )
        # An episode's first row is the one after its end, or after the pseudo-step that reset it.
        terminated, truncated, valid, episode_start = self.flags
        starts = terminated | truncated | ~valid
        episode_start[0] = self.starts
        episode_start[1:] = starts[:-1]
        episode_start &= valid
        self.starts[:] = starts[-1]
        values = self._values(self.obs)
        next_values = values[1:].clone()
        if ends:
            steps = torch.from_numpy(np.repeat([t for t, _, _ in ends], [len(i) for _, i, _ in ends]))
            envs = torch.from_numpy(np.concatenate([i for _, i, _ in ends]))
            final_obs = torch.from_numpy(np.concatenate([o for _, _, o in ends])).to(self.obs)
            if self.normalizer is not None:
                final_obs = self.normalizer(final_obs)
            next_values[steps.to(self.device), envs.to(self.device)] = self._values(final_obs)
        flags = torch.from_numpy(self.flags).to(self.device)
        return Rollout(
            obs=self.obs[:-1],
            actions=self.actions,
            logprobs=self.logprobs,
            values=values[:-1],
            next_values=next_values,
            rewards=torch.from_numpy(self.rewards).to(self.logprobs),
            terminated=flags[0],
            truncated=flags[1],
            valid=flags[2],
            episode_start=flags[3],
            action_mask=masks,
            raw_obs=self.raw_obs[:-1],
        )

    def _values(self, obs: torch.Tensor) -> torch.Tensor:
        if self._network is not None:
            return self._network.values(obs)
        rows = obs.reshape(-1, obs.shape[-1])
        parts = [self.model.value(chunk) for chunk in rows.split(_VALUE_CHUNK)]
        return torch.cat(parts).reshape(obs.shape[:-1])
