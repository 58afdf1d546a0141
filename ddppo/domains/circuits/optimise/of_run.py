"""What a run folder brings to `optimise`: how its task was set, and its policy. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddppo import config as configuration
from ddppo.config import Config
from ddppo.domains.circuits.task.starts import rewriter, rules_digest
from ddppo.errors import ConfigError, RunFolderError
from ddppo.run import checkpoint

_TASK = "ddppo/Circuit-v0"
_OF_ONE_SIZE = ("mlp", "cnn")
_OF_THE_RUN_ALONE = ("circuit", "sizes")  # keywords of the task that another circuit has its own of


@dataclass(frozen=True, slots=True)
class OfRun:
    """The run's configuration, a checkpoint, and the task's keywords that a circuit of the user's shares."""

    config: Config
    checkpoint: Path
    keywords: dict[str, Any]


def of_run(folder: str, which: str, rules: str | None) -> OfRun:
    """Return what the run brings. Raises ConfigError where its policy cannot act on circuits by these rules.

    which: last, best or the path of a checkpoint; rules: the user's file, if any.
    """
    run_dir = Path(folder)
    if not (run_dir / "config.yaml").is_file():
        raise RunFolderError(f"run={folder}: not a run folder, it has no config.yaml")
    config = configuration.load(run_dir / "config.yaml")
    if config.env.id != _TASK:
        raise ConfigError(
            f"run={folder}: it was trained on {config.env.id}, and only a run of env=circuit knows circuits"
        )
    if config.model.name in _OF_ONE_SIZE:
        raise ConfigError(
            f"run={folder}: its model {config.model.name} takes circuits of one size alone: use a run with model=gnn"
        )
    learned = config.env.kwargs.get("rules")
    if rules is not None and rules_digest(rewriter(rules)) != rules_digest(rewriter(learned)):
        raise ConfigError(
            f"rules={rules}: its rules are not those that run={folder} was trained by: leave rules= out, for the run's"
        )
    keywords = {key: value for key, value in config.env.kwargs.items() if key not in _OF_THE_RUN_ALONE}
    keywords["episode"] = {
        **(keywords.get("episode") or {}),
        "mask": True,
    }  # what never matches is no way to anything
    return OfRun(config, checkpoint.chosen(which, run_dir), keywords)
