"""Where a rank's served environments come from: servers that are told of, or one of its own."""

from collections.abc import Callable
from typing import Any

from ddppo.config import EnvConfig
from ddppo.envs.faults import EnvNames
from ddppo.serve.client.own_server import OwnServer
from ddppo.serve.client.served import token_of
from ddppo.spaces import EnvSpec

_FULL_S = 30.0  # for slots that others, or this rank's predecessor, are about to give back
_OPEN_S = 60.0  # for a session: a server of one's own may be starting again


def patience(timeout_s: float, max_restarts: int) -> dict[str, Any]:
    """Return the patience of whoever may keep others waiting for timeout_s: it tells of a loss before they give up."""
    return {
        "answer_s": timeout_s,
        "open_s": min(timeout_s, _OPEN_S),
        "full_s": min(timeout_s / 4, _FULL_S),
        "reconnect_s": timeout_s / 2,
        "max_reconnects": max_restarts,
    }


class Source:
    """urls and token as a client needs them; revive where a server of one's own may have to be started again."""

    def __init__(self, env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> None:
        self._own = None if env.urls else OwnServer(env, spec, names, timeout_s)
        self.urls = [self._own.url] if self._own is not None else env.urls
        self.token = self._own.token if self._own is not None else token_of(env)
        self.revive: Callable[[], None] | None = self._own.revive if self._own is not None else None

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
