"""Keyword arguments of the circuit environment, in groups, each checked by itself."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ddppo.errors import ConfigError, near

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What observations are padded to. null: as `task.pairs.sized` finds for circuits and rules."""

    max_nodes: int | None = None
    max_pairs: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                _check_whole(self, "sizes", field.name)


@dataclass(frozen=True, slots=True)
class Episode:
    """When an episode ends.

    slack: by how much the cost may exceed the least that the episode has seen, its start's included. min_steps and
    max_steps: between which the length cap grows and shrinks. nop: the choice to change nothing is offered once, at
    every one of the nodes, or never; nop_stop: it ends the episode. mask=false offers at every node a choice that
    stands for all rules that do not match there, and costs 1 and ends the episode.
    """

    slack: float = 6.0
    min_steps: int = 20
    max_steps: int = 600
    nop: str = "once"
    nop_stop: bool = True
    mask: bool = True

    def __post_init__(self) -> None:
        _check_number(self, "episode", "slack")
        _check_whole(self, "episode", "min_steps")
        _check_whole(self, "episode", "max_steps")
        _check_choice(self, "episode", "nop", ("once", "nodes", "never"))
        _check_choice(self, "episode", "nop_stop", (True, False))
        _check_choice(self, "episode", "mask", (True, False))
        if self.min_steps > self.max_steps:
            raise ConfigError(
                f"episode.min_steps={self.min_steps} exceeds episode.max_steps={self.max_steps}: lower it, or "
                "set both to one number for a fixed cap"
            )


@dataclass(frozen=True, slots=True)
class Buffer:
    """From which circuits episodes start.

    draw: power draws a level of cost in proportion to 1 / cost^4, greedy to 1 / (cost - least + .2), original takes
    the original circuit always. level_size: circuits of one cost, at most. megabytes: of all buffers of one
    environment, which its starting circuits share evenly. share: how many circuits, of each that is started from, an
    environment tells the others of in an iteration; 0 keeps buffers apart.
    """

    draw: str = "power"
    level_size: int = 2000
    megabytes: float = 32.0
    share: int = 4

    def __post_init__(self) -> None:
        _check_choice(self, "buffer", "draw", ("power", "greedy", "original"))
        _check_whole(self, "buffer", "level_size")
        _check_whole(self, "buffer", "share", least=0)
        _check_number(self, "buffer", "megabytes")


def of(kind: type[T], name: str, given: Mapping[str, Any] | None) -> T:
    """Return the group of this name. Raises ConfigError for a key that it has not, or a value that breaks its rule."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{name}={given}: give its settings by name, as {name}.<setting>=<value>")
    fields: Any = kind  # a dataclass
    known = [field.name for field in dataclasses.fields(fields)]
    for key in given or {}:
        if key not in known:
            raise ConfigError(
                f"{name}.{key}{near(str(key), known)}: {name} has the settings {', '.join(known)}"
            )
    return kind(**(given or {}))


def _check_whole(group: Any, name: str, key: str, least: int = 1) -> None:
    value = getattr(group, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}.{key}={value}: has to be a whole number, {least} or more")


def _check_number(group: Any, name: str, key: str) -> None:
    value = getattr(group, key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{name}.{key}={value}: has to be a number, 0 or more")


def _check_choice(group: Any, name: str, key: str, choices: tuple[Any, ...]) -> None:
    value = getattr(group, key)
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        said = ", ".join(str(choice).lower() for choice in choices)
        raise ConfigError(f"{name}.{key}={value}: has to be one of {said}")
