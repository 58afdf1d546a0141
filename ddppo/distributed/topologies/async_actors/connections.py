"""Connections between the learner of async_actors and its actors: one socket each, with messages of known sizes.

Read from the bottom of the stack to the top: `PeerConnection` is an end of a socket, `Listener` and `connect` set it
up, a `RolloutHeader` and a `ReplyHeader` begin the two kinds of messages, and `ActorConnections` is the learner's view
of all actors: connected, acting, ready with a rollout, or lost.
"""

import hmac
import json
import os
import secrets
import select
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from ddppo.collectives.group import CollectiveTiming
from ddppo.collectives.peers import OwnPace, in_words, leave_word
from ddppo.config.settings import DistSettings
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.distributed.topologies.contract import OwnPaceReport
from ddppo.errors import CollectiveError
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import FinishedEpisode

# -- A connection, and how it is made.


class PeerConnection:
    """One end of a socket. Every wait has a limit; time that waits and time that moves bytes are measured apart."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        connection.setblocking(False)
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._timeout_s = timeout_s
        self._poll = select.poll()
        self.reset_counters()

    def reset_counters(self) -> None:
        self.waited_s = self.moved_s = 0.0
        self.num_sends = self.num_bytes = 0  # messages and bytes sent

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *parts: memoryview | bytes) -> None:
        """Send one message. Raises ConnectionError if the other end is gone, TimeoutError if it does not read."""
        start, waited_s = time.perf_counter(), self.waited_s
        for part in parts:
            left = memoryview(part).cast("B")
            self.num_bytes += len(left)
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:  # the socket's buffer is full
                    self._wait(select.POLLOUT)
        self.num_sends += 1
        self.moved_s += time.perf_counter() - start - (self.waited_s - waited_s)

    def receive(self, into: memoryview) -> None:
        """Fill `into`. Raises ConnectionError if the other end is gone, TimeoutError if it sends nothing."""
        start, waited_s = time.perf_counter(), self.waited_s
        left = into.cast("B") if into.nbytes else into
        while left.nbytes:
            try:
                number = self._socket.recv_into(left)
            except BlockingIOError:  # nothing has arrived yet
                self._wait(select.POLLIN)
                continue
            if not number:
                raise ConnectionResetError("the other end is closed")
            left = left[number:]
        self.moved_s += time.perf_counter() - start - (self.waited_s - waited_s)

    def unpack(self, layout: struct.Struct) -> tuple:
        """Receive one header."""
        room = bytearray(layout.size)
        self.receive(memoryview(room))
        return layout.unpack(room)

    def drain(self) -> bool:
        """Discard the bytes that have arrived; return whether the other end is closed."""
        try:
            while self._socket.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self._socket.close()

    def _wait(self, event: int) -> None:
        start = time.perf_counter()
        self._poll.register(self._socket, event)
        ready = self._poll.poll(1000 * self._timeout_s)
        self.waited_s += time.perf_counter() - start
        if not ready:
            raise TimeoutError(f"no word for {self._timeout_s:g} s")


_GREETING = struct.Struct("<32sq")  # the first bytes from an actor: the run's token, its rank
_GREETING_S = 5.0  # seconds in which it must arrive
_ADDRESS = "ddppo/learner/address"  # key of the launcher's store


class Listener:
    """The socket on which a learner accepts its actors.

    Its address is in the launcher's store, with a random token. A process that does not send the token is refused, so
    only processes that can read the store take part.
    """

    def __init__(self, store: dist.Store, machine: str | None, timeout_s: float) -> None:
        # machine: the name by which other machines reach this one; None if all ranks are on this machine.
        self._token, self._timeout_s = secrets.token_hex(16), timeout_s
        where: str | int
        if machine is None and sys.platform == "linux":
            # A name that begins with \0 is in Linux's abstract namespace: no file is left behind.
            self._socket, where = socket.socket(socket.AF_UNIX), f"\0ddppo-{secrets.token_hex(16)}"
            self._socket.bind(where)
        else:
            machine = machine or "127.0.0.1"
            self._socket = socket.create_server(("127.0.0.1" if machine == "127.0.0.1" else "", 0))
            where = self._socket.getsockname()[1]
        self._socket.listen(1024)
        store.set(_ADDRESS, json.dumps([self._token, machine, where]))

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> tuple[int, PeerConnection] | None:
        """Return the rank that has connected, and the connection; None if its greeting is wrong or does not come."""
        connection, _ = self._socket.accept()
        connection.settimeout(_GREETING_S)
        with suppress(OSError):
            greeting = connection.recv(_GREETING.size, socket.MSG_WAITALL)
            if len(greeting) == _GREETING.size:
                token, rank = _GREETING.unpack(greeting)
                if hmac.compare_digest(token, self._token.encode()):
                    return rank, PeerConnection(connection, self._timeout_s)
        connection.close()
        return None

    def close(self) -> None:
        self._socket.close()


def connect(store: dist.Store, rank: int, timeout_s: float) -> PeerConnection:
    """Connect an actor to the learner.

    Raises OSError if the learner cannot be reached, DistError if it does not write its address to the store in time.
    """
    token, machine, where = json.loads(store.get(_ADDRESS))
    if isinstance(where, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        connection.connect(where)
    else:
        connection = socket.create_connection((machine, where), timeout_s)
    connection.sendall(_GREETING.pack(token.encode(), rank))
    return PeerConnection(connection, timeout_s)


# -- The two messages. An actor sends: RolloutHeader, rollout, finished episodes. The learner replies: ReplyHeader,
# parameters, moments of observations.


class RolloutHeader(NamedTuple):
    """The head of a rollout. Counters and times since the actor sent its last rollout, in seconds."""

    number: int  # of the rollout; the noise of its actions follows from it
    version: int  # number of updates behind the parameters that acted
    num_steps: int  # environment steps
    num_rollout_bytes: int = 0  # of the rollout, which follows; `send_rollout` sets both
    num_episodes: int = 0  # finished episodes, which follow the rollout
    asks_to_stop: int = 0  # 1 if the actor received a stop signal
    num_restarts: int = 0  # environment processes replaced since the start of the run
    num_sends: int = 0
    num_bytes: int = 0
    t_iter: float = 0.0
    t_rollout: float = 0.0
    t_wait: float = 0.0  # waiting for the learner
    t_comm: float = 0.0


class ReplyHeader(NamedTuple):
    """The head of the learner's reply."""

    version: int  # number of updates behind the parameters; -1 if the run has ended, and nothing follows
    # At least 0: start new episodes, and continue with rollout number first + 1. -1: continue.
    first: int
    progress: float = 0.0  # of the algorithm (ddppo.algorithms.contract.Algorithm)


