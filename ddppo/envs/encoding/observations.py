"""Encodes an observation and its action mask into one row, a NumPy record of fixed layout.

Rows pass through the shared memory of a pool, so a mask always arrives with its observation. `RowLayout` is the layout,
`RowEncoder` writes rows, `outside` describes numbers beyond the bounds of a space. The functions between check and
convert one value; they raise WrongOutput for values that do not fit the space.
"""

import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from ddppo.envs.encoding.gym_spaces import space_parts, without_mask
from ddppo.envs.encoding.step_values import MASK, WrongOutput, flat_mask
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves

_ARRAY = np.ndarray
ObsArrays = np.ndarray | dict[str, np.ndarray]  # one array, or several by name, as spec.obs is


class RowLayout:
    """The NumPy dtype of a row, and views of the observation and the mask in arrays of rows.

    A row is the observation itself if that is one array and there are no masks. Else `dtype` has a field for each
    array of the observation and one for the mask.
    """

    def __init__(self, spec: EnvSpec) -> None:
        arrays = [(np.dtype(leaf.dtype), leaf.shape) for leaf in leaves(spec.obs)]
        self._names: str | dict[str, str] | None = None
        if isinstance(spec.obs, ArraySpec) and spec.mask_size is None:
            self.dtype = np.dtype(arrays[0])
            return
        # Several arrays, or a mask: a record with a field for each.
        names = [f"obs {k}" for k in range(len(arrays))]  # a task's keys may be no valid field names
        self._names = dict(zip(spec.obs, names, strict=True)) if isinstance(spec.obs, dict) else names[0]
        fields: list[Any] = [(name, *array) for name, array in zip(names, arrays, strict=True)]
        if spec.mask_size is not None:
            fields.append((MASK, np.dtype(bool), (spec.mask_size,)))
        self.dtype = np.dtype(fields, align=True)

    def obs(self, rows: np.ndarray) -> ObsArrays:
        """Return views of the arrays `[..., *shape]` in rows `[...]`."""
        return rows if self._names is None else each(rows.__getitem__, self._names)

    def mask(self, rows: np.ndarray) -> np.ndarray | None:
        """Return a view `[..., mask_size]`, or None without masks."""
        return rows[MASK] if rows.dtype.names and MASK in rows.dtype.names else None


class RowEncoder:
    """Turns observations and infos of one environment into rows, always new arrays of `layout.dtype`.

    New, because many tasks write the next observation into the same array, and a final observation has to outlive the
    reset in the same step. Raises WrongOutput for an observation that its space does not describe: another shape, type
    or keys, or numbers that the row's type cannot hold. Bounds of a Box are not checked here (see `outside`).
    """

    def __init__(self, space: gym.Space, spec: EnvSpec) -> None:
        self.space = without_mask(space)
        self.layout = RowLayout(spec)
        self._is_dict = isinstance(space, Dict)
        self._is_plain_box = isinstance(space, Box) and spec.mask_size is None
        # One Box without masks: the row is a plain array.
        if self._is_plain_box:
            self._read = _Numbers(space, self.layout.dtype.base, "")
            self._dtype = self.layout.dtype.base
            # None if every array has to be converted, because the row has another type.
            self._shape = space.shape if space.dtype == self._dtype else None
        # One row that every observation is written into and then copied: making views of its fields is expensive.
        self._row = np.zeros((), self.layout.dtype)
        # A view with the padding between fields: copies of a record leave it random, and rows are compared bytewise.
        self._whole = self._row.view(f"V{self.layout.dtype.itemsize}") if self.layout.dtype.names else None
        self._mask = self.layout.mask(self._row)
        self._write = _writer(self.space, "", iter(leaves(self.layout.obs(self._row))))

    def __call__(self, obs: Any, info: Mapping[Any, Any]) -> np.ndarray:
        if self._is_plain_box:
            # The fast path: an array of the right type needs only a copy.
            if type(obs) is _ARRAY and obs.dtype == self._dtype and obs.shape == self._shape:
                return obs.copy()
            array = self._read(obs)
            return array if array is not obs and array.base is None else array.copy()
        self._write(obs)
        if self._mask is not None:
            self._write_mask(obs, info, self._mask)
        return self._row.copy() if self._whole is None else self._whole.copy().view(self.layout.dtype)

    def _write_mask(self, obs: Any, info: Mapping[Any, Any], out: np.ndarray) -> None:
        # The mask may be in the observation or in the info.
        is_mapping = type(obs) is dict or (self._is_dict and isinstance(obs, Mapping))
        mask = obs.get(MASK) if is_mapping else None
        mask = info.get(MASK) if mask is None else mask
        if mask is None:
            out[:] = True  # no mask: everything is allowed
            return
        mask = flat_mask(mask)
        if mask.size != out.size:
            raise WrongOutput(f"an action_mask of {mask.size} entries", f"its first had {out.size}")
        np.not_equal(mask, 0, out=out)


