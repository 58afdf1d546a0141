"""env.backend=gym_vector: tasks that bring a batched implementation (Gymnasium's vector entry points).

Often much faster than a batch of single environments, but the batch has one random stream, so results depend on W.
`gym_vector_spec` checks that the batch can be stepped; `GymVectorEnvs` hides its autoreset mode.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.gym_spaces import (
    Path,
    action_spec,
    check_is_space,
    checked_mask_size,
    decode_actions,
    obs_spec,
    space_leaves,
    without_mask,
)
from ddppo.envs.encoding.observations import ObsArrays, as_floats, as_numbers, as_pixels
from ddppo.envs.encoding.step_values import (
    MASK,
    WrongOutput,
    as_five,
    as_info,
    as_pair,
    described,
    flat_mask,
    mask_of,
)
from ddppo.envs.guard import MADE, guarding
from ddppo.envs.meaning import spaces_described
from ddppo.envs.vec_env import (
    EnvNames,
    EnvSpec,
    EnvStep,
    Options,
    Unsaved,
    explained,
    no_options,
    when_reset,
    when_stepped,
)
from ddppo.errors import ConfigError
from ddppo.spaces import ArraySpec, each


def make_gym_vector(env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> "GymVectorEnvs":
    """Make the task's own batch in this process. timeout_s is unused: nothing waits."""
    try:
        return GymVectorEnvs(make_gym_vector_task(env, len(names.indices)), spec, names)
    except (Exception, SystemExit) as e:
        raise explained(names.all(), "when they were made", e) from e


@guarding(MADE)
def make_gym_vector_task(env: EnvConfig, num_envs: int) -> gym.vector.VectorEnv:
    limit: dict[str, Any] = (
        {} if env.max_episode_steps is None else {"max_episode_steps": env.max_episode_steps}
    )
    return gym.make_vec(env.id, num_envs, vectorization_mode="vector_entry_point", **limit, **env.kwargs)


def gym_vector_spec(envs: gym.vector.VectorEnv) -> EnvSpec:
    """Read the spec off a batch of two environments. Raises ConfigError if the batch cannot be used."""
    # Observations of other spaces would need an encoding per environment, which costs what the batch saves.
    remedy = "use env.backend=sync"
    space = envs.single_observation_space
    check_is_space(space, "single_observation_space")
    space = without_mask(space)
    if not all(isinstance(leaf, Box) for _, leaf in space_leaves(space)):
        raise ConfigError(
            f"env.backend=gym_vector: observation space {space} is not supported, "
            f"only Box, and Dict and Tuple of it: {remedy}"
        )
    action = action_spec(envs.single_action_space)
    # The three autoreset modes of Gymnasium: GymVectorEnvs handles each.
    mode = envs.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ConfigError(
            f"env.backend=gym_vector: metadata['autoreset_mode']={mode} is no AutoresetMode: {remedy}"
        )
    # The first reset shows whether the task has masks.
    obs, infos = as_pair(envs.reset(seed=0))
    masks = mask_of(obs, infos, getattr(envs, "action_masks", None))
    mask_size = None if masks is None else checked_mask_size(flat_mask(masks[0]).size, action)
    if mode == AutoresetMode.DISABLED and not _resets_by_mask(envs):
        raise ConfigError(
            "env.backend=gym_vector: autoreset is disabled, and reset(options={'reset_mask': ...}) resets every "
            f"environment, not only the masked: {remedy}"
        )
    spaces = spaces_described(space, envs.single_action_space, has_mask=mask_size is not None, task=envs)
    return EnvSpec(obs_spec(space), action, mask_size, spaces=spaces)


def _resets_by_mask(envs: gym.vector.VectorEnv) -> bool:
    """Whether a reset with a reset_mask leaves the other environments alone."""
    paths = [path for path, _ in space_leaves(without_mask(envs.single_observation_space))]
    # Reset only the first environment after a step: the others must keep their observations.
    obs, *_ = envs.step(envs.action_space.sample())
    before = [np.copy(_at(obs, path)) for path in paths]
    only_first = np.zeros(envs.num_envs, bool)
    only_first[0] = True
    obs, _ = envs.reset(options={"reset_mask": only_first})
    return all(np.array_equal(x[1:], _at(obs, path)[1:]) for x, path in zip(before, paths, strict=True))


