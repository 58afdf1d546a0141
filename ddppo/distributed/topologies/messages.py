"""Rollouts and parameters as one flat message each, because every collective costs a wait.

`RolloutMessage` packs any rollout, of PPO or of an algorithm of its own, with all fields that it has. A message says
what is in it, so its receiver need not know the algorithm. `RolloutGather` brings the messages of a group to its root,
and puts the rollouts side by side as one. `ParameterMessage` brings the parameters back.
"""

import functools
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from ddppo.collectives.group import Group
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Rollout, Transitions

_ALIGN = 8  # bytes; every array starts at a multiple, so that it can be viewed in its own type
_SIZE = struct.Struct("<q")  # of the head, which a message begins with
_CLASSES = (Transitions, Rollout)
_TYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
# Fields with environments along their first dimension, or with rows of single environments. All others are
# `[T, E, ...]`, but for the state of a model with memory, `[C, E, S]`.
_WITHOUT_TIME = ("achieved", "ended_by", "last_obs", "last_mask", "final_obs", "ends")
_STATE = "state"


@dataclass(frozen=True, slots=True)
class _Array:
    """One tensor of a rollout."""

    field: str  # of the rollout
    key: str | None  # in the field, if that is a dict
    x: torch.Tensor

    @property
    def has_time(self) -> bool:
        return self.field not in (*_WITHOUT_TIME, _STATE)

    @property
    def env_dimension(self) -> int:
        return int(self.field not in _WITHOUT_TIME)


class RolloutMessage:
    """Packs rollouts, and puts unpacked ones side by side."""

    def __init__(
        self,
        *,
        with_raw_obs: bool,  # observations as the task returned them travel too, for the learner's normaliser
        # Whole episodes: rows of a rollout. Rows behind the end of the longest episode do not travel, and are 0 where
        # they arrive. None: all rows travel.
        episode_rows: int | None = None,
    ) -> None:
        self._with_raw_obs = with_raw_obs
        self._episode_rows = episode_rows
        self._room = torch.zeros(0, dtype=torch.uint8)

    def pack(self, rollout: Transitions) -> torch.Tensor:
        """Return the rollout as bytes `[n]`, valid until the next call."""
        arrays = self._arrays(rollout)
        if self._episode_rows is not None:
            num_rows = _num_valid_rows(rollout.valid)
            arrays = [_Array(a.field, a.key, a.x[:num_rows]) if a.has_time else a for a in arrays]
        # 1. The head: class, flags, and the name, type and shape of every tensor.
        head = json.dumps(
            [
                _CLASSES.index(type(rollout)),
                [f.name for f in fields(rollout) if getattr(rollout, f.name) is True],
                [[a.field, a.key, _TYPES.index(a.x.dtype), list(a.x.shape)] for a in arrays],
            ],
            separators=(",", ":"),
        ).encode()
        # 2. Where each tensor begins, behind the head.
        starts, end = [], _aligned(_SIZE.size + len(head))
        for a in arrays:
            starts.append(end)
            end += _aligned(a.x.numel() * a.x.element_size())
        # 3. Head and tensors.
        message = self.padded(end)
        message.numpy()[: _SIZE.size + len(head)] = memoryview(_SIZE.pack(len(head)) + head)
        typed = _Typed(message)
        for a, start in zip(arrays, starts, strict=True):
            typed.view(start, a.x.dtype, a.x.shape).copy_(a.x)
        return message

    def padded(self, num_bytes: int) -> torch.Tensor:
        """Return the message last packed with bytes behind its end, or cut, `[num_bytes]`."""
        if len(self._room) < num_bytes:
            grown = torch.zeros(num_bytes, dtype=torch.uint8)
            grown[: len(self._room)] = self._room
            self._room = grown
        return self._room[:num_bytes]

    def unpack(self, messages: Sequence[torch.Tensor], device: torch.device) -> Any:
        """Return the rollouts of several ranks, one message each, as one, with environments in their order."""
        heads, parts = zip(*map(_read, messages), strict=True)
        class_number, flags = heads[0]
        assert all(head == heads[0] for head in heads), heads
        kind = _CLASSES[class_number]
        # Environments and rows of each rollout.
        num_rows, num_envs = zip(*(part["rewards", None].x.shape for part in parts), strict=True)

        found: dict[str, Any] = {f.name: None for f in fields(kind) if f.name in _OPTIONAL}
        for name in dict.fromkeys(name for part in parts for name in part):
            of_ranks = [
                part[name].x if name in part else _all_allowed(name, parts, num_rows[k], num_envs[k])
                for k, part in enumerate(parts)
            ]
            any_part = next(part[name] for part in parts if name in part)
            if self._episode_rows is not None and any_part.has_time:
                of_ranks = [_padded(x, self._episode_rows, fill=name[0] == "action_mask") for x in of_ranks]
            if name[0] == "ends":  # columns count from the first environment of all
                of_ranks = [x + torch.tensor([0, sum(num_envs[:k])]) for k, x in enumerate(of_ranks)]
            whole = torch.cat(of_ranks, dim=any_part.env_dimension).to(device)
            field, key = name
            if key is None:
                found[field] = whole
            else:
                found[field] = {**(found.get(field) or {}), key: whole}
        if not self._with_raw_obs:
            found["raw_obs"] = found["obs"]
        return kind(**{**found, **dict.fromkeys(flags, True)})

    def _arrays(self, rollout: Transitions) -> list[_Array]:
        """Return all tensors of a rollout, in the order of its fields."""
        arrays: list[_Array] = []
        for f in fields(rollout):
            value = getattr(rollout, f.name)
            if f.name == "raw_obs" and not self._with_raw_obs:
                continue
            if isinstance(value, torch.Tensor):
                arrays.append(_Array(f.name, None, value))
            elif isinstance(value, Mapping):
                arrays += [_Array(f.name, key, x) for key, x in value.items()]
            else:
                assert value is None or isinstance(value, bool), (f.name, value)
        return arrays


