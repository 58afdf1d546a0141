"""Collecting a rollout: act, step, store, T times; then values and episode ends.

`Collector.collect` is the whole story. How the model is called is its `acting`, chosen before the first iteration:
`EagerActing` or `ShardedActing` (acting.py) or `CppActing` (cpp/network.py). If the tasks are stepped in C++ too, the
whole rollout is one call of C++ (`CppRollout`, cpp/rollout.py).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddppo.device import wide_dtype
from ddppo.envs.backends.classic_cpp import CppEnvs
from ddppo.envs.vec_env import End, ObsArrays, Options, VecEnv, check_finite, check_masks
from ddppo.models.actor_critic import ActorCritic, Obs, raw_dtype, tensor_dtype
from ddppo.ppo.acting import Acting, AlgorithmActing, EagerActing
from ddppo.ppo.cpp.network import CppActing, CppNetwork
from ddppo.ppo.cpp.rollout import CppRollout
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Cut, FinishedEpisode, RecurrentState, Rollout, Transitions, count_
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves, zipped

if TYPE_CHECKING:
    from ddppo.algorithms.contract import Algorithm

# -- The arrays of a rollout, allocated once.


class RolloutBuffers:
    """Arrays for T steps of E environments, and views of their rows."""

    def __init__(
        self,
        env: VecEnv,
        model: ActorCritic,
        rollout_steps: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        is_normalized: bool,
    ) -> None:
        self.device = device
        self._is_on_cpu = device.type == "cpu"
        steps, envs, spec = rollout_steps, env.num_envs, env.spec
        self.rollout_steps = steps
        is_box = spec.action.kind == "box"

        def buffer(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(steps, envs, *shape, dtype=kind, device=device)

        # raw_obs: as the task returned them; obs: as the model gets them. Both are `[T + 1, E, *shape]`, a tensor or a
        # dict, and share memory if they are equal. flat_obs: `[T + 1, E, obs_size]`, the memory behind obs if all are
        # floats, else None.
        self.raw_obs, self.flat_obs = obs_buffers(spec, (steps + 1, envs), dtype, torch.device("cpu"))
        if is_normalized and any(leaf.dtype == "float64" for leaf in leaves(spec.obs)):

            def raw(leaf: ArraySpec) -> torch.Tensor:
                kind = raw_dtype(leaf, dtype, is_normalized=True)
                return torch.zeros(steps + 1, envs, *leaf.shape, dtype=kind)

            self.raw_obs = each(raw, spec.obs)
        self.obs = self.raw_obs
        if is_normalized or not self._is_on_cpu:
            given, self.flat_obs = obs_buffers(spec, (steps + 1, envs), dtype, device)
            self.obs = each(
                lambda leaf, raw, x: raw if self._is_on_cpu and not leaf.is_float else x,
                *(spec.obs, self.raw_obs, given),
            )
        # Actions are written by NumPy on the CPU (np_actions) and moved to the device once per rollout.
        self.actions = buffer(*spec.action.shape, kind=dtype if is_box else torch.int64)
        # Rows that no episode reaches (GRPO's) are read too, so they must hold actions that exist.
        self.cpu_actions = (
            self.actions if device.type == "cpu" else torch.zeros_like(self.actions, device="cpu")
        )
        self.np_actions = self.cpu_actions.numpy()
        self.params = buffer(0 if model.values_are_of_actions else model.num_params)
        self.logprobs = buffer()
        # Rewards and flags likewise.
        self.rewards = np.zeros((steps, envs))
        self.flags = np.zeros((4, steps, envs), dtype=bool)  # terminated, truncated, valid, episode_start
        self._flag_rows = [tuple(self.flags[:3, t]) for t in range(steps)]
        self.masks = None
        if spec.mask_size is not None:
            self.masks = torch.ones(steps + 1, envs, spec.mask_size, dtype=torch.bool)
        # Views of single rows, made once: making a view of a tensor costs a microsecond.
        raw_rows = each(torch.unbind, self.raw_obs)
        obs_rows = each(
            lambda x, raw, rows: rows if x is raw else x.unbind(), self.obs, self.raw_obs, raw_rows
        )
        self._raw_rows: list[Obs] = zipped(raw_rows)
        self.obs_rows: list[Any] = zipped(obs_rows)
        self.param_rows = self.params.unbind()
        self.mask_rows = self.masks.unbind() if self.masks is not None else None
        self._raw_obs: Any = each(torch.Tensor.numpy, self.raw_obs)

    def _end_after(self, num_steps: int) -> None:
        """Move the observations after `num_steps` steps to row T, where the next rollout begins."""
        each(lambda x: x[-1].copy_(x[num_steps]), self.raw_obs)
        if self.masks is not None:
            self.masks[-1] = self.masks[num_steps]


def obs_buffers(
    spec: EnvSpec, batch: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Obs, torch.Tensor | None]:
    """Return arrays of observations `[*batch, *shape]`, and the memory behind them if all are floats, else None."""
    parts = leaves(spec.obs)
    if not all(leaf.is_float for leaf in parts):

        def zeros(leaf: ArraySpec) -> torch.Tensor:
            return torch.zeros(*batch, *leaf.shape, dtype=tensor_dtype(leaf, dtype), device=device)

        return each(zeros, spec.obs), None
    flat = torch.zeros(*batch, spec.obs_size, dtype=dtype, device=device)
    columns = iter(flat.split([leaf.size for leaf in parts], dim=-1))
    return each(lambda leaf: next(columns).view(*batch, *leaf.shape), spec.obs), flat


# -- The collector.


class Collector(RolloutBuffers):
    """Steps its environments with a model, and keeps their state from one rollout to the next.

    Acting needs only the policy. Values of all T + 1 observations and of the final observations are computed in one
    batch at the end, with the same parameters, except for models that compute both at once (acted_values).
    """

    def __init__(
        self,
        env: VecEnv,
        model: ActorCritic,
        normalizer: ObsNormalizer | None,
        *,
        rollout_steps: int,
        first_env: int,  # global index of the first environment
        device: torch.device,
        dtype: torch.dtype,
        sequence_length: int
        | None = None,  # the rollout keeps the state of a model with memory every so many rows
    ) -> None:
        super().__init__(env, model, rollout_steps, device, dtype, is_normalized=normalizer is not None)
        self.env = env
        self.model = model
        self.normalizer = normalizer
        self.first_env = first_env
        # The episodes under way: whether row 0 starts one, and their returns and lengths before row 0. [E]
        self.starts = np.ones(env.num_envs, dtype=bool)
        self.returns = np.zeros(env.num_envs)
        self.lengths = np.zeros(env.num_envs, dtype=np.int64)
        self.memory: RecurrentState | None = None
        if model.state_size:
            self.memory = RecurrentState(model, self.logprobs, env.num_envs, rollout_steps, sequence_length)
        # [T, E] values that the model computed while it acted; None if they are computed at the end.
        self.acted_values = (
            torch.zeros_like(self.logprobs) if model.values_are_beside or self.memory else None
        )
        self.cut: Cut | None = None  # may end the next rollout early, with as many rows as it has then
        self.acting: Acting = EagerActing(self)
        self._cpp_rollout: CppRollout | None = None
        self.by_algorithm: AlgorithmActing | None = (
            None  # the acting, for another algorithm than PPO and GRPO
        )
        self._num_steps = 0  # of each environment before this rollout
        self._num_taken = 0  # in this rollout
        # (row, environment) of lost lives, which end no episode.
        self._life_losses: set[tuple[int, int]] = set()

    def use_cpp(self, network: CppNetwork) -> None:
        """Compute the policy in C++ from the next rollout on, and the whole rollout if C++ steps the tasks.

        With an algorithm that chooses actions by `Algorithm.act` itself, which does the same in PyTorch.
        """
        if self.by_algorithm is not None:
            self.by_algorithm.extras = (
                {"logprobs": self.logprobs} if self.by_algorithm.algorithm.records else {}
            )
        if isinstance(self.env, CppEnvs) and type(self).collect is Collector.collect:
            self.acting = self._cpp_rollout = CppRollout(self, self.env, network)
        else:
            self.acting = CppActing(self, network)

    def use_algorithm(self, algorithm: "Algorithm") -> None:
        """Act by the algorithm's `act` from the next rollout on, instead of as PPO does."""
        self.memory = None  # the acting keeps it
        self.acting = self.by_algorithm = AlgorithmActing(self, algorithm)

    def reset(self, seeds: Sequence[int], options: Options | None = None) -> None:
        """Reset every environment with its own seed, and with its own options if there are any."""
        obs, mask = self.env.reset(list(seeds), options if options and any(options) else None)
        self._num_steps = 0
        check_finite(self.env.names, 0, each(lambda x: x[None], obs), np.zeros((1, self.env.num_envs)), [])
        self._receive(self.rollout_steps, obs, mask)
        if self.memory is not None:
            self.memory.reset()
        if self.by_algorithm is not None:
            self.by_algorithm.reset()
        self.starts[:] = True
        self.returns[:] = 0
        self.lengths[:] = 0

    @torch.inference_mode()
    def collect(self, noise: np.ndarray) -> tuple[Transitions, list[FinishedEpisode]]:
        """Step T times with action noise `[T, E, num_noise]`, or until cut; return the rollout and finished episodes.

        Raises EnvError if an environment fails, or returned NaN, infinity or a mask without choices.
        """
        if self._cpp_rollout is not None:
            return self._cpp_rollout.collect(noise)
        self._begin(noise)
        ends: list[End] = []
        try:
            for t in range(self.rollout_steps):
                self.acting.act(t)
                self._step(t, ends)
                if self.cut is not None and self.cut(t + 1):
                    self._end_after(t + 1)
                    break
        except Exception:
            self._check(ends)  # perhaps an earlier step returned NaN: that is then the error to report
            raise
        self._check(ends)
        self._num_steps += self._num_taken
        return self._finish(ends), self._count_episodes(ends)

    def measured(self) -> dict[str, float]:
        return {}

    def _begin(self, noise: np.ndarray) -> None:
        """Make the last row of the previous rollout row 0 of this one.

        Not earlier: the previous rollout shares its rows. Observations are normalised again, because the moments have
        moved since.
        """
        self.acting.begin(noise)
        masks = None if self.masks is None else self.masks[-1].numpy()
        self._receive(0, each(lambda x: x[-1], self._raw_obs), masks)
        if self.memory is not None:
            self.memory.begin()
        self._num_taken = 0
        self._life_losses.clear()

    def _step(self, t: int, ends: list[End]) -> None:
        """Step with the actions of row t; store the results in row t, and the new observations in row t + 1."""
        step = self.env.step(self.np_actions[t])
        self._receive(t + 1, step.obs, step.action_mask)
        self.rewards[t] = step.rewards
        terminated, truncated, valid = self._flag_rows[t]
        terminated[:], truncated[:], valid[:] = step.terminated, step.truncated, step.valid
        if len(step.ended):
            # Copies, because the environments reuse their arrays. final_obs are the true last observations.
            ends.append((t, step.ended.copy(), each(np.ndarray.copy, step.final_obs)))
            if step.is_life_loss is not None:
                self._life_losses.update((t, i) for i in step.ended[step.is_life_loss].tolist())
        if self.memory is not None:
            self.memory.stepped(t, step.ended, terminated | truncated | ~valid)
        self._num_taken = t + 1

    def _receive(self, row: int, obs: ObsArrays, mask: np.ndarray | None) -> None:
        """Store observations `[E, *shape]` and masks in a row, and normalise or move them if needed."""
        if isinstance(obs, dict):
            for key, array in obs.items():
                self._raw_obs[key][row] = array
        else:
            self._raw_obs[row] = obs
        if self.normalizer is not None:
            raw_obs = each(lambda x: x.to(self.device), self._raw_rows[row])
            self.normalizer(raw_obs, out=self.obs_rows[row])
        elif not self._is_on_cpu:
            each(torch.Tensor.copy_, self.obs_rows[row], self._raw_rows[row])
        if self.mask_rows is not None:
            assert mask is not None, "spec.mask_size is set, so every step carries a mask"
            self.mask_rows[row].copy_(torch.from_numpy(mask))

    def _check(self, ends: list[End]) -> None:
        """Raise EnvOutputError for NaN, infinity or a mask without choices: once per rollout, since a check is slow."""
        taken, names = self._num_taken, self.env.names
        obs = each(lambda x: x[1 : taken + 1], self._raw_obs)
        check_finite(names, self._num_steps + 1, obs, self.rewards[:taken], ends)
        if self.masks is not None:
            # Also the row that was acted on when a step failed. A pseudo-step asks for no action.
            rows = min(taken + 1, self.rollout_steps)
            acted_on = np.ones((rows, self.env.num_envs), bool)
            acted_on[:taken] = self.flags[2, :taken]
            check_masks(names, self._num_steps, self.masks[:rows].numpy(), acted_on, self.env.spec.action)

    # -- The end of a rollout.

    def _finish(self, ends: list[End]) -> Transitions:
        """Return the rollout of the rows taken. For PPO, compute its log-probabilities and values."""
        taken = self._num_taken
        # An episode starts in the row after an end, or after the pseudo-step that reset it.
        terminated, truncated, valid, episode_start = self.flags[:, :taken]
        starts = terminated | truncated | ~valid
        episode_start[0] = self.starts
        episode_start[1:] = starts[:-1]
        episode_start &= valid
        self.starts[:] = starts[-1]
        if self.by_algorithm is not None:
            return self.transitions(taken, self._final(ends), torch.from_numpy(self.rewards[:taken]))

        # Values of observations 0 to T. The value of the next observation bootstraps a row ...
        masks, action_values = self._compute_logprobs(taken)
        first = 0 if self.acted_values is None else taken
        values = self.acting.state_values(each(lambda x: x[first : taken + 1], self.obs), taken + 1 - first)
        if self.acted_values is not None:
            values = torch.cat([self.acted_values[:taken], values])
        next_values = values[1:].clone()
        # ... unless the episode ended there: the next observation belongs to another episode, and the value of the
        # final observation takes its place. GAE ignores it for a terminated row and bootstraps a truncated one.
        if ends:
            final_obs, at = self._final(ends)
            steps, envs = at.unbind(dim=1)
            final_values = self.acting.final_values(final_obs, envs)
            next_values[steps.to(self.device), envs.to(self.device)] = final_values

        flags = torch.from_numpy(self.flags[:, :taken]).to(self.device)
        return Rollout(
            obs=each(lambda x: x[:taken], self.obs),
            actions=self.actions[:taken],
            logprobs=self.logprobs[:taken],
            values=values[:-1] if action_values is None else action_values,
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

    def _final(self, ends: list[End]) -> tuple[Any, torch.Tensor]:
        """Return final observations `[n, *shape]` as the policy sees them, and their rows and columns `[n, 2]`."""
        if not ends:
            return None, torch.zeros(0, 2, dtype=torch.int64)
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
        return final_obs, torch.stack([steps, envs], dim=1)

    def transitions(
        self,
        num_rows: int,
        final: tuple[Any, torch.Tensor],  # as `_final` returns them
        rewards: torch.Tensor,  # [T, E] float64
    ) -> Transitions:
        """Return the first rows as an algorithm gets them that is neither PPO nor GRPO."""
        assert self.by_algorithm is not None
        if self.actions is not self.cpu_actions:
            self.actions.copy_(self.cpu_actions)
        flags = torch.from_numpy(self.flags[:, :num_rows]).to(self.device)
        return Transitions(
            obs=each(lambda x: x[:num_rows], self.obs),
            actions=self.actions[:num_rows],
            rewards=rewards.to(self.device, wide_dtype(self.device)),
            terminated=flags[0],
            truncated=flags[1],
            valid=flags[2],
            episode_start=flags[3],
            action_mask=self.masks[:num_rows].to(self.device) if self.masks is not None else None,
            raw_obs=each(lambda x: x[:num_rows], self.raw_obs),
            extras={name: x[:num_rows] for name, x in self.by_algorithm.extras.items()},
            **self.by_algorithm.successors(num_rows, *final),
        )

    def _compute_logprobs(self, num_rows: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Write log-probabilities; return masks on the device, and values if the model's are values of actions."""
        if self.actions is not self.cpu_actions:
            self.actions.copy_(self.cpu_actions)
        masks = self.masks[:num_rows].to(self.device) if self.masks is not None else None
        return masks, self.acting.write_logprobs(num_rows, masks)

    def _count_episodes(self, ends: list[End]) -> list[FinishedEpisode]:
        """Return the episodes that ended in this rollout, and keep count of those under way."""
        whole = ((t, i) for t, ended, _ in ends for i in ended.tolist() if (t, i) not in self._life_losses)
        rewards, valid = self.rewards[: self._num_taken], self.flags[2, : self._num_taken]
        return count_(self.returns, self.lengths, rewards, valid, list(whole), self.first_env)
