"""Batches of scalar environments, stepped in turn (sync) or by one process each (async).

Both run Gymnasium's vector environments in SAME_STEP mode over `RowEnv`s, so they give the same numbers.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait as wait_for_any
from socket import SO_RCVTIMEO, SOL_SOCKET, socket
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import _async_worker

from ddppo.config import EnvConfig
from ddppo.envs.codec import decode_actions
from ddppo.envs.faults import EnvNames, when_reset, when_stepped
from ddppo.envs.scalar import RowEnv, make_row_env
from ddppo.envs.vec_env import EnvSpec, EnvStep
from ddppo.errors import EnvError, EnvWorkerLost
from ddppo.signals import die_with_parent

_CLOSE_S = 5.0


def make_sync(env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> "SameStepEnvs":
    """Step every environment in this process. There is nothing to wait for, so timeout_s is not used."""
    makers = _makers(env, spec, names)
    return SameStepEnvs(
        SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP), spec, names
    )


def make_async(env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> "SameStepEnvs":
    """Step every environment in a process of its own; observations come back through shared memory."""
    return SameStepEnvs(EnvWorkers(_makers(env, spec, names), names, timeout_s), spec, names)


def _makers(env: EnvConfig, spec: EnvSpec, names: EnvNames) -> list[Callable[[], RowEnv]]:
    return [functools.partial(make_row_env, env, spec, names(i)) for i in range(len(names.indices))]


class SameStepEnvs:
    """`VecEnv` over a Gymnasium batch of `RowEnv`s that resets in the step that ends an episode."""

    def __init__(self, envs: SyncVectorEnv | AsyncVectorEnv, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = envs.num_envs
        self._envs = envs
        self._task_action_space: gym.Space = envs.single_action_space
        self._valid = np.ones(self.num_envs, bool)
        self._mask = None if spec.mask_size is None else np.ones((self.num_envs, spec.mask_size), bool)
        dtype = envs.single_observation_space.dtype
        self._none_ended = np.empty(0, np.intp)
        self._no_final_obs = np.empty((0, spec.obs_size), dtype)

    def reset(self, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        rows, _ = self._envs.reset(seed=[int(seed) for seed in seeds])  # Gymnasium refuses np.int64
        return self._split(rows)

    def step(self, actions: np.ndarray) -> EnvStep:
        assert actions.shape == (self.num_envs, *self.spec.action.shape), actions.shape
        rows, rewards, terminated, truncated, infos = self._envs.step(
            decode_actions(self._task_action_space, actions)
        )
        obs, mask = self._split(rows)
        ended, final_obs = self._none_ended, self._no_final_obs
        if "final_obs" in infos:
            (ended,) = np.nonzero(terminated | truncated)
            final_obs = np.stack(infos["final_obs"][ended])[:, : self.spec.obs_size]
        return EnvStep(obs, rewards, terminated, truncated, self._valid, ended, final_obs, mask)

    def close(self) -> None:
        self._envs.close()

    def _split(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        if self._mask is None:
            return rows, None
        np.not_equal(rows[:, self.spec.obs_size :], 0, out=self._mask)
        return rows[:, : self.spec.obs_size], self._mask


def _worker(*args: Any) -> None:
    """Serve one environment. Ctrl-C reaches the whole process group, but what it means the rank decides."""
    die_with_parent()  # the fork server, which ends with the rank
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    index, _, pipe, parent_pipe, _, errors = args[:6]
    with contextlib.suppress(BrokenPipeError, EOFError):  # the rank is gone: nobody is left to tell
        try:
            _async_worker(*args)
        except (
            EnvError
        ) as e:  # the environment could not be made; later errors Gymnasium's worker sends itself
            parent_pipe.close()
            pipe.recv()  # an answer is read only after a question
            errors.put((index, type(e), e, ""))
            pipe.send((None, False))


def _start_resource_tracker() -> None:
    """Start the process that looks after multiprocessing's semaphores so that signals to the group do not end it.

    What it is started with blocked stays blocked in it; SIGINT and SIGTERM it ignores by itself.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGUSR2})
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class EnvWorkers(AsyncVectorEnv):
    """AsyncVectorEnv that turns a lost, failed or stuck worker into `EnvWorkerLost`, and always closes.

    The workers come from a fork server: they inherit no thread, lock or torch of the rank, and start from a
    process that has already imported this package.
    """

    def __init__(self, makers: Sequence[Callable[[], RowEnv]], names: EnvNames, timeout_s: float) -> None:
        self._names = names
        self._timeout_s = timeout_s
        self._num_steps = 0
        self.processes: list[Any] = []  # until they are started: close() may come before
        self.parent_pipes: list[Any] = []
        _start_resource_tracker()
        multiprocessing.get_context("forkserver").set_forkserver_preload(
            ["__main__", "ddppo.envs.fork_server"]
        )
        try:
            super().__init__(
                makers,
                shared_memory=True,
                copy=False,
                context="forkserver",
                worker=_worker,
                autoreset_mode=AutoresetMode.SAME_STEP,
            )
        except EnvError:
            self.close()
            raise

    def reset_wait(self, timeout: float | None = None) -> Any:
        self._num_steps = 0
        return self._or_lost(super().reset_wait, timeout)

    def step(self, actions: Any) -> Any:
        self._num_steps += 1
        return self._or_lost(super().step, actions)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ask every worker to go, wait a few seconds, and kill those that are still there."""
        for pipe in self.parent_pipes:
            try:
                pipe.send(("close", None))
            except OSError:  # its worker is gone already
                continue
        end = time.monotonic() + (0.0 if terminate else _CLOSE_S)
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self.parent_pipes:
            pipe.close()

    def _check_spaces(self) -> None:
        # The kernel's own receive timeout: polling the pipe before every recv costs microseconds each.
        interval = struct.pack("ll", int(self._timeout_s), int(self._timeout_s % 1 * 1e6))
        for pipe in self.parent_pipes:
            with socket(fileno=os.dup(pipe.fileno())) as end:
                end.setsockopt(SOL_SOCKET, SO_RCVTIMEO, interval)
        self._or_lost(super()._check_spaces)

    def _raise_if_errors(self, successes: Any) -> None:
        """Replaces Gymnasium's, which warns, closes pipes, and raises the exception without its traceback."""
        num_failed = list(successes).count(False)
        if not num_failed:
            return
        try:
            failed = [self.error_queue.get(timeout=_CLOSE_S) for _ in range(num_failed)]
        except (
            Exception
        ) as e:  # an exception that cannot be pickled or rebuilt may raise anything, or never come
            raise EnvWorkerLost(f"{self._whom()}: one raised an exception that cannot be sent: {e!r}") from e
        index, _, error, trace = min(failed, key=lambda failure: failure[0])  # as if stepped in turn
        if isinstance(error, EnvError):  # as the environment's own process has put it
            raise error
        raise EnvWorkerLost(f"the process of {self._names(index)} raised, {self._when()}\n{trace}")

    def _or_lost(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except BlockingIOError as e:
            raise EnvWorkerLost(
                f"{self._whom()}: no answer within {self._timeout_s:g} s; an environment hangs, or a step "
                "needs longer"
            ) from e
        except (EOFError, ConnectionError) as e:
            wait_for_any([process.sentinel for process in self.processes], timeout=_CLOSE_S)
            gone = ", ".join(
                f"{self._names(i)} (exit code {process.exitcode})"
                for i, process in enumerate(self.processes)
                if not process.is_alive()
            )
            raise EnvWorkerLost(
                f"{self._whom()}: the process of {gone or 'one'} ended; a negative exit code is a signal, "
                "-9 often the kernel's answer to too little memory"
            ) from e

    def _whom(self) -> str:
        return f"{self._names.all()}, {self._when()}"

    def _when(self) -> str:
        return when_stepped(self._num_steps) if self._num_steps else when_reset(0)
