"""OpenEnv's dialect: what clients of https://github.com/meta-pytorch/OpenEnv send to /ws (openenv 0.10), in JSON.

    {"type": "reset", "data": {"seed": 7, "options": {}}} -> {"type": "observation", "data": {"observation", "reward",
                                                             "done", "metadata"}}
    {"type": "step", "data": {"action": 1}}   -> the same
    {"type": "state"}                         -> {"type": "state", "data": {"episode_id", "step_count"}}
    {"type": "close"}                         ends the session
    what could not be done                    -> {"type": "error", "data": {"message", "code"}}

The observation is {"obs": ...}, and {"mask": ...} where the spec has one; done is terminated or truncated, metadata
the info. There are no ids: after a time-out such a client takes the late answer for the next one, which ddppo/1 does
not.
"""

import json
from collections.abc import Callable
from typing import Any

from ddppo.serve.protocol import JSON, BadMessage, decoded, encoded
from ddppo.serve.slots.line import BAD, FAILED_STEP, STEP_ONCE

_TYPES = ("reset", "step", "state", "close")


def is_spoken(message: dict[str, Any]) -> bool:
    return "type" in message and "op" not in message


class OpenEnv:
    """What one session in this dialect has done so far."""

    def __init__(self) -> None:
        self._num_episodes = 0
        self._num_steps = 0

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what ddppo/1 calls it; its op may also be state or close. Raises BadMessage."""
        kind, given = message["type"], message.get("data", {})
        if not isinstance(kind, str) or kind not in _TYPES:
            raise BadMessage("UNKNOWN_TYPE", f"type must be one of {', '.join(_TYPES)}")
        if not isinstance(given, dict):
            raise BadMessage("VALIDATION_ERROR", "data must be a map")
        asked = {"id": 0, "op": kind}
        if kind == "reset":
            asked |= {key: given[key] for key in ("seed", "options") if key in given}
        elif kind == "step":
            asked["action"] = given.get("action")
        return asked

    def reply(self, op: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Return what a client of OpenEnv is told."""
        if op == "state":
            told = {"episode_id": str(self._num_episodes), "step_count": self._num_steps}
            return {"type": "state", "data": told}
        if op == "reset":
            self._num_episodes += 1
            self._num_steps = 0
        else:
            self._num_steps += 1
        told = {
            "observation": {key: answer[key] for key in ("obs", "mask") if key in answer},
            "reward": answer.get("reward"),
            "done": answer.get("terminated", False) or answer.get("truncated", False),
            "metadata": answer["info"],
        }
        return {"type": "observation", "data": told}

    @staticmethod
    def error(code: str, said: str) -> dict[str, Any]:
        return {"type": "error", "data": {"message": said, "code": code}}


def answered_once(
    answer: Callable[[bytes, bytes], tuple[bytes, bytes]], what: bytes, body: bytes
) -> tuple[bytes, bytes]:
    """Answer the body of POST /reset or /step in a world that nobody has used; `answer` is a World's."""
    try:
        given = decoded(JSON, body or b"{}")
    except BadMessage as e:
        return BAD, encoded(JSON, {"detail": str(e), "code": e.code})
    asked: list[dict[str, Any]] = [{"type": "reset", "data": given}]
    if what == STEP_ONCE:
        asked.append({"type": "step", "data": given.get("action")})
    for message in asked:
        kind, content = answer(JSON, encoded(JSON, message))
        told = json.loads(content)["data"]
        if kind != JSON:
            failed = FAILED_STEP if told["code"] == "EXECUTION_ERROR" else BAD
            return failed, encoded(JSON, {"detail": told["message"], "code": told["code"]})
    return JSON, encoded(JSON, told)
