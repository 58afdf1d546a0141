"""Protocol ddppo/1 between a client and a served environment, in JSON (text frames) or MessagePack (binary frames).

    {"id": 1, "op": "describe"}                          -> {"id": 1, "protocol": "ddppo/1", "spec": {...}}
    {"id": 2, "op": "reset", "seed": 7, "options": {}}    -> {"id": 2, "obs": ..., "mask": ..., "info": {...}}
    {"id": 3, "op": "step", "action": 1, "goes_on": true} -> {"id": 3, "obs": ..., "mask": ..., "info": {...},
                                                            "reward": 1.0, "terminated": false, "truncated": false,
                                                            "final_obs": ...}
    an error                                             -> {"id": 3, "error": {"code": ..., "message": ...}}

An answer has the id of its request, so that a late answer is never taken for that of another request.
- obs is text, an array, or a map of arrays by their paths, as in the spec: nested lists in JSON; in MessagePack, the
bytes
  of the numbers, row by row, little-endian.
- mask is present if the spec has one.
- info holds the entries of the environment's info that are single plain values, and the map "reward_parts".
- goes_on: true resets the environment if the step ends an episode. Then obs and info are those of the next episode, and
  final_obs is the last observation of the old one.
- action is text, a number, or a list of numbers, as a model returns it.

Both sides check everything against the spec. Nothing is unpickled.
"""

import json
import math
from dataclasses import asdict
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from ddppo.envs.encoding.observations import ObsArrays
from ddppo.envs.encoding.step_values import PARTS, WrongOutput, as_parts
from ddppo.envs.meaning import plain_of
from ddppo.envs.single import scalars
from ddppo.spaces import ActionSpec, ArraySpec, EnvSpec, each, tools_of

PROTOCOL = "ddppo/1"
JSON, MSGPACK = b"j", b"m"
# Fields of a request besides id and op.
FIELDS = {
    "describe": set[str](),
    "reset": {"seed", "options"},
    "step": {"action", "goes_on"},
}
_MOST = 2**53  # ids and seeds are integers that JSON holds exactly in every language
_DTYPES = ("uint8", "float32", "float64", "text")
_KINDS = ("discrete", "multi_discrete", "multi_binary", "box", "text")


