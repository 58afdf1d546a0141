"""Specs of observations and actions: all that environments and models need to know about one another.

An observation is one array, or a dict of arrays by name. So are its spec and everything computed from it. `leaves`,
`each` and `zipped` accept both forms.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """The spec of an action.

    kind and sizes:
        discrete: (n,) choices.
        multi_discrete: (n_1, ..., n_k) choices of each component.
        multi_binary: (num_bits,).
        box: (num_dims,), flattened.
        text: (max_length,) characters.
    """

    kind: str
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()  # box: the lower bound of each dimension; () if one is infinite
    high: tuple[float, ...] = ()  # box: the upper bounds, likewise

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action as the model produces it: () for discrete, (k,) otherwise."""
        if self.kind == "discrete":
            return ()
        return (len(self.sizes),) if self.kind == "multi_discrete" else self.sizes


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of an observation, or a text. Pixels stay uint8 until the model; others have its dtype before."""

    shape: tuple[int, ...]  # of a text: (most characters,)
    dtype: str = (
        "float32"  # uint8 (pixels, 0 to 255), float32 or float64, as the environment returns it; or text
    )
    high: int | None = (
        None  # the largest value in an array of integers, if its space has one; None for pixels
    )

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype not in ("uint8", "text")


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """The spec of a task: its observations and actions, and the features that ranks and models must know."""

    # One array; or for a Dict or Tuple space its arrays by path, e.g. "image", "cards.0".
    obs: ArraySpec | dict[str, ArraySpec]
    action: ActionSpec
    # Length of an action mask, the sum of choices over components; None without masks.
    mask_size: int | None = None
    # Import path of the class that records the messages of environments; None if they send none.
    journal: str | None = None
    # Import path of a text task's own tokenizer.
    tokens: str | None = None
    # Tools of a text task that a language model calls; None without tools. Each is {"type": "function", "function":
    # {"name", "description", "parameters"}}, the parameters by a JSON schema.
    tools: list[dict[str, Any]] | None = None
    # The tier of each task that options={"task": name} of a reset may name; None without such tasks.
    tasks: dict[str, str] | None = None
    # Whether a process can hold only one environment.
    one_a_process: bool = False
    # Whether it holds something outside its process, so that it is closed before its process is killed.
    needs_close: bool = False
    # A module that is imported before processes of environments are forked.
    forked_from: str | None = None
    # The arrays that the policy reads, and those that the value function reads; None: both read all. A simulator's
    # critic may see more than the robot does.
    policy_keys: tuple[str, ...] | None = None
    value_keys: tuple[str, ...] | None = None
    # How environments are saved (ddppo.envs.saving); None if it is not known yet.
    saved_by: str | None = field(default=None, compare=False)
    # The task's own spaces in plain values (ddppo.envs.meaning); None if they are unknown here.
    spaces: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def is_text(self) -> bool:
        return self.action.kind == "text"

    @property
    def obs_size(self) -> int:
        """The number of values in an observation."""
        return sum(leaf.size for leaf in leaves(self.obs))


def tools_of(given: Any) -> list[dict[str, Any]] | None:
    """Return tools as an EnvSpec holds them, from functions or their descriptions alone. Raises ValueError."""
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"{given!r} is not a list of tools")
    found = []
    for tool in given:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f'{tool!r} is not a tool: it needs a "name"')
        schema = function.get("parameters", {})
        properties = schema.get("properties", {}) if isinstance(schema, dict) else None
        if not isinstance(properties, dict) or not all(isinstance(x, dict) for x in properties.values()):
            raise ValueError(
                f'"parameters" of the tool {function["name"]} are no JSON schema: {{"type": "object", "properties": '
                '{name: {"type": ...}}, "required": [...]}'
            )
        found.append({"type": "function", "function": function})
    try:
        plain: list[dict[str, Any]] = json.loads(json.dumps(found))
    except TypeError as e:
        raise ValueError(f"the tools hold a value that JSON cannot: {e}") from e
    return plain


def text_parameter(tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the name of the parameter that is the action, if there is a single tool with one text; else None."""
    if len(tools) != 1:
        return None
    properties = (tools[0]["function"].get("parameters") or {}).get("properties", {})
    if len(properties) != 1:
        return None
    ((name, schema),) = properties.items()
    return str(name) if schema.get("type") == "string" else None


def leaves(obs: Any) -> list[Any]:
    """Return the arrays of an observation, or the objects in their place, in the order of the spec."""
    return list(obs.values()) if isinstance(obs, dict) else [obs]


def each(function: Callable[..., Any], obs: Any, *others: Any) -> Any:
    """Return function(x, ...) for every array, in the form of `obs`. `others` have the same form."""
    if isinstance(obs, dict):
        return {key: function(x, *(other[key] for other in others)) for key, x in obs.items()}
    return function(obs, *others)


def zipped(sequences: Any) -> list[Any]:
    """Turn a dict of sequences into a list of dicts, and a single sequence into a list."""
    if isinstance(sequences, dict):
        return [dict(zip(sequences, row, strict=True)) for row in zip(*sequences.values(), strict=True)]
    return list(sequences)
