"""OpenEnv's routes without a session: a world is borrowed for one request, and is gone after it.

POST /reset {"seed": 7}                        -> {"observation", "reward", "done"}
POST /step  {"action": {"action": 1}, "seed": 7} -> the same: the first step of an episode that begins with the seed
GET /state                                     -> {"episode_id", "step_count"} of a world that nobody has used

400 and 422 for what the client did wrong, 500 for what the environment raised, 503 where all slots are held.
"""

import asyncio
from typing import Any

from ddppo.serve.limits import Limits
from ddppo.serve.slots.line import BAD, FAILED_STEP, RESET_ONCE, STEP_ONCE
from ddppo.serve.slots.wire import SlotWire
from ddppo.serve.slots.worlds import Slot
from ddppo.spaces import ArraySpec, EnvSpec

ROUTES = {"/reset": RESET_ONCE, "/step": STEP_ONCE}
UNUSED = {"episode_id": None, "step_count": 0}
_STATUS = {BAD: 422, FAILED_STEP: 500}


async def asked_once(slot: Slot, what: bytes, body: bytes, limits: Limits) -> tuple[int, bytes]:
    """Ask a slot's world one thing; return the answer's status and content. Raises TimeoutError, ConnectionError."""
    answered: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

    def lost(why: str) -> None:
        if not answered.done():
            answered.set_exception(ConnectionError(why))

    def heard(kind: bytes, content: bytes) -> None:
        if not answered.done():
            answered.set_result((kind, content))

    wire = await SlotWire.of(slot.line, limits.max_message_bytes, heard, lost)
    try:
        wire.say(what, body)
        kind, content = await asyncio.wait_for(answered, limits.step_s)
        return _STATUS.get(kind, 200), content
    finally:
        wire.close()


def schemas(spec: EnvSpec) -> dict[str, Any]:
    """Return what OpenEnv's /schema tells: JSON schemas of an action, an observation and a state."""
    parts = {"obs": _observed(spec.obs)}
    if spec.mask_size is not None:
        parts["mask"] = {"type": "array"}
    return {
        "action": _object({"action": _acted(spec)}),
        "observation": _object(parts),
        "state": _object({"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}}),
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _observed(obs: ArraySpec | dict[str, ArraySpec]) -> dict[str, Any]:
    if isinstance(obs, dict):
        return _object({key: _observed(part) for key, part in obs.items()})
    if obs.dtype == "text":
        return {"type": "string", "maxLength": obs.shape[0]}
    schema: dict[str, Any] = {"type": "number" if obs.is_float else "integer"}
    for size in reversed(obs.shape):
        schema = {"type": "array", "items": schema, "minItems": size, "maxItems": size}
    return schema


def _acted(spec: EnvSpec) -> dict[str, Any]:
    action = spec.action
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
