"""OpenEnv's dialect: what clients of https://github.com/meta-pytorch/OpenEnv send to /ws (openenv 0.10), in JSON.

    {"type": "reset", "data": {"seed": 7}}    -> {"type": "observation", "data": {"observation", "reward", "done"}}
    {"type": "step", "data": {"action": 1}}   -> the same
    {"type": "state"}                         -> {"type": "state", "data": {"episode_id", "step_count"}}
    {"type": "close"}                         ends the session
    whatever could not be done                -> {"type": "error", "data": {"message", "code"}}

The observation is {"obs": ...}, and {"mask": ...} where the spec has one; done is terminated or truncated. There are no
ids: after a time-out such a client takes the late answer for the next one, which ddppo/1 does not.
"""

from typing import Any

from ddppo.envs.remote.messages import BadMessage

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
            asked["seed"] = given.get("seed")
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
        }
        return {"type": "observation", "data": told}

    @staticmethod
    def error(code: str, said: str) -> dict[str, Any]:
        return {"type": "error", "data": {"message": said, "code": code}}
