"""The messages of OpenEnv clients (https://github.com/huggingface/OpenEnv, version 0.10) at /ws, in JSON.

    {"type": "reset", "data": {"seed": 7, "episode_id": "e", "task": "t", "options": {}}}
                                              -> {"type": "observation", "data": {"observation", "reward", "done",
                                                             "metadata"}}
    {"type": "step", "data": {"action": 1}}   -> the same
    {"type": "step", "data": {"type": "call_tool", "tool_name": "act", "arguments": {"action": 1}}} -> the same, with
                                                 the observation {"tool_name", "result", "error"}
    {"type": "step", "data": {"type": "list_tools"}} -> the same, with the observation {"tools"}
    {"type": "mcp", "data": <a request of JSON-RPC: tools/list, tools/call>} -> {"type": "mcp", "data": <its response>}
    {"type": "state"}                         -> {"type": "state", "data": {"episode_id", "step_count"}}
    {"type": "close"}                         ends the session
    an error                                  -> {"type": "error", "data": {"message", "code"}}

The observation is {"obs": ...}, with {"mask": ...} if the spec has one; done is terminated or truncated; metadata is
the info, with "truncated" if a time limit ended the episode. `task` is for environments that list tasks. Messages have
no ids: after a timeout, such a client takes the late answer for that of its next request. (Clients of ddppo/1 do not.)
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddppo.errors import near
from ddppo.serve.protocol import JSON, BadMessage, decoded, encoded
from ddppo.serve.slots.line import BAD, FAILED_STEP, STEP_ONCE
from ddppo.spaces import ActionSpec, EnvSpec, text_parameter

_TYPES = ("reset", "step", "state", "mcp", "close")
_LONGEST_ID = 255  # characters of an episode_id, as in OpenEnv

# Codes of JSON-RPC 2.0, https://www.jsonrpc.org/specification#error_object
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL_ERROR = (
    -32700,
    -32600,
    -32601,
    -32602,
    -32603,
)
SERVER_ERROR = -32000


def is_openenv(message: dict[str, Any]) -> bool:
    return "type" in message and "op" not in message


class OpenEnv:
    """Translates the messages of one session, and counts its episodes and steps."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self._tools = tools_for(spec)
        self._num_episodes = 0
        self._num_steps = 0
        self._episode_id: str | None = None  # of the episode under way
        self._next_id: str | None = None  # that a reset has asked for
        # The tool that the request under way calls, and the id of its JSON-RPC; each None for other requests.
        self._called: str | None = None
        self._rpc: dict[str, Any] | None = None

    @property
    def begins(self) -> bool:
        """Whether the request calls a tool before the first reset: an episode has to begin."""
        return self._called is not None and self._num_episodes == 0

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the request of protocol ddppo/1. Raises BadMessage.

        Its op may also be close, or told: then the answer is known, and is the value of "reply".
        """
        kind, given = message["type"], message.get("data", {})
        self._called = self._rpc = None
        if not isinstance(kind, str) or kind not in _TYPES:
            raise BadMessage("UNKNOWN_TYPE", f"type must be one of {', '.join(_TYPES)}")
        if not isinstance(given, dict):
            raise BadMessage("VALIDATION_ERROR", "data must be a map")
        match kind:
            case "reset":
                return self._reset(given)
            case "step":
                return self._step(given)
            case "mcp":
                return self._mcp(given)
            case "state":
                counts = {"episode_id": self._episode_id, "step_count": self._num_steps}
                return _told({"type": "state", "data": counts})
        return {"id": 0, "op": kind}

    def _reset(self, given: dict[str, Any]) -> dict[str, Any]:
        # Unknown keys are refused: an episode that ignores what was asked of it would go unnoticed.
        known = ["seed", "episode_id", "options", *(["task"] if self._spec.tasks is not None else [])]
        if unknown := given.keys() - set(known):
            raise BadMessage(
                "VALIDATION_ERROR",
                f"reset has no {str(min(unknown, key=str))[:40]!r} here: it takes {', '.join(known)}",
            )
        self._next_id = given.get("episode_id")
        if self._next_id is not None and not (
            isinstance(self._next_id, str) and len(self._next_id) <= _LONGEST_ID
        ):
            raise BadMessage(
                "VALIDATION_ERROR", f"episode_id must be text of at most {_LONGEST_ID} characters"
            )
        request = {"id": 0, "op": "reset"} | {key: given[key] for key in ("seed", "options") if key in given}
        if (task := given.get("task")) is not None:
            tasks, options = self._spec.tasks or {}, given.get("options") or {}
            if not isinstance(task, str) or task not in tasks:
                hint = near(str(task)[:200], list(tasks))
                raise BadMessage(
                    "VALIDATION_ERROR",
                    f"there is no task {str(task)[:40]!r}{hint}: GET /metadata lists {len(tasks)}",
                )
            if not isinstance(options, dict) or options.get("task", task) != task:
                raise BadMessage(
                    "VALIDATION_ERROR", "options must be a map, and its task the task of the reset"
                )
            request["options"] = options | {"task": task}
        return request

    def _step(self, given: dict[str, Any]) -> dict[str, Any]:
        match given.get("type"):
            case "list_tools":
                tools = [{**_described(tool), "input_schema": _schema(tool)} for tool in self._tools]
                return _told(_observation({"tools": tools}, None, is_over=False, metadata={}))
            case "call_tool":
                return self._call(given.get("tool_name"), given.get("arguments", {}))
        if unknown := given.keys() - {"action", "metadata"}:  # metadata is a field of all actions of OpenEnv
            raise BadMessage(
                "VALIDATION_ERROR",
                f"an action has no field {str(min(unknown, key=str))[:40]!r}: it is {{'action': ...}}",
            )
        return {"id": 0, "op": "step", "action": given.get("action")}

    def _mcp(self, given: dict[str, Any]) -> dict[str, Any]:
        self._rpc = {"id": given.get("id")}
        method, params = rpc_of(given)
        if method == "tools/list":
            return _told({"type": "mcp", "data": rpc_answer(given.get("id"), listed(self._tools))})
        if method != "tools/call":
            raise RpcError(NO_METHOD, f"there is no method {method[:40]!r}: use tools/list or tools/call")
        return self._call(params.get("name"), params.get("arguments", {}))

    def _call(self, name: Any, arguments: Any) -> dict[str, Any]:
        self._called = str(name)[:200]
        return {"id": 0, "op": "step", "action": _action_of(self._spec, self._tools, name, arguments)}

    def reply(self, op: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer in OpenEnv's form."""
        if op == "reset":
            self._num_episodes += 1
            self._num_steps = 0
            self._episode_id = self._next_id if self._next_id is not None else str(self._num_episodes)
            self._next_id = None
        else:
            self._num_steps += 1
        metadata = answer["info"] | ({"truncated": True} if answer.get("truncated") else {})
        is_over = answer.get("terminated", False) or answer.get("truncated", False)
        observed: dict[str, Any] = {key: answer[key] for key in ("obs", "mask") if key in answer}
        if op == "reset" or self._called is None:
            return _observation(observed, answer.get("reward"), is_over=is_over, metadata=metadata)
        # The result of a tool: for programs as data, for language models as text.
        obs = answer["obs"]
        text = obs if isinstance(obs, str) else json.dumps(observed)
        content = [{"type": "text", "text": text}]
        if self._rpc is not None:
            told = {
                "observation": observed,
                "reward": answer.get("reward"),
                "done": is_over,
                "metadata": metadata,
            }
            result = {"content": content, "structuredContent": told, "data": obs, "isError": False}
            return {"type": "mcp", "data": rpc_answer(self._rpc["id"], result)}
        result = {"content": content, "data": obs, "is_error": False}
        called = {"tool_name": self._called, "result": result, "error": None}
        return _observation(called, answer.get("reward"), is_over=is_over, metadata=metadata)

    def error(self, code: str, message: str, rpc_code: int | None = None) -> dict[str, Any]:
        """Return the answer to the request under way that says what went wrong."""
        is_raised = code == "EXECUTION_ERROR"
        if self._rpc is not None or rpc_code is not None:
            number = rpc_code or (INTERNAL_ERROR if is_raised else INVALID_PARAMS)
            return {"type": "mcp", "data": rpc_error((self._rpc or {}).get("id"), number, message)}
        if self._called is not None:
            fault = {"error_type": "execution_error" if is_raised else "invalid_args", "message": message}
            called = {"tool_name": self._called, "result": None, "error": fault}
            return _observation(called, None, is_over=is_raised, metadata={})
        return {"type": "error", "data": {"message": message, "code": code}}


