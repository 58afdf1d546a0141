"""States as bytes: what a checkpoint holds of environments, read again without running anything that it says.

A header in JSON, then the bytes and arrays whose number it says, arrays as NumPy's npy files without pickles. Floats
come back to the bit (JSON has the shortest number that does), NaN and infinity too, and integers of any size. What is
large may stand beside the states, by a hash of its bytes, so that a map that all environments have is held once.
"""

import hashlib
import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

_MAGIC = b"ddppo-state-1\n"
_SIZE = struct.Struct("<Q")
_BLOB = "\0blob"  # the key of what stands for bytes, or with more than a number for an array
_PLAIN = (type(None), bool, int, float, str)
_WORTH = 65_536  # bytes from which an array is held beside the states


def packed(state: Any, beside: dict[str, bytes] | None = None) -> bytes:
    """Return a state of None, numbers, str, bytes, NumPy arrays, lists, and dicts by str, as bytes.

    beside: takes what is large, by a hash of it, if given. Raises TypeError, with the type, for anything else.
    """
    blobs: list[bytes] = []
    said = _without_blobs(state, blobs, beside)
    head = json.dumps([len(blobs), said], separators=(",", ":")).encode()
    parts = [_MAGIC]
    for part in (head, *blobs):
        parts += [_SIZE.pack(len(part)), part]
    return b"".join(parts)


def unpacked(content: bytes, beside: Mapping[str, bytes] | None = None) -> Any:
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
            return _with_blobs(said, parts[1:], beside or {})
    raise ValueError("a state of environments that was cut short")


def _without_blobs(value: Any, blobs: list[bytes], beside: dict[str, bytes] | None) -> Any:
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [_without_blobs(each, blobs, beside) for each in value]
    if type(value) is dict:
        if not all(type(key) is str and key != _BLOB for key in value):
            raise TypeError(f"a dict with the keys {list(value)[:5]} is no part of a state: keys must be str")
        return {key: _without_blobs(each, blobs, beside) for key, each in value.items()}
    if type(value) is bytes:
        return {_BLOB: [_put(value, blobs, beside)]}
    if type(value) is np.ndarray and not value.dtype.hasobject:
        file = io.BytesIO()
        np.lib.format.write_array(file, value, allow_pickle=False)
        return {_BLOB: [_put(file.getvalue(), blobs, beside), "array"]}
    raise TypeError(f"a {type(value).__name__} is no part of a state")


def _put(blob: bytes, blobs: list[bytes], beside: dict[str, bytes] | None) -> int | str:
    """Return by what the blob is found: its number, or its hash where it is large and goes beside the state."""
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
