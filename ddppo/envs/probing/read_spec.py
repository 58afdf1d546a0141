"""Read a task's EnvSpec off its spaces, one reset and one step, and check that it keeps to its spaces.

`read_spec` is the entry. Masks may come in the observation, in the info or from a method action_masks(). Harmless
oddities, such as a mask under a name of another library, are reported by `remark`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, Text
from gymnasium.spaces.utils import flatdim

from ddppo.envs.encoding.gym_spaces import (
    action_spec,
    check_is_space,
    checked_mask_size,
    obs_spec,
    sample_action,
)
from ddppo.envs.encoding.observations import RowEncoder, outside
from ddppo.envs.encoding.step_values import (
    MASK,
    WrongOutput,
    as_five,
    as_flag,
    as_info,
    as_number,
    as_pair,
    described,
    flat_mask,
    mask_of,
    masks_by_method,
    translated,
)
from ddppo.envs.meaning import spaces_described
from ddppo.envs.probing.suitability import check_wrappers
from ddppo.envs.saving import saver_of
from ddppo.envs.vec_env import (
    EnvNames,
    EnvSpec,
    check_finite,
    check_masks,
    explained,
    journal_of,
    task_name,
    when_reset,
    when_stepped,
)
from ddppo.errors import ConfigError
from ddppo.spaces import tools_of

Say = Callable[[str], None]  # takes a sentence

_IT = EnvNames(range(1), rank=None)  # probe.py replaces this name by "it"
_MASKABLE = ("discrete", "multi_discrete")
# Names of masks in other libraries.
_ALMOST_METHODS = (
    "action_mask",
    "get_action_mask",
    "get_action_masks",
    "valid_action_mask",
    "get_valid_actions",
)
_ALMOST_MASKS = (
    "action_masks",
    "avail_actions",
    "available_actions",
    "invalid_actions",
    "legal_actions",
    "valid_actions",
)


def silent(text: str) -> None:
    """Say nothing: the dry run has reported everything before ranks and evaluations probe the task again."""


def read_spec(task: gym.Env, at: Say = silent, remark: Say = silent) -> EnvSpec:
    """Read the spec off the task's spaces, its first reset and one step, and check that it keeps to its spaces.

    Args:
        at: called with the name of the next action.
        remark: called with a sentence for each harmless oddity, such as numbers outside the bounds of their space.
    """
    # The spaces.
    for which in ("action_space", "observation_space"):
        check_is_space(getattr(task, which, None), which)
    check_wrappers(task)
    action, space = action_spec(task.action_space), task.observation_space
    spec = EnvSpec(obs_spec(space), action)
    # Text is passed as it is: no arrays, no masks.
    if isinstance(space, Text) or spec.is_text:
        return _learn_text_spec(task, spec, at)
    # The first reset: does the task have masks?
    task.action_space.seed(0)
    at(when_reset(0))
    with _blaming(when_reset(0)):
        obs, info = _first(task, remark)
        method = _masks_by_method(task, spec, obs, info, remark)
        mask = mask_of(obs, info, method)
        # A mask in the observation space has its size there; any other mask shows its size.
        if isinstance(space, Dict) and MASK in space.spaces:
            spec = EnvSpec(spec.obs, action, checked_mask_size(flatdim(space[MASK]), action))
        elif mask is not None:
            spec = EnvSpec(spec.obs, action, checked_mask_size(flat_mask(mask).size, action))
        allowed = _check_row(space, spec, obs, {**info, MASK: mask}, 0.0, step=0)
    # One step, with an allowed action.
    at(when_stepped(1))
    with _blaming(when_stepped(1)):
        next_obs, reward, terminated, truncated, info = as_five(
            task.step(sample_action(task.action_space, allowed))
        )
        # The hot path accepts the same values (RowEnv.step); here they are checked for the first time.
        is_over = as_flag(terminated, "terminated") | as_flag(truncated, "truncated")
        info = as_info(info)
        mask = mask_of(next_obs, info, None if is_over else method)
        if spec.mask_size is None and mask is not None:  # only steps return a mask
            spec = EnvSpec(spec.obs, action, checked_mask_size(flat_mask(mask).size, action))
        _check_row(space, spec, next_obs, {**info, MASK: mask}, as_number(reward), step=1)
    # Report oddities, and read everything else that the spec holds.
    for text in _oddities(task, spec, [(when_reset(0), obs), (when_stepped(1), next_obs)], info):
        remark(f"env.id={task_name(task)}: it {text}")
    saved_by = saver_of(task).name
    spaces = spaces_described(space, task.action_space, has_mask=spec.mask_size is not None, task=task)
    return dataclasses.replace(
        spec, journal=journal_of(task), saved_by=saved_by, spaces=spaces, **_of_tasks(task)
    )


@contextmanager
def _blaming(when: str) -> Iterator[None]:
    """Add to an error about a returned value when the task returned it."""
    try:
        yield
    except Exception as e:
        if isinstance(e, WrongOutput) or isinstance(translated(e), WrongOutput):
            raise explained(_IT(0), when, e) from e
        raise


def _first(task: gym.Env, remark: Say) -> tuple[Any, Mapping[Any, Any]]:
    answer = task.reset(seed=0)
    obs, info = as_pair(answer)
    if answer[1] is None:
        remark(f"env.id={task_name(task)}: it returned None as info in its first reset: it is taken as {{}}")
    return obs, info


def _masks_by_method(
    task: gym.Env, spec: EnvSpec, obs: Any, info: Mapping[Any, Any], remark: Say
) -> Callable[[], Any] | None:
    """Return the task's action_masks() if its masks come from this method alone."""
    method = masks_by_method(task)
    if method is None or mask_of(obs, info) is not None or method() is None:
        return None
    # Box and MultiBinary actions have no choices that a mask could forbid.
    if spec.action.kind not in _MASKABLE:
        remark(
            f"env.id={task_name(task)}: its method action_masks() is not used, because its actions are "
            f"{spec.action.kind}: only Discrete and MultiDiscrete actions can be masked"
        )
        return None
    return method