ROLLOUT_HEADER, REPLY_HEADER = struct.Struct("<9q4d"), struct.Struct("<2qd")
END = ReplyHeader(-1, -1)
_EPISODE_NUMBERS = 4  # step, environment, return and length


def as_bytes(x: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU."""
    return x.detach().view(-1).view(torch.uint8).numpy().data


def episode_rows(episodes: list[FinishedEpisode]) -> np.ndarray:
    """Return episodes as rows (step, environment, return, length), `[n, 4]`."""
    rows = [(e.step, e.env_index, e.episode_return, e.length) for e in episodes]
    return np.array(rows, np.float64).reshape(len(rows), _EPISODE_NUMBERS)


def send_rollout(
    connection: PeerConnection,
    header: RolloutHeader,
    rollout: torch.Tensor,  # as bytes (`RolloutMessage.pack`)
    episodes: list[FinishedEpisode],
) -> None:
    rows = episode_rows(episodes)
    header = header._replace(num_rollout_bytes=len(rollout), num_episodes=len(rows))
    connection.send(ROLLOUT_HEADER.pack(*header), as_bytes(rollout), rows.tobytes())


def receive_episodes(connection: PeerConnection, number: int) -> list[FinishedEpisode]:
    rows = np.empty((number, _EPISODE_NUMBERS))
    connection.receive(rows.reshape(-1).view(np.uint8).data)
    return [FinishedEpisode(int(t), int(i), total, int(length)) for t, i, total, length in rows.tolist()]


class ParameterReply:
    """Everything that an actor acts with, as bytes: parameters, and the moments that normalise observations."""

    def __init__(
        self,
        parameters: FlatParameters,
        normalizer: ObsNormalizer | None,
        prefixes: Sequence[str] = ("",),  # of the parameters that act
    ) -> None:
        self._slices = [parameters.vector.data[start:end] for start, end in parameters.slices(prefixes)]
        self._normalizer = normalizer
        # On a CPU the vector's own memory is sent; from a GPU, a copy.
        self._on_cpu = [x if x.device.type == "cpu" else x.cpu() for x in self._slices]

    def send(self, connection: PeerConnection, header: ReplyHeader) -> None:
        for own, sent in zip(self._slices, self._on_cpu, strict=True):
            if sent is not own:
                sent.copy_(own)
        parts: list[memoryview | bytes] = [REPLY_HEADER.pack(*header), *map(as_bytes, self._on_cpu)]
        if self._normalizer is not None:
            parts.append(as_bytes(self._normalizer.state.contiguous()))
        connection.send(*parts)

    def receive(self, connection: PeerConnection) -> None:
        """Receive what follows a ReplyHeader, into the model's parameters and the normaliser."""
        for own, sent in zip(self._slices, self._on_cpu, strict=True):
            connection.receive(as_bytes(sent))
            if sent is not own:
                own.copy_(sent)
        if self._normalizer is not None:
            state = torch.empty_like(self._normalizer.state)
            connection.receive(as_bytes(state))
            self._normalizer.load(state)


# -- The learner's view of its actors.


class ConnectedActor:
    """One actor, as the learner knows it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.connection: PeerConnection | None = None  # None before it connects, and after it is lost
        self.is_acting = False  # else it waits for a reply
        self.since = time.monotonic()  # when it began to act, or to wait
        self.num_starts = 0  # processes that this rank has been
        self.is_new = False  # whether its present process has not acted yet
        self.report = OwnPaceReport()


class ActorConnections:
    """The learner's connections to all its actors."""

    def __init__(
        self, group: OwnPace, ranks: Iterable[int], config: DistSettings, reply: ParameterReply
    ) -> None:
        self._group = group
        self._timeout_s, self._restarts = config.timeout_s, config.on_lost == "restart"
        self._reply = reply
        self._actors = {rank: ConnectedActor(rank) for rank in ranks}
        is_one_machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == group.world_size
        self._listener = Listener(
            group.store, None if is_one_machine else os.environ["MASTER_ADDR"], config.timeout_s
        )
        # The selector's data is the actor of a connection, None for the listener.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def __iter__(self) -> Iterator[ConnectedActor]:
        return iter(self._actors.values())

    def __len__(self) -> int:
        return len(self._actors)

    @property
    def waiting(self) -> list[ConnectedActor]:
        """Actors that wait for a reply, the longest wait first."""
        idle = [actor for actor in self if actor.connection is not None and not actor.is_acting]
        return sorted(idle, key=lambda actor: actor.since)

    @property
    def num_acting(self) -> int:
        return sum(actor.is_acting for actor in self)

    def wait_for_all(self) -> None:
        """Block until all actors are connected."""
        while any(actor.connection is None for actor in self):
            # No actor acts yet, so bytes or the end of a connection mean that its process has ended.
            for actor in self.ready():
                self._lose(actor, ConnectionResetError("the other end is closed"))

    def ready(self) -> list[ConnectedActor]:
        """Block until something arrives; return the actors with a rollout that has, the earliest begun first.

        Returns [] if an actor has connected instead. Raises CollectiveError if a rollout takes longer than
        dist.timeout_s.
        """
        # Wait until the rollout that began first, or the longest missing connection, would be late.
        acting = [actor for actor in self if actor.is_acting]
        since = min(actor.since for actor in acting or self)
        with self._group.wait_for("actor"):
            events = self._selector.select(max(0.0, since + self._timeout_s - time.monotonic()))
        ready: list[ConnectedActor] = [key.data for key, _ in events if key.data is not None]
        late_since = time.monotonic() - self._timeout_s
        late = [actor for actor in acting if actor not in ready and actor.since < late_since]
        if late or not events:
            self._raise_late(late or [actor for actor in self if actor.connection is None])
        if len(ready) < len(events):
            self._accept()
            return []
        return sorted(ready, key=lambda actor: actor.since)

    def receive(
        self, actor: ConnectedActor, room: torch.Tensor
    ) -> tuple[RolloutHeader, torch.Tensor, list[FinishedEpisode]] | None:
        """Receive a rollout; return its header, its bytes and its episodes. None if the actor is lost.

        room: bytes that are used for the rollout if they are as many.
        """
        assert actor.connection is not None
        start = time.perf_counter()
        try:
            header = RolloutHeader(*actor.connection.unpack(ROLLOUT_HEADER))
            if len(room) != header.num_rollout_bytes:
                room = torch.empty(header.num_rollout_bytes, dtype=torch.uint8)
            actor.connection.receive(as_bytes(room))
            episodes = receive_episodes(actor.connection, header.num_episodes)
        except OSError as e:
            self._lose(actor, e)
            return None
        self._group.record(CollectiveTiming(start, time.perf_counter()))
        actor.is_acting, actor.since = False, time.monotonic()
        return header, room, episodes

    def send(self, actor: ConnectedActor, header: ReplyHeader) -> None:
        """Reply to an actor with the current parameters, so that it acts again."""
        assert actor.connection is not None
        start, num_bytes = time.perf_counter(), actor.connection.num_bytes
        try:
            self._reply.send(actor.connection, header)
        except OSError as e:
            self._lose(actor, e)
            return
        num_bytes = actor.connection.num_bytes - num_bytes
        self._group.record(CollectiveTiming(start, time.perf_counter(), num_bytes=num_bytes))
        actor.is_acting, actor.is_new, actor.since = True, False, time.monotonic()

    def wait_until_idle(self) -> None:
        """Block until every acting actor has a rollout to send."""
        acting = [actor.connection for actor in self if actor.connection is not None and actor.is_acting]
        with selectors.DefaultSelector() as selector, self._group.wait_for("actor"):
            for connection in acting:
                selector.register(connection, selectors.EVENT_READ)
            while selector.get_map():
                events = selector.select(self._timeout_s)
                if not events:  # the next call of `ready` names the late actors
                    return
                for key, _ in events:
                    selector.unregister(key.fileobj)

    def finish(self) -> None:
        """Send the end of the run to all actors, and wait until each has closed its connection.

        An actor reads it after the rollout that it is in; the bytes of that rollout are discarded here.
        """
        for actor in self:
            if actor.connection is not None:
                _send_end(actor.connection)
        while any(actor.connection for actor in self):
            events = self._selector.select(self._timeout_s)
            if not events:
                return
            for key, _ in events:
                if key.data is not None and key.data.connection.drain():
                    self._disconnect(key.data)
                # An actor that was started again too late to act.
                elif key.data is None and (accepted := self._listener.accept()) is not None:
                    _send_end(accepted[1])
                    accepted[1].close()

    def close(self) -> None:
        for actor in self:
            if actor.connection is not None:
                self._disconnect(actor)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        """Accept an actor that connects, for the first time or started again."""
        accepted = self._listener.accept()
        if accepted is None or accepted[0] not in self._actors:
            return
        actor, connection = self._actors[accepted[0]], accepted[1]
        if actor.connection is not None:  # its last process has ended, and this was not noticed yet
            self._disconnect(actor)
        actor.connection, actor.is_new, actor.since = connection, True, time.monotonic()
        actor.num_starts += 1
        self._selector.register(connection, selectors.EVENT_READ, actor)

    def _lose(self, actor: ConnectedActor, error: OSError) -> None:
        """Go on without an actor until it comes back, with dist.on_lost=restart. Otherwise raise CollectiveError.

        An actor that hangs, a TimeoutError, always ends the run: its process still lives, and cannot be started again.
        """
        if isinstance(error, TimeoutError):
            self._raise_late([actor])
        self._disconnect(actor)
        if not self._restarts:
            raise CollectiveError(
                f"rank 0, the learner, lost rank {actor.rank}, an actor: {error}"
            ) from error

    def _disconnect(self, actor: ConnectedActor) -> None:
        assert actor.connection is not None
        self._selector.unregister(actor.connection)
        actor.connection.close()
        actor.connection, actor.is_acting, actor.since = None, False, time.monotonic()

    def _raise_late(self, late: list[ConnectedActor]) -> NoReturn:
        waited_s = time.monotonic() - min(actor.since for actor in late)
        leave_word(self._group.store, 0, f"for {waited_s:.1f} s")
        raise CollectiveError(
            f"rank 0, the learner, on {socket.gethostname()} had no rollout from "
            f"{in_words([actor.rank for actor in late])} for {waited_s:.1f} s (limit dist.timeout_s="
            f"{self._timeout_s:g})"
        )


def _send_end(connection: PeerConnection) -> None:
    with suppress(OSError):
        connection.send(REPLY_HEADER.pack(*END))
