"""One environment and what a session may ask of it."""

import math
from typing import Any

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs import registration  # noqa: F401 (registers ddppo/Synthetic-v0 and others)
from ddppo.envs.encoding.gym_spaces import MASK
from ddppo.envs.encoding.observations import ObsArrays
from ddppo.envs.single import played
from ddppo.errors import EnvError, EnvRaised
from ddppo.serve.openenv import OpenEnv, is_spoken
from ddppo.serve.protocol import (
    JSON,
    PROTOCOL,
    BadMessage,
    action_of,
    checked,
    decoded,
    encoded,
    plain,
    plain_obs,
    plain_spec,
    spec_of,
)
from ddppo.serve.slots.line import LEFT


class ServedWorld:
    """What stands in a slot: all that is parsed of what a client sends is parsed here."""

    def __init__(self, env: EnvConfig, spec: dict[str, Any]) -> None:
        self._spec = spec_of(spec)
        self._env = played(env, self._spec, "the environment")
        self._dialect: OpenEnv | None = None
        self._is_under_way = False

    def answer(self, kind: bytes, content: bytes) -> tuple[bytes, bytes]:
        """Return the answer as a frame's kind and content."""
        id, dialect = None, self._dialect  # what cannot be read is answered in the dialect last spoken
        try:
            message = decoded(kind, content)
            self._dialect = dialect = (dialect or OpenEnv()) if is_spoken(message) else None
            if dialect is not None:
                message = dialect.request(message)
            if dialect is not None and message["op"] == "close":
                return LEFT, b""
            if dialect is not None and message["op"] == "state":
                return kind, encoded(kind, dialect.reply("state", {}))
            message = checked(message)
            id = message["id"]
            answer = self._done(kind, message)
            told = {"id": id, **answer} if dialect is None else dialect.reply(message["op"], answer)
            return kind, encoded(kind, told)
        except BadMessage as e:
            code, said, id = e.code, str(e), e.id if id is None else id
        except EnvRaised as e:
            code, said = "EXECUTION_ERROR", e.said
        except (EnvError, ValueError) as e:  # ValueError: numbers that JSON does not hold
            code, said = "EXECUTION_ERROR", str(e)
        if dialect is not None:
            return kind.upper(), encoded(kind, dialect.error(code, said))
        return kind.upper(), encoded(kind, {"id": id, "error": {"code": code, "message": said}})

    def _done(self, kind: bytes, message: dict[str, Any]) -> dict[str, Any]:
        match message["op"]:
            case "describe":
                return {"protocol": PROTOCOL, "spec": plain_spec(self._spec)}
            case "reset":
                return self._reset(kind, message.get("seed"), message.get("options"))
        if not self._is_under_way:
            raise BadMessage("NOT_UNDER_WAY", "no episode is under way: reset first", message["id"])
        action = action_of(message, self._spec.action)
        self._is_under_way = False  # nor is it after an exception
        obs, reward, terminated, truncated, info = self._env.step(action)
        answer = self._seen(kind, obs, info)
        if not (terminated or truncated):
            self._is_under_way = True
        elif message.get("goes_on"):
            answer = {"final_obs": answer["obs"], **self._reset(kind)}
        return answer | {
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }

    def _reset(
        self, kind: bytes, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        obs, info = self._env.reset(seed=seed, **({"options": options} if options else {}))
        self._is_under_way = True
        return self._seen(kind, obs, info)

    def _seen(self, kind: bytes, obs: ObsArrays | str, info: dict[str, Any]) -> dict[str, Any]:
        mask: np.ndarray | None = info.pop(MASK, None) if self._spec.mask_size is not None else None
        if kind == JSON:  # which holds no NaN, and an info is no reason to fail
            info = {key: x for key, x in info.items() if type(x) is not float or math.isfinite(x)}
        else:  # which holds no whole number above 64 bits
            info = {key: x for key, x in info.items() if type(x) is not int or -(2**63) <= x < 2**64}
        seen = {"obs": plain_obs(kind, obs), "info": info}
        return seen if mask is None else {**seen, "mask": plain(kind, mask)}
