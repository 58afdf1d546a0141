"""One environment, and the requests of a session to it."""

import math
from typing import Any

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs import registration  # noqa: F401 (registers ddppo/Synthetic-v0 and others)
from ddppo.envs.encoding.gym_spaces import MASK
from ddppo.envs.encoding.observations import ObsArrays
from ddppo.envs.single import make_single_env
from ddppo.errors import EnvError, EnvRaised
from ddppo.serve.openenv import OpenEnv, RpcError, is_openenv
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
    """Parses the requests of a client and answers them with the environment of its slot."""

    def __init__(self, env: EnvConfig, spec: dict[str, Any]) -> None:
        self._spec = spec_of(spec)
        self._env = make_single_env(env, self._spec, "the environment")
        self._dialect: OpenEnv | None = None  # of an OpenEnv client; None for protocol ddppo/1
        self._is_in_episode = False

    def answer(self, kind: bytes, content: bytes) -> tuple[bytes, bytes]:
        """Return kind and content of the frame that answers a request. No request raises."""
        # A message that cannot be parsed is answered in the dialect used last.
        id, dialect, rpc_code = None, self._dialect, None
        try:
            # 1. Parse, and translate OpenEnv's messages to ddppo/1.
            message = decoded(kind, content)
            if is_openenv(message) and kind != JSON:
                raise BadMessage("VALIDATION_ERROR", "messages of OpenEnv are JSON, in text frames")
            self._dialect = dialect = (dialect or OpenEnv(self._spec)) if is_openenv(message) else None
            if dialect is not None:
                message = dialect.request(message)
            if dialect is not None and message["op"] == "close":
                return LEFT, b""
            if dialect is not None and message["op"] == "told":
                return kind, encoded(kind, message["reply"])
            # A client of tools alone does not reset: its first call begins an episode.
            if dialect is not None and dialect.begins:
                dialect.reply("reset", self._reset(kind))
            # 2. Execute the request.
            message = checked(message)
            id = message["id"]
            answer = self._execute(kind, message)
            reply = {"id": id, **answer} if dialect is None else dialect.reply(message["op"], answer)
            return kind, encoded(kind, reply)
        # 3. An error is an answer, too, of the same kind in capitals.
        except BadMessage as e:
            code, text, id = e.code, str(e), e.id if id is None else id
            rpc_code = e.rpc_code if isinstance(e, RpcError) else None
        except EnvRaised as e:
            code, text = "EXECUTION_ERROR", e.said
        except (EnvError, ValueError) as e:  # ValueError: numbers that JSON does not hold
            code, text = "EXECUTION_ERROR", str(e)
        if dialect is not None:
            return kind.upper(), encoded(kind, dialect.error(code, text, rpc_code))
        return kind.upper(), encoded(kind, {"id": id, "error": {"code": code, "message": text}})

    def close(self) -> None:
        self._env.close()

    def _execute(self, kind: bytes, message: dict[str, Any]) -> dict[str, Any]:
        match message["op"]:
            case "describe":
                return {"protocol": PROTOCOL, "spec": plain_spec(self._spec)}
            case "reset":
                return self._reset(kind, message.get("seed"), message.get("options"))
        if not self._is_in_episode:
            raise BadMessage("NOT_UNDER_WAY", "no episode is under way: reset first", message["id"])
        # A step: the action has to be in the action space before the environment sees it.
        action = action_of(message, self._spec.action)
        self._is_in_episode = False  # an exception ends the episode
        obs, reward, terminated, truncated, info = self._env.step(action)
        answer = self._observed(kind, obs, info)
        if not (terminated or truncated):
            self._is_in_episode = True
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
        self._is_in_episode = True
        return self._observed(kind, obs, info)

    def _observed(self, kind: bytes, obs: ObsArrays | str, info: dict[str, Any]) -> dict[str, Any]:
        mask: np.ndarray | None = info.pop(MASK, None) if self._spec.mask_size is not None else None
        # Drop entries of the info that the format cannot hold: JSON has no NaN, MessagePack no integer above 64 bits.
        if kind == JSON:
            info = {key: x for key, x in info.items() if type(x) is not float or math.isfinite(x)}
        else:
            info = {key: x for key, x in info.items() if type(x) is not int or -(2**63) <= x < 2**64}
        answer = {"obs": plain_obs(kind, obs), "info": info}
        return answer if mask is None else {**answer, "mask": plain(kind, mask)}