class BadMessage(ValueError):
    """A message breaks the protocol. `code` is for programs; `id` is that of the message if it could be read."""

    def __init__(self, code: str, message: str, id: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.id = id


# -- bytes and messages ---------------------------------------------------------------------------------------------


def encoded(kind: bytes, message: dict[str, Any]) -> bytes:
    """Return a message as bytes. Raises ValueError for numbers that JSON cannot hold (NaN, infinity)."""
    if kind == MSGPACK:
        return msgpack.packb(message)
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode()


def decoded(kind: bytes, content: bytes) -> dict[str, Any]:
    """Return the message in `content`. Raises BadMessage."""
    try:
        message = msgpack.unpackb(content) if kind == MSGPACK else json.loads(content)
    except (ValueError, RecursionError, msgpack.UnpackException) as e:
        name = "MessagePack" if kind == MSGPACK else "JSON"
        raise BadMessage(f"INVALID_{name.upper()}", f"the message is not {name}: {type(e).__name__}") from e
    if not isinstance(message, dict):
        raise BadMessage("VALIDATION_ERROR", f"a message is a map, not {type(message).__name__}")
    return message


def checked(message: dict[str, Any]) -> dict[str, Any]:
    """Return the request if its id, op, seed, options and names of fields are valid. Raises BadMessage."""
    id, op = message.get("id"), message.get("op")
    if not _is_whole(id):
        raise BadMessage("VALIDATION_ERROR", f"id must be a whole number from 0 to {_MOST - 1}")
    if not isinstance(op, str) or op not in FIELDS:
        raise BadMessage("UNKNOWN_TYPE", f"op must be one of {', '.join(FIELDS)}", id)
    if unknown := message.keys() - {"id", "op"} - FIELDS[op]:
        raise BadMessage("VALIDATION_ERROR", f"{op} has no field {str(min(unknown, key=str))[:40]!r}", id)
    seed, options, goes_on = message.get("seed"), message.get("options", {}), message.get("goes_on", False)
    if seed is not None and not _is_whole(seed):
        raise BadMessage("VALIDATION_ERROR", f"seed must be null or a whole number from 0 to {_MOST - 1}", id)
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise BadMessage("VALIDATION_ERROR", "options must be a map by names", id)
    if type(goes_on) is not bool:
        raise BadMessage("VALIDATION_ERROR", "goes_on must be true or false", id)
    return message


def action_of(message: dict[str, Any], spec: ActionSpec) -> np.ndarray | str:
    """Return the action `[*spec.shape]`, or text, of a step. Raises BadMessage if it is not in the action space."""
    # Text; else a list of numbers, with a single number for a discrete action.
    given, id = message.get("action"), message["id"]
    if spec.kind == "text":
        if not isinstance(given, str) or len(given) > spec.sizes[0]:
            raise BadMessage(
                "VALIDATION_ERROR", f"action must be text of at most {spec.sizes[0]} characters", id
            )
        return given
    numbers = [given] if spec.kind == "discrete" else given
    num_numbers = spec.shape[0] if spec.shape else 1
    if type(numbers) is not list or len(numbers) != num_numbers:
        wanted = "a number" if spec.kind == "discrete" else f"a list of {num_numbers} numbers"
        raise BadMessage("VALIDATION_ERROR", f"action must be {wanted}", id)
    # Numbers of a Box are finite, but may exceed its bounds, as a policy's samples do; others are indices below a size.
    if spec.kind == "box":
        if not all(type(x) in (int, float) and abs(x) < math.inf for x in numbers):
            raise BadMessage("VALIDATION_ERROR", "action must hold finite numbers", id)
        try:
            return np.array(numbers, np.float64)
        except OverflowError as e:
            raise BadMessage("VALIDATION_ERROR", "action must hold numbers of 64 bits", id) from e
    # Booleans are no numbers here, although bool is a subclass of int.
    sizes = (2,) * num_numbers if spec.kind == "multi_binary" else spec.sizes
    if not all(type(x) is int and 0 <= x < n for x, n in zip(numbers, sizes, strict=True)):
        raise BadMessage("VALIDATION_ERROR", f"action must be whole and below {max(sizes)}", id)
    return np.array(numbers, np.int64).reshape(spec.shape)


def info_of(value: Any) -> dict[str, Any]:
    """Return the info of an answer. Raises BadMessage if it is not a map of names to plain values."""
    if not isinstance(value, dict):
        raise BadMessage("VALIDATION_ERROR", "info must be a map of plain values by names")
    others = {key: x for key, x in value.items() if key != PARTS}
    if scalars(others) != others:
        raise BadMessage("VALIDATION_ERROR", "info must be a map of plain values by names")
    try:
        if PARTS in value:
            as_parts(value[PARTS])
    except WrongOutput as e:
        raise BadMessage("VALIDATION_ERROR", f"info.{PARTS} must be a map of numbers by names") from e
    return value


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


# -- arrays ---------------------------------------------------------------------------------------------------------


def plain_obs(kind: bytes, obs: ObsArrays | str) -> Any:
    return obs if isinstance(obs, str) else each(lambda array: plain(kind, array), obs)


def plain(kind: bytes, array: np.ndarray) -> Any:
    if kind == JSON:
        return array.tolist()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def obs_of(spec: ArraySpec | dict[str, ArraySpec], value: Any) -> ObsArrays | str:
    """Return the arrays of an observation, or its text. Raises BadMessage if they do not fit the spec."""
    if not isinstance(spec, dict):
        if spec.dtype == "text":
            if not isinstance(value, str) or len(value) > spec.shape[0]:
                raise BadMessage(
                    "VALIDATION_ERROR", f"an observation must be text of at most {spec.shape[0]} characters"
                )
            return value
        return array_of(value, np.dtype(spec.dtype), spec.shape)
    if not isinstance(value, dict) or value.keys() != spec.keys():
        raise BadMessage("VALIDATION_ERROR", f"an observation must be a map of {', '.join(spec)}")
    return {key: array_of(value[key], np.dtype(part.dtype), part.shape) for key, part in spec.items()}


def array_of(value: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    # Bytes from MessagePack, nested lists from JSON.
    try:
        if isinstance(value, bytes):
            return np.frombuffer(value, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)
        array = np.array(value)
        if array.shape == shape and array.dtype.kind in "biuf":
            return array.astype(dtype)
    except (ValueError, TypeError, OverflowError) as e:
        raise BadMessage("VALIDATION_ERROR", f"an array of {dtype} must have the shape {shape}") from e
    raise BadMessage("VALIDATION_ERROR", f"an array of {dtype} must have the shape {shape}")


# -- specs ----------------------------------------------------------------------------------------------------------


def plain_spec(spec: EnvSpec) -> dict[str, Any]:
    """Return a spec as plain values for JSON."""
    return asdict(spec)


def spec_of(value: Any) -> EnvSpec:
    """Return the spec in a server's answer. Raises BadMessage if it is not valid."""
    # A server is not trusted: check the type of every value, and catch the errors of a wrong structure.
    try:
        obs, action = value["obs"], value["action"]
        is_one = isinstance(obs.get("dtype"), str)
        arrays = _array_spec(obs) if is_one else {str(key): _array_spec(part) for key, part in obs.items()}
        mask_size = value.get("mask_size")
        if action["kind"] not in _KINDS or (mask_size is not None and not _is_whole(mask_size)):
            raise ValueError(action)
        sizes = tuple(_size(n) for n in action["sizes"])
        paths = (value.get("journal"), value.get("tokens"), value.get("forked_from"))
        tasks = value.get("tasks")
        if not all(path is None or isinstance(path, str) for path in paths):
            raise ValueError(paths)
        if tasks is not None and not all(isinstance(word, str) for pair in tasks.items() for word in pair):
            raise ValueError(tasks)
        is_alone = value.get("one_a_process", False) is True
        return EnvSpec(
            arrays,
            ActionSpec(action["kind"], sizes, *_bounds(action)),
            mask_size,
            journal=paths[0],
            tokens=paths[1],
            tools=tools_of(value.get("tools")),
            tasks=tasks,
            one_a_process=is_alone,
            needs_close=value.get("needs_close", False) is True,
            forked_from=paths[2],
            spaces=plain_of(value.get("spaces")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise BadMessage("VALIDATION_ERROR", "the server's spec is not one of environments") from e


def _array_spec(value: dict[str, Any]) -> ArraySpec:
    if value["dtype"] not in _DTYPES:
        raise ValueError(value["dtype"])
    high = value.get("high")
    return ArraySpec(
        tuple(_size(n) for n in value["shape"]), value["dtype"], None if high is None else int(high)
    )


def _bounds(action: dict[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    low, high = (tuple(float(x) for x in action.get(name, ())) for name in ("low", "high"))
    if len(low) != len(high) or (low and len(low) != action["sizes"][0]):
        raise ValueError(action)
    return low, high


def _size(n: Any) -> int:
    if not _is_whole(n):
        raise ValueError(n)
    return n
