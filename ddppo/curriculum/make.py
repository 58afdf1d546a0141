"""From a name to a curriculum: one of ours, or a user's own by its import path."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ddppo.config import CurriculumConfig
from ddppo.curriculum.contract import Curriculum
from ddppo.curriculum.settings import TierSettings
from ddppo.curriculum.tiers import TieredCurriculum
from ddppo.curriculum.uniform import UniformCurriculum
from ddppo.errors import ConfigError, near
from ddppo.options import filled
from ddppo.spaces import EnvSpec
from ddppo.tracebacks import in_one_line

_METHODS = ("choose", "record", "state", "restore", "metrics", "table")


def _with_tiers(tasks: Mapping[str, str], **settings: Any) -> TieredCurriculum:
    try:
        rules = filled(TierSettings, settings)
    except ConfigError as e:
        raise e if str(e).startswith("curriculum.") else ConfigError(f"curriculum.settings: {e}") from e
    return TieredCurriculum(tasks, rules)


CURRICULA: dict[str, Callable[..., Curriculum]] = {"tiers": _with_tiers, "uniform": UniformCurriculum}


def curriculum_for(config: CurriculumConfig, env_id: str, spec: EnvSpec) -> Curriculum | None:
    """Return the curriculum of a run, None for none. Raises ConfigError where one is asked for that cannot be."""
    name = config.name
    if name == "auto":
        name = "tiers" if spec.tasks and spec.is_text else None
    if name is None:
        if config.settings:
            raise ConfigError(
                f"curriculum.settings={config.settings} has no effect with curriculum.name="
                f"{config.name or 'null'} and env.id={env_id}, which is trained without one: leave it out"
            )
        return None
    _made_by(name)
    if not spec.is_text:
        raise ConfigError(
            f"curriculum.name={name}: env.id={env_id} is no task of text, and only episodes of text are begun with "
            "options that name a task: leave it out"
        )
    if not spec.tasks:
        raise ConfigError(
            f"curriculum.name={name}: env.id={env_id} names no tasks: give the environment task_tiers, the tier of "
            "each task by its name, or leave it out"
        )
    return make_curriculum(name, spec.tasks, **config.settings)


def make_curriculum(name: str, tasks: Mapping[str, str], **settings: Any) -> Curriculum:
    """Return the curriculum `name`, a key of CURRICULA or `my_pkg.curricula:Mine`, of tasks and the tier of each.

    Raises ConfigError.
    """
    make = _made_by(name)
    try:
        curriculum = make(tasks, **settings)
    except ConfigError:
        raise
    except Exception as e:  # what a class of a user's own may raise
        raise ConfigError(f"curriculum.name={name} cannot be made: {in_one_line(e)}") from e
    lacking = [method for method in _METHODS if not callable(getattr(curriculum, method, None))]
    if lacking:
        raise ConfigError(f"curriculum.name={name} has no {lacking[0]}(): see ddppo.curriculum.Curriculum")
    return curriculum


def _made_by(name: str) -> Callable[..., Curriculum]:
    """Return what makes the curriculum of this name."""
    if name in CURRICULA:
        return CURRICULA[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ["auto", *CURRICULA]
        raise ConfigError(
            f"curriculum.name={name}: must be one of {', '.join(known)}{near(name, known)}, or null; "
            "one of your own goes by its import path, my_pkg.curricula:Mine"
        )
    try:
        make: Callable[..., Curriculum] = getattr(importlib.import_module(module), attribute)
    except Exception as e:  # what a module of a user's own may raise
        raise ConfigError(f"curriculum.name={name} cannot be made: {in_one_line(e)}") from e
    return make
