"""What an object remembers in its attributes, as plain values: how a task in Python is saved that knows nothing of it.

Only where they are data: numbers, texts, arrays, containers of them, and generators of random numbers. Spaces,
functions and the like are what the task was made with; anything else may remember what nobody sees, and is refused.
"""

import enum
import pathlib
import random
import re
import types
from collections import deque
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

_PLAIN = (type(None), bool, int, float, str, bytes)
_MADE_WITH = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    enum.Enum,
    np.dtype,
    np.ufunc,
    range,
    re.Pattern,
    pathlib.PurePath,
    gym.envs.registration.EnvSpec,
)
_KIND = "\0kind"
_SPACE = "\0space"  # before the name of an attribute that is one


class NotData(Exception):
    """An attribute holds what may remember more than can be read off it."""


def combined(thing: Any) -> dict[str, Any]:
    """Return vars() of an object, which is to be as quick as before: CPython 3.11 reads attributes a fifth slower
    of an object once its dict was asked for, unless that is made anew, of keys of its own."""
    with suppress(AttributeError, TypeError):  # of who has no dict to be replaced
        thing.__dict__ = {**vars(thing)}
    return vars(thing)


def attributes_of(thing: Any, *, lenient: bool = False) -> dict[str, Any]:
    """Return the attributes of an object that are data, by their names, copied.

    Raises NotData, with the attribute and its type, where another may remember anything, unless `lenient`.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name, value in combined(thing).items():
        if isinstance(value, gym.Space):
            found[_SPACE + name] = [_encoded(each, seen) for each in _generators_of(value)]
            continue
        if _is_made_with(value) or (isinstance(thing, gym.Wrapper) and name == "env"):
            continue
        try:
            found[name] = _encoded(value, seen)
        except NotData as e:
            if not lenient:
                raise NotData(f"{type(thing).__name__}.{name} {e}") from None
    return found


def take_attributes(thing: Any, attributes: dict[str, Any]) -> None:
    """Give an object the attributes that `attributes_of` returned for another that was made alike."""
    for name, value in attributes.items():
        if name.startswith(_SPACE):
            space = vars(thing)[name.removeprefix(_SPACE)]
            _take_generators(space, [_decoded(each) for each in value])
        else:
            vars(thing)[name] = _decoded(value)


def generators_in(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object that are generators of random numbers, or spaces that have one."""
    found: dict[str, Any] = {}
    for name, value in vars(thing).items():
        if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
            found[name] = _encoded(value, set())
        elif isinstance(value, gym.Space):
            own = _generators_of(value)
            if own != [None] * len(own):
                found[_SPACE + name] = [_encoded(each, set()) for each in own]
    return found


def _is_made_with(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return value.__closure__ is None
    return isinstance(value, _MADE_WITH)


def _generators_of(space: gym.Space) -> list[np.random.Generator | None]:
    """Return the generators that a space and its parts draw from, None where none was made yet."""
    return [each._np_random for each in _with_parts(space)]


def _take_generators(space: gym.Space, generators: list[Any]) -> None:
    for each, generator in zip(_with_parts(space), generators, strict=True):
        each._np_random = generator


def _with_parts(space: gym.Space) -> list[gym.Space]:
    parts = getattr(space, "spaces", ())
    parts = parts.values() if isinstance(parts, dict) else parts
    return [space, *(inner for part in parts for inner in _with_parts(part))]


def _encoded(value: Any, seen: set[int]) -> Any:
    """Return a copy in plain values; `seen` are the mutable ones so far, of which none may be had twice."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {_KIND: "scalar", "of": np.array(value)}
    if type(value) is tuple:
        return {_KIND: "tuple", "of": [_encoded(each, seen) for each in value]}
    _see(value, seen)
    if type(value) is list:
        return [_encoded(each, seen) for each in value]
    if type(value) is dict:
        if all(type(key) is str and not key.startswith("\0") for key in value):
            return {key: _encoded(each, seen) for key, each in value.items()}
        return {_KIND: "dict", "of": [[_encoded(part, seen) for part in pair] for pair in value.items()]}
    if type(value) is deque:
        return {_KIND: "deque", "of": [_encoded(each, seen) for each in value], "maxlen": value.maxlen}
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.copy(order="K")
    if type(value) is np.random.Generator:
        return {_KIND: "generator", "of": _encoded(value.bit_generator.state, set())}
    if type(value) is np.random.RandomState:
        return {_KIND: "random_state", "of": _encoded(value.get_state(legacy=False), set())}
    if type(value) is random.Random:
        return {_KIND: "random", "of": _encoded(value.getstate(), set())}
    raise NotData(f"holds a {type(value).__name__}")


def _see(value: Any, seen: set[int]) -> None:
    """Refuse what two attributes hold together, for copies would part."""
    root = value
    while isinstance(root, np.ndarray) and root.base is not None:
        root = root.base
    if id(root) in seen:
        raise NotData("holds what another attribute holds too")
    seen.add(id(root))


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.copy(order="K")
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {key: _decoded(each) for key, each in value.items()}
    of = _decoded(value["of"])
    match value[_KIND]:
        case "scalar":
            return of[()]
        case "tuple":
            return tuple(of)
        case "dict":
            return dict(of)
        case "deque":
            return deque(of, value["maxlen"])
        case "generator":
            generator = np.random.Generator(getattr(np.random, of["bit_generator"])())
            generator.bit_generator.state = of
            return generator
        case "random_state":
            return _of_legacy(of)
        case kind:
            assert kind == "random", kind
            made = random.Random()
            made.setstate(of)
            return made


def _of_legacy(state: dict[str, Any]) -> np.random.RandomState:
    made = np.random.RandomState(getattr(np.random, state["bit_generator"])())
    made.set_state(state)
    return made
