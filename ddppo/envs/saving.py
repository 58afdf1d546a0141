"""Saves the state of environments in checkpoints: first as bytes, then four ways to get the state of a task.

`packed` and `unpacked` turn a state of plain values into bytes and back; reading runs no code from the bytes. The
second section copies an object's attributes as plain values. The third has a `Saver` for each way in which a task can
be saved, and `saver_of` chooses one.
"""

import abc
import enum
import functools
import hashlib
import io
import json
import pathlib
import random
import re
import struct
import types
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import gymnasium as gym
import numpy as np

from ddppo.envs.encoding.step_values import WrongOutput
from ddppo.errors import EnvStateError
from ddppo.files import is_plain

# -- States as bytes.
#
# A header in JSON, then byte strings and arrays; the header counts them. Arrays are npy files without pickles. Floats
# are exact (JSON prints the shortest number that reads back to the same bits), as are NaN, infinity and integers of any
# size. Large byte strings may be stored beside the states under a hash, so that a map that all environments share is
# stored once.


_MAGIC = b"ddppo-state-1\n"
_SIZE = struct.Struct("<Q")
_BLOB = "\0blob"  # key of a reference: [number or hash] for bytes, [number or hash, "array"] for an array
_PLAIN = (type(None), bool, int, float, str)
_JSON = json.JSONEncoder(separators=(",", ":"))
_WORTH = 65_536  # bytes from which a byte string is stored beside the states


def packed(state: Any, beside: dict[str, bytes] | None = None) -> bytes:
    """Return a state as bytes. It may hold None, numbers, str, bytes, NumPy arrays, lists, and dicts with str keys.

    beside: gets large byte strings under their hash, if given. Raises TypeError, with the type, for anything else.
    """
    blobs: list[bytes] = []
    plain = _without_blobs(state, blobs, beside)
    # The format: magic bytes, then the header and each blob with its size before it.
    head = _JSON.encode([len(blobs), plain]).encode()
    parts = [_MAGIC]
    for part in (head, *blobs):
        parts += [_SIZE.pack(len(part)), part]
    return b"".join(parts)


def unpacked(content: bytes, beside: Mapping[str, bytes] | None = None) -> Any:
    """Return the state from the bytes of `packed`. Raises ValueError for any other bytes."""
    if content[: len(_MAGIC)] != _MAGIC:
        raise ValueError("no state of environments, or one of another format")
    # Split into parts; a wrong size or count means that the bytes are damaged.
    parts, at = [], len(_MAGIC)
    while at < len(content):
        (size,) = _SIZE.unpack(content[at : at + _SIZE.size].ljust(_SIZE.size, b"\xff"))
        at += _SIZE.size
        parts.append(content[at : at + size])
        at += size
    if parts and at == len(content):
        num_blobs, plain = json.loads(parts[0])
        if num_blobs == len(parts) - 1:
            return _with_blobs(plain, parts[1:], beside or {})
    raise ValueError("a state of environments that was cut short")


def _without_blobs(value: Any, blobs: list[bytes], beside: dict[str, bytes] | None) -> Any:
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [_without_blobs(each, blobs, beside) for each in value]
    if type(value) is dict:
        if not all(type(key) is str and key != _BLOB for key in value):
            raise TypeError(f"a dict with the keys {list(value)[:5]} cannot be saved: keys must be str")
        return {key: _without_blobs(each, blobs, beside) for key, each in value.items()}
    if type(value) is bytes:
        return {_BLOB: [_put(value, blobs, beside)]}
    # An array is a blob in the npy format, which needs no pickle.
    if type(value) is np.ndarray and not value.dtype.hasobject:
        is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        content = _npy_header(value.dtype, value.shape, is_fortran) + value.tobytes(
            "F" if is_fortran else "C"
        )
        return {_BLOB: [_put(content, blobs, beside), "array"]}
    raise TypeError(f"a {type(value).__name__} cannot be saved in a state")


@functools.lru_cache(1024)  # a checkpoint of many environments has the same few headers for each of them
def _npy_header(dtype: np.dtype, shape: tuple[int, ...], fortran_order: bool) -> bytes:
    """Return what `np.lib.format.write_array` writes before the numbers."""
    file = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": fortran_order, "shape": shape}
    )
    return file.getvalue()


