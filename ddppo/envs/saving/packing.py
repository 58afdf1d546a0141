"""States as bytes: what a checkpoint holds of environments, read again without running anything that it says.

A header in JSON, then the bytes and arrays whose number it says, arrays as NumPy's npy files without pickles. Floats
come back to the bit (JSON has the shortest number that does), NaN and infinity too, and integers of any size.
"""

import io
import json
import struct
from typing import Any

import numpy as np

_MAGIC = b"ddppo-state-1\n"
_SIZE = struct.Struct("<Q")
_BLOB = "\0blob"  # the key of what stands for bytes, or with more than a number for an array
_PLAIN = (type(None), bool, int, float, str)


def packed(state: Any) -> bytes:
    """Return a state of None, numbers, str, bytes, NumPy arrays, lists, and dicts by str, as bytes.

    Raises TypeError, with the type, for anything else.
    """
    blobs: list[bytes] = []
    said = _without_blobs(state, blobs)
    head = json.dumps([len(blobs), said], separators=(",", ":")).encode()
    parts = [_MAGIC]
    for part in (head, *blobs):
        parts += [_SIZE.pack(len(part)), part]
    return b"".join(parts)


def unpacked(content: bytes) -> Any:
    """Return the state that `packed` made bytes of. Raises ValueError for bytes of anything else."""
    if content[: len(_MAGIC)] != _MAGIC:
        raise ValueError("no state of environments, or one of another format")
    parts, at = [], len(_MAGIC)
    while at < len(content):
        (size,) = _SIZE.unpack(content[at : at + _SIZE.size].ljust(_SIZE.size, b"\xff"))
        at += _SIZE.size
        parts.append(content[at : at + size])
        at += size
    if parts and at == len(content):
        num_blobs, said = json.loads(parts[0])
        if num_blobs == len(parts) - 1:
            return _with_blobs(said, parts[1:])
    raise ValueError("a state of environments that was cut short")


def _without_blobs(value: Any, blobs: list[bytes]) -> Any:
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [_without_blobs(each, blobs) for each in value]
    if type(value) is dict:
        if not all(type(key) is str and key != _BLOB for key in value):
            raise TypeError(f"a dict with the keys {list(value)[:5]} is no part of a state: keys must be str")
        return {key: _without_blobs(each, blobs) for key, each in value.items()}
    if type(value) is bytes:
        blobs.append(value)
        return {_BLOB: [len(blobs) - 1]}
    if type(value) is np.ndarray and not value.dtype.hasobject:
        file = io.BytesIO()
        np.lib.format.write_array(file, value, allow_pickle=False)
        blobs.append(file.getvalue())
        return {_BLOB: [len(blobs) - 1, "array"]}
    raise TypeError(f"a {type(value).__name__} is no part of a state")


def _with_blobs(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, list):
        return [_with_blobs(each, blobs) for each in value]
    if not isinstance(value, dict):
        return value
    if _BLOB not in value:
        return {key: _with_blobs(each, blobs) for key, each in value.items()}
    number, *kind = value[_BLOB]
    if not kind:
        return blobs[number]
    return np.lib.format.read_array(io.BytesIO(blobs[number]), allow_pickle=False)
