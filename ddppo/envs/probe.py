"""Learn a task's shapes before any process starts, and say plainly why it cannot be made."""

import dataclasses
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator, parse_env_id
from gymnasium.spaces import Dict, Text
from gymnasium.spaces.utils import flatdim

from ddppo.config import EnvConfig, near
from ddppo.envs.atari import ATARI_OURS, atari_spec
from ddppo.envs.batched import why_not_batched
from ddppo.envs.codec import (
    MASK,
    action_spec,
    checked_mask_size,
    flat_mask,
    obs_spec,
    sample_action,
)
from ddppo.envs.extras import register_extra
from ddppo.envs.faults import EnvNames, check_finite, check_masks
from ddppo.envs.native import learn_native_spec, make_native_task
from ddppo.envs.publishing import journal_of
from ddppo.envs.rows import RowEncoder, WrongOutput, as_number
from ddppo.envs.saving.savers import saver_of
from ddppo.envs.scalar import ArrayEnv, make_task
from ddppo.envs.vec_env import EnvSpec
from ddppo.errors import ConfigError, EnvError
from ddppo.package import install_command
from ddppo.tracebacks import in_one_line

T = TypeVar("T")

_OF_TEXT = ("auto", "sync", "remote")
_OURS = {
    "max_episode_steps": "set env.max_episode_steps",
    "num_envs": "set env.num_envs",
    "vectorization_mode": "set env.backend",
    "id": "set env.id",
    "render_mode": "training renders nothing; evaluation chooses a mode itself",
    "disable_env_checker": "the checker is always off",
    "vector_kwargs": "env.backend chooses the batch",
    "wrappers": "register a task that is wrapped already",
}


def probe(env: EnvConfig) -> EnvSpec:
    """Make the task once, read its shapes and close it. Raises ConfigError with the cause and the remedy.

    A task has masks if its Dict observations have the key action_mask, or its first infos have.
    With env.backend=native it is the batched implementation that is asked, for it may preprocess; with env.urls it is
    the servers.
    """
    if env.backend == "remote":
        _find_packages(env)
        if env.urls:
            from ddppo.envs.remote.served import served_spec

            return served_spec(env)
    _find_task(env)
    if env.is_ale:
        return _explained(env, lambda: atari_spec(env))
    if env.backend == "native":
        envs = _explained(env, lambda: make_native_task(env, num_envs=2))
        try:
            return _explained(env, lambda: learn_native_spec(envs))
        finally:
            envs.close()
    task = _explained(env, lambda: make_task(env))
    try:
        spec = _explained(env, lambda: _learn_spec(task))
    finally:
        task.close()
    if spec.is_text and env.backend not in _OF_TEXT:
        raise ConfigError(
            f"env.backend={env.backend}: {env.id} observes and does text, which goes through no array: use env.backend="
            f"{' or '.join(_OF_TEXT)}"
        )
    if spec.is_text and spec.one_a_process and env.num_envs > 1:
        _find_packages(env)
    return spec


def can_serve() -> bool:
    """Whether the packages are there that servers of environments and their clients need."""
    needed = ("fastapi", "uvicorn", "websockets", "msgpack")
    return all(importlib.util.find_spec(name) is not None for name in needed)


def _find_packages(env: EnvConfig) -> None:
    """Raise ConfigError where environments cannot be served."""
    if not can_serve():
        raise ConfigError(
            f"env.backend={env.backend}: {env.id} in processes of its own needs packages that are not installed: "
            f"{install_command('serve')}"
        )


def make_env(env: EnvConfig, render_mode: str | None = None) -> ArrayEnv:
    """Make one environment that speaks the model's language, e.g. to record video with render_mode=rgb_array.

    It encodes observations and decodes actions as the batches of sync and pool do. Raises as probe() does.
    """
    spec = probe(dataclasses.replace(env, backend="sync"))
    return ArrayEnv(_explained(env, lambda: make_task(env, render_mode)), spec, "the environment")


def _learn_spec(task: gym.Env) -> EnvSpec:
    """Read the shapes off the task's spaces, its first reset and one step, and see that it keeps to them."""
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
    check_text(obs)
    obs, reward, *_ = task.step(task.action_space.sample())
    check_text(obs)
    as_number(reward)
    tokens = getattr(task.unwrapped, "tokens", None)
    if not (tokens is None or isinstance(tokens, str)):
        raise ConfigError(
            f"its attribute tokens is a {type(tokens).__name__}: it must be the import path of a tokenizer, a str"
        )
    return dataclasses.replace(spec, tokens=tokens, **_of_tasks(task))


def check_text(obs: Any) -> None:
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


