"""A whole rollout in one call of C++ (ddppo/native/src/rollout.cpp), if both tasks and network are computed in C++.

The results are those of `Collector.collect`, in the same buffers.
"""

import ctypes
import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddppo.envs.backends.classic_cpp import CppEnvs
from ddppo.envs.vec_env import check_finite
from ddppo.ppo.cpp.network import ActingBuffers, CppActing, CppNetwork, library
from ddppo.ppo.rollout import Cut, FinishedEpisode, Rollout, Transitions

if TYPE_CHECKING:
    from ddppo.ppo.collector import Collector

# The last fields of the struct, pointers to arrays.
_POINTERS = (
    *(
        "raw_obs",
        "mean",
        "scale",
        "offset",
        "values",
        "next_values",
        "rewards",
        "terminated",
        "truncated",
        "episode_start",
    ),
    *("starts", "returns", "lengths", "end_steps", "end_envs", "end_returns", "end_lengths"),
    *("final_obs", "final_values"),
)


class RolloutArgs(ActingBuffers):
    """The struct `RolloutArgs` of native/src/rollout.cpp: the same fields in the same order."""

    _fields_ = [  # noqa: RUF012 (ctypes declares it so)
        # Behind the fields of ActingBuffers.
        ("tasks", ctypes.c_void_p),  # TaskBatch, or what is derived from it
        ("num_steps", ctypes.c_int64),
        ("num_ends", ctypes.c_int64),
        ("is_finite", ctypes.c_int64),
        ("num_taken", ctypes.c_int64),
        # A `Cut` of ppo/rollout.py.
        *((name, ctypes.c_int64) for name in ("least_steps", "number", "awaited", "num_cells")),
        ("deadline", ctypes.c_double),
        ("cells", ctypes.c_void_p),
        ("is_raw_double", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    ]


class CppRollout(CppActing):
    """Collects in one call. The `Rollout` is made once, since its tensors are the buffers that C++ fills every time."""

    def __init__(self, collector: "Collector", envs: CppEnvs, network: CppNetwork) -> None:
        super().__init__(collector, network)
        steps, num_envs = collector.rollout_steps, envs.num_envs
        like, normalizer, flags = collector.logprobs, collector.normalizer, torch.from_numpy(collector.flags)
        flags[2] = True  # every step is a transition
        obs, raw_obs = collector.obs, collector.raw_obs
        assert isinstance(obs, torch.Tensor), envs.spec
        assert isinstance(raw_obs, torch.Tensor), envs.spec
        self._raw_is_cast = raw_obs.dtype != obs.dtype
        assert not self._raw_is_cast or (raw_obs.dtype, obs.dtype) == (torch.float64, torch.float32), (
            raw_obs.dtype
        )
        # At most one episode ends in each row of each environment.
        most = steps * num_envs
        values = like.new_zeros(steps + 1, num_envs)
        self._rollout = Rollout(
            obs=obs[:-1],
            actions=collector.actions,
            logprobs=like,
            values=values[:-1],
            next_values=torch.zeros_like(like),
            rewards=torch.zeros_like(like),
            terminated=flags[0],
            truncated=flags[1],
            valid=flags[2],
            episode_start=flags[3],
            action_mask=None,
            raw_obs=raw_obs[:-1],
        )
        self._collector = collector
        self._envs = envs
        self._first_env = collector.first_env
        self._obs_after = raw_obs[1:].numpy()
        self._rewards = torch.from_numpy(collector.rewards)
        # The episodes that ended, as C++ writes them.
        self._end_steps, self._end_envs, self._end_lengths = np.zeros((3, most), np.int64)
        self._end_returns = np.zeros(most)
        self._final_obs = np.zeros((most, envs.spec.obs_size), self._obs_after.dtype)

        # The struct: addresses of all buffers, set once.
        self.buffers.tasks = ctypes.addressof(envs.batch)
        self.buffers.num_steps = steps
        self.buffers.is_raw_double = raw_obs.dtype == torch.float64
        if normalizer is not None:
            mean, scale = normalizer.mean_and_scale
            self._set_arrays(mean=mean, scale=scale)
        if collector.by_algorithm is None:  # others compute the values that they need
            self._set_arrays(values=values, next_values=self._rollout.next_values)
        self._set_arrays(
            raw_obs=raw_obs,
            rewards=collector.rewards,
            terminated=flags[0],
            truncated=flags[1],
            episode_start=flags[3],
            starts=collector.starts,
            returns=collector.returns,
            lengths=collector.lengths,
            end_steps=self._end_steps,
            end_envs=self._end_envs,
            end_returns=self._end_returns,
            end_lengths=self._end_lengths,
            final_obs=self._final_obs,
            final_values=like.new_zeros(most),
        )

    def _empty(self) -> Any:
        return RolloutArgs()

    def collect(self, noise: np.ndarray) -> tuple[Transitions, list[FinishedEpisode]]:
        """Do as `Collector.collect` does, in one call of C++."""
        first_step = self._envs.batch.num_steps + 1
        self.begin(noise)
        self._set_cut(self._collector.cut)
        self._set_offset()
        _record()(ctypes.byref(self.buffers))
        if not self.buffers.is_finite:
            self._check(first_step)
        taken = self.buffers.num_taken
        if self._collector.by_algorithm is not None:
            return self._collector.transitions(taken, self._final(), self._rewards[:taken]), self._episodes()
        self._rollout.rewards.copy_(self._rewards)
        if taken == self.buffers.num_steps:
            return self._rollout, self._episodes()
        # ddp_preempt cut the rollout: return the rows taken.
        rows = {f.name: getattr(self._rollout, f.name) for f in dataclasses.fields(Rollout)}
        cut: dict[str, Any] = {
            name: x[:taken] if isinstance(x, torch.Tensor) else x for name, x in rows.items()
        }
        return Rollout(**cut), self._episodes()

    def _set_offset(self) -> None:
        """Set the means far from 0 that the normaliser subtracts before it casts, null if there are none."""
        normalizer = self._collector.normalizer
        offset = None if normalizer is None or not self._raw_is_cast else normalizer.offsets
        self.buffers.offset = None
        if offset is not None:
            self._set_arrays(offset=offset)

    def _set_cut(self, cut: Cut | None) -> None:
        """Set when C++ ends the rollout early; never without a cut."""
        buffers = self.buffers
        if cut is None:
            buffers.least_steps = sys.maxsize
            return
        buffers.least_steps, buffers.number, buffers.awaited = cut.least_steps, cut.number, cut.awaited
        buffers.num_cells, buffers.deadline = len(cut.cells), cut.deadline
        self._set_arrays(cells=cut.cells)

    def _check(self, first_step: int) -> None:
        """Raise EnvOutputError for the first NaN or infinity that a task returned, as the collector does."""
        steps, envs, final_obs = self._end_steps.tolist(), self._end_envs, self._final_obs
        ends = [(steps[k], envs[k : k + 1], final_obs[k : k + 1]) for k in range(self.buffers.num_ends)]
        taken = self.buffers.num_taken
        check_finite(
            self._envs.names, first_step, self._obs_after[:taken], self._rewards[:taken].numpy(), ends
        )

    def _final(self) -> tuple[Any, torch.Tensor]:
        """Return final observations `[n, obs_size]` as the policy sees them, and their rows and columns `[n, 2]`."""
        num_ends, normalizer = self.buffers.num_ends, self._collector.normalizer
        at = torch.from_numpy(np.stack([self._end_steps[:num_ends], self._end_envs[:num_ends]], axis=1))
        if not num_ends:
            return None, at
        final_obs = torch.from_numpy(self._final_obs[:num_ends].copy())
        return final_obs if normalizer is None else normalizer(final_obs), at

    def _episodes(self) -> list[FinishedEpisode]:
        num_ends, first_env = self.buffers.num_ends, self._first_env
        ends = (self._end_steps, self._end_envs, self._end_returns, self._end_lengths)
        return [
            FinishedEpisode(t, first_env + i, episode_return, length)
            for t, i, episode_return, length in zip(*(x[:num_ends].tolist() for x in ends), strict=True)
        ]


@functools.cache
def _record() -> Callable[..., None]:
    record = library().rollout_record
    record.argtypes, record.restype = (ctypes.c_void_p,), None
    return record
