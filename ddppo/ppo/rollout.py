"""What one rank collected in one iteration."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ddppo.envs.vec_env import VecEnv
from ddppo.models.actor_critic import ActorCritic, Obs, raw_dtype, tensor_dtype
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves, zipped


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps of E environments, time-major `[T, E, ...]`; tensors are reused by the next rollout.

    obs are what the policy saw (normalised, if observations are), raw_obs what was observed (float64 stays so if it is
    normalised); where the two are the same they share memory, as pixels do. next_values are V of the true successor,
    which is the final observation where an episode ended. valid is False on autoreset pseudo-steps, which are never
    trained on or counted. episode_start marks the first step of an episode.

    ratios are pi(a) / mu(a) where another policy mu acted than the one, pi, that logprobs and values are of; None where
    the same did. rewards are float64 where whole episodes are collected, and else of the type of values.

    Of tasks of text, obs and actions are tokens, row l of the one that follows token l, and valid those that the policy
    typed; next_values are of its next token, wherever that is. has_gaps: rows that are not valid lie between an
    episode's own. achieved `[E]`: of whole episodes, 1 or 0, NaN where it failed or nobody knows; None where nobody
    ever does.

    state `[C, E, S]`: what a model with memory knew before row 0, or before each of C rows at equal distances;
    episode_start says where it forgets. None of others.
    """

    obs: Obs
    actions: torch.Tensor
    logprobs: torch.Tensor
    values: torch.Tensor
    next_values: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    valid: torch.Tensor
    episode_start: torch.Tensor
    action_mask: torch.Tensor | None
    raw_obs: Obs
    ratios: torch.Tensor | None = None
    achieved: torch.Tensor | None = None
    state: torch.Tensor | None = None
    has_gaps: bool = False


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A finished training episode: when and where it ended, its undiscounted return and its length in steps."""

    step: int
    env_index: int
    episode_return: float
    length: int


class RolloutCollector(Protocol):
    """What acts in the environments of a rank, and what `ActorCritic.collector_class` names.

    Such a class has besides `make(context)`, which returns the collector of a rank with a
    RankContext, and makes its environments; and `check(config, shape)`, which raises
    ConfigError before a run begins. env: these environments; it has `close()`. first_env: the global index of the first
    of them. whole_episodes: every rollout is one episode of each environment, and `reset` comes before each; else
    before the first.
    """

    whole_episodes: bool
    first_env: int

    @property
    def env(self) -> Any: ...

    def reset(self, seeds: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Start an episode in every environment, each from its own seed and with its own options, if any."""
        ...

    def collect(self, noise: np.ndarray) -> tuple[Rollout, list[FinishedEpisode]]:
        """Act with noise `[T, E, num_noise]`; return the rollout and the episodes that ended in it. Raises EnvError."""
        ...

    def measured(self) -> dict[str, float]:
        """Return what the last `collect` measured, by names of TOPOLOGY_METRICS in the metrics."""
        ...


# -- What a rollout is written to, allocated once.


class RolloutBuffers:
    """Room for T steps of E environments, and views of its rows.

    raw_obs `[T + 1, E, *shape]` is what was observed and obs what the model is given: one tensor, or a dict of them.
    They share memory where the two are the same.
    """

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

        # flat_obs: what obs are views of, `[T + 1, E, obs_size]`, where all of them are floats.
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
        self.actions = buffer(*spec.action.shape, kind=dtype if is_box else torch.int64)
        self._acted = self.actions if device.type == "cpu" else torch.empty_like(self.actions, device="cpu")
        self._actions = self._acted.numpy()
        self.params = buffer(0 if model.values_are_of_actions else model.num_params)
        self.logprobs = buffer()
        # Written by numpy on the CPU, one row a step, and moved once per rollout.
        self.rewards = np.zeros((steps, envs))
        self.flags = np.zeros((4, steps, envs), dtype=bool)  # terminated, truncated, valid, episode_start
        self._flag_rows = [tuple(self.flags[:3, t]) for t in range(steps)]
        self.masks = None
        if spec.mask_size is not None:
            self.masks = torch.ones(steps + 1, envs, spec.mask_size, dtype=torch.bool)
        # One row of each, made once: a view of a tensor costs a microsecond.
        raw_rows = each(torch.unbind, self.raw_obs)
        obs_rows = each(
            lambda x, raw, rows: rows if x is raw else x.unbind(), self.obs, self.raw_obs, raw_rows
        )
        self._raw_rows: list[Obs] = zipped(raw_rows)
        self._obs_rows: list[Any] = zipped(obs_rows)
        self._param_rows = self.params.unbind()
        self._mask_rows = self.masks.unbind() if self.masks is not None else None
        self._raw_obs: Any = each(torch.Tensor.numpy, self.raw_obs)

    def _end_after(self, num_steps: int) -> None:
        """Have what was observed after so many steps where the next rollout looks for it."""
        each(lambda x: x[-1].copy_(x[num_steps]), self.raw_obs)
        if self.masks is not None:
            self.masks[-1] = self.masks[num_steps]


