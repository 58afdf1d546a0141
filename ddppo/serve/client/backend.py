"""env.backend=remote: a `VecEnv` over the servers at env.urls, or over a server that the rank starts itself.

The rank's own server listens on loopback with a secret token, and ends with the rank. `RemoteEnvs` is the VecEnv,
`Source` chooses the servers, `OwnServer` is the server of a rank (its main program is serve/own.py).
"""

import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.observations import ObsArrays, RowLayout
from ddppo.envs.vec_env import EnvNames, EnvStep, Options, Unsaved, no_options
from ddppo.errors import EnvError
from ddppo.processes.forking import ForkedProcess, ForkServer, ForkServerLost
from ddppo.serve.client.connection import EnvServerFault, EnvServerLost
from ddppo.serve.client.openenv import opener_of
from ddppo.serve.client.served import token_of
from ddppo.serve.client.sessions import EnvAnswer, Opener, SyncEnvPool
from ddppo.serve.protocol import plain_spec
from ddppo.spaces import EnvSpec, each, leaves

READY, FAILED = b".", b"!"  # the first answer of serve/own.py; the reason follows FAILED
_CLOSE_S = 8.0  # for the own server to end
_IMPORTS = ("ddppo.serve.server",)
_FULL_S = 30.0  # wait for slots that other clients, or this rank before a restart, are about to release
_OPEN_S = 60.0  # to open a session, while the own server may be restarting


def make_remote(
    env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float, *, max_restarts: int = 0
) -> "RemoteEnvs":
    """Open one session for each environment, with the servers at env.urls or the rank's own. Raises EnvError."""
    source = Source(env, spec, names, timeout_s)
    try:
        pool = SyncEnvPool(
            source.urls, len(names.indices), first=names.indices.start, token=source.token, revive=source.revive,
            opener=source.opener, **patience(timeout_s, max_restarts),
        )  # fmt: skip
        return RemoteEnvs(pool, spec, names, source)
    except BaseException:
        source.close()
        raise


class RemoteEnvs(Unsaved):
    """A `VecEnv` over sessions. When a session was lost and opened again, its row of that step is not valid
    (EnvStep).
    """

    num_lost_episodes = 0

    def __init__(self, pool: SyncEnvPool, spec: EnvSpec, names: EnvNames, source: "Source") -> None:
        if pool.spec != spec:
            pool.close()
            raise EnvError(
                f"{pool.addresses[0]} serves a task of {pool.spec}, which differs from {spec}, its task before"
            )
        self._source = source
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self._pool = pool
        # The arrays of the batch, views of structured rows, written in every step.
        layout = RowLayout(spec)
        rows = np.zeros(self.num_envs, layout.dtype)
        self._obs, self._mask = layout.obs(rows), layout.mask(rows)
        self._none = layout.obs(rows[:0])
        self._rewards = np.zeros(self.num_envs)
        self._terminated, self._truncated, self._valid = np.ones((3, self.num_envs), bool)

    @property
    def num_restarts(self) -> int:
        return self._pool.num_reconnects

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        if options is not None:
            raise no_options(self.names)
        try:
            self._write(self._pool.reset(seeds))
        except EnvServerFault as e:
            raise EnvError(f"{self.names(e.place)}: {e}") from e
        return self._obs, self._mask

    def step(self, actions: np.ndarray) -> EnvStep:
        try:
            answers = self._pool.step(actions)
        except EnvServerFault as e:
            raise EnvError(f"{self.names(e.place)}: {e}") from e
        # 1. Write the answers into the arrays of the batch.
        self._write(answers)
        for i, answer in enumerate(answers):
            self._rewards[i], self._valid[i] = answer.reward, not answer.is_lost
            self._terminated[i], self._truncated[i] = answer.terminated, answer.truncated or answer.is_lost
            self.num_lost_episodes += answer.is_lost
        # 2. Final observations. That of a lost episode is unknown: the row is not valid, and its numbers are not used.
        (ended,) = (self._terminated | self._truncated).nonzero()
        finals = [answers[i].final_obs if answers[i].final_obs is not None else answers[i].obs for i in ended]
        final_obs = each(lambda *parts: np.stack(parts), *finals) if finals else self._none
        return EnvStep(
            self._obs, self._rewards, self._terminated, self._truncated, self._valid, ended, final_obs, self._mask
        )  # fmt: skip

    def close(self) -> None:
        """Give the slots back. A second call does nothing."""
        self._pool.close()
        self._source.close()

    def _write(self, answers: Sequence[EnvAnswer]) -> None:
        for i, answer in enumerate(answers):
            for array, part in zip(leaves(self._obs), leaves(answer.obs), strict=True):
                array[i] = part
            if self._mask is not None:
                self._mask[i] = answer.mask