def _oddities(
    task: gym.Env, spec: EnvSpec, seen: list[tuple[str, Any]], info: Mapping[Any, Any]
) -> Iterator[str]:
    """Yield a description of the first oddity of each kind: probably a mistake of the task, but accepted."""
    for when, obs in seen:
        text = next(outside(task.observation_space, obs), None)
        if text is not None:
            yield f"returned {text.replace(',', f' {when},', 1)}"
            break
    if spec.mask_size is not None or spec.action.kind not in _MASKABLE:
        return
    for name in _ALMOST_METHODS:
        if callable(getattr(task.unwrapped, name, None)):
            yield f"has a method {name}(), which is not used for masks: name it action_masks if it returns masks"
    for where, values in (("observations", seen[-1][1]), ("infos", info)):
        for key in _ALMOST_MASKS:
            given = values.get(key) if isinstance(values, Mapping) else None
            if given is not None and np.size(given) == sum(spec.action.sizes):
                yield (
                    f"has {key!r} in its {where}, which is not taken as a mask: name it action_mask if it holds 1 "
                    "for an allowed action"
                )


def _learn_text_spec(task: gym.Env, spec: EnvSpec, at: Say) -> EnvSpec:
    """Check by a reset and a step that a task of text observes and takes nothing but text; read its tokenizer."""
    if not (spec.is_text and isinstance(task.observation_space, Text)):
        one, other = ("action", "observations") if spec.is_text else ("observation", "actions")
        space = task.action_space if spec.is_text else task.observation_space
        raise ConfigError(
            f"{one} space {space} is not supported with {other} of another kind: make both Text, or use Discrete, "
            "MultiDiscrete, MultiBinary or Box"
        )
    task.action_space.seed(0)
    at(when_reset(0))
    with _blaming(when_reset(0)):
        obs, _ = as_pair(task.reset(seed=0))
        _check_text(obs)
    at(when_stepped(1))
    with _blaming(when_stepped(1)):
        obs, reward, terminated, truncated, info = as_five(task.step(task.action_space.sample()))
        _check_text(obs)
        as_number(reward), as_flag(terminated, "terminated"), as_flag(truncated, "truncated"), as_info(info)
    # The task may name the tokenizer of its language.
    tokens = getattr(task.unwrapped, "tokens", None)
    if not (tokens is None or isinstance(tokens, str)):
        raise ConfigError(
            f"its attribute tokens is a {type(tokens).__name__}: it must be the import path of a tokenizer, a str"
        )
    try:
        tools = tools_of(getattr(task.unwrapped, "tools", None))
    except ValueError as e:
        raise ConfigError(f"its attribute tools: {e}") from e
    spaces = spaces_described(task.observation_space, task.action_space, has_mask=False)
    return dataclasses.replace(spec, tokens=tokens, tools=tools, spaces=spaces, **_of_tasks(task))


def _check_text(obs: Any) -> None:
    """Raise WrongOutput unless the observation is a str."""
    if not isinstance(obs, str):
        raise WrongOutput(f"{described(obs)} as an observation", "its space says Text, a str")


def _of_tasks(task: gym.Env) -> dict[str, Any]:
    """Return the fields of EnvSpec about a task's sub-tasks and about processes, from its attributes."""
    tiers = getattr(task.unwrapped, "task_tiers", None)
    if tiers is not None:
        is_plain = isinstance(tiers, Mapping) and all(isinstance(x, str) for x in (*tiers, *tiers.values()))
        if not is_plain or not tiers:
            raise ConfigError("its attribute task_tiers must be a mapping of names of tasks to their tiers")
        tiers = dict(tiers)
    return {
        "tasks": tiers,
        "one_a_process": bool(getattr(task.unwrapped, "one_a_process", False)),
        "needs_close": bool(getattr(task.unwrapped, "needs_close", False)),
        "forked_from": getattr(task.unwrapped, "forked_from", None),
    }


def _check_row(
    space: gym.Space, spec: EnvSpec, obs: Any, info: Mapping[Any, Any], reward: float, *, step: int
) -> np.ndarray | None:
    """Encode the observation as a batch would, check numbers and mask as a collector would; return the mask."""
    encode = RowEncoder(space, spec)
    rows = encode(obs, info)[None, None]
    mask = encode.layout.mask(rows)
    check_finite(_IT, step, encode.layout.obs(rows), np.full((1, 1), reward), [])
    if mask is not None and step == 0:  # afterwards the episode may be over
        check_masks(_IT, step, mask, np.ones((1, 1), bool), spec.action)
    return None if mask is None else mask[0, 0]