# Fields that a rollout may lack: None, where no rank has sent one.
_OPTIONAL = (
    *("action_mask", "achieved", "ended_by", "last_obs", "last_mask", "final_obs", "ends"),
    *("ratios", "state"),
)
_Parts = dict[tuple[str, str | None], _Array]


def _read(message: torch.Tensor) -> tuple[tuple[int, list[str]], _Parts]:
    """Return class and flags of a rollout, and its tensors by field and key, as views of the message."""
    content = message.numpy()
    (size,) = _SIZE.unpack_from(content.data)
    kind, flags, described = _described(content[_SIZE.size : _SIZE.size + size].tobytes())
    start, parts, typed = _aligned(_SIZE.size + size), {}, _Typed(message)
    for field, key, type_number, shape in described:
        dtype = _TYPES[type_number]
        parts[field, key] = _Array(field, key, typed.view(start, dtype, shape))
        start += _aligned(math.prod(shape) * dtype.itemsize)
    return (kind, flags), parts


@functools.lru_cache(maxsize=64)
def _described(head: bytes) -> Any:
    return json.loads(head)  # most rollouts of a run have the same head


class _Typed:
    """A message seen as numbers of each type."""

    def __init__(self, message: torch.Tensor) -> None:
        self._message = message
        self._by_type: dict[torch.dtype, torch.Tensor] = {}

    def view(self, start: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Return the array of this type and shape that starts at this byte."""
        if (numbers := self._by_type.get(dtype)) is None:
            numbers = self._by_type[dtype] = self._message.view(dtype)
        first = start // dtype.itemsize
        return numbers[first : first + math.prod(shape)].view(shape)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN) * _ALIGN


def _num_valid_rows(valid: torch.Tensor) -> int:
    """Return the number of rows up to the last one with a valid step and its successor."""
    rows = valid.any(dim=1).nonzero()
    return min(int(rows[-1]) + 2, len(valid)) if len(rows) else 1


def _padded(x: torch.Tensor, num_rows: int, *, fill: bool) -> torch.Tensor:
    """Return x `[t, E, ...]` with `num_rows` rows. New rows are 0; of masks, where `fill` is set, 1: all allowed."""
    if len(x) == num_rows:
        return x
    return torch.cat([x, x.new_full((num_rows - len(x), *x.shape[1:]), fill)])


def _all_allowed(
    name: tuple[str, str | None], parts: Sequence[_Parts], num_rows: int, num_envs: int
) -> torch.Tensor:
    """Return a mask that allows everything, of a rank in which nothing was masked while another rank sent masks."""
    assert name == ("action_mask", None), f"only some ranks sent {name}"
    size = next(part[name].x.shape[2:] for part in parts if name in part)
    return torch.ones(num_rows, num_envs, *size, dtype=torch.bool)


class RolloutGather:
    """Brings the rollouts of a group to its root, in one gather of padded messages.

    Messages of one run have equal sizes in all iterations, so sizes are exchanged once; with `sizes_vary`, as of whole
    episodes, they are exchanged in every iteration.
    """

    def __init__(self, group: Group, message: RolloutMessage, *, sizes_vary: bool) -> None:
        self._group = group
        self._message = message
        self._sizes_vary = sizes_vary
        self._sizes: list[int] = []  # of the message of every rank

    def gather(self, rollout: Transitions | None, device: torch.device) -> Any:
        """Return the rollouts of all ranks as one at the root, and None on other ranks.

        rollout: None on a rank that does not act.
        """
        num_bytes = 0 if rollout is None else len(self._message.pack(rollout))
        if self._sizes_vary or not self._sizes:
            first = len(self._group.records)
            self._sizes = self._group.gather(torch.tensor([num_bytes])).flatten().tolist()
            if not self._sizes_vary:  # these bytes travel once, and are not counted as an iteration's
                self._group.records[first:] = [
                    record._replace(num_bytes=None) for record in self._group.records[first:]
                ]
        assert num_bytes == self._sizes[self._group.rank], (num_bytes, self._sizes)
        messages = self._group.gather_at_root(self._message.padded(max(self._sizes)))
        if messages is None:
            return None
        sent = [row[:size] for row, size in zip(messages, self._sizes, strict=True) if size]
        return self._message.unpack(sent, device)


# -- Parameters.


class ParameterMessage:
    """Everything that a rank acts with: parameters, and the moments that normalise observations.

    Parameters without a part in acting stay with the learner: those outside of `Algorithm.synchronised`.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        normalizer: ObsNormalizer | None,
        prefixes: Sequence[str] = ("",),  # of the parameters that act
    ) -> None:
        self._slices = [parameters.vector.data[start:end] for start, end in parameters.slices(prefixes)]
        self._normalizer = normalizer

    def broadcast(self, group: Group) -> None:
        """Replace the parameters and moments of all ranks by rank 0's."""
        if len(self._slices) == 1:
            group.broadcast_(self._slices[0])
        else:
            flat = group.broadcast_(torch.cat(self._slices))
            for own, sent in zip(self._slices, flat.split([len(x) for x in self._slices]), strict=True):
                own.copy_(sent)
        if self._normalizer is not None:
            self._normalizer.load(group.broadcast_(self._normalizer.state.clone()))
