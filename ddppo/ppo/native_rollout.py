"""A rollout in one call of C++ (ddppo/native/src/rollout.cpp), where tasks and network are both computed there."""

import ctypes
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from ddppo.envs.batched.native_tasks import NativeEnvs, TaskBatch
from ddppo.envs.faults import check_finite
from ddppo.ppo.native_network import NativeNetwork, library
from ddppo.ppo.rollout import Episode, Rollout

if TYPE_CHECKING:
    from ddppo.ppo.collector import Collector

_POINTERS = (
    *("noise", "raw_obs", "obs", "mean", "scale", "actions", "params", "logprobs", "values", "next_values"),
    *("rewards", "terminated", "truncated", "episode_start", "starts", "returns", "lengths"),
    *("end_steps", "end_envs", "end_returns", "end_lengths", "final_obs", "final_values"),
)


class RolloutBuffers(ctypes.Structure):
    """`RolloutBuffers` of rollout.cpp."""

    _fields_ = [
        ("network", ctypes.c_void_p),
        ("tasks", ctypes.POINTER(TaskBatch)),
        ("is_double", ctypes.c_int64),
        ("is_box", ctypes.c_int64),
        ("num_steps", ctypes.c_int64),
        ("num_params", ctypes.c_int64),
        ("num_ends", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    ]


class NativeRollout:
    """Fills the buffers of a collector as its own loop would."""

    def __init__(self, collector: "Collector", envs: NativeEnvs, network: NativeNetwork) -> None:
        self._collector = collector
        self._envs = envs
        self._network = network
        steps, num_envs, action = collector.rollout_steps, envs.num_envs, envs.spec.action
        most, like = steps * num_envs, collector.logprobs
        collector.flags[2] = True
        self._values = like.new_zeros(steps + 1, num_envs)
        self._next_values = like.new_zeros(steps, num_envs)
        self._end_steps, self._end_envs, self._end_lengths = np.zeros((3, most), np.int64)
        self._end_returns = np.zeros(most)
        self._final_obs = like.new_zeros(most, envs.spec.obs_size)
        self._final_values = like.new_zeros(most)
        self._kept: dict[str, object] = {}  # what C++ is told the addresses of
        self._buffers = RolloutBuffers(
            network=network.handle,
            tasks=ctypes.pointer(envs.batch),
            is_double=like.dtype == torch.float64,
            is_box=action.kind == "box",
            num_steps=steps,
            num_params=collector.params.shape[-1],
        )
        normalizer, flags = collector.normalizer, collector.flags
        self._point(
            raw_obs=collector.raw_obs,
            obs=collector.obs,
            mean=None if normalizer is None else normalizer._mean,
            scale=None if normalizer is None else normalizer._scale,
            actions=collector.actions,
            params=collector.params,
            logprobs=collector.logprobs,
            values=self._values,
            next_values=self._next_values,
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
            final_values=self._final_values,
        )

    def record(self, noise: np.ndarray) -> tuple[Rollout, list[Episode]]:
        """Step T times with action noise `[T, E, num_noise]`, as `Collector.collect`."""
        first_step = self._envs.batch.num_steps + 1
        self._point(noise=np.ascontiguousarray(noise, np.float64))
        _record()(ctypes.byref(self._buffers))
        self._check(first_step)
        return self._rollout(), self._episodes()

    def _point(self, **arrays: np.ndarray | torch.Tensor | None) -> None:
        """Tell C++ where contiguous arrays are, and keep them."""
        for name, array in arrays.items():
            if array is None:
                continue
            if isinstance(array, torch.Tensor):
                assert array.is_contiguous(), name
                address = array.data_ptr()
            else:
                assert array.flags.c_contiguous, name
                address = array.ctypes.data
            setattr(self._buffers, name, address)
            self._kept[name] = array

    def _check(self, first_step: int) -> None:
        """Raise EnvOutputError as the collector does, for the first NaN or infinity that tasks returned."""
        raw_obs, rewards, final_obs = (
            self._collector.raw_obs[1:].numpy(),
            self._collector.rewards,
            self._ended_obs(),
        )
        with np.errstate(all="ignore"):
            total = raw_obs.sum() + rewards.sum() + final_obs.sum()
        if math.isfinite(total):
            return
        num_ends = len(final_obs)
        ends = [
            (int(self._end_steps[k]), self._end_envs[k : k + 1], final_obs[k : k + 1])
            for k in range(num_ends)
        ]
        check_finite(self._envs.names, first_step, raw_obs, rewards, ends)

    def _ended_obs(self) -> np.ndarray:
        return self._final_obs[: self._buffers.num_ends].numpy()

    def _episodes(self) -> list[Episode]:
        num_ends, first_env = self._buffers.num_ends, self._collector.first_env
        ends = (self._end_steps, self._end_envs, self._end_returns, self._end_lengths)
        return [
            Episode(t, first_env + i, episode_return, length)
            for t, i, episode_return, length in zip(*(x[:num_ends].tolist() for x in ends), strict=True)
        ]

    def _rollout(self) -> Rollout:
        c = self._collector
        terminated, truncated, valid, episode_start = torch.from_numpy(c.flags)
        return Rollout(
            obs=c.obs[:-1],
            actions=c.actions,
            logprobs=c.logprobs,
            values=self._values[:-1],
            next_values=self._next_values,
            rewards=torch.from_numpy(c.rewards).to(c.logprobs),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            episode_start=episode_start,
            action_mask=None,
            raw_obs=c.raw_obs[:-1],
        )


@functools.cache
def _record() -> Callable[..., None]:
    record = library().rollout_record
    record.argtypes, record.restype = (ctypes.c_void_p,), None
    return record