def _called(label: str) -> str:
    return f"observation{label}" if label else "an observation"


def _of_type(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"of type {type(value).__name__} and dtype {value.dtype}"
    text = " ".join(repr(value).split()) if isinstance(value, (str, int, float, type(None))) else ""
    return f"of type {type(value).__name__}" + (f" ({text:.40})" if text else "")


class _Numbers:
    """Converts a value of a Box or MultiBinary to an array of `dtype` and of the space's shape.

    The result may be the value itself or a view of it. Raises WrongOutput.
    """

    def __init__(self, space: gym.Space, dtype: np.dtype, label: str) -> None:
        assert space.shape is not None, space
        assert space.dtype is not None, space
        self.shape, self.dtype = space.shape, dtype
        self.is_whole = space.dtype.kind in "biu"
        self._label = label

    def __call__(self, value: Any) -> np.ndarray:
        array = _plain_array(value, self.shape, self._label)
        if self.dtype.kind == "u":
            return as_pixels(array, self._label)
        return as_floats(array, self.dtype, self._label, is_whole=self.is_whole)


def as_numbers(value: Any, called: str, wanted: str) -> np.ndarray:
    """Return an array of numbers, perhaps `value` itself. Raises WrongOutput(called + type, wanted) otherwise."""
    array = value
    if type(value) is not np.ndarray:
        if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
            raise WrongOutput(f"{called} with masked entries", "masked entries have no number: fill them")
        try:
            array = np.asarray(value)
        except Exception as e:  # ragged lists, tensors that need a gradient or lie on a GPU
            text = " ".join(str(e).split())
            raise WrongOutput(f"{called} {_of_type(value)}", f"{wanted}: {text:.120}") from e
    # Complex numbers, text, dates and objects.
    if array.dtype.kind not in "biuf":
        raise WrongOutput(f"{called} {_of_type(value)}", wanted)
    return array


def _plain_array(value: Any, shape: tuple[int, ...], label: str) -> np.ndarray:
    """Return an array of numbers of this shape, perhaps `value` itself. Raises WrongOutput."""
    array = value
    if type(value) is not np.ndarray or value.dtype.kind not in "biuf":
        array = as_numbers(value, _called(label), f"its space says numbers of shape {shape}")
    if array.shape != shape:
        raise WrongOutput(f"{_called(label)} of shape {array.shape}", f"its space says {shape}")
    return array


def as_pixels(array: np.ndarray, label: str = "") -> np.ndarray:
    """Return an array of numbers as uint8. Raises WrongOutput if that would change one."""
    if array.dtype == np.uint8:
        return array
    is_pixel = (array >= 0) & (array <= 255) & (array == np.rint(array))  # False for NaN
    if not is_pixel.all():
        raise _wrong_number(array[~is_pixel].flat[0], label, "its space says whole numbers from 0 to 255")
    return array.astype(np.uint8)


def as_floats(array: np.ndarray, dtype: np.dtype, label: str = "", *, is_whole: bool = False) -> np.ndarray:
    """Return an array of numbers as float32 or float64 (`dtype`), perhaps itself.

    Floats are rounded to the nearest. Raises WrongOutput for integers that would change, for floats that would become
    infinite, and with is_whole for fractions.
    """
    found = array.dtype
    if found.kind == "f":
        if is_whole and not (array == np.rint(array)).all():
            wrong = array[array != np.rint(array)].flat[0]
            raise _wrong_number(wrong, label, "its space says whole numbers")
        # A wider float holds every number of a narrower one.
        if found.itemsize <= dtype.itemsize:
            return array if found == dtype else array.astype(dtype)
        most = np.inf
    elif found.itemsize <= 2:  # every number of 16 bits is a float32
        return array.astype(dtype)
    else:
        most = 2.0**24 if dtype.itemsize == 4 else 2.0**53  # floats hold every whole number up to this
    try:
        floats = array.astype(dtype)
        # One pass (the sum of squares) shows for most arrays that no number is too large; a second one for nearly all.
        if np.vdot(floats, floats) < most * most / 2 or np.abs(floats).max(initial=0) < most:
            return floats
    except (ArithmeticError, RuntimeWarning):  # NumPy's warnings may be set to raise
        pass
    # The slow path: convert without warnings, and find the first number that changed.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        floats = array.astype(dtype)
    if found.kind == "f":
        lost = np.isinf(floats) & np.isfinite(array)
    else:
        pairs = zip(array.reshape(-1).tolist(), floats.reshape(-1).tolist(), strict=True)
        lost = np.array([x != int(y) for x, y in pairs], bool).reshape(array.shape)
    if lost.any():
        number = array[lost].flat[0]
        raise _wrong_number(
            number,
            label,
            f"which {dtype} cannot hold: scale it, or observe it as float64 in a space of float64",
        )
    return floats


def _wrong_number(number: Any, label: str, wanted: str) -> WrongOutput:
    text = f"{number}" if isinstance(number, np.integer) else f"{number:g}"
    return WrongOutput(f"{_called(label)} with the number {text}", wanted)


Write = Callable[[Any], None]  # writes an observation into its arrays


def _writer(space: gym.Space, label: str, arrays: Iterator[np.ndarray]) -> Write:
    """Return a function that writes observations of `space` into the next of `arrays`.

    label: the path to this part of the observation, for messages, e.g. ['cards'][0].
    """
    match space:
        case Dict():
            return _dict_writer(space, label, arrays)
        case Tuple():
            return _tuple_writer(space, label, arrays)
        case Discrete():
            return _discrete_writer(space, label, next(arrays))
        case MultiDiscrete():
            return _multi_discrete_writer(space, label, next(arrays))
    out = next(arrays)
    read = _Numbers(space, out.dtype, label)
    dtype = space.dtype
    assert dtype is not None
    # None if every array has to be converted. NumPy calls the cast of 64-bit integers to floats safe: it is not.
    is_safe_type = np.can_cast(dtype, out.dtype) and not (dtype.kind in "iu" and dtype.itemsize == 8)
    shape = space.shape if is_safe_type else None

    def write(value: Any) -> None:
        # Copy an array of the right type and shape directly; convert everything else.
        is_safe = type(value) is np.ndarray and value.dtype == dtype and value.shape == shape
        out[...] = value if is_safe else read(value)

    return write


def _part_writers(space: Dict | Tuple, label: str, arrays: Iterator[np.ndarray]) -> list[tuple[Any, Write]]:
    return [(key, _writer(part, f"{label}[{key!r}]", arrays)) for key, part in space_parts(space)]


def _dict_writer(space: Dict, label: str, arrays: Iterator[np.ndarray]) -> Write:
    parts = _part_writers(space, label, arrays)

    def write(value: Any) -> None:
        for key, write_part in parts:
            try:
                part = value[key]
            except Exception as e:  # a value without keys, or a user's own __getitem__
                has = f"with keys {list(value)}" if isinstance(value, Mapping) else _of_type(value)
                raise WrongOutput(
                    f"{_called(label)} {has}", f"its space says a dict with keys {list(space.spaces)}"
                ) from e
            write_part(part)

    return write


def _tuple_writer(space: Tuple, label: str, arrays: Iterator[np.ndarray]) -> Write:
    parts = _part_writers(space, label, arrays)

    def write(value: Any) -> None:
        is_row = isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.ndim > 0)
        has = len(value) if is_row else None
        if has != len(parts):
            found = _of_type(value) if has is None else f"of {has} parts"
            raise WrongOutput(f"{_called(label)} {found}", f"its space says a tuple of {len(parts)} parts")
        for key, write_part in parts:
            write_part(value[key])

    return write


