"""From the JSON schemas of an OpenEnv server to actions and observations of a policy.

`actions_of` chooses the form of actions by the schema: numbers (one field for each component), a text (a field), or
calls of tools. Each form turns an action of the policy into the data of a step. `shown` and `numbers_of` turn an
observation into text or arrays. All functions are pure.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from ddppo.errors import ConfigError
from ddppo.serve.protocol import BadMessage
from ddppo.spaces import ActionSpec, text_parameter, tools_of

_OF_BASE = ("metadata", "done", "reward")  # fields of every action or observation of OpenEnv
_MOST_CHOICES = 10_000
_LONGEST_TEXT = 65_536  # characters of an action without a maxLength
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}

Schema = Mapping[str, Any]


class BadAction(ValueError):
    """A text of the policy that is no action. Its message is for the policy."""


# -- reading schemas ---------------------------------------------------------------------------------------------------


def fields_of(schema: Schema) -> dict[str, Schema]:
    """Return the schemas of the fields of an object, without those that all objects of OpenEnv have."""
    properties = schema.get("properties", {})
    found = properties.items() if isinstance(properties, dict) else ()
    return {str(key): _resolved(part, schema) for key, part in found if key not in _OF_BASE}


def _resolved(part: Any, root: Schema) -> Schema:
    """Return a schema with its $ref followed, and that of X for an optional X."""
    for _ in range(20):  # a reference may be to another one, but not for ever
        if not isinstance(part, dict):
            return {}
        others = [each for each in part.get("anyOf", ()) if each != {"type": "null"}]
        if "$ref" in part:
            part = _at(root, str(part["$ref"]))
        elif len(others) == 1:
            part = others[0]
        else:
            break
    return part


def _at(root: Any, path: str) -> Any:
    for key in path.removeprefix("#/").split("/"):
        root = root.get(key, {}) if isinstance(root, dict) else {}
    return root


def misfit(value: Mapping[str, Any], schema: Schema) -> str | None:
    """Return how an object differs from its schema, by the types of its own fields; None if it fits."""
    required = schema.get("required", ())
    for key, part in fields_of(schema).items():
        if key not in value:
            if key in required:
                return f"the field {key} is missing"
            continue
        kinds = _kinds(schema["properties"][key], schema)
        if kinds and not any(_is_of(value[key], kind) for kind in kinds):
            found = type(value[key]).__name__
            return f"the field {key} is of the type {found}, and the schema says {' or '.join(kinds)}"
        if "enum" in part and value[key] is not None and value[key] not in part["enum"]:
            return f"the field {key} is none of the values in the schema"
    return None


def _kinds(part: Any, root: Schema) -> list[str]:
    """Return the JSON types that a schema allows; [] for any."""
    if not isinstance(part, dict):
        return []
    if "$ref" in part:
        return _kinds(_at(root, str(part["$ref"])), {})
    if "anyOf" in part:
        inner = [_kinds(each, root) for each in part["anyOf"]]
        return [kind for kinds in inner for kind in kinds] if all(inner) else []
    kinds = part.get("type", [])
    return [str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])]


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # a subclass of int in Python
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


# -- actions ----------------------------------------------------------------------------------------------------------


class ActionForm(Protocol):
    """How an action of the policy becomes the data of a step."""

    spec: ActionSpec
    tools: list[dict[str, Any]] | None

    def data(self, action: Any) -> dict[str, Any]:
        """Return the fields of an action. Raises BadAction for a text that is none."""
        ...


@dataclass(frozen=True, slots=True)
class _Part:
    """A field of numbers: choices, or components of a box."""

    name: str
    choices: Sequence[Any] = ()  # (): a box
    size: int | None = None  # of a list; None for a single number
    low: float = -math.inf
    high: float = math.inf


class NumberActions:
    """Fields that are choices, or numbers; `constants` are further fields with the same value in every step."""

    tools: list[dict[str, Any]] | None = None

    def __init__(self, parts: Sequence[_Part], constants: Mapping[str, Any]) -> None:
        self._parts, self._constants = parts, dict(constants)
        # Choices: one number for each component. Boxes: one for each dimension.
        self._is_box = not parts[0].choices
        sizes = [part.size or 1 for part in parts]
        if self._is_box:
            lows = [part.low for part, size in zip(parts, sizes, strict=True) for _ in range(size)]
            highs = [part.high for part, size in zip(parts, sizes, strict=True) for _ in range(size)]
            self._low, self._high = np.array(lows), np.array(highs)
            is_bounded = bool(np.isfinite([lows, highs]).all())
            bounds = (tuple(lows), tuple(highs)) if is_bounded else ((), ())
            self.spec = ActionSpec("box", (len(lows),), *bounds)
        else:
            counts = tuple(
                len(part.choices) for part, size in zip(parts, sizes, strict=True) for _ in range(size)
            )
            kind = "discrete" if len(counts) == 1 and parts[0].size is None else "multi_discrete"
            self.spec = ActionSpec(kind, counts)

    def data(self, action: Any) -> dict[str, Any]:
        numbers = np.atleast_1d(np.asarray(action))
        if self._is_box:
            numbers = np.clip(
                numbers.astype(np.float64), self._low, self._high
            )  # a policy's samples may exceed them
        given = iter(numbers.tolist())
        found = dict(self._constants)
        for part in self._parts:
            values = [part.choices[int(x)] if part.choices else x for x in islice(given, part.size or 1)]
            found[part.name] = values[0] if part.size is None else values
        return found


class TextAction:
    """One field that is text."""

    tools: list[dict[str, Any]] | None = None

    def __init__(self, field: str, longest: int, constants: Mapping[str, Any]) -> None:
        self._field, self._constants = field, dict(constants)
        self.spec = ActionSpec("text", (longest,))

    def data(self, action: Any) -> dict[str, Any]:
        return {**self._constants, self._field: action}


class ToolAction:
    """A call of a tool, as ddppo.domains.text.tool_calls.action_of writes it.

    Args:
        is_mcp: the tools are those of an MCP server behind the environment. Else there is one, whose arguments are the
            fields of an action.
    """

    tools: list[dict[str, Any]] | None

    def __init__(self, tools: list[dict[str, Any]], constants: Mapping[str, Any], *, is_mcp: bool) -> None:
        self.tools = tools
        self._constants, self._is_mcp = dict(constants), is_mcp
        self.spec = ActionSpec("text", (_LONGEST_TEXT,))

    def data(self, action: Any) -> dict[str, Any]:
        # 1. A single tool with a single text has this text as its action, others the JSON of name and arguments.
        tools = self.tools or []
        parameter, names = text_parameter(tools), [tool["function"]["name"] for tool in tools]
        if parameter is not None:
            name, arguments = names[0], {parameter: action}
        else:
            try:
                found = json.loads(action)
                name, arguments = found["name"], found["arguments"]
            except (ValueError, TypeError, KeyError, RecursionError):
                raise BadAction('an action is JSON: {"name": <tool>, "arguments": {...}}') from None
        if name not in names or not isinstance(arguments, dict):
            raise BadAction(f"there is no tool {str(name)[:40]!r}: use {', '.join(names)}")
        # 2. The action of the server.
        if self._is_mcp:
            return {**self._constants, "type": "call_tool", "tool_name": name, "arguments": arguments}
        # Other fields of the action are not the policy's to set.
        fields = tools[0]["function"]["parameters"]["properties"]
        if unknown := [key for key in arguments if key not in fields]:
            raise BadAction(f"{name} has no argument {unknown[0][:40]!r}: it takes {', '.join(fields)}")
        return {**self._constants, **arguments}


def calls_tools(schema: Schema) -> bool:
    """Return whether the schema of actions is that of MCP: call_tool with a name and arguments, or no fields at all."""
    properties = fields_of(schema)
    return {"tool_name", "arguments"} <= properties.keys() or not properties


def mcp_tools(result: Any) -> list[dict[str, Any]]:
    """Return the tools in the result of tools/list. Raises ValueError."""
    listed = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(listed, list) or not listed:
        raise ValueError("it lists no tools")
    found = []
    for tool in listed:
        if not isinstance(tool, dict):
            raise ValueError(f"{str(tool)[:80]} is no tool")
        schema = tool.get("inputSchema") or tool.get("input_schema") or {}
        found.append(
            {"name": tool.get("name"), "description": tool.get("description") or "", "parameters": schema}
        )
    tools = tools_of(found)
    assert tools is not None
    return tools


def actions_of(
    schema: Schema, tools: list[dict[str, Any]] | None, form: str, constants: Mapping[str, Any],
    choices: Mapping[str, int], *, observes_numbers: bool,
) -> ActionForm:  # fmt: skip
    """Return the form of actions for a schema.

    Args:
        tools: of the MCP server behind the environment; None if its actions are no calls of tools.
        form: auto, numbers, text or tool.
        constants: fields with a fixed value.
        choices: for fields that are whole numbers without bounds: the number of choices, from 0.
        observes_numbers: observations hold numbers and no text.

    Raises ConfigError that says which schema was found, and what to set.
    """
    if tools is not None:
        return ToolAction(tools, constants, is_mcp=True)
    # 1. The fields that the policy sets: the required ones, or all if none is.
    properties = fields_of(schema)
    for name, given in (("action", constants), ("choices", choices)):
        if unknown := [key for key in given if key not in properties]:
            raise ConfigError(
                f"env.{name}={dict(given)}: actions of the server have no field {unknown[0]}: use "
                f"{', '.join(properties)}"
            )
    fixed = {key: part["const"] for key, part in properties.items() if "const" in part} | dict(constants)
    open_fields = {key: part for key, part in properties.items() if key not in fixed}
    required = [key for key in open_fields if key in schema.get("required", ()) or key in choices]
    chosen = {key: open_fields[key] for key in required} or open_fields
    # 2. The forms that these fields can have.
    parts = [_part(key, part, choices) for key, part in chosen.items()]
    numbers = [part for part in parts if part is not None]
    is_numbers = len(numbers) == len(parts) > 0 and len({bool(part.choices) for part in numbers}) == 1
    texts = [key for key, part in chosen.items() if _is_text(part)]
    is_text = len(chosen) == len(texts) == 1
    if form == "tool" and chosen:
        called = {key: dict(part) for key, part in chosen.items()}
        parameters = {"type": "object", "properties": called, "required": list(called)}
        function = {
            "name": "act",
            "description": str(schema.get("description", "")),
            "parameters": parameters,
        }
        return ToolAction([{"type": "function", "function": function}], fixed, is_mcp=False)
    # An enumeration of words is both: numbers for a policy that observes numbers, words for one that reads text.
    if is_text and (form == "text" or (form == "auto" and not (is_numbers and observes_numbers))):
        longest = chosen[texts[0]].get("maxLength", _LONGEST_TEXT)
        return TextAction(texts[0], longest if type(longest) is int and longest > 0 else _LONGEST_TEXT, fixed)
    if is_numbers and form in ("auto", "numbers"):
        return NumberActions(numbers, fixed)
    found = json.dumps({key: {k: v for k, v in part.items() if k not in ("title", "description")}
                        for key, part in chosen.items()})  # fmt: skip
    raise ConfigError(
        f"env.form={form}: the schema of the server's actions, {found[:400]}, has no such form: give fixed values to "
        "fields by env.action={field: value}, the number of choices of whole numbers by env.choices={field: 4}, or use "
        "env.form=tool, which lets a language model call the action as a tool"
    )


def _is_text(part: Schema) -> bool:
    enum = part.get("enum")
    return part.get("type") == "string" or (isinstance(enum, list) and all(isinstance(x, str) for x in enum))


def _part(name: str, part: Schema, choices: Mapping[str, int]) -> _Part | None:
    """Return a field as numbers, None if its schema does not say which."""
    if isinstance(enum := part.get("enum"), list) and 0 < len(enum) <= _MOST_CHOICES:
        return _Part(name, enum)
    low, high = _bounds(part)
    match part.get("type"):
        case "boolean":
            return _Part(name, [False, True])
        case "integer":
            count = choices[name] if name in choices else high - low + 1
            first = 0 if name in choices else low
            return _Part(name, range(int(first), int(first + count))) if 0 < count <= _MOST_CHOICES else None
        case "number":
            return _Part(name, low=low, high=high)
        case "array":
            size, items = part.get("minItems"), part.get("items")
            inner = _part(name, items, choices) if isinstance(items, dict) else None
            if (
                inner is None
                or inner.size is not None
                or type(size) is not int
                or size != part.get("maxItems")
            ):
                return None
            return _Part(name, inner.choices, size, inner.low, inner.high) if size > 0 else None
    return None


def _bounds(part: Schema) -> tuple[float, float]:
    def number(key: str, shift: float, default: float) -> float:
        value = part.get(key)
        return value + shift if isinstance(value, int | float) else default

    one = 1.0 if part.get("type") == "integer" else 0.0
    low = max(number("minimum", 0.0, -math.inf), number("exclusiveMinimum", one, -math.inf))
    high = min(number("maximum", 0.0, math.inf), number("exclusiveMaximum", -one, math.inf))
    return low, high


# -- observations -----------------------------------------------------------------------------------------------------


def shown(observation: Mapping[str, Any]) -> str:
    """Return the text of an observation: its sole text, the result of a tool, else its fields as JSON."""
    fields = {key: value for key, value in observation.items() if key not in _OF_BASE}
    if "tool_name" in fields and {"result", "error"} & fields.keys():
        return _result(fields.get("result"), fields.get("error"))
    if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
        return text
    # A reset of an environment of tools has no fields of its own.
    return json.dumps(fields or observation.get("metadata") or {}, ensure_ascii=False)


def _result(result: Any, error: Any) -> str:
    """Return the text of the result of a tool."""
    if error is not None:
        return f"error: {error.get('message') if isinstance(error, dict) else error}"
    if isinstance(result, dict) and isinstance(content := result.get("content"), list):
        texts = [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]
        if texts:
            return "\n".join(texts)
        result = result.get("data")
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def tool_failed(observation: Mapping[str, Any]) -> bool | None:
    """Return whether the tool of a step failed; None if the observation is not that of a tool."""
    if "tool_name" not in observation:
        return None
    result = observation.get("result")
    is_error = isinstance(result, dict) and (result.get("is_error") or result.get("isError"))
    return observation.get("error") is not None or bool(is_error)


def numbers_of(observation: Mapping[str, Any], fields: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Return the numbers of an observation as arrays of float32, by field. Raises BadMessage.

    fields: the fields to observe; None for all.
    """
    names = [key for key in observation if key not in _OF_BASE] if fields is None else list(fields)
    found = {}
    for name in names:
        if name not in observation:
            raise BadMessage("VALIDATION_ERROR", f"the field {name} is missing")
        found[name] = array(observation[name], f"the field {name}")
    if not found:
        raise BadMessage("VALIDATION_ERROR", "it has no fields")
    return found


def array(value: Any, subject: str) -> np.ndarray:
    """Return a number, or nested lists of numbers, as an array of float32. Raises BadMessage."""
    try:
        numbers = np.asarray(value)
    except ValueError:  # rows of different lengths
        numbers = np.asarray(None)
    if numbers.dtype.kind not in "biuf" or numbers.size == 0:
        raise BadMessage(
            "VALIDATION_ERROR", f"{subject} holds no numbers of a fixed shape: {str(value)[:80]!r}"
        )
    return np.atleast_1d(numbers.astype(np.float32))
