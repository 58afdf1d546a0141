"""The rules of what users bring by import paths besides tasks and models: loss terms and metrics."""

import math
import re
from typing import Any

from ddppo.config.settings import Config
from ddppo.errors import ConfigError

_NAME = re.compile(r"[A-Za-z]\w*")
_EXAMPLE = "ppo.losses={still: {term: my_pkg.losses:still, coef: 0.01}}"


def check_own(config: Config) -> None:
    """Raise ConfigError where ppo.losses or log.metrics are not what they should be."""
    _check_metrics(config)
    for name, of_term in config.ppo.losses.items():
        _check_term(name, of_term)
    if config.ppo.losses and config.compile in ("on", "torch"):
        raise ConfigError(
            f"compile={config.compile} with ppo.losses: terms of your own are computed by torch alone: use "
            "compile=auto"
        )


def _check_metrics(config: Config) -> None:
    paths = config.log.metrics
    for path in paths:
        module, _, attribute = path.partition(":")
        if not (module and attribute):
            raise ConfigError(f"log.metrics=[{path}]: must be an import path like my_pkg.metrics:pushed_left")
        if paths.count(path) > 1:
            raise ConfigError(f"log.metrics names {path} twice: leave one out")


def _check_term(name: Any, of_term: Any) -> None:
    said = f"ppo.losses={{{name}: {of_term}}}"
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigError(f"{said}: a term's name is of letters, digits and _, as {_EXAMPLE} has it")
    if not isinstance(of_term, dict) or of_term.keys() != {"term", "coef"}:
        raise ConfigError(f"{said}: needs the import path of a function and its coefficient, as {_EXAMPLE}")
    path, coef = of_term["term"], of_term["coef"]
    module, _, attribute = str(path).partition(":")
    if not (module and attribute):
        raise ConfigError(f"ppo.losses.{name}.term={path}: must be an import path like my_pkg.losses:still")
    if isinstance(coef, bool) or not isinstance(coef, (int, float)) or not math.isfinite(coef):
        raise ConfigError(f"ppo.losses.{name}.coef={coef}: must be a finite number")