def _discrete_writer(space: Discrete, label: str, out: np.ndarray) -> Write:
    start, n = int(space.start), int(space.n)

    def write(value: Any) -> None:
        try:
            choice = (
                operator.index(value.item() if isinstance(value, (np.generic, np.ndarray)) else value) - start
            )
        except Exception as e:  # no whole number; tensors raise RuntimeError
            raise WrongOutput(f"{_called(label)} {_of_type(value)}", f"its space says {space}") from e
        if not 0 <= choice < n:  # a negative index would count from the end
            raise WrongOutput(f"{choice + start} as {_called(label)}", f"its space says {space}")
        out[:] = 0
        out[choice] = 1

    return write


def _multi_discrete_writer(space: MultiDiscrete, label: str, out: np.ndarray) -> Write:
    nvec, start = space.nvec.reshape(-1).astype(np.int64), space.start.reshape(-1)
    # Each component has its own part of the one-hot vector.
    offsets, last = np.cumsum(nvec) - nvec, start + (space.nvec.reshape(-1) - 1).astype(start.dtype)
    shape = space.shape

    def write(value: Any) -> None:
        choices = _plain_array(value, shape, label).reshape(-1)
        if choices.dtype.kind == "f" and not (choices == np.rint(choices)).all():
            wrong = choices[choices != np.rint(choices)][0]
            raise _wrong_number(wrong, label, f"its space says {space}")
        if ((choices < start) | (choices > last)).any():  # else the 1 would be written into another component
            raise WrongOutput(f"{value} as {_called(label)}", f"its space says {space}")
        out[:] = 0
        out[offsets + (choices.astype(start.dtype) - start).astype(np.int64)] = 1

    return write


