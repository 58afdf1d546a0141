"""Environments that tell one another what they found, and the journal of it.

An environment takes part by a class attribute `journal`, the import path "module:Class" of a Journal, and two methods:
`publish()` returns bytes for all others, b"" for nothing, and `receive(news)` takes what all environments of the run
published, its own included, in the order of their indices. Both are called once between iterations, so that what
follows does not depend on how environments are dealt to ranks and processes. What the bytes mean is the task's own.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from ddppo.config import EnvConfig
from ddppo.envs.vec_env import VecEnv
from ddppo.errors import ConfigError
from ddppo.tracebacks import in_one_line

_METHODS = ("publish", "receive")


class PublishingEnvs(VecEnv, Protocol):
    """A batch of environments whose `spec.journal` is set."""

    def publish(self) -> list[bytes]:
        """Return what each has to tell; b"" of one whose process was lost, which the next step finds."""
        ...

    def receive(self, news: Sequence[bytes], envs: Sequence[int] | None = None) -> None:
        """Hand news to all, or to those of the batch at `envs`."""
        ...

    def made_anew(self) -> list[int]:
        """Return which were lost with their process and made anew since this was last asked: they know nothing."""
        ...


class Journal(Protocol):
    """What keeps a record of news, once in a run, in files of its own in the run folder.

    Made as Journal(env, run_folder). metrics: of what `note` returns, name -> (unit, meaning); a name may go on after a
    slash, as best_cost/tof_3 for best_cost.
    """

    metrics: Mapping[str, tuple[str, str]]

    def note(self, news: list[bytes], env_steps: int, wall_s: float) -> dict[str, float]:
        """Record the news of an iteration, by the environments' indices; return metrics by their names.

        The first, and others of its name up to a slash, are shown while the run goes on.
        """
        ...

    def pictures(self) -> dict[str, np.ndarray]:
        """Return pictures `[height, width, 3]` uint8 by name, those that changed since the last call."""
        ...

    def before(self) -> list[bytes]:
        """Return, as news, what the folder knows: of a run that goes on, or for an environment that lost all."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return what summary.json is to hold of it; "said", a sentence by label, is printed when the run ends."""
        ...


def journal_of(task: gym.Env) -> str | None:
    """Return the import path of a task's journal, None if it has none. Raises ConfigError where it cannot be used."""
    path = getattr(task.unwrapped, "journal", None)
    if path is None:
        return None
    lacking = [name for name in _METHODS if not callable(getattr(task.unwrapped, name, None))]
    if lacking:
        raise ConfigError(
            f"it names a journal, {path}, but has no {lacking[0]}(): give it one, or no journal"
        )
    journal_class(path)
    return path


def journal_class(path: str) -> Any:
    """Return what makes a Journal of an EnvConfig and a folder. Raises ConfigError."""
    try:
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name)
    except Exception as e:  # what a module of a user's own may raise
        raise ConfigError(
            f"its journal={path} cannot be imported ({in_one_line(e)}): give it as my_pkg.journals:MyJournal"
        ) from e


def make_journal(env: EnvConfig, path: str, folder: Path) -> Journal:
    return journal_class(path)(env, folder)
