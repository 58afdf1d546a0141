"""One environment: made from its settings, and wrapped so that it speaks the language of the model.

`make_task` makes the task. Around it stands one of three wrappers: `RowEnv` for batches, which encode observations into
rows and decode actions for all environments at once; `ArrayEnv` for code that steps a single environment with a model;
`TextEnv` for tasks that observe and take text. `ContextEnv` adds numbers to the observation (env.context).
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Text

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.gym_spaces import decode_actions
from ddppo.envs.encoding.observations import ObsArrays, RowEncoder
from ddppo.envs.encoding.step_values import (
    MASK,
    PARTS,
    REMEDY_OF_GYM,
    WrongOutput,
    as_flag,
    as_info,
    as_number,
    as_pair,
    as_parts,
    described,
    late_mask,
    mask_of,
    masks_by_method,
    numbers_in,
)
from ddppo.envs.guard import MADE, guarding
from ddppo.envs.registration import adapted, register_extra
from ddppo.envs.saving import LONGEST, SAVERS, ByReplay, as_kept, saver_of
from ddppo.envs.vec_env import (
    check_masks,
    explained,
    other_state,
    task_name,
    when_asked,
    when_reset,
    when_stepped,
)
from ddppo.errors import ConfigError, EnvStateError, in_one_line
from ddppo.plugins import imported
from ddppo.spaces import EnvSpec, each, leaves

CONTEXT = "context"  # the key of the context in options of a reset and in observations
_BOUNDS = {True: (-np.inf, np.inf), False: (0, 255)}  # of an array of floats, and of pixels


@guarding(MADE)
def make_task(env: EnvConfig, render_mode: str | None = None) -> gym.Env:
    """Make the task that Gymnasium registered, with its time limit, env.wrappers and the context, without a checker.

    Raises ConfigError if its package is not installed, its class is no gymnasium.Env, or no model can take its
    observations.
    """
    register_extra(env.id)
    # Some tasks accept no render_mode at all, so pass it only if a picture is wanted.
    rendering = {} if render_mode is None else {"render_mode": render_mode}
    try:
        task = gym.make(
            env.id,
            max_episode_steps=env.max_episode_steps,
            # Our own checks are stricter and cost less per step (encoding, dry_run.py).
            disable_env_checker=True,
            **rendering,
            **env.kwargs,
        )
    except TypeError as e:
        # Three mistakes of a task's author that Gymnasium reports without the remedy.
        text = " ".join(str(e).partition(" was raised from the environment creator")[0].split())
        if "Gym is incompatible with Gymnasium" in text:
            raise ConfigError(f"its class is an Env of the old package gym: {REMEDY_OF_GYM}") from e
        if "must inherit from the gymnasium.Env class" in text:
            kind = text.rpartition("actual class: ")[2].partition(". ")[0]
            raise ConfigError(
                f"what its entry_point makes is {kind}, no gymnasium.Env: derive its class from gymnasium.Env; "
                f"if it is one of the old package gym, {REMEDY_OF_GYM}"
            ) from e
        if re.search("space element is not an instance|does not inherit from `gymnasium.Space`", text):
            raise ConfigError(f"{text}: write `from gymnasium import spaces` for all of them") from e
        raise
    task = _wrapped(adapted(task), env.wrappers)
    return task if env.context is None else ContextEnv(task, env.context)


def _wrapped(task: gym.Env, wrappers: Sequence[Any]) -> gym.Env:
    """Return the task in env.wrappers, the first one innermost. Raises ConfigError for what is no wrapper."""
    for given in wrappers:
        path = given["path"] if isinstance(given, Mapping) else given
        arguments = (
            {key: x for key, x in given.items() if key != "path"} if isinstance(given, Mapping) else {}
        )
        try:
            task = imported(path)(task, **arguments)
        except (Exception, SystemExit) as e:  # a user's module may raise anything
            raise ConfigError(f"env.wrappers=[{path}]: {in_one_line(e)}") from e
        if not isinstance(task, gym.Env):
            raise ConfigError(
                f"env.wrappers=[{path}] made {type(task).__name__}, no gymnasium.Env: derive it from gymnasium.Wrapper"
            )
    return task


def make_row_env(env: EnvConfig, spec: EnvSpec, name: str) -> "RowEnv":
    """Make one environment of a batch. Raises EnvError if the task, which could be made for the probe, now cannot."""
    try:
        return RowEnv(make_task(env), spec, name)
    except (Exception, SystemExit) as e:
        raise explained(name, "when it was made", e) from e


def make_single_env(env: EnvConfig, spec: EnvSpec, name: str) -> gym.Wrapper:
    """Make one environment that takes text (TextEnv), or the actions of a model (ArrayEnv).

    Raises EnvError as make_row_env does.
    """
    try:
        task = make_task(env)
    except (Exception, SystemExit) as e:
        raise explained(name, "when it was made", e) from e
    return TextEnv(task, spec, name) if spec.action.kind == "text" else ArrayEnv(task, spec, name)


class RowEnv(gym.Wrapper):
    """A task that returns observations as rows of `layout`, and empty infos. It takes actions of its own space.

    Infos stay in `info`, because a vector environment would gather every key of them in every step. Any exception of
    the task is raised as an EnvError with `name` and the step.
    """

    def __init__(self, task: gym.Env, spec: EnvSpec, name: str) -> None:
        super().__init__(task)
        self._encode = RowEncoder(task.observation_space, spec)
        self.layout = self._encode.layout
        self._name = name
        self._task = task_name(task)
        self._num_steps = 0  # since the last reset with a seed, for messages
        self._options: dict[str, Any] | None = None  # of every reset
        self._has_no_masks = spec.mask_size is None
        self._masks = None if self._has_no_masks else masks_by_method(task)
        # The info and the row of the last step.
        self.info: Mapping[str, Any] = {}
        self._noted: list[dict[str, float]] = []  # numbers in the last infos of episodes that ended
        self.row = np.zeros((), self.layout.dtype)
        # How the task's state is saved. The probe may have found out; else it is saved by replay until the first reset
        # shows whether another way suits it.
        saver = SAVERS.get(spec.saved_by or "")
        self._is_saver_chosen = saver is not None
        self._saver = (saver or ByReplay)(task)
        self._is_fresh = True  # not yet reset
        self._actions = self._saver.actions  # of the episode under way, for a replay; None if not needed

    def reset(self, *, seed: int | None = None, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self._num_steps = 0
        if self._options is not None:
            options.setdefault("options", self._options)
        try:
            # A saver by replay notes the random generators before the reset draws from them.
            if self._actions is not None:
                self._saver.begins(seed, options)
            obs, info = as_pair(self.env.reset(seed=seed, **options))
            if not self._is_saver_chosen:
                self._choose_saver()
            self._is_fresh = False
            if self._actions is not None:
                self._actions = self._saver.actions
            # A mask now would mean that the spec, and with it the row layout, is wrong.
            if self._has_no_masks and MASK in info:
                raise late_mask()
            if self._masks is not None:
                info = self._with_mask(obs, info)
            self.info = info
            self.row = self._encode(obs, info)
            return self.row, {}
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_reset(self._num_steps), e, self._task) from e

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        if self._actions is not None:
            self._actions.append(as_kept(action))
            # An endless episode would fill the memory with actions: give up saving it.
            if len(self._actions) > LONGEST:
                self._saver.forget()
                self._actions = self._saver.actions
        try:
            info: Mapping[str, Any]
            obs, reward, terminated, truncated, info = self.env.step(action)
            # This is the hot path of tasks written in Python: values of the plain types pass by the quickest tests,
            # only others are converted.
            if type(reward) is not float:
                reward = as_number(reward)
            if terminated is not False:
                terminated = as_flag(terminated, "terminated")
            if truncated is not False:
                truncated = as_flag(truncated, "truncated")
            if type(info) is not dict:
                info = as_info(info)
            if info and self._has_no_masks and MASK in info:
                raise late_mask()
            # masks_by_method: the mask of the next action, if one follows.
            if self._masks is not None and not (terminated or truncated):
                info = self._with_mask(obs, info)
            self.info = info
            self.row = row = self._encode(obs, info)
            return row, reward, terminated, truncated, {}
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_stepped(self._num_steps), e, self._task) from e

    def _with_mask(self, obs: Any, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the mask of the task's action_masks() if neither observation nor info holds one.

        Not called after the last step of an episode: no action follows, and the method may fail there.
        """
        return info if mask_of(obs, info) is not None else {**info, MASK: mask_of(None, None, self._masks)}

    def _choose_saver(self) -> None:
        """Choose how the task is saved, by the attributes that it has after its first reset."""
        self._is_saver_chosen = True
        saver = saver_of(self.env)
        if saver.actions is None:
            self._saver, self._actions = saver, None

    def take_options(self, options: Mapping[str, Any]) -> None:
        """Pass these options to every later reset."""
        self._options = dict(options)

    def note_info(self) -> bool:
        """Keep the numbers in the info of the episode that has just ended; return whether there are any."""
        if numbers := numbers_in(self.info):
            self._noted.append(numbers)
        return bool(numbers)

    def take_infos(self) -> list[dict[str, float]]:
        """Return what `note_info` has kept since the last call, an entry for each episode."""
        noted, self._noted = self._noted, []
        return noted

    def publish(self) -> bytes:
        """Return the task's message to all environments (ddppo.envs.vec_env)."""
        message = self._call_task("publish")
        if not isinstance(message, bytes):
            wrong = WrongOutput(type(message).__name__, "it must return bytes, b'' for no message")
            raise explained(self._name, when_asked("publish", self._num_steps), wrong, self._task)
        return message

    def receive(self, news: Sequence[bytes]) -> None:
        self._call_task("receive", news)

    def state(self) -> dict[str, Any]:
        """Return all that determines the following steps, in values that saving.packed takes.

        Raises EnvStateError if the task's state cannot be saved exactly.
        """
        saved = self._call_saver("state")
        options = {} if self._options is None else {"options": self._options}
        return {
            "how": self._saver.name,
            "num_steps": self._num_steps,
            "row": self.row.tobytes(),
            "saved": saved,
            **options,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, with the row that was returned last.

        Raises EnvStateError for the state of another task, or if a replayed episode ends in another observation.
        """
        if self._is_fresh:
            # Gymnasium's OrderEnforcing, and many tasks, need a reset before anything else.
            self.reset(seed=0)
        if state.get("how") != self._saver.name:
            raise other_state(self._name, state.get("how"), self._saver.name)
        self._options = state.get("options")
        self._num_steps = state["num_steps"]
        # A replay returns the last observation and info, which must equal the saved row.
        replayed = self._call_saver("restore", state["saved"])
        self._actions = self._saver.actions
        self.row = np.frombuffer(state["row"], self.row.dtype).reshape(self.row.shape)
        if replayed is not None and not self._equals(self._encoded(*replayed)):
            raise EnvStateError(
                f"{self._name} cannot go on from its state: its episode, played again, came to another observation "
                f"after step {self._num_steps}; it depends on more than its generators and actions, or its packages "
                "have changed since"
            )

    def _encoded(self, obs: Any, info: Any) -> np.ndarray:
        info = as_info(info)
        return self._encode(obs, info if self._masks is None else self._with_mask(obs, info))

    def _call_saver(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._saver, method)(*arguments)
        except EnvStateError as e:
            raise EnvStateError(f"{self._name} cannot save its state: {e}") from e
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_asked(method, self._num_steps), e) from e

    def _equals(self, row: np.ndarray) -> bool:
        # Compare field by field: the padding between fields is not part of the row.
        parts = [[*leaves(self.layout.obs(of)), self.layout.mask(of)] for of in (row, self.row)]
        # Bytes, so that NaN equals NaN. Without masks, both masks are None.
        return all(x is y or x.tobytes() == y.tobytes() for x, y in zip(*parts, strict=True))

    def _call_task(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.unwrapped, method)(*arguments)
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_asked(method, self._num_steps), e) from e

    def close(self) -> None:
        """Close the task. An exception here is only logged: the task has done its work, or failed before."""
        try:
            super().close()
        except (Exception, SystemExit) as e:
            logging.getLogger(__name__).warning("%s", explained(self._name, "when it was closed", e))


class ArrayEnv(gym.Wrapper):
    """A task that takes a model's action `[*spec.action.shape]` and returns the arrays that spec.obs describes.

    Infos hold the task's scalars, and if it has masks the action_mask, a bool vector `[mask_size]`. Observations and
    actions go through the same code as in a batch. The task can be rendered.
    """

    def __init__(self, task: gym.Env, spec: EnvSpec, name: str) -> None:
        row_env = RowEnv(task, spec, name)
        super().__init__(row_env)
        self._row_env = row_env
        self._layout = row_env.layout
        self._action, self._name = spec.action, name
        boxes = each(
            lambda leaf: Box(*_BOUNDS[leaf.is_float], leaf.shape, np.dtype(leaf.dtype).type), spec.obs
        )
        self.observation_space = Dict(list(boxes.items())) if isinstance(boxes, dict) else boxes

    @property
    def task(self) -> gym.Env:
        """The task itself, with its own observations and actions."""
        return self._row_env.env

    def reset(self, **kwargs: Any) -> tuple[ObsArrays, dict[str, Any]]:
        row, _ = self.env.reset(**kwargs)
        return self._split(row, is_over=False)

    def step(self, action: Any) -> tuple[ObsArrays, Any, bool, bool, dict[str, Any]]:
        # RowEnv takes actions of the task, as batches decode them for all environments at once.
        decoded = decode_actions(self.env.action_space, np.asarray(action))
        row, reward, terminated, truncated, _ = self.env.step(decoded)
        obs, info = self._split(row, is_over=terminated or truncated)
        return obs, reward, terminated, truncated, info

    def _split(self, row: np.ndarray, *, is_over: bool) -> tuple[ObsArrays, dict[str, Any]]:
        mask, info = self._layout.mask(row), scalars(self._row_env.info)
        if mask is None:
            return self._layout.obs(row), info
        if not is_over:
            check_masks(
                lambda i: self._name, self._row_env._num_steps, mask[None, None], np.ones((1, 1), bool), self._action
            )  # fmt: skip
        return self._layout.obs(row), info | {MASK: mask}


# -- Tasks of text.


class TextEnv(gym.Wrapper):
    """A task of text. Any exception of it is raised as an EnvError with `name` and the step.

    Its infos hold scalars, and the named parts of a step's reward if the task reports them.
    """

    def __init__(self, task: gym.Env, spec: EnvSpec, name: str) -> None:
        super().__init__(task)
        assert not isinstance(spec.obs, dict), spec
        (self._max_length,) = spec.obs.shape
        self._name = name
        self._task = task_name(task)
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        if seed is not None:
            self._num_steps = 0
        try:
            text, info = as_pair(self.env.reset(seed=seed, **options))
            return self._checked(text), scalars(info)
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_reset(self._num_steps), e, self._task) from e

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        try:
            text, reward, terminated, truncated, info = self.env.step(action)
            ends = as_flag(terminated, "terminated"), as_flag(truncated, "truncated")
            told = as_info(info)
            plain = scalars(told)
            if PARTS in told:
                plain[PARTS] = as_parts(told[PARTS])
            return self._checked(text), as_number(reward), *ends, plain
        except (Exception, SystemExit) as e:
            raise explained(self._name, when_stepped(self._num_steps), e, self._task) from e

    def _checked(self, text: Any) -> str:
        if not isinstance(text, str):
            raise WrongOutput(f"{described(text)} as an observation", "its space says Text, a str")
        if len(text) > self._max_length:
            raise WrongOutput(
                f"an observation of {len(text)} characters", f"its space says at most {self._max_length}"
            )
        return text


_SCALARS = (bool, int, float, str, type(None))


def scalars(info: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the entries of an info that are one plain value under a name; NumPy's numbers become Python's."""
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in info.items()}
    return {key: value for key, value in plain.items() if type(key) is str and type(value) in _SCALARS}


