"""What packages add to ddppo: presets, settings, tasks, models, backends. Imports neither torch nor gymnasium.

A package of a user's own declares it under the entry point group `ddppo.plugins`, in its pyproject.toml:

    [project.entry-points."ddppo.plugins"]
    my_project = "my_project:PLUGIN"

The packages of ddppo.domains, and ddppo.study, ddppo.cluster and ddppo.serve, are plugins of the same shape, which are
found by their folders: ddppo works without any of them (docs/guide/domain.md).
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
    """A way to step environments outside the rank, chosen by env.backend. Functions are named by their import paths."""

    make: str  # make(env, spec, names, timeout_s, max_restarts=0): the VecEnv of a rank
    check: str | None = None  # check(config): the rules of its settings, before any process starts
    spec: str | None = (
        None  # spec(env): what is stepped where the task is not on this machine; None where it is
    )
    check_run: str | None = (
        None  # check_run(env, spec, num_envs, num_more): num_more for evaluation meanwhile
    )
    unsaved: str = ""  # why its environments cannot be saved, behind their id; "" where they can


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """What one package adds. All that takes time to import is named by its import path, `module:attribute`."""

    package: str  # __name__ of the package. A folder conf/ in it holds presets, as ddppo's conf/ does, and src/ C++
    schemas: Mapping[str, str] = field(
        default_factory=dict
    )  # Hydra's: {"model/my_schema": dataclass of settings}
    models: Mapping[str, str] = field(
        default_factory=dict
    )  # model.name: a subclass of ddppo.models.actor_critic.ActorCritic
    # {"model/my_net": dataclass of the settings that model.name=my_net has}; what is not named here is looked for in
    # the class of the model, as `Settings`, for which it is imported
    settings: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # id: keywords of gymnasium.register
    dynamics: Mapping[str, str] = field(
        default_factory=dict
    )  # entry point of a task: its batch, env.backend=batched
    backends: Mapping[str, Backend] = field(default_factory=dict)  # env.backend: how environments are stepped
    # What episodes begin with: a section of settings (a SamplerSettings), and by the same name a function that makes a
    # ddppo.algorithms.task_sampler.TaskSampler
    sections: Mapping[str, str] = field(default_factory=dict)
    samplers: Mapping[str, str] = field(default_factory=dict)
    # What names of metrics begin with: a tuple of rows of the table, ddppo.records.metrics.Metric
    metrics: Mapping[str, str] = field(default_factory=dict)
    evaluators: Mapping[str, str] = field(
        default_factory=dict
    )  # kind of actions that no VecEnv takes: a ddppo.loop.evaluation.Evaluator
    extra: str | None = None  # of ddppo's optional dependencies, the name of those that its tasks need
    # A file that marks a run folder with a report of its own: report(ReportOptions, width) -> what is printed.
    reports: Mapping[str, str] = field(default_factory=dict)

    @property
    def conf(self) -> Path | None:
        """The folder of the package's presets, if it has one."""
        return self._folder("conf")

    @property
    def src(self) -> Path | None:
        """The folder of the package's C++, if it has one."""
        return self._folder("src")

    @functools.cached_property
    def cpp(self) -> Library:
        """The library of the C++ in src/: `PLUGIN.cpp.load()`, compiled at first use with the flags of ddppo's own."""
        assert self.src is not None, f"{self.package} has no folder src/"
        return cpp(self.src)

    def brings(self, what: str, name: str) -> bool:
        """Whether a name is the plugin's: one of its "tasks" or "models", or an import path into its package."""
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

    found = []
    for name in (*_OURS, "domains"):
        if not any(Path(folder, name, "__init__.py").is_file() for folder in ddppo.__path__):
            continue  # left out, as in a copy of the core alone
        package = importlib.import_module(f"ddppo.{name}")
        names = (
            [f".{inner.name}" for inner in pkgutil.iter_modules(package.__path__)]
            if name == "domains"
            else [""]
        )
        modules = [importlib.import_module(f"ddppo.{name}{inner}") for inner in names]
        found += [module.PLUGIN for module in modules if hasattr(module, "PLUGIN")]
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        said = f"the plugin {entry.name} of {entry.dist.name if entry.dist else 'an installed package'}"
        try:
            plugin = entry.load()
        except Exception as e:  # a user's module may raise anything
            raise ConfigError(
                f"{said}, {entry.value}, cannot be imported: {in_one_line(e)}: mend it, or uninstall its package"
            ) from e
        if not isinstance(plugin, Plugin):
            raise ConfigError(
                f"{said}, {entry.value}, is of type {type(plugin).__name__}: must be a ddppo.plugins.Plugin"
            )
        found.append(plugin)
    return tuple(found)


def added(what: str) -> dict[str, Any]:
    """Return what all plugins add under a name, such as "models". Raises ConfigError where two add the same."""
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
    """Return what stands at an import path, `module:attribute`. Raises what the module raises, and AttributeError."""
    module, _, attribute = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in attribute.split("."):
        found = getattr(found, name)
    return found