def _put(blob: bytes, blobs: list[bytes], beside: dict[str, bytes] | None) -> int | str:
    """Store the blob and return its reference: its number, or its hash if it is stored beside the state."""
    if beside is None or len(blob) < _WORTH:
        blobs.append(blob)
        return len(blobs) - 1
    name = hashlib.blake2b(blob, digest_size=20).hexdigest()
    beside[name] = blob
    return name


def _with_blobs(value: Any, blobs: list[bytes], beside: Mapping[str, bytes]) -> Any:
    if isinstance(value, list):
        return [_with_blobs(each, blobs, beside) for each in value]
    if not isinstance(value, dict):
        return value
    if _BLOB not in value:
        return {key: _with_blobs(each, blobs, beside) for key, each in value.items()}
    place, *kind = value[_BLOB]
    blob = beside[place] if isinstance(place, str) else blobs[place]
    return np.lib.format.read_array(io.BytesIO(blob), allow_pickle=False) if kind else blob


# -- An object's attributes as plain values: the state of a task in Python that has no state() of its own.
#
# Data are saved: numbers, texts, arrays, containers of them, and random generators. Spaces, functions and the like do
# not change after __init__ and are skipped. An attribute of any other type may hide a state and is refused (NotData).


_PLAIN_OR_BYTES = (type(None), bool, int, float, str, bytes)
_CONSTANT = (
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
_KIND = "\0kind"  # key that marks a value of another type than JSON's
_SPACE = "\0space"  # prefix of the name of an attribute that is a space


class NotData(Exception):
    """An attribute has a type that may hide a state."""


def fast_vars(thing: Any) -> dict[str, Any]:
    """Return vars(thing), and keep attribute access fast.

    CPython 3.11 reads attributes of an object a fifth slower after its __dict__ was requested, unless it is replaced by
    a new dict.
    """
    with suppress(AttributeError, TypeError):  # objects with a __dict__ that cannot be replaced
        thing.__dict__ = {**vars(thing)}
    return vars(thing)


def attributes_of(thing: Any, *, lenient: bool = False) -> dict[str, Any]:
    """Return copies of the attributes of an object that are data, by name.

    Raises NotData, with the attribute and its type, for an attribute of any other type, unless `lenient`.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name, value in fast_vars(thing).items():
        # A space is constant, except for the random generator that it samples with.
        if isinstance(value, gym.Space):
            found[_SPACE + name] = [_encoded(each, seen) for each in _generators_of(value)]
            continue
        if _is_constant(value) or (isinstance(thing, gym.Wrapper) and name == "env"):
            continue
        try:
            found[name] = _encoded(value, seen)
        except NotData as e:
            if not lenient:
                raise NotData(f"{type(thing).__name__}.{name} {e}") from None
    return found


def take_attributes(thing: Any, attributes: dict[str, Any]) -> None:
    """Set the attributes that `attributes_of` returned for an object that was made in the same way."""
    for name, value in attributes.items():
        if name.startswith(_SPACE):
            space = vars(thing)[name.removeprefix(_SPACE)]
            _take_generators(space, [_decoded(each) for each in value])
        else:
            vars(thing)[name] = _decoded(value)


def generators_in(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object that are random generators, or spaces that have one."""
    found: dict[str, Any] = {}
    for name, value in vars(thing).items():
        if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
            found[name] = _encoded(value, set())
        elif isinstance(value, gym.Space):
            own = _generators_of(value)
            if own != [None] * len(own):
                found[_SPACE + name] = [_encoded(each, set()) for each in own]
    return found


def _is_constant(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return value.__closure__ is None
    return isinstance(value, _CONSTANT)


def _generators_of(space: gym.Space) -> list[np.random.Generator | None]:
    """Return the random generators of a space and its parts, None for one that was not made yet."""
    return [each._np_random for each in _with_parts(space)]


def _take_generators(space: gym.Space, generators: list[Any]) -> None:
    for each, generator in zip(_with_parts(space), generators, strict=True):
        each._np_random = generator


def _with_parts(space: gym.Space) -> list[gym.Space]:
    parts = getattr(space, "spaces", ())
    parts = parts.values() if isinstance(parts, dict) else parts
    return [space, *(inner for part in parts for inner in _with_parts(part))]


def _encoded(value: Any, seen: set[int]) -> Any:
    """Return a copy in plain values. `seen`: ids of the mutable objects so far; NotData if one occurs twice."""
    if type(value) in _PLAIN_OR_BYTES:
        return value
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {_KIND: "scalar", "of": np.array(value)}
    # A tuple cannot be changed, so two attributes may share it.
    if type(value) is tuple:
        return {_KIND: "tuple", "of": [_encoded(each, seen) for each in value]}
    _see(value, seen)
    if type(value) is list:
        return [_encoded(each, seen) for each in value]
    if type(value) is dict:
        # A dict with other keys is stored as a list of pairs.
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
    """Raise NotData for an object that two attributes share: restored copies would no longer be the same object."""
    root = value
    # Two views of one array share memory too.
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


# -- How one environment is saved exactly. The task decides, in the same way in every process:
#
# - ByItself: a task with state() and restore() returns its state in plain values.
# - ByAttributes: a task with attributes that are all data, as in most tasks written in Python.
# - ByEmulator: an Atari game, by the state of its emulator with its random generator.
# - ByReplay: any other task, such as a simulator in C. The running episode is replayed: reset with the random
#   generators that it had then, and stepped with the same actions. That is exact if these determine the episode.
#
# Wrappers are saved by their attributes in the first three, and take part in the replay.


LONGEST = 500_000  # steps of an episode that are kept for a replay
_BIPEDAL = ("gymnasium.envs.box2d.bipedal_walker", "BipedalWalker")
_ATARI = ("ale_py.env", "AtariEnv")


class Saver(abc.ABC):
    """Saves one task and the wrappers around it."""

    name: str
    actions: list[Any] | None = (
        None  # copies of the actions of the running episode; None if they are not needed
    )

    def __init__(self, task: gym.Env) -> None:
        self.task = task
        self.chain = _chain(task)

    def begins(self, seed: int | None, options: dict[str, Any]) -> None:  # noqa: B027 (most savers do nothing)
        """Called before a reset."""

    def forget(self) -> None:  # noqa: B027 (most savers do nothing)
        """Called when the running episode is longer than LONGEST."""

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Return all that determines the following steps. Raises EnvStateError, without the environment's name."""

    @abc.abstractmethod
    def restore(self, state: dict[str, Any]) -> Any:
        """Continue from `state`. Returns observation and info if the episode was replayed, else None."""


class _OfAttributes(Saver):
    """Saves wrappers by their attributes; subclasses save the task."""

    def state(self) -> dict[str, Any]:
        *around, task = self.chain
        return {"around": [_attributes_of(each) for each in around], "task": self._of_task(task)}

    def restore(self, state: dict[str, Any]) -> None:
        *around, task = self.chain
        for each, attributes in zip(around, state["around"], strict=True):
            take_attributes(each, attributes)
        self._take(task, state["task"])

    @abc.abstractmethod
    def _of_task(self, task: Any) -> Any: ...

    @abc.abstractmethod
    def _take(self, task: Any, state: Any) -> None: ...


class ByItself(_OfAttributes):
    """The task has a state() and a restore(state) of its own."""

    name = "own"

    def _of_task(self, task: Any) -> Any:
        state = task.state()
        if not is_plain(state):
            raise WrongOutput(type(state).__name__, "it must be what JSON can hold")
        return state

    def _take(self, task: Any, state: Any) -> None:
        task.restore(state)


class ByAttributes(_OfAttributes):
    name = "attributes"

    def _of_task(self, task: Any) -> Any:
        return _attributes_of(task)

    def _take(self, task: Any, state: Any) -> None:
        take_attributes(task, state)


class ByEmulator(_OfAttributes):
    """An Atari game as a Gymnasium environment.

    Impossible with sticky actions: ale-py does not expose the last action, which it may repeat.
    """

    name = "emulator"

    def _of_task(self, task: Any) -> Any:
        if (sticky := task.ale.getFloat("repeat_action_probability")) > 0:
            raise EnvStateError(
                f"with repeat_action_probability={sticky:g} its emulator does not expose its last action: "
                "use env.backend=auto, or env.kwargs.repeat_action_probability=0"
            )
        content = task.ale.cloneState(include_rng=True).serialize()
        return {"emulator": bytes(content), "attributes": attributes_of(task, lenient=True)}

    def _take(self, task: Any, state: Any) -> None:
        import ale_py

        task.ale.restoreState(ale_py.ALEState(state["emulator"]))
        take_attributes(task, state["attributes"])


class ByReplay(Saver):
    """Replays the running episode.

    A world of Box2D remembers earlier episodes in the order of its contacts, which changes the last bits of results.
    LunarLander makes a new world for every episode (Gymnasium's issue 728); for BipedalWalker this is done here.
    """

    name = "replay"

    def __init__(self, task: gym.Env) -> None:
        super().__init__(task)
        for each in self.chain:
            fast_vars(each)  # generators_in reads their attributes at every reset
        self.actions = []
        self._begun: dict[str, Any] = {}
        self._is_too_long = False
        self._keeps_world = _is_a(task.unwrapped, _BIPEDAL)

    def begins(self, seed: int | None, options: dict[str, Any]) -> None:
        self._begun = {
            "seed": seed,
            "options": options,
            "generators": [generators_in(each) for each in self.chain],
        }
        self.actions, self._is_too_long = [], False
        # A new world makes the episode independent of earlier ones, so that a replay is exact.
        if self._keeps_world:
            _give_new_world(self.task.unwrapped)

    def forget(self) -> None:
        self.actions, self._is_too_long = [], True

    def state(self) -> dict[str, Any]:
        if self._is_too_long:
            raise EnvStateError(
                f"its episode is longer than {LONGEST} steps, too many for a replay: set env.max_episode_steps, "
                "or give the task state() and restore()"
            )
        if not is_plain(self._begun["options"]):
            raise EnvStateError("the options of its reset are not what JSON can hold")
        return {**self._begun, "actions": np.array(self.actions)}

    def restore(self, state: dict[str, Any]) -> Any:
        # Set the random generators as they were before the reset, then reset and step.
        for each, generators in zip(self.chain, state["generators"], strict=True):
            take_attributes(each, generators)
        self.begins(state["seed"], state["options"])
        # begins() noted the generators of this moment. Keep the original ones, so that states stay equal.
        self._begun["generators"] = state["generators"]
        obs, info = self.task.reset(seed=state["seed"], **state["options"])
        for action in state["actions"]:
            cast(list, self.actions).append(as_kept(action))
            obs, _, _, _, info = self.task.step(action)
        return obs, info


SAVERS: dict[str, type[Saver]] = {kind.name: kind for kind in (ByItself, ByAttributes, ByEmulator, ByReplay)}


def saver_of(task: gym.Env) -> Saver:
    """Return the saver of a task that has been reset."""
    unwrapped = task.unwrapped
    # In the order of preference; replay is the last resort, because it takes time.
    if all(callable(getattr(unwrapped, name, None)) for name in ("state", "restore")):
        return ByItself(task)
    if _is_a(unwrapped, _ATARI):
        return ByEmulator(task)
    try:
        for each in _chain(task):
            attributes_of(each)
    except NotData:
        return ByReplay(task)
    return ByAttributes(task)


def as_kept(action: Any) -> Any:
    """Return a copy of an action, which a task may change."""
    return action.copy() if type(action) is np.ndarray else action


def _chain(task: gym.Env) -> list[Any]:
    chain: list[Any] = [task]
    while isinstance(chain[-1], gym.Wrapper):
        chain.append(chain[-1].env)
    return chain


def _attributes_of(thing: Any) -> dict[str, Any]:
    try:
        return attributes_of(thing)
    except NotData as e:
        raise EnvStateError(f"{e}, which may hide a state") from None


def _is_a(task: Any, which: tuple[str, str]) -> bool:
    return any((kind.__module__, kind.__qualname__) == which for kind in type(task).__mro__)


def _give_new_world(task: Any) -> None:
    task._destroy()
    task.world = type(task.world)()
