"""The learner's side of its actors: who is connected, who acts, whose rollout is there, who is lost."""

import os
import selectors
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NoReturn

import torch

from ddppo.collectives.group import CollectiveTiming
from ddppo.collectives.peers import OwnPace, in_words, leave_word
from ddppo.config.settings import DistSettings
from ddppo.distributed.topologies.async_actors.line import Door, Wire
from ddppo.distributed.topologies.async_actors.messages import (
    ANSWER,
    END,
    SENT,
    Answer,
    Parameters,
    Sent,
    as_bytes,
    receive_episodes,
)
from ddppo.distributed.topologies.base import OwnPaceReport
from ddppo.errors import CollectiveError
from ddppo.ppo.rollout import FinishedEpisode


class Actor:
    """What the learner knows of an actor. num_hellos: processes that it has been; is_new: of which none acted yet."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.wire: Wire | None = None
        self.is_acting = False
        self.since = time.monotonic()  # when it began to act, or to wait
        self.num_hellos = 0
        self.is_new = False
        self.report = OwnPaceReport()


class ActorConnections:
    """The actors of these ranks, as the learner, rank 0 of `group`, is connected with them."""

    def __init__(
        self, group: OwnPace, ranks: Iterable[int], config: DistSettings, parameters: Parameters
    ) -> None:
        self._group = group
        self._timeout_s, self._goes_on = config.timeout_s, config.on_lost == "restart"
        self._parameters = parameters
        self._actors = {rank: Actor(rank) for rank in ranks}
        is_one_machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == group.world_size
        self._door = Door(
            group.store, None if is_one_machine else os.environ["MASTER_ADDR"], config.timeout_s
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)

    def __iter__(self) -> Iterator[Actor]:
        return iter(self._actors.values())

    def __len__(self) -> int:
        return len(self._actors)

    @property
    def waiting(self) -> list[Actor]:
        """Who is connected and does nothing, longest first."""
        idle = [actor for actor in self if actor.wire is not None and not actor.is_acting]
        return sorted(idle, key=lambda actor: actor.since)

    @property
    def num_acting(self) -> int:
        return sum(actor.is_acting for actor in self)

    def meet(self) -> None:
        """Wait until all are connected."""
        while any(actor.wire is None for actor in self):
            for actor in self.ready():  # nobody acts yet: it is gone
                self._lose(actor, ConnectionResetError("the other end is closed"))

    def ready(self) -> list[Actor]:
        """Wait until something comes, and return whose rollouts there are, longest under way first.

        Nobody's where another has connected. Raises CollectiveError where a rollout is not there in time.
        """
        acting = [actor for actor in self if actor.is_acting]
        since = min(actor.since for actor in acting or self)
        with self._group.wait_for("actor"):
            events = self._selector.select(max(0.0, since + self._timeout_s - time.monotonic()))
        ready: list[Actor] = [key.data for key, _ in events if key.data is not None]
        late_since = time.monotonic() - self._timeout_s
        late = [actor for actor in acting if actor not in ready and actor.since < late_since]
        if late or not events:
            self._give_up(late or [actor for actor in self if actor.wire is None])
        if len(ready) < len(events):
            self._let_in()
            return []
        return sorted(ready, key=lambda actor: actor.since)

    def receive(self, actor: Actor, into: torch.Tensor) -> tuple[Sent, list[FinishedEpisode]] | None:
        """Receive a rollout as bytes and return what is said of it; None where its actor is gone."""
        assert actor.wire is not None
        start = time.perf_counter()
        try:
            sent = Sent(*actor.wire.unpack(SENT))
            actor.wire.receive(as_bytes(into))
            episodes = receive_episodes(actor.wire, sent.num_episodes)
        except OSError as e:
            self._lose(actor, e)
            return None
        self._group.record(CollectiveTiming(start, time.perf_counter()))
        actor.is_acting, actor.since = False, time.monotonic()
        return sent, episodes

    def send(self, actor: Actor, answer: Answer) -> None:
        """Have an actor go on, with the parameters as they are."""
        assert actor.wire is not None
        start, num_bytes = time.perf_counter(), actor.wire.num_bytes
        try:
            self._parameters.send(actor.wire, answer)
        except OSError as e:
            self._lose(actor, e)
            return
        num_bytes = actor.wire.num_bytes - num_bytes
        self._group.record(CollectiveTiming(start, time.perf_counter(), num_bytes=num_bytes))
        actor.is_acting, actor.is_new, actor.since = True, False, time.monotonic()

    def rest(self) -> None:
        """Wait until every actor has its rollout to send."""
        acting = [actor.wire for actor in self if actor.wire is not None and actor.is_acting]
        with selectors.DefaultSelector() as selector, self._group.wait_for("actor"):
            for wire in acting:
                selector.register(wire, selectors.EVENT_READ)
            while selector.get_map():
                events = selector.select(self._timeout_s)
                if not events:  # `ready` will say whose is late
                    return
                for key, _ in events:
                    selector.unregister(key.fileobj)

    def finish(self) -> None:
        """Tell all that it is over, and wait until each has heard it: at the end of the rollout it is in."""
        for actor in self:
            if actor.wire is not None:
                _dismiss(actor.wire)
        while any(actor.wire for actor in self):
            events = self._selector.select(self._timeout_s)
            if not events:
                return
            for key, _ in events:
                if key.data is not None and key.data.wire.drain():
                    self._forget(key.data)
                elif key.data is None and (came := self._door.let_in()) is not None:  # started again too late
                    _dismiss(came[1])
                    came[1].close()

    def close(self) -> None:
        for actor in self:
            if actor.wire is not None:
                self._forget(actor)
        self._selector.close()
        self._door.close()

    def _let_in(self) -> None:
        came = self._door.let_in()
        if came is None or came[0] not in self._actors:
            return
        actor, wire = self._actors[came[0]], came[1]
        if actor.wire is not None:  # its last process is gone, and nobody has noticed yet
            self._forget(actor)
        actor.wire, actor.is_new, actor.since = wire, True, time.monotonic()
        actor.num_hellos += 1
        self._selector.register(wire, selectors.EVENT_READ, actor)

    def _lose(self, actor: Actor, error: OSError) -> None:
        """Go on without an actor until it comes back, or raise CollectiveError, as for one that hangs."""
        if isinstance(error, TimeoutError):
            self._give_up([actor])
        self._forget(actor)
        if not self._goes_on:
            raise CollectiveError(
                f"rank 0, the learner, lost rank {actor.rank}, an actor: {error}"
            ) from error

    def _forget(self, actor: Actor) -> None:
        assert actor.wire is not None
        self._selector.unregister(actor.wire)
        actor.wire.close()
        actor.wire, actor.is_acting, actor.since = None, False, time.monotonic()

    def _give_up(self, late: list[Actor]) -> NoReturn:
        waited_s = time.monotonic() - min(actor.since for actor in late)
        leave_word(self._group.store, 0, f"for {waited_s:.1f} s")
        raise CollectiveError(
            f"rank 0, the learner, on {socket.gethostname()} had no rollout from "
            f"{in_words([actor.rank for actor in late])} for {waited_s:.1f} s (limit dist.timeout_s="
            f"{self._timeout_s:g})"
        )


def _dismiss(wire: Wire) -> None:
    with suppress(OSError):
        wire.send(ANSWER.pack(*END))
