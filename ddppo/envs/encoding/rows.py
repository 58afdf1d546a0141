"""Rows: what one environment hands over per step, the arrays of an observation and the action mask beside them.

A row carries both through shared memory, so a mask always belongs to its observation.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from ddppo.envs.encoding.codec import MASK, flat_mask, space_parts, without_mask
from ddppo.spaces import ArraySpec, EnvSpec, each, leaves

ObsArrays = np.ndarray | dict[str, np.ndarray]  # of a spec that is one array, or several by name


class WrongOutput(ValueError):
    """An environment returned `found`, against `wanted`: two halves of a sentence."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"returned {found}, {wanted}")
        self.found = found
        self.wanted = wanted


class RowLayout:
    """How observations and masks of a spec lie in arrays of rows.

    dtype: of one row. It is the array of the observation itself where that is all there is, else it has a field for
    each array, in memory one after another, and one for the mask.
    """

    def __init__(self, spec: EnvSpec) -> None:
        arrays = [(np.dtype(leaf.dtype), leaf.shape) for leaf in leaves(spec.obs)]
        self._names: str | dict[str, str] | None = None
        if isinstance(spec.obs, ArraySpec) and spec.mask_size is None:
            self.dtype = np.dtype(arrays[0])
            return
        names = [f"obs {k}" for k in range(len(arrays))]  # a task's own names need not be names of fields
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

    New, because many tasks write their next observation into the array they handed over before, and a final
    observation must outlive the reset that follows in the same step. Raises WrongOutput where its space does not
    describe an observation.
    """

    def __init__(self, space: gym.Space, spec: EnvSpec) -> None:
        self.space = without_mask(space)
        self.layout = RowLayout(spec)
        self._is_plain_box = isinstance(space, Box) and spec.mask_size is None
        if self._is_plain_box:
            self._shape, self._dtype = space.shape, self.layout.dtype.base
        # Written anew for every observation, and copied: a view of a field costs as much as all that is written.
        self._row = np.zeros((), self.layout.dtype)
        # With the bytes between fields, which copies of rows leave to chance and comparisons of bytes would see.
        self._whole = self._row.view(f"V{self.layout.dtype.itemsize}") if self.layout.dtype.names else None
        self._mask = self.layout.mask(self._row)
        self._write = _writer(self.space, "", iter(leaves(self.layout.obs(self._row))))

    def __call__(self, obs: Any, info: dict[str, Any]) -> np.ndarray:
        if self._is_plain_box:
            if type(obs) is np.ndarray and obs.dtype == self._dtype and obs.shape == self._shape:
                return obs.copy()
            return _as_array(obs, self._dtype, self._shape, "")
        self._write(obs)
        if self._mask is not None:
            self._write_mask(obs, info, self._mask)
        return self._row.copy() if self._whole is None else self._whole.copy().view(self.layout.dtype)

    def _write_mask(self, obs: Any, info: dict[str, Any], out: np.ndarray) -> None:
        mask = obs.get(MASK) if isinstance(obs, dict) else None
        mask = info.get(MASK) if mask is None else mask
        if mask is None:
            out[:] = True  # all is allowed where a task hands over no mask
            return
        mask = flat_mask(mask)
        if mask.size != out.size:
            raise WrongOutput(f"an action_mask of {mask.size} entries", f"its first had {out.size}")
        np.not_equal(mask, 0, out=out)


def as_number(reward: Any) -> float:
    """Return a reward as a number; arrays of one entry are. Raises WrongOutput."""
    try:
        return float(reward.item() if isinstance(reward, (np.ndarray, np.generic)) else reward)
    except (TypeError, ValueError) as e:
        shape = f" and shape {reward.shape}" if isinstance(reward, np.ndarray) else ""
        raise WrongOutput(f"a reward of type {type(reward).__name__}{shape}", "a reward is one number") from e


def _called(label: str) -> str:
    return f"observation{label}" if label else "an observation"


def _as_array(
    value: Any, dtype: np.dtype, shape: tuple[int, ...] | None, label: str, *, copy: bool | None = True
) -> np.ndarray:
    """Return an array of an observation, a new one or (copy=None) perhaps the value itself.

    Raises WrongOutput unless it holds such numbers in that shape.
    """
    try:
        array = np.array(value, None if dtype.kind == "u" else dtype, copy=copy)
        if array.dtype.kind not in "biuf":
            raise TypeError(array.dtype)
    except (TypeError, ValueError) as e:
        raise WrongOutput(
            f"{_called(label)} of type {type(value).__name__}", f"its space says numbers of shape {shape}"
        ) from e
    if array.shape != shape:
        raise WrongOutput(f"{_called(label)} of shape {array.shape}", f"its space says {shape}")
    return as_pixels(array, label) if dtype.kind == "u" else array


def as_pixels(array: np.ndarray, label: str = "") -> np.ndarray:
    """Return an array of numbers as uint8. Raises WrongOutput where that would change them."""
    if array.dtype == np.uint8:
        return array
    is_pixel = (array >= 0) & (array <= 255) & (array == np.rint(array))  # not where NaN
    if not is_pixel.all():
        raise WrongOutput(
            f"{_called(label)} with the number {array[~is_pixel].flat[0]:g}",
            "its space says whole numbers from 0 to 255",
        )
    return array.astype(np.uint8)


Write = Callable[[Any], None]  # an observation into its arrays


def _writer(space: gym.Space, label: str, arrays: Iterator[np.ndarray]) -> Write:
    """Return what writes observations of `space` into the next of `arrays`.

    `label` is the way to them, e.g. ['cards'][0].
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

    def write(value: Any) -> None:
        out[...] = _as_array(value, out.dtype, space.shape, label, copy=None)

    return write


