"""What observations and actions are: all that environments and models need to know of one another.

Observations are one array, or a dict of arrays by name where the task observes several; so are their specs, and
whatever is made of them. `leaves`, `each` and `zipped` treat both alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """What an action is. `sizes` holds the number of choices per component, bits or dimensions:

    discrete: (n,); multi_discrete: (n_1, ..., n_k); multi_binary: (num_bits,); box: (num_dims,), flattened;
    text: (max_length,), characters. low, high: bounds of every dimension of a box if all are finite, else ().
    """

    kind: str
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action as the model produces it: () for discrete, (k,) otherwise."""
        if self.kind == "discrete":
            return ()
        return (len(self.sizes),) if self.kind == "multi_discrete" else self.sizes


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of an observation. dtype is uint8 (pixels, 0 to 255), float32 or float64, as environments hand it over.

    Or it is text, a string of shape[0] characters at most, which is in no array.

    Pixels stay uint8 until the model; all else reaches it in the type that it computes in. high: the largest number in
    an array of whole ones, where its space says so; None for pixels and others.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    high: int | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype not in ("uint8", "text")


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Shapes of a task.

    obs: one array, or where the task observes a Dict or Tuple, its arrays by their paths, e.g. "image", "cards.0".
    mask_size is the length of an action mask (sum of choices over components), or None where the task has none.
    journal: the import path of who keeps a record of what its environments publish, None where they publish nothing.
    tokens: the import path of the tokenizer of a task of text, None where it has none of its own.
    tasks: the tier of each task that options={"task": name} of a reset may name; None where there are none.
    one_a_process: whether a process can hold one environment only. forked_from: a module that processes of environments
    find imported. saved_by: how its environments are saved (ddppo.envs.saving), None where that shows later.
    spaces: the task's own, in plain values (ddppo.envs.meaning); None where nobody here knows them.
    """

    obs: ArraySpec | dict[str, ArraySpec]
    action: ActionSpec
    mask_size: int | None = None
    journal: str | None = None
    tokens: str | None = None
    tasks: dict[str, str] | None = None
    one_a_process: bool = False
    forked_from: str | None = None
    saved_by: str | None = field(default=None, compare=False)
    spaces: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def is_text(self) -> bool:
        return self.action.kind == "text"

    @property
    def obs_size(self) -> int:
        """How many numbers an observation holds."""
        return sum(leaf.size for leaf in leaves(self.obs))


def leaves(obs: Any) -> list[Any]:
    """Return the arrays, or whatever stands for each, in the order of the spec."""
    return list(obs.values()) if isinstance(obs, dict) else [obs]


def each(function: Callable[..., Any], obs: Any, *others: Any) -> Any:
    """Return function(x, ...) of every array, in the form of `obs`; `others` have its form too."""
    if isinstance(obs, dict):
        return {key: function(x, *(other[key] for other in others)) for key, x in obs.items()}
    return function(obs, *others)


def zipped(sequences: Any) -> list[Any]:
    """Turn a sequence of arrays by name into a list of dicts; one sequence by itself into a list."""
    if isinstance(sequences, dict):
        return [dict(zip(sequences, row, strict=True)) for row in zip(*sequences.values(), strict=True)]
    return list(sequences)