def outside(space: gym.Space, obs: Any, label: str = "") -> Iterator[str]:
    """Yield descriptions of the parts of a valid observation that are outside its space but accepted.

    These are numbers beyond the bounds of a Box by more than rounding, keys that a Dict does not list, and numbers
    other than 0 and 1 in a MultiBinary. Many public tasks return them, and nothing here depends on the bounds.
    """
    match space:
        case Dict():
            keys = obs if isinstance(obs, Mapping) else ()
            more = next((key for key in keys if key not in space.spaces and key != MASK), None)
            if more is not None:
                yield f"{_called(label)} with the key {more!r}, which its space does not list: it is left out"
            for key, part in space.spaces.items():
                if key != MASK:
                    yield from outside(part, obs[key], f"{label}[{key!r}]")
        case Tuple():
            for k, part in enumerate(space.spaces):
                yield from outside(part, obs[k], f"{label}[{k}]")
        case Box() | MultiBinary():
            bounds = (space.low, space.high) if isinstance(space, Box) else (0, 1)
            x, low, high = (np.asarray(of, np.float64) for of in (obs, *bounds))
            # Rounding to float32 may cross a bound: that is no oddity.
            with np.errstate(all="ignore"):
                is_near = np.isclose(x, low, rtol=1e-5) | np.isclose(x, high, rtol=1e-5)
                found = ((x < low) | (x > high)) & ~is_near
            if found.any():
                at = tuple(int(i) for i in np.argwhere(found)[0])
                least, most = (np.broadcast_to(bound, x.shape)[at] for bound in (low, high))
                yield (
                    f"{x[at]:g} in {_called(label)} at {list(at)}, its space says {least:g} to {most:g}: it is taken "
                    "as it is"
                )
