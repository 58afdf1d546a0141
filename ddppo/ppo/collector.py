"""Acting: T steps of E environments into one Rollout."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ddppo.envs.backends.classic_cpp import CppEnvs
from ddppo.envs.vec_env import End, ObsArrays, Options, VecEnv, check_finite, check_masks
from ddppo.models.actor_critic import ActorCritic, Obs, flat_obs
from ddppo.ppo.cpp.network import CppActor, CppNetwork
from ddppo.ppo.cpp.rollout import CppRollout
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Cut, FinishedEpisode, RecurrentState, Rollout, RolloutBuffers, count_
from ddppo.spaces import each, zipped

# Rows of one forward pass when values are computed, and numbers in them; they bound memory, not results.
_VALUE_ROWS, _VALUE_NUMBERS = 32_768, 2**24


class Collector(RolloutBuffers):
    """Steps its environments with a model and keeps their current state between iterations.

    Buffers are allocated once. Acting needs only the policy; values of all T + 1 observations and of the final
    observations are computed in one batch at the end, with the same parameters. A model whose values come beside the
    policy gives those of T observations while it acts. Where values are of actions, they and log-probabilities come
    from `evaluate_actions` once all are taken, and what the model says of states is next_values alone.

    memory: of a model that has one, else None; its values come along.

    sequence_length: rows after which the rollout holds what a model remembers again; T if None.
    cut: what may end the next rollout after fewer steps; it has as many rows then. None: nothing.
    """

    whole_episodes = False

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
        sequence_length: int | None = None,
    ) -> None:
        super().__init__(env, model, rollout_steps, device, dtype, is_normalized=normalizer is not None)
        self.env = env
        self.model = model
        self.normalizer = normalizer
        self.first_env = first_env
        envs = env.num_envs
        self.starts = np.ones(envs, dtype=bool)  # of episodes, in row 0
        self.returns = np.zeros(envs)  # of the episodes under way, before row 0
        self.lengths = np.zeros(envs, dtype=np.int64)
        self._num_steps = 0  # of each environment before this rollout
        self._num_acted = 0  # in this rollout
        self.memory: RecurrentState | None = None
        if model.state_size:
            self.memory = RecurrentState(model, self.logprobs, envs, rollout_steps, sequence_length)
        self._acted_values = (
            torch.zeros_like(self.logprobs) if model.values_are_beside or self.memory else None
        )
        self.cut: Cut | None = None
        self._life_losses: set[tuple[int, int]] = (
            set()
        )  # (row, environment) of lost lives, which end no episode
        self._actor: CppActor | None = None

    def act_by(self, network: CppNetwork) -> None:
        """Compute the model in C++ from the next rollout on, and where tasks are stepped there too, the rollout."""
        if isinstance(self.env, CppEnvs):
            self._actor = CppRollout(self, self.env, network)
        else:
            self._actor = CppActor(self, network)

    def reset(self, seeds: Sequence[int], options: Options | None = None) -> None:
        """Start every environment anew from its own seed, and with options of its own if there are any."""
        obs, mask = self.env.reset(list(seeds), options if options and any(options) else None)
        self._num_steps = 0
        check_finite(self.env.names, 0, each(lambda x: x[None], obs), np.zeros((1, self.env.num_envs)), [])
        self._receive(self.rollout_steps, obs, mask)
        if self.memory is not None:
            self.memory.reset()
        self.starts[:] = True
        self.returns[:] = 0
        self.lengths[:] = 0

    def collect(self, noise: np.ndarray) -> tuple[Rollout, list[FinishedEpisode]]:
        """Step T times with action noise `[T, E, num_noise]`, or until cut; return the rollout and episodes that ended.

        Raises EnvError if an environment fails, or if one returned NaN, infinity or a mask without choices.
        """
        if isinstance(self._actor, CppRollout):
            return self._actor.record(noise)
        return self._collect(noise)

    def measured(self) -> dict[str, float]:
        return {}

    @torch.inference_mode()
    def _collect(self, noise: np.ndarray) -> tuple[Rollout, list[FinishedEpisode]]:
        if self._actor is not None:
            self._actor.begin(noise)
        self._begin()
        ends: list[End] = []
        try:
            for t, step_noise in enumerate(torch.from_numpy(noise).to(self.logprobs.dtype).unbind()):
                self._step(t, step_noise, ends)
                self._num_acted = t + 1
                if self.cut is not None and self.cut(t + 1):
                    self._end_after(t + 1)
                    break
        except Exception:  # of a model or task that met what another step should not have returned
            self._check(ends)
            raise
        self._check(ends)
        self._num_steps += self._num_acted
        return self._finish(ends), self._count(ends)

    def _begin(self) -> None:
        """Take over the row after the last as the first.

        Not at the end of the last call: the rollout it returned shares these rows. Normalised anew: the moments have
        moved since.
        """
        masks = None if self.masks is None else self.masks[-1].numpy()
        self._receive(0, each(lambda x: x[-1], self._raw_obs), masks)
        if self.memory is not None:
            self.memory.begin()
        self._num_acted = 0
        self._life_losses.clear()

    def _step(self, t: int, noise: torch.Tensor, ends: list[End]) -> None:
        """Act on row t with noise `[E, num_noise]`, and write the rest of it and the observations of row t + 1."""
        if self._actor is not None:
            self._actor.act(t)
        else:
            self._act(t, noise)
        step = self.env.step(self._actions[t])
        self._receive(t + 1, step.obs, step.action_mask)
        self.rewards[t] = step.rewards
        terminated, truncated, valid = self._flag_rows[t]
        terminated[:], truncated[:], valid[:] = step.terminated, step.truncated, step.valid
        if len(step.ended):
            ends.append((t, step.ended.copy(), each(np.ndarray.copy, step.final_obs)))
            if step.is_life_loss is not None:
                self._life_losses.update((t, i) for i in step.ended[step.is_life_loss].tolist())
        if self.memory is not None:
            self.memory.stepped(t, step.ended, terminated | truncated | ~valid)

    def _act(self, t: int, noise: torch.Tensor) -> None:
        """Write the actions of row t, and what they follow from."""
        mask = self._mask_rows[t].to(self.device) if self._mask_rows is not None else None
        params = self._params(t, self._obs_rows[t], slice(None))
        if not self.model.values_are_of_actions:
            self._param_rows[t].copy_(params)
        self._actions[t] = self.model.distribution(params, mask).sample(noise).numpy()

    def _params(self, t: int, obs: Obs, envs: slice) -> torch.Tensor:
        """Return action parameters for row t of some environments; write their values where these come along."""
        if self._acted_values is None:
            return self.model.action_params(obs)
        params, values = self.model(obs) if self.memory is None else self.memory.act(obs, envs)
        self._acted_values[t, envs] = values
        return params

    def _check(self, ends: list[End]) -> None:
        """Check what the steps taken returned: once for all of them, for it would cost much at each."""
        taken, names = self._num_acted, self.env.names
        obs = each(lambda x: x[1 : taken + 1], self._raw_obs)
        check_finite(names, self._num_steps + 1, obs, self.rewards[:taken], ends)
        if self.masks is not None:
            rows = min(
                taken + 1, self.rollout_steps
            )  # the last was acted on, though its step may have failed
            acted_on = np.ones((rows, self.env.num_envs), bool)
            acted_on[:taken] = self.flags[2, :taken]  # a pseudo-step asks for no action
            check_masks(names, self._num_steps, self.masks[:rows].numpy(), acted_on, self.env.spec.action)

    def _receive(self, row: int, obs: ObsArrays, mask: np.ndarray | None) -> None:
        if isinstance(obs, dict):
            for key, array in obs.items():
                self._raw_obs[key][row] = array
        else:
            self._raw_obs[row] = obs
        if self.normalizer is not None:
            raw_obs = each(lambda x: x.to(self.device), self._raw_rows[row])
            self.normalizer(raw_obs, out=self._obs_rows[row])
        elif not self._is_on_cpu:
            each(torch.Tensor.copy_, self._obs_rows[row], self._raw_rows[row])
        if self._mask_rows is not None:
            assert mask is not None, "spec.mask_size is set, so every step carries a mask"
            self._mask_rows[row].copy_(torch.from_numpy(mask))

    def _count(self, ends: list[End]) -> list[FinishedEpisode]:
        """Return the episodes that ended in this rollout, and keep count of those under way."""
        whole = ((t, i) for t, ended, _ in ends for i in ended.tolist() if (t, i) not in self._life_losses)
        rewards, valid = self.rewards[: self._num_acted], self.flags[2, : self._num_acted]
        return count_(self.returns, self.lengths, rewards, valid, list(whole), self.first_env)

    def _compute_logprobs(self, rows: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Compute log-probabilities of rows from the parameters acted with; return masks, and values if of actions."""
        values = None
        if self.actions is not self._acted:
            self.actions.copy_(self._acted)
        masks = self.masks[:rows].to(self.device) if self.masks is not None else None
        params, actions = self.params[:rows], self.actions[:rows]
        if self.model.values_are_of_actions:
            params, values = self._at_actions(rows)
        if self._actor is None:
            self.logprobs[:rows] = self._logprobs(params, masks, actions)
        return masks, values

    def _logprobs(
        self, params: torch.Tensor, masks: torch.Tensor | None, actions: torch.Tensor
    ) -> torch.Tensor:
        """Return those `[T, E]` of actions taken."""
        return self.model.distribution(params, masks).log_prob(actions)

    def _finish(self, ends: list[End]) -> Rollout:
        """Compute log-probabilities and values; freeze the rollout."""
        taken = self._num_acted
        masks, values = self._compute_logprobs(taken)
        # An episode's first row is the one after its end, or after the pseudo-step that reset it.
        terminated, truncated, valid, episode_start = self.flags[:, :taken]
        starts = terminated | truncated | ~valid
        episode_start[0] = self.starts
        episode_start[1:] = starts[:-1]
        episode_start &= valid
        self.starts[:] = starts[-1]
        first = 0 if self._acted_values is None else taken
        of_states = self._state_values(each(lambda x: x[first : taken + 1], self.obs), taken + 1 - first)
        if self._acted_values is not None:
            of_states = torch.cat([self._acted_values[:taken], of_states])
        next_values = of_states[1:].clone()
        if ends:
            steps = torch.from_numpy(np.repeat([t for t, _, _ in ends], [len(i) for _, i, _ in ends]))
            envs = torch.from_numpy(np.concatenate([i for _, i, _ in ends]))
            like = self.obs if self.normalizer is None else self.raw_obs
            final_obs = each(
                lambda obs, *parts: torch.from_numpy(np.concatenate(parts)).to(self.device, obs.dtype),
                like,
                *(o for _, _, o in ends),
            )
            if self.normalizer is not None:
                final_obs = self.normalizer(final_obs)
            next_values[steps.to(self.device), envs.to(self.device)] = self._final_values(final_obs, envs)
        flags = torch.from_numpy(self.flags[:, :taken]).to(self.device)
        return Rollout(
            obs=each(lambda x: x[:taken], self.obs),
            actions=self.actions[:taken],
            logprobs=self.logprobs[:taken],
            values=of_states[:-1] if values is None else values,
            next_values=next_values,
            rewards=torch.from_numpy(self.rewards[:taken]).to(self.logprobs),
            terminated=flags[0],
            truncated=flags[1],
            valid=flags[2],
            episode_start=flags[3],
            action_mask=masks,
            raw_obs=each(lambda x: x[:taken], self.raw_obs),
            state=None if self.memory is None else self.memory.kept,
        )

    def _state_values(self, obs: Obs, num_rows: int) -> torch.Tensor:
        """Return values `[num_rows, E]` of rows of observations."""
        if self.memory is not None:  # which gave those of other rows as it acted
            return self.memory.values(each(lambda x: x[0], obs)).unsqueeze(0)
        return self._values(obs, (num_rows, self.env.num_envs))

    def _final_values(self, obs: Obs, envs: torch.Tensor) -> torch.Tensor:
        """Return values `[n]` of final observations `[n, *shape]` of these environments."""
        if self.memory is not None:
            return self.memory.final_values(obs)
        return self._values(obs, (len(envs),))

    def _values(self, obs: Obs, batch: tuple[int, ...]) -> torch.Tensor:
        """Return values `[*batch]` of obs `[*batch, *shape]`."""
        if self._actor is not None:
            return self._actor.network.values(flat_obs(obs, self.env.spec, self.logprobs.dtype))
        return torch.cat([self.model.value(rows) for rows in self._chunks(obs, len(batch))]).reshape(batch)

    def _at_actions(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[rows, E, P]` and values `[rows, E]` where the actions of rows were taken."""
        return self._at(each(lambda x: x[:rows], self.obs), self.actions[:rows])

    def _at(self, obs: Obs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = map(self.model.evaluate_actions, self._chunks(obs, 2), self._chunks(actions, 2))
        params, values = (torch.cat(x).unflatten(0, actions.shape[:2]) for x in zip(*parts, strict=True))
        return params, values

    def _chunks(self, x: Obs, num_dims: int) -> list[Any]:
        """Return the rows of x, whose first dimensions are `num_dims` of a batch, some at a time."""
        num_rows = min(_VALUE_ROWS, max(1, _VALUE_NUMBERS // self.env.spec.obs_size))
        return zipped(each(lambda part: part.flatten(0, num_dims - 1).split(num_rows), x))


# -- Acting in shards: the network is called for some environments after others, always for as many.


class ShardedCollector(Collector):
    """A collector whose network computes S shards of its environments one by one, consecutive ones alike.

    Kernels give other bits at other batch sizes, and some at other places in memory. So a shard's numbers come from
    copies of its own: they are the same whatever other shards this rank has. Environments are stepped all at once, for
    none hears of another's, and so is what C++ computes, for there every row is computed by itself (`CppNetwork`).
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
