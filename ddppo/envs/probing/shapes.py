"""What a task observes and does, read off its spaces, a reset and a step, to which it must keep."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, Text
from gymnasium.spaces.utils import flatdim

from ddppo.envs.encoding.codec import (
    MASK,
    action_spec,
    checked_mask_size,
    flat_mask,
    obs_spec,
    sample_action,
)
from ddppo.envs.encoding.rows import RowEncoder, WrongOutput, as_number
from ddppo.envs.faults import EnvNames, check_finite, check_masks
from ddppo.envs.publishing import journal_of
from ddppo.envs.saving.savers import saver_of
from ddppo.envs.vec_env import EnvSpec
from ddppo.errors import ConfigError


def learn_spec(task: gym.Env, at: Callable[[str], None] = lambda where: None) -> EnvSpec:
    """Read the shapes off the task's spaces, its first reset and one step, and see that it keeps to them.

    at: hears what is done next.
    """
    at("in its first reset")
    action, space = action_spec(task.action_space), task.observation_space
    spec = EnvSpec(obs_spec(space), action)
    if isinstance(space, Text) or spec.is_text:
        return _learn_text_spec(task, spec)
    obs, info = _pair(task.reset(seed=0))
    task.action_space.seed(0)
    mask = obs.get(MASK) if isinstance(obs, dict) else None
    mask = info.get(MASK) if mask is None else mask
    if isinstance(space, Dict) and MASK in space.spaces:
        spec = EnvSpec(spec.obs, action, checked_mask_size(flatdim(space[MASK]), action))
    elif mask is not None:
        spec = EnvSpec(spec.obs, action, checked_mask_size(flat_mask(mask).size, action))
    allowed = _check_row(space, spec, obs, info, 0.0, step=0)
    at("in its first step")
    obs, reward, _, _, info = task.step(sample_action(task.action_space, allowed))
    if spec.mask_size is None and info.get(MASK) is not None:  # only steps hand it over
        spec = EnvSpec(spec.obs, action, checked_mask_size(flat_mask(info[MASK]).size, action))
    _check_row(space, spec, obs, info, as_number(reward), step=1)
    saved_by = saver_of(task).name
    return dataclasses.replace(spec, journal=journal_of(task), saved_by=saved_by, **_of_tasks(task))


def _learn_text_spec(task: gym.Env, spec: EnvSpec) -> EnvSpec:
    """See that a task of text observes and does nothing else, by its first reset and a step; and who speaks for it."""
    if not (spec.is_text and isinstance(task.observation_space, Text)):
        one, other = ("action", "observations") if spec.is_text else ("observation", "actions")
        space = task.action_space if spec.is_text else task.observation_space
        raise ConfigError(
            f"{one} space {space} is not supported with {other} of another kind: make both Text, or use Discrete, "
            "MultiDiscrete, MultiBinary or Box"
        )
    task.action_space.seed(0)
    obs, _ = _pair(task.reset(seed=0))
    _check_text(obs)
    obs, reward, *_ = task.step(task.action_space.sample())
    _check_text(obs)
    as_number(reward)
    tokens = getattr(task.unwrapped, "tokens", None)
    if not (tokens is None or isinstance(tokens, str)):
        raise ConfigError(
            f"its attribute tokens is a {type(tokens).__name__}: it must be the import path of a tokenizer, a str"
        )
    return dataclasses.replace(spec, tokens=tokens, **_of_tasks(task))


def _check_text(obs: Any) -> None:
    """Raise WrongOutput unless an observation of a task of text is one."""
    if not isinstance(obs, str):
        raise WrongOutput(f"an observation of type {type(obs).__name__}", "its space says Text, a str")


def _of_tasks(task: gym.Env) -> dict[str, Any]:
    """Return what a task says of the tasks that it knows, and of processes."""
    tiers = getattr(task.unwrapped, "task_tiers", None)
    if tiers is not None:
        is_plain = isinstance(tiers, Mapping) and all(isinstance(x, str) for x in (*tiers, *tiers.values()))
        if not is_plain or not tiers:
            raise ConfigError("its attribute task_tiers must be a mapping of names of tasks to their tiers")
        tiers = dict(tiers)
    return {
        "tasks": tiers,
        "one_a_process": bool(getattr(task.unwrapped, "one_a_process", False)),
        "forked_from": getattr(task.unwrapped, "forked_from", None),
    }


def _pair(answer: Any) -> tuple[Any, dict[str, Any]]:
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise WrongOutput(f"{type(answer).__name__} from reset()", "it must return (observation, info)")
    return answer


def _check_row(
    space: gym.Space, spec: EnvSpec, obs: Any, info: dict[str, Any], reward: float, *, step: int
) -> np.ndarray | None:
    """Encode as a batch would, and check as whoever acts in it would; return the mask."""
    encode = RowEncoder(space, spec)
    rows = encode(obs, info)[None, None]
    mask = encode.layout.mask(rows)
    names = EnvNames(range(1), rank=None)
    check_finite(names, step, encode.layout.obs(rows), np.full((1, 1), reward), [])
    if mask is not None and step == 0:  # afterwards the episode may be over
        check_masks(names, step, mask, np.ones((1, 1), bool), spec.action)
    return None if mask is None else mask[0, 0]
