"""Find the task that env.id names, make it once and read its spec, or explain why that is impossible.

`probe` is the entry. `find_task` checks the id; `_explained` turns exceptions of the task into a ConfigError that names
the setting and the remedy. read_spec.py reads the spec off the task.
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable
from typing import TypeVar

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator, parse_env_id

from ddppo.config.fields import near
from ddppo.config.settings import EnvConfig
from ddppo.envs.backends.atari import ATARI_OURS, atari_spec
from ddppo.envs.backends.classic_cpp import why_not_batched
from ddppo.envs.backends.envpool import make_envpool_task
from ddppo.envs.backends.gym_vector import gym_vector_spec, make_gym_vector_task
from ddppo.envs.encoding.observations import WrongOutput
from ddppo.envs.guard import IMPORT, TRIED, guarding
from ddppo.envs.probing.read_spec import Say, read_spec, silent
from ddppo.envs.probing.suitability import check_wrappers
from ddppo.envs.registration import register_extra
from ddppo.envs.single import ArrayEnv, make_task
from ddppo.envs.vec_env import EnvSpec
from ddppo.errors import ConfigError, EnvError, in_one_line
from ddppo.package import install_command
from ddppo.plugins import added, imported, plugins

T = TypeVar("T")

_OF_TEXT = ("auto", "sync", "remote")  # backends for tasks of text
# Keywords that env.kwargs must not hold, and the setting to use instead.
_NOT_THE_TASKS = {
    "max_episode_steps": "set env.max_episode_steps",
    "num_envs": "set env.num_envs",
    "vectorization_mode": "set env.backend",
    "id": "set env.id",
    "render_mode": "training renders nothing; evaluation chooses a mode itself",
    "disable_env_checker": "the checker is always off",
    "vector_kwargs": "env.backend chooses the batch",
    "wrappers": "set env.wrappers",
}


@guarding(TRIED)
def probe(env: EnvConfig, at: Say = silent, remark: Say = silent, *, device: str | None = None) -> EnvSpec:
    """Make the task once, read its spec and close it. Raises ConfigError with the cause and the remedy.

    Args:
        at: called with the name of the next action, before it: a task may hang in it.
        remark: called with a sentence for each oddity that does no harm.
        device: the run's setting, if it is known: simulators with env.backend=device are made there.

    A task has masks if its Dict observations have the key action_mask, or its first infos have.
    With env.backend=gym_vector the spec is that of the task's own batch, which may preprocess. A plugin's backend may
    give the spec itself, as servers at env.urls do.
    """
    if (spec := spec_elsewhere(env)) is not None:
        return spec
    if env.backend == "device":
        of_device: EnvSpec = imported("ddppo.envs.backends.device:probed")(env, device).spec
        return of_device
    # Games, vector environments and single environments are made in different ways.
    find_task(env)
    if env.is_ale:
        return _explained(env, lambda: atari_spec(env))
    if env.backend == "gym_vector" or env.is_envpool:
        make = make_envpool_task if env.is_envpool else make_gym_vector_task
        envs: gym.vector.VectorEnv = _explained(env, lambda: make(env, num_envs=2))
        try:
            _explained(env, lambda: check_wrappers(envs))
            return _explained(env, lambda: gym_vector_spec(envs))
        finally:
            envs.close()
    # A single environment: make it, read its spec, close it.
    at("when it was made")
    task = _explained(env, lambda: make_task(env))
    try:
        spec = _explained(env, lambda: read_spec(task, at, remark))
    finally:
        task.close()
    if spec.is_text and env.backend not in _OF_TEXT:
        raise ConfigError(
            f"env.backend={env.backend}: {env.id} is a task of text, and this backend steps arrays: use env.backend="
            f"{' or '.join(_OF_TEXT)}"
        )
    # Check now that servers could step it, before any process starts.
    if spec.is_text and spec.one_a_process and env.num_envs > 1:  # env.backend=auto uses servers then
        spec_elsewhere(dataclasses.replace(env, backend="remote"))
    return spec


def spec_elsewhere(env: EnvConfig) -> EnvSpec | None:
    """Return the spec that a plugin's backend gives, such as that of a server; None for tasks that are made here.

    Raises ConfigError if the backend can step no task.
    """
    backend = added("backends").get(env.backend)
    return None if backend is None or backend.spec is None else imported(backend.spec)(env)


def why_unsaved(env: EnvConfig) -> str | None:
    """Return why environments of a plugin's backend cannot be saved; None if they can, and for our backends."""
    backend = added("backends").get(env.backend)
    return f"{env.id} {backend.unsaved}" if backend is not None and backend.unsaved else None


