"""From a name to a curriculum: one of ours, or a user's own by its import path."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ddppo.curriculum.contract import Curriculum
from ddppo.curriculum.tiers import TieredCurriculum
from ddppo.curriculum.uniform import UniformCurriculum
from ddppo.errors import ConfigError, near
from ddppo.tracebacks import in_one_line

CURRICULA: dict[str, Callable[..., Curriculum]] = {"tiers": TieredCurriculum, "uniform": UniformCurriculum}
_METHODS = ("choose", "record", "chaos", "state", "restore", "metrics", "table")


def make_curriculum(name: str, tasks: Mapping[str, str], **kwargs: Any) -> Curriculum:
    """Return the curriculum `name`, a key of CURRICULA or `my_pkg.curricula:Mine`, of tasks and the tier of each.

    Raises ConfigError.
    """
    if name in CURRICULA:
        return CURRICULA[name](tasks, **kwargs)
    module, colon, attribute = name.partition(":")
    if not colon:
        known = list(CURRICULA)
        raise ConfigError(
            f"curriculum={name}: must be one of {', '.join(known)}{near(name, known)}; "
            "one of your own goes by its import path, my_pkg.curricula:Mine"
        )
    try:
        make = getattr(importlib.import_module(module), attribute)
        curriculum = make(tasks, **kwargs)
    except ConfigError:
        raise
    except Exception as e:  # what a module of a user's own may raise
        raise ConfigError(f"curriculum={name} cannot be made: {in_one_line(e)}") from e
    lacking = [method for method in _METHODS if not callable(getattr(curriculum, method, None))]
    if lacking:
        raise ConfigError(f"curriculum={name} has no {lacking[0]}(): see ddppo.curriculum.Curriculum")
    return curriculum
