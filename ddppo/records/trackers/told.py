"""What trackers are told of a run besides its metrics: its name, its settings, and what came of it."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddppo.config.settings import Config

PROJECT = "ddppo"


def name_of(config: Config, run_dir: Path) -> str:
    return f"{config.env.id} {run_dir.name}"


def settings_of(config: Config) -> dict[str, Any]:
    """Return all settings, flat ("ppo.gamma")."""
    return _flat(asdict(config), "")


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
        )
    return found


def results_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of summary.json that sum up a run: final/return_mean, best/return_mean, fps, ..."""
    scores = {
        f"{which}/{name}": value
        for which in ("final", "best")
        for name, value in (summary["eval"][which] or {}).items()
    }
    found = scores | {name: summary[name] for name in ("fps", "wall_s", "env_steps", "restarts")}
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}