def _part_writers(space: Dict | Tuple, label: str, arrays: Iterator[np.ndarray]) -> list[tuple[Any, Write]]:
    return [(key, _writer(part, f"{label}[{key!r}]", arrays)) for key, part in space_parts(space)]


def _dict_writer(space: Dict, label: str, arrays: Iterator[np.ndarray]) -> Write:
    parts = _part_writers(space, label, arrays)

    def write(value: Any) -> None:
        for key, write_part in parts:
            try:
                part = value[key]
            except (KeyError, TypeError, IndexError) as e:
                has = (
                    f"with keys {list(value)}"
                    if isinstance(value, dict)
                    else f"of type {type(value).__name__}"
                )
                raise WrongOutput(
                    f"{_called(label)} {has}", f"its space says a dict with keys {list(space.spaces)}"
                ) from e
            write_part(part)

    return write


def _tuple_writer(space: Tuple, label: str, arrays: Iterator[np.ndarray]) -> Write:
    parts = _part_writers(space, label, arrays)

    def write(value: Any) -> None:
        has = len(value) if isinstance(value, (tuple, list, np.ndarray)) else None
        if has != len(parts):
            found = f"of type {type(value).__name__}" if has is None else f"of {has} parts"
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
        except (TypeError, ValueError) as e:
            raise WrongOutput(
                f"{_called(label)} of type {type(value).__name__}", f"its space says {space}"
            ) from e
        if not 0 <= choice < n:  # a negative one would count from the end
            raise WrongOutput(f"{choice + start} as {_called(label)}", f"its space says {space}")
        out[:] = 0
        out[choice] = 1

    return write


def _multi_discrete_writer(space: MultiDiscrete, label: str, out: np.ndarray) -> Write:
    nvec, start = space.nvec.reshape(-1), space.start.reshape(-1)
    offsets = np.cumsum(nvec) - nvec

    def write(value: Any) -> None:
        choices = _as_array(value, np.dtype(np.int64), space.shape, label).reshape(-1) - start
        if ((choices < 0) | (choices >= nvec)).any():  # it would fall into another component's entries
            raise WrongOutput(f"{value} as {_called(label)}", f"its space says {space}")
        out[:] = 0
        out[offsets + choices] = 1

    return write
