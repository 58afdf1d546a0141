"""Acting: T steps of E environments into one Rollout."""

import numpy as np
import torch

from ddppo.envs.faults import check_finite, check_masks
from ddppo.envs.vec_env import VecEnv
from ddppo.models import ActorCritic, action_distribution
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
        self.logprobs = buffer()
        # Written by numpy on the CPU, one row a step, and moved once per rollout.
        self.rewards = np.zeros((steps, envs))
        self.flags = np.zeros((4, steps, envs), dtype=bool)  # terminated, truncated, valid, episode_start
        self.masks = None
        if spec.mask_size is not None:
            self.masks = torch.ones(steps + 1, envs, spec.mask_size, dtype=torch.bool)
        self._starts = np.ones(envs, dtype=bool)
        self._returns = np.zeros(envs)
        self._lengths = np.zeros(envs, dtype=np.int64)
        self._num_steps = 0  # of each environment before this rollout
        self._num_acted = 0  # in this rollout

    def reset(self, seeds: list[int]) -> None:
        """Start every environment anew from its own seed."""
        obs, mask = self.env.reset(seeds)
        self._num_steps = 0
        check_finite(self.env.names, 0, obs[None], np.zeros((1, len(obs))), [])
        self._receive(self.rollout_steps, obs, mask)
        self._starts[:] = True
        self._returns[:] = 0
        self._lengths[:] = 0

    @torch.inference_mode()
    def collect(self, noise: np.ndarray) -> tuple[Rollout, list[Episode]]:
        """Step T times with action noise `[T, E, num_noise]`; return the rollout and the episodes that ended.

        Raises EnvError if an environment fails, or if one returned NaN, infinity or a mask without choices.
        """
        # Not at the end of the last call: the rollout it returned shares these rows.
        masks = None if self.masks is None else self.masks[-1].numpy()
        self._receive(0, self.raw_obs[-1].numpy(), masks)  # normalised anew: the moments have moved since
        episodes: list[Episode] = []
        ends: list[tuple[int, np.ndarray, np.ndarray]] = []
        step_noise = torch.from_numpy(noise).to(self.logprobs)
        self._num_acted = 0
        try:
            for t in range(self.rollout_steps):
                self._step(t, step_noise[t], episodes, ends)
                self._num_acted = t + 1
        except Exception:  # of a model or task that met what another step should not have returned
            self._check(ends)
            raise
        self._check(ends)
        self._num_steps += self.rollout_steps
        return self._finish(ends), episodes

    def _step(
        self,
        t: int,
        noise: torch.Tensor,
        episodes: list[Episode],
        ends: list[tuple[int, np.ndarray, np.ndarray]],
    ) -> None:
        """Act on row t with noise `[E, num_noise]`, and write the rest of it and the observations of row t + 1."""
        terminated, truncated, valid, episode_start = self.flags
        mask = self.masks[t].to(self.device) if self.masks is not None else None
        params = self.model.action_params(self.obs[t])
        policy = action_distribution(self.env.spec.action, params, mask)
        actions = policy.sample(noise)
        self.actions[t] = actions
        self.logprobs[t] = policy.log_prob(actions)
        step = self.env.step(actions.cpu().numpy())
        self._receive(t + 1, step.obs, step.action_mask)
        self.rewards[t] = step.rewards
        terminated[t], truncated[t], valid[t] = step.terminated, step.truncated, step.valid
        episode_start[t] = self._starts & step.valid
        if len(step.ended):
            ends.append((t, step.ended.copy(), step.final_obs.copy()))
        self._count(t, step.rewards, step.valid, step.ended, episodes)

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
        self.raw_obs[row].copy_(torch.from_numpy(obs))
        if self.normalizer is not None:
            self.normalizer(self.raw_obs[row].to(self.device), out=self.obs[row])
        elif self.obs is not self.raw_obs:
            self.obs[row].copy_(self.raw_obs[row])
        if self.masks is not None:
            assert mask is not None, "spec.mask_size is set, so every step carries a mask"
            self.masks[row].copy_(torch.from_numpy(mask))

    def _count(
        self, t: int, rewards: np.ndarray, valid: np.ndarray, ended: np.ndarray, episodes: list[Episode]
    ) -> None:
        self._returns += rewards * valid
        self._lengths += valid
        # An episode's first row is the one after its end, or after the pseudo-step that reset it.
        self._starts = ~valid
        for i in ended:
            episodes.append(
                Episode(t, self.first_env + int(i), float(self._returns[i]), int(self._lengths[i]))
            )
            self._returns[i] = 0.0
            self._lengths[i] = 0
            self._starts[i] = True

    def _finish(self, ends: list[tuple[int, np.ndarray, np.ndarray]]) -> Rollout:
        """Compute values and freeze the rollout."""
        values = self._values(self.obs)
        next_values = values[1:].clone()
        if ends:
            steps = torch.from_numpy(np.repeat([t for t, _, _ in ends], [len(i) for _, i, _ in ends]))
            envs = torch.from_numpy(np.concatenate([i for _, i, _ in ends]))
            final_obs = torch.from_numpy(np.concatenate([o for _, _, o in ends])).to(self.obs)
            if self.normalizer is not None:
                final_obs = self.normalizer(final_obs)
            next_values[steps.to(self.device), envs.to(self.device)] = self._values(final_obs)
        terminated, truncated, valid, episode_start = torch.from_numpy(self.flags).to(self.device)
        return Rollout(
            obs=self.obs[:-1],
            actions=self.actions,
            logprobs=self.logprobs,
            values=values[:-1],
            next_values=next_values,
            rewards=torch.from_numpy(self.rewards).to(self.logprobs),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            episode_start=episode_start,
            action_mask=self.masks[:-1].to(self.device) if self.masks is not None else None,
            raw_obs=self.raw_obs[:-1],
        )

    def _values(self, obs: torch.Tensor) -> torch.Tensor:
        rows = obs.reshape(-1, obs.shape[-1])
        parts = [self.model.value(chunk) for chunk in rows.split(_VALUE_CHUNK)]
        return torch.cat(parts).reshape(obs.shape[:-1])