# -- env.context: a vector that the reset of an episode sets, observed in every step of it. One policy can then be
# trained for many goals, such as the order in which to repair machines.


class ContextEnv(gym.Wrapper):
    """A task that also observes the `size` numbers of a reset's options={"context": ...}.

    The task gets the options too. An episode without a context keeps the last one; before the first it is 0.
    Observations are {"obs", "context"}, or the task's own dict with one more key. Raises ConfigError for a task of
    text, and for a task that has this key already.
    """

    def __init__(self, task: gym.Env, size: int) -> None:
        super().__init__(task)
        self._context = np.zeros(size, np.float32)
        space = task.observation_space
        if isinstance(space, Text):
            raise ConfigError(
                f"env.context={size}: the task observes text, which holds no numbers: leave it out"
            )
        self._is_dict = isinstance(space, Dict)
        parts = dict(space.spaces) if isinstance(space, Dict) else {"obs": space}
        if CONTEXT in parts:
            raise ConfigError(f"env.context={size}: the task observes a {CONTEXT} of its own: leave it out")
        self.observation_space = Dict({**parts, CONTEXT: Box(-np.inf, np.inf, (size,), np.float32)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        # An episode without a context keeps that of the episode before.
        if options and CONTEXT in options:
            self._context = as_context(options, len(self._context))
        obs, info = as_pair(self.env.reset(seed=seed, options=options))
        return self._with_context(obs), dict(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_context(obs), reward, terminated, truncated, info

    def _with_context(self, obs: Any) -> dict[str, Any]:
        if self._is_dict and not isinstance(obs, Mapping):
            raise WrongOutput(
                f"{described(obs)} as an observation", f"its space says {self.env.observation_space}"
            )
        return {**(obs if self._is_dict else {"obs": obs}), CONTEXT: self._context}


def as_context(options: Mapping[str, Any], size: int) -> np.ndarray:
    """Return the context `[size]` in the options of a reset. Raises ValueError if it is no vector of that size."""
    try:
        context = np.array(options[CONTEXT], np.float32)
    except (TypeError, ValueError):
        context = np.zeros(0, np.float32)
    if context.shape != (size,) or not np.isfinite(context).all():
        raise ValueError(
            f"the context {options[CONTEXT]!r:.80} of the reset's options: it must be {size} numbers"
        )
    return context
