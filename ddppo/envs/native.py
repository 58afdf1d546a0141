"""Tasks that bring their own batched implementation (Gymnasium's vector entry points).

Far faster than a batch of scalar environments, but the batch has one random stream: results depend on W.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from ddppo.config import EnvConfig
from ddppo.envs.codec import MASK, WrongOutput, action_spec, checked_mask_size, decode_actions, obs_dtype
from ddppo.envs.faults import EnvNames, explained, no_state, when_reset, when_stepped
from ddppo.envs.vec_env import EnvSpec, EnvStep
from ddppo.errors import ConfigError


def make_native(env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> "NativeEnvs":
    """Step all environments by the task's own vector entry point, in this process; timeout_s is not used."""
    try:
        return NativeEnvs(make_native_task(env, len(names.indices)), spec, names)
    except (Exception, SystemExit) as e:
        raise explained(names.all(), "when they were made", e) from e


def make_native_task(env: EnvConfig, num_envs: int) -> gym.vector.VectorEnv:
    limit: dict[str, Any] = (
        {} if env.max_episode_steps is None else {"max_episode_steps": env.max_episode_steps}
    )
    return gym.make_vec(env.id, num_envs, vectorization_mode="vector_entry_point", **limit, **env.kwargs)


def learn_native_spec(envs: gym.vector.VectorEnv) -> EnvSpec:
    """Read the shapes of a batched task of two environments. Raises ConfigError if we cannot drive it."""
    remedy = "use env.backend=sync"
    if not isinstance(envs.single_observation_space, Box):
        raise ConfigError(
            f"env.backend=native: observation space {envs.single_observation_space} is not supported, "
            f"only Box: {remedy}"
        )
    action = action_spec(envs.single_action_space)
    mode = envs.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ConfigError(
            f"env.backend=native: metadata['autoreset_mode']={mode} is no AutoresetMode: {remedy}"
        )
    _, infos = envs.reset(seed=0)
    mask_size = None
    if MASK in infos:
        mask_size = checked_mask_size(np.asarray(infos[MASK][0]).size, action)
    if mode == AutoresetMode.DISABLED and not _resets_by_mask(envs):
        raise ConfigError(
            "env.backend=native: autoreset is disabled, and reset(options={'reset_mask': ...}) resets every "
            f"environment, not only the masked: {remedy}"
        )
    return EnvSpec(int(np.prod(envs.single_observation_space.shape)), action, mask_size)


def _resets_by_mask(envs: gym.vector.VectorEnv) -> bool:
    before = np.copy(envs.step(envs.action_space.sample())[0])
    only_first = np.zeros(envs.num_envs, bool)
    only_first[0] = True
    after, _ = envs.reset(options={"reset_mask": only_first})
    return bool(np.array_equal(before[1:], after[1:]))


class NativeEnvs:
    """`VecEnv` over a batched task, whatever its autoreset mode.

    Seeds: the batch takes one, made of all the seeds of its environments, so its stream depends on which
    environments this rank steps, and hence on W.
    """

    def __init__(self, envs: gym.vector.VectorEnv, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = envs.num_envs
        self._envs = envs
        self._mode = envs.metadata["autoreset_mode"]
        self._task_action_space: gym.Space = envs.single_action_space
        self._obs_shape = (self.num_envs, *(envs.single_observation_space.shape or ()))
        self._obs_dtype = obs_dtype(envs.single_observation_space)
        self._just_ended = np.zeros(self.num_envs, bool)
        self._num_steps = 0

    def reset(self, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        self._just_ended = np.zeros(self.num_envs, bool)
        seed = np.random.SeedSequence([int(seed) for seed in seeds]).generate_state(1)[0] >> 1  # 31 bits
        self._num_steps = 0
        try:
            obs, infos = self._envs.reset(seed=int(seed))
            return self._flat(obs), self._mask(infos)
        except (Exception, SystemExit) as e:
            raise explained(self.names.all(), when_reset(0), e) from e

    def step(self, actions: np.ndarray) -> EnvStep:
        assert actions.shape == (self.num_envs, *self.spec.action.shape), actions.shape
        self._num_steps += 1
        try:
            return self._step(actions)
        except (Exception, SystemExit) as e:
            raise explained(self.names.all(), when_stepped(self._num_steps), e) from e

    def _step(self, actions: np.ndarray) -> EnvStep:
        obs, rewards, terminated, truncated, infos = self._envs.step(
            decode_actions(self._task_action_space, actions)
        )
        rewards = np.array(rewards, np.float64)
        if rewards.shape != (self.num_envs,):
            raise WrongOutput(f"rewards of shape {rewards.shape}", f"there are {self.num_envs} environments")
        terminated = np.array(terminated, bool)
        truncated = np.array(truncated, bool)
        valid = ~self._just_ended
        if self._mode == AutoresetMode.NEXT_STEP:
            rewards[self._just_ended] = 0.0
            terminated &= valid
            truncated &= valid
            self._just_ended = terminated | truncated
        (ended,) = np.nonzero(terminated | truncated)
        if self._mode == AutoresetMode.SAME_STEP and ended.size:
            # Rows that did not end hold garbage in some tasks (ALE), None in others: take none of them.
            final_obs = np.stack([np.asarray(infos["final_obs"][i], self._obs_dtype) for i in ended])
        else:
            final_obs = np.array(obs[ended], self._obs_dtype)
        if self._mode == AutoresetMode.DISABLED and ended.size:
            obs, infos = self._reset(ended, obs, infos)
        return EnvStep(
            obs=self._flat(obs),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            ended=ended,
            final_obs=final_obs.reshape(ended.size, self.spec.obs_size),
            action_mask=self._mask(infos),
        )

    def state(self) -> dict[str, Any]:
        raise no_state(self.names)

    def restore(self, state: dict[str, Any]) -> tuple[np.ndarray, np.ndarray | None]:
        raise no_state(self.names)

    def close(self) -> None:
        self._envs.close()

    def _reset(
        self, ended: np.ndarray, obs: np.ndarray, infos: dict[str, Any]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Reset the ended environments of a task that leaves it to us; the others keep obs and mask."""
        reset_mask = np.zeros(self.num_envs, bool)
        reset_mask[ended] = True
        mask = self._mask(infos)
        obs, infos = self._envs.reset(options={"reset_mask": reset_mask})
        after_reset = self._mask(infos)
        if mask is not None and after_reset is not None:
            mask[ended] = after_reset[ended]
            infos = {MASK: mask}
        return obs, infos

    def _flat(self, obs: np.ndarray) -> np.ndarray:
        array = np.asarray(obs, self._obs_dtype)
        if array.shape != self._obs_shape:
            raise WrongOutput(
                f"observations of shape {array.shape}", f"their space says {self._obs_shape} for all of them"
            )
        return array.reshape(self.num_envs, -1)

    def _mask(self, infos: dict[str, Any]) -> np.ndarray | None:
        if self.spec.mask_size is None:
            return None
        mask = np.ones((self.num_envs, self.spec.mask_size), bool)
        if MASK in infos:
            has_mask = np.asarray(infos.get(f"_{MASK}", np.ones(self.num_envs, bool)), bool)
            for i in np.nonzero(has_mask)[0]:
                mask[i] = np.ravel(infos[MASK][i]) != 0
        return mask
