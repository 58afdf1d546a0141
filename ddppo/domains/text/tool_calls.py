"""Calls of tools in messages of a language model: their forms, and the action of a call (docs/language_models.md).

`form_of` names the form in which a chat template writes a call, `action_of` reads a message. All functions are pure.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from warnings import catch_warnings

from ddppo.domains.text.tokenizers import NoAction
from ddppo.spaces import text_parameter

Tool = Mapping[str, Any]  # {"type": "function", "function": {"name", "description", "parameters"}}
Call = tuple[str, dict[str, Any]]  # name and arguments


class _WrongCall(ValueError):
    """A call that cannot be read. Its message is for the policy."""


# -- forms ---------------------------------------------------------------------------------------------------------


def _of_object(found: Any) -> Call:
    """Return the call in a JSON object: Hermes and Mistral name the arguments `arguments`, Llama 3 `parameters`."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise _WrongCall('a call is a JSON object with "name" and "arguments"')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # the object as a text, as in the API of OpenAI
        arguments = _json(arguments)[0]
    if not isinstance(arguments, dict):
        raise _WrongCall("the arguments of a call are a JSON object")
    return found["name"], arguments


def _json(text: str) -> tuple[Any, str]:
    """Return the JSON value at the start of a text, and the text behind it."""
    text = text.lstrip()
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except ValueError as e:
        raise _WrongCall(f"the JSON of the call cannot be read: {e}") from e
    return value, text[end:]


def _hermes(message: str) -> Iterator[Call]:
    for part in message.split("<tool_call>")[1:]:
        yield _of_object(_json(part)[0])


def _llama3(message: str) -> Iterator[Call]:
    rest = message.removeprefix("<|python_tag|>").strip()
    while rest.startswith("{"):
        found, rest = _json(rest)
        yield _of_object(found)
        rest = rest.lstrip("; \n")


def _mistral(message: str) -> Iterator[Call]:
    # [TOOL_CALLS][{...}, {...}], or since its 11th version [TOOL_CALLS]name[ARGS]{...} for each call.
    for part in message.split("[TOOL_CALLS]")[1:]:
        if (text := part.lstrip()).startswith(("[{", "{")):
            found, _ = _json(text)
            yield from map(_of_object, found if isinstance(found, list) else [found])
        else:
            name, brace, _ = text.partition("{")
            if not brace:
                raise _WrongCall("the call has no arguments in JSON")
            arguments, _ = _json(text[len(name) :])
            yield _of_object(
                {"name": name.partition("[CALL_ID]")[0].replace("[ARGS]", "").strip(), "arguments": arguments}
            )