def patience(timeout_s: float, max_restarts: int) -> dict[str, Any]:
    """Return the arguments of `Patience` for a rank that others wait for up to timeout_s.

    Waits are short enough that the rank reports a lost environment before the others give up on the rank.
    """
    return {
        "answer_s": timeout_s,
        "open_s": min(timeout_s, _OPEN_S),
        "full_s": min(timeout_s / 4, _FULL_S),
        "reconnect_s": timeout_s / 2,
        "max_reconnects": max_restarts,
    }


class Source:
    """The servers of a rank: addresses, token, how sessions are opened; `revive` restarts the rank's own server."""

    def __init__(self, env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> None:
        self._own = None if env.urls else OwnServer(env, spec, names, timeout_s)
        self.urls = [self._own.url] if self._own is not None else env.urls
        self.opener: Opener | None = None  # of sessions with servers of another protocol
        if env.backend == "openenv":
            self.token, self.opener = None, opener_of(env, names.indices)
        else:
            self.token = self._own.token if self._own is not None else token_of(env)
        self.revive: Callable[[], None] | None = self._own.revive if self._own is not None else None

    def close(self) -> None:
        if self._own is not None:
            self._own.close()


class OwnServer:
    """The rank's own server, with a slot for each of `names`. Raises EnvError if it cannot start.

    The rank owns the listening socket and passes it to the server, so that a restarted server has the same address.
    """

    def __init__(self, env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> None:
        # 1. The task, with a token that only this rank knows.
        self._names = names
        self._timeout_s = timeout_s
        self.token = secrets.token_urlsafe(24)
        task = {
            "env": asdict(replace(env, backend="sync", urls=[], token_file=None)),
            "spec": plain_spec(spec),
            "pool": len(names.indices),
            "token": self.token,
            "step_s": timeout_s,
        }
        self._task = json.dumps(task).encode()
        self._process: ForkedProcess | None = None
        self._line: socket.socket | None = None  # the server ends when it is closed
        # 2. The socket that every server of this rank listens at.
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        host, port = self._listener.getsockname()
        self.url = f"ws://{host}:{port}"
        # 3. The process that servers are forked from, and the first server.
        self._fork_server = ForkServer.forked() or ForkServer.started()
        try:
            self._fork_server.have_imported(_IMPORTS)
            self.revive()
        except BaseException:
            self.close()
            raise

    def revive(self) -> None:
        """Start the server if it does not run, and wait until it is ready. Raises EnvError."""
        try:
            if self._process is None or self._process.poll() is not None:
                self._start()
        except ForkServerLost as e:
            raise EnvServerLost(
                f"the process from which the server of {self._names.all()} is forked {e}"
            ) from e

    def close(self) -> None:
        """End the server and all its processes. A second call does nothing."""
        if self._line is not None:
            self._line.close()
        with suppress(ForkServerLost):
            if self._process is not None:
                self._process.wait(_CLOSE_S)
        self._fork_server.close()
        self._listener.close()

    def _start(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = self._fork_server.start(
                "ddppo.serve.own", [], os.environ, title=f"ddppo server of {self._names.all()}",
                stdio=(theirs.fileno(), 1, 2),
            )  # fmt: skip
        # Send the task with the listening socket, and wait for READY or FAILED.
        answer = bytearray()
        with suppress(OSError):  # the server has ended
            socket.send_fds(self._line, [len(self._task).to_bytes(8, "big")], [self._listener.fileno()])
            self._line.sendall(self._task)
            self._line.settimeout(self._timeout_s)
            while answer != READY and (part := self._line.recv(4096)):
                answer += part
        if answer != READY:
            why = (
                answer.removeprefix(FAILED).decode(errors="replace") or "it ended, or gave no answer in time"
            )
            raise EnvError(f"{self._names.all()} cannot be served: {why}")
