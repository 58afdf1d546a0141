"""Doors that are functions too: `from ddppo import train` is the module, whoever imported it first, and can be called.

Imports nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """The module of a door; a call is one of the function with its name in ddppo.api."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(import_module("ddppo.api"), self.__name__.rpartition(".")[2])(*args, **kwargs)


def make_callable(name: str) -> None:
    """Make the module `name` callable, unless it is the program that runs."""
    if name != "__main__":
        sys.modules[name].__class__ = CallableModule
