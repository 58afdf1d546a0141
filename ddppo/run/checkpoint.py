"""Checkpoints: whole on disk or not there, loadable without unpickling code."""

import os
import re
from pathlib import Path
from typing import Any

import torch

from ddppo.errors import RunFolderError

FORMAT = "ddppo-checkpoint"
VERSION = 1
DTYPES = {"float32": torch.float32, "float64": torch.float64}
_NAME = re.compile(r"iteration_(\d{8})\.pt")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` (tensors, numbers, strings, lists, dicts) under a temporary name, fsync, and rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save({"format": FORMAT, "version": VERSION, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save_iteration(folder: Path, iteration: int, state: dict[str, Any], keep: int) -> Path:
    """Save the checkpoint of `iteration` and drop all but the `keep` newest ones."""
    path = folder / f"iteration_{iteration:08d}.pt"
    save(path, state)
    for old in _all(folder)[:-keep]:
        old.unlink()
    return path


def last(folder: Path) -> Path | None:
    """Return the newest checkpoint in `folder`, or None."""
    return next(reversed(_all(folder)), None)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU. Raises RunFolderError for a file that is truncated, foreign or newer."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as e:
        raise RunFolderError(f"checkpoint {path} does not exist") from e
    except Exception as e:  # torch and zip raise many kinds for broken files
        others = [other.name for other in _all(path.parent) if other != path]
        remedy = f"; move it away to go on from {others[-1]}" if others else ""
        raise RunFolderError(f"checkpoint {path} is truncated or not a checkpoint{remedy}") from e
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise RunFolderError(f"checkpoint {path} was not written by ddppo")
    if state.get("version") != VERSION:
        raise RunFolderError(
            f"checkpoint {path} has version {state.get('version')}, this ddppo reads {VERSION}"
        )
    return state


def _all(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("iteration_*.pt") if _NAME.fullmatch(p.name))