def _told(reply: dict[str, Any]) -> dict[str, Any]:
    return {"op": "told", "reply": reply}


def _observation(
    observation: dict[str, Any], reward: float | None, *, is_over: bool, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    data = {"observation": observation, "reward": reward, "done": is_over, "metadata": metadata}
    return {"type": "observation", "data": data}


def answered_once(
    answer: Callable[[bytes, bytes], tuple[bytes, bytes]], what: bytes, body: bytes
) -> tuple[bytes, bytes]:
    """Answer the body of POST /reset or /step in an unused world.

    Args:
        answer: ServedWorld.answer.
        what: RESET_ONCE or STEP_ONCE.
    """
    try:
        given = decoded(JSON, body or b"{}")
    except BadMessage as e:
        return BAD, encoded(JSON, {"detail": str(e), "code": e.code})
    # A step needs an episode: reset first, with the seed of the request.
    messages: list[dict[str, Any]] = [{"type": "reset", "data": given}]
    if what == STEP_ONCE:
        of_reset = {key: value for key, value in given.items() if key not in _OF_STEP}
        messages = [{"type": "reset", "data": of_reset}, {"type": "step", "data": given.get("action")}]
    for message in messages:
        # Numbers that are not finite are for the world to refuse.
        kind, content = answer(JSON, json.dumps(message).encode())
        data = json.loads(content)["data"]
        if kind != JSON:
            if "code" not in data:  # of a tool: an observation that says what is wrong
                fault = data["observation"]["error"]
                is_raised = fault["error_type"] == "execution_error"
                code = "EXECUTION_ERROR" if is_raised else "VALIDATION_ERROR"
                data = {"message": fault["message"], "code": code}
            failed = FAILED_STEP if data["code"] == "EXECUTION_ERROR" else BAD
            return failed, encoded(JSON, {"detail": data["message"], "code": data["code"]})
    return JSON, encoded(JSON, data)


_OF_STEP = ("action", "timeout_s", "request_id")  # fields of POST /step that are no fields of a reset


# -- tools ------------------------------------------------------------------------------------------------------------


def tools_for(spec: EnvSpec) -> list[dict[str, Any]]:
    """Return the tools of a task, as an EnvSpec holds them: its own, else one that steps.

    The one is run_command(command) of a task of text, else act(action); OpenEnv reserves the name step.
    """
    if spec.tools is not None:
        return spec.tools
    name, key = ("run_command", "command") if spec.is_text else ("act", "action")
    schema = object_schema({key: action_schema(spec.action)})
    function = {"name": name, "description": "Takes one step of the episode.", "parameters": schema}
    return [{"type": "function", "function": function}]


def listed(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result of the MCP method tools/list."""
    return {"tools": [{**_described(tool), "inputSchema": _schema(tool)} for tool in tools]}


def _described(tool: Mapping[str, Any]) -> dict[str, str]:
    function = tool["function"]
    return {"name": function["name"], "description": str(function.get("description", ""))}


def _schema(tool: Mapping[str, Any]) -> Any:
    return tool["function"].get("parameters") or object_schema({})


def _action_of(spec: EnvSpec, tools: Sequence[Mapping[str, Any]], name: Any, arguments: Any) -> Any:
    """Return the action that a call of a tool is. Raises BadMessage."""
    tool = next((tool for tool in tools if tool["function"]["name"] == name), None)
    if tool is None:
        names = ", ".join(tool["function"]["name"] for tool in tools)
        raise BadMessage("VALIDATION_ERROR", f"there is no tool {str(name)[:40]!r}: use {names}")
    if not isinstance(arguments, dict):
        raise BadMessage("VALIDATION_ERROR", "the arguments of a tool are a map")
    properties = _schema(tool).get("properties", {})
    if unknown := arguments.keys() - properties.keys():
        raise BadMessage(
            "VALIDATION_ERROR",
            f"{name} has no argument {str(min(unknown, key=str))[:40]!r}: it takes {', '.join(properties) or 'none'}",
        )
    if missing := [key for key in _schema(tool).get("required", ()) if key not in arguments]:
        raise BadMessage("VALIDATION_ERROR", f"the call of {name} lacks {', '.join(map(str, missing))}")
    if spec.tools is None:
        return next(iter(arguments.values()))
    # The actions of a task with tools of its own are those of ddppo.domains.text.tool_calls.action_of.
    parameter = text_parameter(tools)
    if parameter is not None:
        return arguments.get(parameter)
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


class RpcError(BadMessage):
    """A request of JSON-RPC that cannot be answered. `rpc_code` is that of the specification."""

    def __init__(self, rpc_code: int, message: str) -> None:
        super().__init__("VALIDATION_ERROR", message)
        self.rpc_code = rpc_code


def rpc_of(given: Any) -> tuple[str, dict[str, Any]]:
    """Return method and params of a request of JSON-RPC 2.0. Raises RpcError."""
    if (
        not isinstance(given, dict)
        or given.get("jsonrpc") != "2.0"
        or not isinstance(given.get("method"), str)
    ):
        raise RpcError(
            INVALID_REQUEST, 'a request of JSON-RPC is {"jsonrpc": "2.0", "method", "params", "id"}'
        )
    id, params = given.get("id"), given.get("params", {})
    if id is not None and type(id) not in (str, int):
        raise RpcError(INVALID_REQUEST, "id must be text or a whole number")
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params must be a map")
    return given["method"], params


def rpc_answer(id: Any, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def rpc_error(id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": id if type(id) in (str, int) else None, "error": error}


# -- JSON schemas -----------------------------------------------------------------------------------------------------


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def action_schema(action: ActionSpec) -> dict[str, Any]:
    """Return the JSON schema of an action."""
    match action.kind:
        case "text":
            return {"type": "string", "maxLength": action.sizes[0]}
        case "discrete":
            return {"type": "integer", "minimum": 0, "maximum": action.sizes[0] - 1}
        case "box":
            parts: dict[str, Any] = {"type": "number"}
        case _:
            parts = {"type": "integer", "minimum": 0}
    size = action.shape[0]
    return {"type": "array", "items": parts, "minItems": size, "maxItems": size}
