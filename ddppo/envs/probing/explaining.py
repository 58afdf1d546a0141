"""What a task raises while it is made and tried, as a mistake in the settings behind it."""

import inspect
import re
from collections.abc import Callable
from typing import TypeVar

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from ddppo.config import EnvConfig, near
from ddppo.envs.atari.batch import ATARI_OURS
from ddppo.envs.encoding.rows import WrongOutput
from ddppo.envs.probing.finding import NOT_THE_TASKS
from ddppo.errors import ConfigError, EnvError
from ddppo.package import install_command
from ddppo.tracebacks import in_one_line

T = TypeVar("T")


def explained(env: EnvConfig, call: Callable[[], T]) -> T:
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
        if name not in NOT_THE_TASKS
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
