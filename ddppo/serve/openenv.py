"""The messages of OpenEnv clients (https://github.com/meta-pytorch/OpenEnv, version 0.10) at /ws, in JSON.

    {"type": "reset", "data": {"seed": 7, "options": {}}} -> {"type": "observation", "data": {"observation", "reward",
                                                             "done", "metadata"}}
    {"type": "step", "data": {"action": 1}}   -> the same
    {"type": "state"}                         -> {"type": "state", "data": {"episode_id", "step_count"}}
    {"type": "close"}                         ends the session
    an error                                  -> {"type": "error", "data": {"message", "code"}}

The observation is {"obs": ...}, with {"mask": ...} if the spec has one; done is terminated or truncated; metadata is
the info. Messages have no ids: after a timeout, such a client takes the late answer for that of its next request.
(Clients of ddppo/1 do not.)
"""

import json
from collections.abc import Callable
from typing import Any

from ddppo.serve.protocol import JSON, BadMessage, decoded, encoded
from ddppo.serve.slots.line import BAD, FAILED_STEP, STEP_ONCE

_TYPES = ("reset", "step", "state", "close")


def is_openenv(message: dict[str, Any]) -> bool:
    return "type" in message and "op" not in message


class OpenEnv:
    """Translates the messages of one session, and counts its episodes and steps."""

    def __init__(self) -> None:
        self._num_episodes = 0
        self._num_steps = 0

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the request of protocol ddppo/1; its op may also be state or close. Raises BadMessage."""
        kind, given = message["type"], message.get("data", {})
        if not isinstance(kind, str) or kind not in _TYPES:
            raise BadMessage("UNKNOWN_TYPE", f"type must be one of {', '.join(_TYPES)}")
        if not isinstance(given, dict):
            raise BadMessage("VALIDATION_ERROR", "data must be a map")
        request = {"id": 0, "op": kind}
        if kind == "reset":
            request |= {key: given[key] for key in ("seed", "options") if key in given}
        elif kind == "step":
            request["action"] = given.get("action")
        return request

    def reply(self, op: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer in OpenEnv's form."""
        if op == "state":
            counts = {"episode_id": str(self._num_episodes), "step_count": self._num_steps}
            return {"type": "state", "data": counts}
        if op == "reset":
            self._num_episodes += 1
            self._num_steps = 0
        else:
            self._num_steps += 1
        data = {
            "observation": {key: answer[key] for key in ("obs", "mask") if key in answer},
            "reward": answer.get("reward"),
            "done": answer.get("terminated", False) or answer.get("truncated", False),
            "metadata": answer["info"],
        }
        return {"type": "observation", "data": data}

    @staticmethod
    def error(code: str, message: str) -> dict[str, Any]:
        return {"type": "error", "data": {"message": message, "code": code}}


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
        messages.append({"type": "step", "data": given.get("action")})
    for message in messages:
        kind, content = answer(JSON, encoded(JSON, message))
        data = json.loads(content)["data"]
        if kind != JSON:
            failed = FAILED_STEP if data["code"] == "EXECUTION_ERROR" else BAD
            return failed, encoded(JSON, {"detail": data["message"], "code": data["code"]})
    return JSON, encoded(JSON, data)
