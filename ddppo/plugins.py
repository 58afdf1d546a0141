"""Plugins: packages that add presets, settings, tasks, models, backends. Imports neither torch nor gymnasium.

A package declares its plugin under the entry point group `ddppo.plugins`, in its pyproject.toml:

    [project.entry-points."ddppo.plugins"]
    my_project = "my_project:PLUGIN"

The packages of ddppo.domains, and ddppo.study, ddppo.cluster and ddppo.serve, are plugins too. They are found by their
folders, and ddppo works without any of them (docs/guide/domain.md).
"""

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ddppo.errors import ConfigError, in_one_line
from ddppo.native.compiling import Library, cpp

GROUP = "ddppo.plugins"
_OURS = ("study", "cluster", "serve")


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A way to step environments outside the rank, chosen by env.backend. Functions are named by import paths."""

    # make(env, spec, names, timeout_s, max_restarts=0) returns the VecEnv of a rank.
    make: str
    # check(config) checks the settings, before any process starts.
    check: str | None = None
    # spec(env) returns the EnvSpec of a task that is not on this machine; None if the task is here.
    spec: str | None = None
    # check_run(env, spec, num_envs, num_more) checks the number of environments; num_more are those of evaluation.
    check_run: str | None = None
    # Why its environments cannot be saved, as the end of a sentence that begins with their id; "" if they can.
    unsaved: str = ""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The additions of one package. Classes and functions are named by import paths, since their modules load torch."""

    # __name__ of the package. Its folder conf/ holds presets, like ddppo's conf/, and its folder src/ C++.
    package: str
    # {"model/my_schema": dataclass of settings}, for Hydra.
    schemas: Mapping[str, str] = field(default_factory=dict)
    # {model.name: subclass of ddppo.models.actor_critic.ActorCritic}
    models: Mapping[str, str] = field(default_factory=dict)
    # {algorithm.name: subclass of ddppo.algorithms.contract.Algorithm}
    algorithms: Mapping[str, str] = field(default_factory=dict)
    # {"model/my_net": dataclass of the settings of model.name=my_net}, and {"algorithm/my_algorithm": the same for
    # algorithm.name=my_algorithm}. A model or algorithm without an entry is imported for its attribute, `Settings` of a
    # model, `settings_class` of an algorithm.
    settings: Mapping[str, str] = field(default_factory=dict)
    # {id: keyword arguments of gymnasium.register}
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # {entry point of a task: its batched environments, for env.backend=batched}
    dynamics: Mapping[str, str] = field(default_factory=dict)
    # {env.backend: a way to step environments}
    backends: Mapping[str, Backend] = field(default_factory=dict)
    # Task samplers: {name: a section of settings, a SamplerSettings}, and by the same name a function that makes a
    # ddppo.algorithms.task_sampler.TaskSampler.
    sections: Mapping[str, str] = field(default_factory=dict)
    samplers: Mapping[str, str] = field(default_factory=dict)
    # {prefix of metrics' names: a tuple of ddppo.records.metrics.Metric}
    metrics: Mapping[str, str] = field(default_factory=dict)
    # {import path of a task's journal, or a kind of actions that no VecEnv takes: a ddppo.loop.evaluation.Evaluator}
    evaluators: Mapping[str, str] = field(default_factory=dict)
    # The extra of ddppo (an optional dependency) that its tasks need.
    extra: str | None = None
    # {file name: report(ReportOptions, width), which returns the text}, for run folders that have such a file.
    reports: Mapping[str, str] = field(default_factory=dict)
    # {file name: show(folder, top), which returns the text}: `python -m ddppo.search` of folders that have such a file.
    searches: Mapping[str, str] = field(default_factory=dict)
    # {folder in a run folder: a function of the run folder that returns (heading, text) pairs}, which the report shows.
    excerpts: Mapping[str, str] = field(default_factory=dict)

    @property
    def conf(self) -> Path | None:
        """The folder of the package's presets, None without one."""
        return self._folder("conf")

    @property
    def src(self) -> Path | None:
        """The folder of the package's C++, None without one."""
        return self._folder("src")

    @functools.cached_property
    def cpp(self) -> Library:
        """The library of the C++ in src/. `PLUGIN.cpp.load()` compiles it at first use, with the flags of ddppo's."""
        assert self.src is not None, f"{self.package} has no folder src/"
        return cpp(self.src)

    def brings(self, what: str, name: str) -> bool:
        """Return whether a name is one of its "tasks" or "models" (`what`), or an import path into its package."""
        module = name.partition(":")[0]
        return name in getattr(self, what) or f"{module}.".startswith(f"{self.package}.")

    def _folder(self, name: str) -> Path | None:
        file = importlib.import_module(self.package).__file__
        folder = Path(file).parent / name if file else None
        return folder if folder is not None and folder.is_dir() else None


@functools.cache
def plugins() -> tuple[Plugin, ...]:
    """Return all plugins, ddppo's own first. Raises ConfigError for one that cannot be imported or is no Plugin."""
    import ddppo

    # 1. Folders of ddppo. A copy of the core alone lacks them.
    found = []
    for name in (*_OURS, "domains"):
        if not any(Path(folder, name, "__init__.py").is_file() for folder in ddppo.__path__):
            continue
        package = importlib.import_module(f"ddppo.{name}")
        names = (
            [f".{inner.name}" for inner in pkgutil.iter_modules(package.__path__)]
            if name == "domains"
            else [""]
        )
        modules = [importlib.import_module(f"ddppo.{name}{inner}") for inner in names]
        found += [module.PLUGIN for module in modules if hasattr(module, "PLUGIN")]
    # 2. Entry points of installed packages.
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        subject = f"the plugin {entry.name} of {entry.dist.name if entry.dist else 'an installed package'}"
        try:
            plugin = entry.load()
        except Exception as e:  # a user's module may raise anything
            raise ConfigError(
                f"{subject}, {entry.value}, cannot be imported: {in_one_line(e)}: mend it, or uninstall its package"
            ) from e
        if not isinstance(plugin, Plugin):
            raise ConfigError(
                f"{subject}, {entry.value}, is of type {type(plugin).__name__}: must be a ddppo.plugins.Plugin"
            )
        found.append(plugin)
    return tuple(found)


def added(what: str) -> dict[str, Any]:
    """Return the entries of all plugins in one field, such as "models". Raises ConfigError if two have the same key."""
    # Remember the package beside each value, for the message about a second one.
    both: dict[str, tuple[str, Any]] = {}
    for plugin in plugins():
        for key, value in getattr(plugin, what).items():
            if key in both:
                raise ConfigError(
                    f"the plugins {both[key][0]} and {plugin.package} both bring {key} among their {what}: rename one"
                )
            both[key] = plugin.package, value
    return {key: value for key, (_, value) in both.items()}


def imported(path: str) -> Any:
    """Return the object at an import path, `module:attribute`. Raises the errors of the module, and AttributeError."""
    module, _, attribute = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in attribute.split("."):
        found = getattr(found, name)
    return found