def _find_task(env: EnvConfig) -> None:
    """Check that env.id names a task that Gymnasium knows and that env.backend can make."""
    module, _, name = env.id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as e:  # a user's module may raise anything
            raise ConfigError(
                f"env.id={env.id}: module {module} cannot be imported ({in_one_line(e)}): install it, or mend it, "
                "or start in the folder that holds it"
            ) from e
    register_extra(env.id)
    for keyword in env.kwargs.keys() & _OURS.keys():
        raise ConfigError(
            f"env.kwargs.{keyword}={env.kwargs[keyword]} is not the task's to set: {_OURS[keyword]}"
        )
    registered = gym.registry.get(name)
    if registered is None:
        raise ConfigError(f"env.id={env.id}: {_why_unknown(name, imported=bool(module))}")
    if env.backend == "native" and registered.vector_entry_point is None:
        raise ConfigError(
            f"env.backend=native: {env.id} brings no batched implementation (vector_entry_point): "
            "use env.backend=sync"
        )
    if env.backend == "batched" and (why := why_not_batched(env)):
        raise ConfigError(f"env.backend=batched: {env.id} is not stepped as a batch: {why}")
    if env.backend != "native" and registered.entry_point is None:
        raise ConfigError(
            f"env.id={env.id} is only a batched implementation (vector_entry_point): env.backend=sync, pool and "
            "auto, and evaluation in any case, step single environments: register an entry_point too"
        )


def _why_unknown(name: str, *, imported: bool) -> str:
    try:
        namespace, base, _ = parse_env_id(name)
    except gym.error.Error:
        return "an id has the form [module:][namespace/]Name-v0"
    versions = sorted(
        (known.version or 0, known.id)
        for known in gym.registry.values()
        if (known.namespace, known.name) == (namespace, base)
    )
    if versions:
        return f"there is no such version, but {', '.join(known for _, known in versions)}"
    tail = "" if imported else "; a task of your own needs its module in front, e.g. my_pkg.envs:MyEnv-v0"
    return f"Gymnasium knows no task {name}{near(name, list(gym.registry))}{tail}"


def _explained(env: EnvConfig, call: Callable[[], T]) -> T:
    """Call, and turn whatever the task raises into a ConfigError that names the settings behind it."""
    cause: BaseException
    try:
        return call()
    except ConfigError as e:
        message, cause = f"env.id={env.id}: {e}", e
    except (gym.error.DependencyNotInstalled, ImportError) as e:
        message, cause = f"env.id={env.id} needs a package that is not installed: {_install_hint(env, e)}", e
    except (WrongOutput, EnvError) as e:
        message, cause = f"env.id={env.id} cannot be trained on: {_of_the_probe(e)}", e
    except (Exception, SystemExit) as e:  # a task may raise anything
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(e))
        if unknown and unknown[1] in {*env.kwargs, "max_episode_steps"}:
            message = _why_keyword(env, unknown[1])
        else:
            settings = f"env.id={env.id} with env.kwargs={env.kwargs}"
            message = f"{settings} cannot be made and started: {in_one_line(e)}"
        cause = e
    raise ConfigError(_one_paragraph(message)) from cause


def _of_the_probe(error: WrongOutput | EnvError) -> str:
    return (
        str(error).replace("evaluation environment 0", "it") if isinstance(error, EnvError) else f"it {error}"
    )


def _one_paragraph(message: str) -> str:
    return " ".join(message.split())


def _install_hint(env: EnvConfig, error: Exception) -> str:
    entry_point = gym.registry[env.id.rpartition(":")[2]].entry_point
    for extra in ("box2d", "mujoco"):
        if isinstance(entry_point, str) and entry_point.startswith(f"gymnasium.envs.{extra}"):
            return install_command(extra)
    if entry_point == "ddppo.envs.tasks.cloud.env:CloudEnv":
        return install_command("cloud")
    return str(error)


def _why_keyword(env: EnvConfig, keyword: str) -> str:
    registered = gym.registry[env.id.rpartition(":")[2]]
    is_batch = env.is_ale or env.backend == "native"
    entry_point = registered.vector_entry_point if is_batch else registered.entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    assert creator is not None, env.id
    known = [
        name
        for name, parameter in inspect.signature(creator).parameters.items()
        if name not in _OURS
        and not (env.is_ale and name in ATARI_OURS)
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if keyword == "max_episode_steps" and env.max_episode_steps is not None:
        return (
            f"env.max_episode_steps={env.max_episode_steps}: the batched implementation of {env.id} has no "
            "such limit: use env.backend=sync"
        )
    accepted = f"it accepts {', '.join(known)}" if known else "it accepts none"
    return f"env.kwargs.{keyword}: {env.id} does not accept this keyword{near(keyword, known)}; {accepted}"
