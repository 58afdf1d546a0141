"""Whether the task that is named is there, and what its backend needs."""

import importlib
import importlib.util

import gymnasium as gym
from gymnasium.envs.registration import parse_env_id

from ddppo.config import EnvConfig, near
from ddppo.envs.batched import why_not_batched
from ddppo.envs.guard import IMPORT, guarding
from ddppo.envs.scalar.extras import register_extra
from ddppo.errors import ConfigError
from ddppo.package import install_command
from ddppo.tracebacks import in_one_line

# Keywords that are not the task's to set, and what is.
NOT_THE_TASKS = {
    "max_episode_steps": "set env.max_episode_steps",
    "num_envs": "set env.num_envs",
    "vectorization_mode": "set env.backend",
    "id": "set env.id",
    "render_mode": "training renders nothing; evaluation chooses a mode itself",
    "disable_env_checker": "the checker is always off",
    "vector_kwargs": "env.backend chooses the batch",
    "wrappers": "register a task that is wrapped already",
}


def can_serve() -> bool:
    """Whether the packages are there that servers of environments and their clients need."""
    needed = ("fastapi", "uvicorn", "websockets", "msgpack")
    return all(importlib.util.find_spec(name) is not None for name in needed)


def find_packages(env: EnvConfig) -> None:
    """Raise ConfigError where environments cannot be served."""
    if not can_serve():
        raise ConfigError(
            f"env.backend={env.backend}: {env.id} in processes of its own needs packages that are not installed: "
            f"{install_command('serve')}"
        )


@guarding(IMPORT)
def find_task(env: EnvConfig) -> None:
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
    for keyword in env.kwargs.keys() & NOT_THE_TASKS.keys():
        raise ConfigError(
            f"env.kwargs.{keyword}={env.kwargs[keyword]} is not the task's to set: {NOT_THE_TASKS[keyword]}"
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
