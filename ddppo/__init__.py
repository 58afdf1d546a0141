"""Decentralised, synchronous, data-parallel PPO."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddppo.policies import load_policy

__all__ = ["load_policy"]
__version__ = "0.1.0"

_FROM = {"load_policy": "ddppo.policies"}  # names for users' programs, whose modules import torch


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