def _at(obs: Any, path: Path) -> Any:
    for key in path:
        try:
            obs = obs[key]
        except Exception as e:
            raise WrongOutput(
                f"observations of type {type(obs).__name__} without {key!r}", "which their space lists"
            ) from e
    return obs


class GymVectorEnvs(Unsaved):
    """A `VecEnv` over a task's own batch, in any autoreset mode.

    The batch takes one seed, made from the seeds of its environments. So its random stream depends on which
    environments this rank steps, and hence on W.
    """

    def __init__(self, envs: gym.vector.VectorEnv, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = envs.num_envs
        self._envs = envs
        self._mode = envs.metadata["autoreset_mode"]
        self._task_action_space: gym.Space = envs.single_action_space
        parts = space_leaves(without_mask(envs.single_observation_space))
        paths = [path for path, _ in parts]
        # Which arrays hold whole numbers, for the checks of conversions.
        self._is_whole = dict(
            zip(paths, (np.dtype(part.dtype).kind in "biu" for _, part in parts), strict=True)
        )
        self._masks_by_method = getattr(envs, "action_masks", None)
        self._paths = dict(zip(spec.obs, paths, strict=True)) if isinstance(spec.obs, dict) else paths[0]
        self._just_ended = np.zeros(self.num_envs, bool)  # NEXT_STEP: episodes that ended in the last step
        self._num_steps = 0

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        if options is not None:
            raise no_options(self.names)
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        self._just_ended = np.zeros(self.num_envs, bool)
        self._num_steps = 0
        try:
            obs, infos = as_pair(self._envs.reset(seed=self._seed(seeds)))
            return self._read(obs), self._mask(obs, infos)
        except (Exception, SystemExit) as e:
            raise explained(self.names.all(), when_reset(0), e) from e

    def _seed(self, seeds: Sequence[int]) -> Any:
        """Return the seed of the batch: one number of 31 bits."""
        return int(np.random.SeedSequence([int(seed) for seed in seeds]).generate_state(1)[0] >> 1)

    def step(self, actions: np.ndarray) -> EnvStep:
        assert actions.shape == (self.num_envs, *self.spec.action.shape), actions.shape
        self._num_steps += 1
        try:
            return self._step(actions)
        except (Exception, SystemExit) as e:
            raise explained(self.names.all(), when_stepped(self._num_steps), e) from e

    def _step(self, actions: np.ndarray) -> EnvStep:
        answer = self._envs.step(decode_actions(self._task_action_space, actions))
        obs, rewards, terminated, truncated, infos = as_five(answer)
        # Copies: the batch may return the same arrays in every step, and some are changed here.
        rewards = np.array(self._of_all(rewards, "rewards"), np.float64)
        terminated, truncated = self._flags(terminated, "terminated"), self._flags(truncated, "truncated")
        infos = as_info(infos)
        valid = ~self._just_ended
        # NEXT_STEP: the step after an end only resets. Mark its row as no transition.
        if self._mode == AutoresetMode.NEXT_STEP:
            rewards[self._just_ended] = 0.0
            terminated &= valid
            truncated &= valid
            self._just_ended = terminated | truncated
        (ended,) = np.nonzero(terminated | truncated)
        arrays = self._read(obs)
        # SAME_STEP: obs is that of the reset already, and the last observation is in the infos.
        if self._mode == AutoresetMode.SAME_STEP and ended.size:
            if "final_obs" not in infos:
                raise WrongOutput(
                    "infos without final_obs after the end of an episode",
                    "which tasks with AutoresetMode.SAME_STEP return",
                )
            final_obs = self._final_obs(infos["final_obs"], ended)
        else:
            final_obs = each(lambda x: x[ended], arrays)
        # DISABLED: reset the ended environments here.
        if self._mode == AutoresetMode.DISABLED and ended.size:
            obs, infos = self._reset(ended, obs, infos)
            arrays = self._read(obs)
        return EnvStep(
            obs=arrays,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            ended=ended,
            final_obs=final_obs,
            action_mask=self._mask(obs, infos),
        )

    def close(self) -> None:
        self._envs.close()

    def _of_all(self, values: Any, what: str) -> np.ndarray:
        """Return an array `[E]` of numbers or bools. Raises WrongOutput."""
        array = as_numbers(values, what, "which must be numbers, one for each environment")
        if array.shape != (self.num_envs,):
            raise WrongOutput(f"{what} of shape {array.shape}", f"there are {self.num_envs} environments")
        return array

    def _flags(self, values: Any, what: str) -> np.ndarray:
        """Return `terminated` or `truncated` as a new array `[E]` of bool. Raises WrongOutput."""
        flags = self._of_all(values, what)
        if flags.dtype != bool and not ((flags == 0) | (flags == 1)).all():
            raise WrongOutput(f"{described(values)} as {what}", "they must be True or False")
        return np.array(flags, bool)

    def _reset(self, ended: np.ndarray, obs: Any, infos: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """Reset the ended environments of a task with disabled autoreset; the others keep obs and mask."""
        reset_mask = np.zeros(self.num_envs, bool)
        reset_mask[ended] = True
        # The masks of the other environments come with the step, those of the ended ones with the reset.
        mask = self._mask(obs, infos)
        obs, infos = as_pair(self._envs.reset(options={"reset_mask": reset_mask}))
        after_reset = self._mask(obs, infos)
        if mask is not None and after_reset is not None and mask_of(obs, None) is None:
            mask[ended] = after_reset[ended]
            infos = {MASK: mask}
        return obs, infos

    def _final_obs(self, final_obs: Any, ended: np.ndarray) -> ObsArrays:
        """Return the last observations of ended episodes, from arrays over all environments or an array of objects.

        Gymnasium's own batches use the latter. Entries of other environments hold garbage (ALE) or None: skip them.
        """
        is_array_of_obs = isinstance(final_obs, np.ndarray) and final_obs.dtype == object

        def stacked(path: Path) -> Any:
            if is_array_of_obs:
                return np.stack([np.asarray(_at(final_obs[i], path)) for i in ended])
            return np.stack([_at(final_obs, path)[i] for i in ended])

        return self._typed(each(stacked, self._paths), len(ended))

    def _read(self, obs: Any) -> ObsArrays:
        return self._typed(each(lambda path: _at(obs, path), self._paths), self.num_envs)

    def _typed(self, arrays: Any, num_envs: int) -> ObsArrays:
        def typed(leaf: ArraySpec, path: Path, x: Any) -> np.ndarray:
            shape = (num_envs, *leaf.shape)
            array = as_numbers(
                x, "observations", f"their space says numbers of shape {shape} for all of them"
            )
            if array.shape != shape:
                raise WrongOutput(
                    f"observations of shape {array.shape}", f"their space says {shape} for all of them"
                )
            if not leaf.is_float:
                return as_pixels(array)
            return as_floats(array, np.dtype(leaf.dtype), is_whole=self._is_whole[path])

        return each(typed, self.spec.obs, self._paths, arrays)

    def _mask(self, obs: Any, infos: Mapping[str, Any]) -> np.ndarray | None:
        if self.spec.mask_size is None:
            return None
        # Everything is allowed in environments without a mask.
        mask = np.ones((self.num_envs, self.spec.mask_size), bool)
        given = mask_of(obs, infos, self._masks_by_method)
        if given is not None:
            # Infos of a batch hold a mask only for the environments at which "_action_mask" is True.
            in_infos = given is infos.get(MASK)
            has_mask = infos.get(f"_{MASK}") if in_infos else None
            for i in range(self.num_envs) if has_mask is None else np.flatnonzero(np.asarray(has_mask, bool)):
                own = flat_mask(given[i])
                if own.size != self.spec.mask_size:
                    raise WrongOutput(
                        f"an action_mask of {own.size} entries", f"its first had {self.spec.mask_size}"
                    )
                mask[i] = own
        return mask
