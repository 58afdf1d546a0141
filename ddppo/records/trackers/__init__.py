"""Trackers: services that collect runs, told the numbers that TensorBoard shows, by default in files of the run folder.

A run has the same identity there when it is resumed: trackers.json in the run folder keeps it. What is done again then
they are not told again: neither lets a number be taken back.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ddppo.config.settings import Config
from ddppo.errors import ConfigError
from ddppo.files import write_json
from ddppo.package import install_command
from ddppo.records.jsonl import last_superseded
from ddppo.records.metrics import IterationReport

_IDS = "trackers.json"


class Tracker(Protocol):
    """Told of every iteration beyond `last_step` and of the end. id: of the run, to go on with it."""

    id: str
    last_step: int  # environment steps of the last iteration that it knows from before

    def write(self, report: IterationReport) -> None: ...

    def close(self, summary: Mapping[str, Any]) -> None: ...


def check_installed(names: Sequence[str]) -> None:
    """Raise ConfigError, with what to install, where packages of trackers are not there."""
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        commands = "; ".join(f"{name} by {install_command(name)}" for name in missing)
        raise ConfigError(
            f"log.trackers=[{','.join(names)}] needs packages that are not installed: {commands}"
        )


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


def open_tracker(name: str, config: Config, run_dir: Path, *, resumed: bool) -> Tracker:
    """Return the tracker, going on with the run that it knows if `resumed`. Raises whatever its package does."""
    ids = _ids(run_dir)
    known = ids.get(name) if resumed else None
    tracker: Tracker
    if name == "wandb":
        from ddppo.records.trackers.wandb import WandbTracker

        told = last_superseded(run_dir / "metrics.jsonl") if known is not None else 0
        tracker = WandbTracker(config, run_dir, known, told)
    else:
        from ddppo.records.trackers.mlflow import MlflowTracker

        tracker = MlflowTracker(config, run_dir, known)
    write_json(run_dir / _IDS, {**ids, name: tracker.id})
    return tracker


def _ids(run_dir: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        found = json.loads((run_dir / _IDS).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {name: each for name, each in found.items() if isinstance(each, str)}
    return {}