def make_env(env: EnvConfig, render_mode: str | None = None) -> ArrayEnv:
    """Make one environment that takes a model's actions, e.g. to record video with render_mode=rgb_array.

    Observations and actions are encoded as in the batches of sync and pool. Raises ConfigError as probe() does.
    """
    spec = probe(dataclasses.replace(env, backend="sync"))
    return ArrayEnv(_explained(env, lambda: make_task(env, render_mode)), spec, "the environment")


# -- Is the task there? ----------------------------------------------------------------------------------------


@guarding(IMPORT)
def find_task(env: EnvConfig) -> None:
    """Check that env.id names a task that Gymnasium knows and that env.backend can make."""
    # Import the module that registers the task, as gym.make would.
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
    # gym.make would take these keywords for its own.
    for keyword in env.kwargs.keys() & _NOT_THE_TASKS.keys():
        raise ConfigError(
            f"env.kwargs.{keyword}={env.kwargs[keyword]} is no setting of the task: {_NOT_THE_TASKS[keyword]}"
        )
    # The id must be registered, and in the form that the backend steps.
    registered = gym.registry.get(name)
    if registered is None:
        raise ConfigError(f"env.id={env.id}: {_why_unknown(name, imported=bool(module))}")
    if env.backend == "gym_vector" and registered.vector_entry_point is None:
        raise ConfigError(
            f"env.backend=gym_vector: {env.id} brings no batched implementation (vector_entry_point): "
            "use env.backend=sync"
        )
    if env.backend == "batched" and (why := why_not_batched(env)):
        raise ConfigError(f"env.backend=batched: {env.id} is not stepped as a batch: {why}")
    if env.backend != "gym_vector" and registered.entry_point is None:
        raise ConfigError(
            f"env.id={env.id} is only a batched implementation (vector_entry_point): env.backend=sync, pool and "
            "auto, and evaluation in any case, step single environments: register an entry_point too"
        )


def _why_unknown(name: str, *, imported: bool) -> str:
    try:
        namespace, base, _ = parse_env_id(name)
    except gym.error.Error:
        return "an id has the form [module:][namespace/]Name-v0"
    # The usual mistakes: another version, a misspelt name, a missing module.
    versions = sorted(
        (known.version or 0, known.id)
        for known in gym.registry.values()
        if (known.namespace, known.name) == (namespace, base)
    )
    if versions:
        return f"there is no such version, but {', '.join(known for _, known in versions)}"
    tail = "" if imported else "; a task of your own needs its module in front, e.g. my_pkg.envs:MyEnv-v0"
    return f"Gymnasium knows no task {name}{near(name, list(gym.registry))}{tail}"


# -- Why it cannot be made or started. --------------------------------------------------------------------------------


def _explained(env: EnvConfig, call: Callable[[], T]) -> T:
    """Return call(); turn any exception of the task into a ConfigError that names the setting behind it."""
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
        # A wrong keyword gets the list of those that the task takes.
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(e))
        if unknown and unknown[1] in {*env.kwargs, "max_episode_steps"}:
            message = _why_keyword(env, unknown[1])
        elif unknown and unknown[1] == "render_mode":
            message = (
                f"env.id={env.id} takes no render_mode, so it cannot be rendered: let its __init__ take "
                "render_mode=None, its metadata list the modes, and its render() return a picture; "
                "ddppo.evaluate needs no pictures"
            )
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
    # Gymnasium names the missing package, but not the extra of ours that installs it.
    entry_point = gym.registry[env.id.rpartition(":")[2]].entry_point
    for extra in ("box2d", "mujoco"):
        if isinstance(entry_point, str) and entry_point.startswith(f"gymnasium.envs.{extra}"):
            return install_command(extra)
    of_plugin = next((x.extra for x in plugins() if env.id.rpartition(":")[2] in x.tasks), None)
    return str(error) if of_plugin is None else install_command(of_plugin)


def _why_keyword(env: EnvConfig, keyword: str) -> str:
    registered = gym.registry[env.id.rpartition(":")[2]]
    is_batch = env.is_ale or env.backend == "gym_vector"
    entry_point = registered.vector_entry_point if is_batch else registered.entry_point
    # The parameters of the entry point, without those of other settings.
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    assert creator is not None, env.id
    known = [
        name
        for name, parameter in inspect.signature(creator).parameters.items()
        if name not in _NOT_THE_TASKS
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