def obs_buffers(
    spec: EnvSpec, batch: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Obs, torch.Tensor | None]:
    """Return buffers of observations `[*batch, *shape]`, and what they are views of where all are floats."""
    parts = leaves(spec.obs)
    if not all(leaf.is_float for leaf in parts):

        def zeros(leaf: ArraySpec) -> torch.Tensor:
            return torch.zeros(*batch, *leaf.shape, dtype=tensor_dtype(leaf, dtype), device=device)

        return each(zeros, spec.obs), None
    flat = torch.zeros(*batch, spec.obs_size, dtype=dtype, device=device)
    columns = iter(flat.split([leaf.size for leaf in parts], dim=-1))
    return each(lambda leaf: next(columns).view(*batch, *leaf.shape), spec.obs), flat


# -- Returns and lengths of training episodes.


def count_(
    returns: np.ndarray,
    lengths: np.ndarray,
    rewards: np.ndarray,
    valid: np.ndarray,
    ends: list[tuple[int, int]],
    first_env: int,
) -> list[FinishedEpisode]:
    """Return the episodes that ended in a rollout, in the order of `ends`, rows and environments.

    returns, lengths `[E]`: of the episodes under way, before the rollout and then after it. rewards, valid `[T, E]`.
    """
    rewards = np.where(valid, rewards, 0.0)
    first_rows = np.zeros(len(returns), dtype=np.int64)  # of the episodes under way
    episodes: list[FinishedEpisode] = []
    for t, i in ends:
        rows = slice(first_rows[i], t + 1)
        episode_return = float(returns[i] + rewards[rows, i].sum())
        length = int(lengths[i] + valid[rows, i].sum())
        episodes.append(FinishedEpisode(t, first_env + i, episode_return, length))
        returns[i], lengths[i], first_rows[i] = 0.0, 0, t + 1
    is_under_way = np.arange(len(rewards))[:, None] >= first_rows
    # Row after row: a sum over rows adds in another order where there is one environment alone.
    returns += (rewards * is_under_way).cumsum(axis=0)[-1:].sum(axis=0)
    lengths += (valid & is_under_way).sum(axis=0)
    return episodes


# -- When a rollout ends before all of its steps are done.


@dataclass(frozen=True, slots=True)
class Cut:
    """Ends a rollout early, once it has least_steps, when enough others have ended theirs or its time is over.

    cells `[n]`, int64, are written by others meanwhile: each of them that is at least `number` tells of one that has
    ended; with `awaited` of them this one ends too. deadline: of time.perf_counter, infinity for none.
    """

    cells: np.ndarray
    number: int
    awaited: int
    least_steps: int
    deadline: float

    def __call__(self, num_steps: int) -> bool:
        """Return whether to end after so many steps. It waits for nobody."""
        if num_steps < self.least_steps:
            return False
        num_ended = int(np.count_nonzero(self.cells >= self.number))
        return num_ended >= self.awaited or time.perf_counter() >= self.deadline


# -- What a model remembers of environments while it acts in them.


Envs = slice | torch.Tensor
_ALL = slice(None)


class RecurrentState:
    """The state of a model with memory in each of E environments, `[E, S]`, 0 where an episode starts.

    state: before the row that is acted on next. kept: of a rollout, before rows 0, L, 2 L, ..., `[T / L, E, S]`.
    """

    def __init__(
        self,
        model: ActorCritic,
        like: torch.Tensor,
        num_envs: int,
        num_steps: int,
        sequence_length: int | None,
    ) -> None:
        self._model = model
        self._length = sequence_length or num_steps
        self.state = like.new_zeros(num_envs, model.state_size)
        self.kept = like.new_zeros(num_steps // self._length, num_envs, model.state_size)
        self._of_ends: list[torch.Tensor] = []  # with which episodes ended

    def reset(self) -> None:
        self.state.zero_()

    def begin(self) -> None:
        """Begin a rollout."""
        self.kept[0] = self.state
        self._of_ends.clear()

    def act(self, obs: Obs, envs: Envs = _ALL) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]` and values `[n]` of some environments, and remember."""
        params, values, self.state[envs] = self._model.step(obs, self._of(envs))
        return params, values

    def stepped(self, row: int, ended: np.ndarray, starts: np.ndarray, envs: slice = _ALL) -> None:
        """Keep what episodes `[k]` that ended in this row ended with, and forget it where others start after it.

        starts `[E]` bool; envs: those that were stepped.
        """
        if len(ended):
            self._of_ends.append(self.state[torch.from_numpy(ended)])
        if starts.any():
            self.state[torch.from_numpy(starts)] = 0
        sequence, step = divmod(row + 1, self._length)
        if step == 0 and sequence < len(self.kept):
            self.kept[sequence, envs] = self.state[envs]

    def values(self, obs: Obs, envs: Envs = _ALL) -> torch.Tensor:
        """Return values `[n]` of what some environments are in after the last row."""
        return self._model.step(obs, self._of(envs))[1]

    def final_values(self, obs: Obs, which: Any = _ALL) -> torch.Tensor:
        """Return values `[n]` of final observations of the episodes `which`, of all that ended in their order."""
        return self._model.step(obs, torch.cat(self._of_ends)[which])[1]

    def _of(self, envs: Envs) -> torch.Tensor:
        """Return the state of some environments; a copy of a part's, for kernels give other bits at other places."""
        is_all = isinstance(envs, slice) and envs == _ALL
        return self.state if is_all else self.state[envs].clone()
