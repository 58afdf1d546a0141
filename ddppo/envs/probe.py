"""Learn a task's shapes before any process starts, and say plainly why it cannot be made."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from typing import TypeVar

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator, parse_env_id
from gymnasium.spaces import Dict
from gymnasium.spaces.utils import flatdim

from ddppo.config import EnvConfig, near
from ddppo.envs.codec import MASK, action_spec, checked_mask_size, flat_mask, sample_action, without_mask
from ddppo.envs.native import learn_native_spec, make_native_task
from ddppo.envs.scalar import FlatEnv, make_task
from ddppo.envs.vec_env import EnvSpec
from ddppo.errors import ConfigError
from ddppo.package import install_command

T = TypeVar("T")

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
    With env.backend=native it is the batched implementation that is asked, for it may preprocess.
    """
    _find_task(env)
    if env.backend == "native":
        envs = _explained(env, lambda: make_native_task(env, num_envs=2))
        try:
            return _explained(env, lambda: learn_native_spec(envs))
        finally:
            envs.close()
    task = _explained(env, lambda: make_task(env))
    try:
        return _explained(env, lambda: _learn_spec(task))
    finally:
        task.close()


def make_env(env: EnvConfig, render_mode: str | None = None) -> FlatEnv:
    """Make one environment that speaks the model's language, e.g. to record video with render_mode=rgb_array.

    It encodes observations and decodes actions as the batches of sync and async do. Raises as probe() does.
    """
    spec = probe(dataclasses.replace(env, backend="sync"))
    return FlatEnv(_explained(env, lambda: make_task(env, render_mode)), spec)


def _learn_spec(task: gym.Env) -> EnvSpec:
    action = action_spec(task.action_space)
    obs_size = flatdim(without_mask(task.observation_space))
    _, info = task.reset(seed=0)
    space = task.observation_space
    if isinstance(space, Dict) and MASK in space.spaces:
        return EnvSpec(obs_size, action, checked_mask_size(flatdim(space[MASK]), action))
    if info.get(MASK) is None:
        task.action_space.seed(0)
        *_, info = task.step(sample_action(task.action_space, None))
    if info.get(MASK) is None:
        return EnvSpec(obs_size, action)
    return EnvSpec(obs_size, action, checked_mask_size(flat_mask(info[MASK]).size, action))


def _find_task(env: EnvConfig) -> None:
    """Check that env.id names a task that Gymnasium knows and that env.backend can make."""
    module, _, name = env.id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except Exception as e:  # a user's module may raise anything
            raise ConfigError(
                f"env.id={env.id}: module {module} cannot be imported ({type(e).__name__}: {e}): install it, "
                "or start in the folder that holds it"
            ) from e
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
    if env.backend != "native" and registered.entry_point is None:
        raise ConfigError(
            f"env.id={env.id} is only a batched implementation (vector_entry_point): env.backend=sync, async and "
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
    cause: Exception
    try:
        return call()
    except ConfigError as e:
        message, cause = f"env.id={env.id}: {e}", e
    except (gym.error.DependencyNotInstalled, ImportError) as e:
        message, cause = f"env.id={env.id} needs a package that is not installed: {_install_hint(env, e)}", e
    except Exception as e:  # a task may raise anything
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(e))
        if unknown and unknown[1] in {*env.kwargs, "max_episode_steps"}:
            message = _why_keyword(env, unknown[1])
        else:
            settings = f"env.id={env.id} with env.kwargs={env.kwargs}"
            message = f"{settings} cannot be made and started: {type(e).__name__}: {e}"
        cause = e
    raise ConfigError(_one_paragraph(message)) from cause


def _one_paragraph(message: str) -> str:
    return " ".join(message.split())


def _install_hint(env: EnvConfig, error: Exception) -> str:
    entry_point = gym.registry[env.id.rpartition(":")[2]].entry_point
    if isinstance(entry_point, str) and entry_point.startswith("gymnasium.envs.box2d"):
        return install_command("box2d")
    return str(error)


def _why_keyword(env: EnvConfig, keyword: str) -> str:
    registered = gym.registry[env.id.rpartition(":")[2]]
    entry_point = registered.vector_entry_point if env.backend == "native" else registered.entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    assert creator is not None, env.id
    known = [
        name
        for name, parameter in inspect.signature(creator).parameters.items()
        if name not in _OURS and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    if keyword == "max_episode_steps" and env.max_episode_steps is not None:
        return (
            f"env.max_episode_steps={env.max_episode_steps}: the batched implementation of {env.id} has no "
            "such limit: use env.backend=sync"
        )
    accepted = f"it accepts {', '.join(known)}" if known else "it accepts none"
    return f"env.kwargs.{keyword}: {env.id} does not accept this keyword{near(keyword, known)}; {accepted}"