def _qwen3_coder(message: str) -> Iterator[Call]:
    for part in message.split("<function=")[1:]:
        name, closed, rest = part.partition(">")
        if not closed:
            raise _WrongCall("the name of the function is not closed by >")
        body = rest.partition("</function>")[0]
        found = re.findall(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>", body, re.DOTALL)
        if len(found) != body.count("<parameter="):
            raise _WrongCall("a parameter is not closed by </parameter>")
        yield name.strip(), dict(found)


def _glm(message: str) -> Iterator[Call]:
    for part in message.split("<tool_call>")[1:]:
        name = re.split(r"<arg_key>|</tool_call>|\n", part.lstrip(), maxsplit=1)[0]
        found = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>\n?(.*?)\n?</arg_value>", part, re.DOTALL)
        if len(found) != part.count("<arg_key>"):
            raise _WrongCall("an argument is not closed by </arg_value>")
        yield name.strip(), dict(found)


def _python(message: str) -> Iterator[Call]:
    for part in message.split("<|tool_call_start|>")[1:]:
        try:
            with catch_warnings(action="ignore"):  # of odd escapes in texts
                found = ast.parse(part.partition("<|tool_call_end|>")[0].strip(), mode="eval").body
            for call in found.elts if isinstance(found, ast.List) else [found]:
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
                    raise ValueError(call)
                yield call.func.id, {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        except (SyntaxError, ValueError) as e:
            raise _WrongCall("the call cannot be read: it is [name(argument=value)]") from e


# Forms by name: how a call is written, and what reads the calls of a message.
FORMS: dict[str, tuple[str, Callable[[str], Iterator[Call]]]] = {
    "hermes": ('<tool_call>{"name": ..., "arguments": {...}}</tool_call>', _hermes),
    "llama3": ('{"name": ..., "parameters": {...}}', _llama3),
    "mistral": ('[TOOL_CALLS][{"name": ..., "arguments": {...}}]', _mistral),
    "qwen3_coder": (
        "<tool_call><function=name><parameter=key>value</parameter></function></tool_call>",
        _qwen3_coder,
    ),
    "glm": (
        "<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>",
        _glm,
    ),
    "python": ("<|tool_call_start|>[name(key=value)]<|tool_call_end|>", _python),
}
_AS_TEXT = ("qwen3_coder", "glm")  # forms without types: each value is a text


def form_of(written: str, call: Call) -> str | None:
    """Return the form in which a template wrote a call; None if it is none of FORMS."""
    for form, (_, read) in FORMS.items():
        try:
            if [call] == list(read(_said(written).strip())):
                return form
        except _WrongCall:
            continue
    return None


# -- messages --------------------------------------------------------------------------------------------------------


def command_of(message: str, *, was_cut: bool) -> str | NoAction:
    """Return the command in a message: its first line that is not empty, or that of its first fenced block.

    Text in <think> is left out, as are a prompt "$ " before the command, and a backslash at the end of a line, which
    joins it with the next one.

    Args:
        was_cut: the message has reached model.turn_tokens; its last line is not complete.
    """
    # 1. A backslash joins two lines.
    lines = [line.strip() for line in _said(message).replace("\\\n", " ").split("\n")]
    # 2. The fenced block, if there is one: behind the line of its opening, up to its closing.
    fence = next((i for i, line in enumerate(lines) if line.startswith("```")), None)
    if fence is not None and any(lines[fence + 1 :]):
        lines = lines[fence + 1 :]
    # 3. Its first line.
    at = next((i for i, line in enumerate(lines) if line and not line.startswith("```")), None)
    if at is None:
        return NoAction("error: the message has no command: write one command on its first line")
    if was_cut and at == len(lines) - 1:
        return NoAction("error: the message was too long, and was cut before its command ended")
    return lines[at].removeprefix("$ ")


def action_of(message: str, form: str, tools: Sequence[Tool]) -> str | NoAction:
    """Return the action that the call in a message is.

    A single tool with a single parameter, a text, has this text as its action. Other calls are the JSON of
    {"name", "arguments"}. A message without a call, with several, or with one that does not fit its tool is no action.

    Args:
        form: a key of FORMS.
        tools: the tools of the environment.
    """
    shape, read = FORMS[form]
    try:
        calls = list(read(_said(message).strip()))
        if len(calls) != 1:
            found = "no call of a tool" if not calls else f"{len(calls)} calls"
            return NoAction(f"error: the message has {found}: write exactly one, as {shape}")
        name, arguments = _fitting(calls[0], tools, as_text=form in _AS_TEXT)
    except _WrongCall as e:
        return NoAction(f"error: {e}")
    except (RecursionError, MemoryError):  # brackets within brackets, thousands deep
        return NoAction("error: the call is nested too deeply")
    parameter = text_parameter(tools)
    if parameter is not None:
        action = str(arguments[parameter])
    else:
        action = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    try:
        action.encode()
    except UnicodeEncodeError:  # "\\ud83d" in JSON, half of an emoji, is no text
        return NoAction("error: the call has half of a character: write characters, not their escapes")
    return action


def _said(message: str) -> str:
    """Return what stands behind the thoughts, <think>...</think>, which the template may have opened."""
    _, closed, behind = message.rpartition("</think>")
    return behind if closed or "<think>" not in message else ""


def call_of(action: str, tools: Sequence[Tool]) -> Call:
    """Return the call whose action is this text: the inverse of `action_of`. Raises ValueError if there is none."""
    parameter = text_parameter(tools)
    call = _of_object(_json(action)[0]) if parameter is None else (_name(tools[0]), {parameter: action})
    return _fitting(call, tools, as_text=False)


def probe_call(tools: Sequence[Tool], mark: str) -> Call:
    """Return a call of the first tool, with `mark` as the value of its first parameter."""
    names = list(_schema(tools[0]).get("properties", {})) or ["value"]
    return _name(tools[0]), {names[0]: mark}


def _name(tool: Tool) -> str:
    return str(tool["function"]["name"])


def _schema(tool: Tool) -> Mapping[str, Any]:
    found: Mapping[str, Any] = tool["function"].get("parameters") or {}
    return found


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def _fitting(call: Call, tools: Sequence[Tool], *, as_text: bool) -> Call:
    """Return a call with arguments of the types of its tool. Raises _WrongCall if they do not fit."""
    name, given = call
    tool = next((tool for tool in tools if _name(tool) == name), None)
    if tool is None:
        raise _WrongCall(f"there is no tool {name}: use {', '.join(map(_name, tools))}")
    schema = _schema(tool)
    properties = schema.get("properties", {})
    required = [*properties] if text_parameter(tools) else schema.get("required", [])
    if missing := [key for key in required if key not in given]:
        raise _WrongCall(f"the call of {name} lacks {', '.join(missing)}")
    if unknown := [key for key in given if key not in properties]:
        raise _WrongCall(f"{name} has no parameter {', '.join(unknown)}: use {', '.join(properties)}")
    found = {}
    for key, value in given.items():
        wanted = properties[key].get("type")
        if as_text and wanted != "string":
            with suppress(ValueError):  # then it stays a text, which the check below compares with the type
                value = json.loads(value)
        if isinstance(wanted, str) and wanted in _TYPES:
            is_flag = isinstance(value, bool) and wanted != "boolean"  # bool is an int in Python
            if is_flag or not isinstance(value, _TYPES[wanted]):
                raise _WrongCall(f"{key} of {name} must be of the type {wanted}")
        found[key] = value
    return name, found
