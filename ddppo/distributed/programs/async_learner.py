"""The learner of async_actors: what it takes, whom it answers when, and how what is old is corrected.

The lag of a rollout is the number of updates between the parameters that acted and those that learn from it.
"""

import os
import selectors
import socket
import time
from contextlib import suppress
from typing import NamedTuple, NoReturn

import torch

from ddppo.collectives import Group, Record, in_words, leave_word
from ddppo.collectives.own_pace import OwnPace
from ddppo.distributed.programs.async_line import Door, Wire
from ddppo.distributed.programs.async_messages import (
    ANSWER,
    END,
    SENT,
    Answer,
    Parameters,
    Sent,
    as_bytes,
    receive_episodes,
)
from ddppo.distributed.programs.kit import Collected, Kit, News, Program
from ddppo.distributed.programs.messages import RolloutMessage
from ddppo.distributed.programs.off_policy import with_ratios
from ddppo.errors import CollectiveError
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import Episode, Rollout
from ddppo.terminal import warn

_LAGS = {"0": 0, "1": 1, "2_3": 3, "4_7": 7}  # the largest of each bin but the last


class _Actor:
    """What the learner knows of an actor."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.wire: Wire | None = None
        self.is_acting = False
        self.since = time.monotonic()  # when it began to act, or to wait
        self.first = -1  # the rollout before which it is to begin anew
        self.num_hellos = 0
        self.news = News()


class _Taken(NamedTuple):
    """A rollout of the update to come, and the row of the buffer that it lies in."""

    rank: int
    number: int
    lag: int
    row: int


class AsyncLearner(Program):
    """Rank 0. K rollouts make an update; `version` counts the updates done."""

    collector = None

    def __init__(self, kit: Kit) -> None:
        assert isinstance(kit.group, OwnPace)
        self._kit, self._group = kit, kit.group
        config, shape = kit.config, kit.shape
        self.learners = Group()  # of one
        self.sync = kit.sync(self.learners)
        self.learner = kit.learner(self.learners, 0, self.sync)
        self.learner.correction = config.dist.correction
        self._actors = {rank: _Actor(rank) for rank in kit.layout.stepping}
        self._per_update = shape.batch_size // shape.local_batch_size
        self._max_lag = largest_lag(config.dist.max_lag, len(self._actors), self._per_update)
        self._version = 0
        dtype = getattr(torch, config.dtype)
        self._rollouts = RolloutMessage(
            kit.spec, shape.rollout_steps, shape.local_num_envs, dtype,
            with_raw_obs=kit.obs_normalizer is not None,
        )  # fmt: skip
        self._room = torch.zeros(self._per_update, self._rollouts.num_bytes, dtype=torch.uint8)
        self._parameters = Parameters(kit.parameters, kit.obs_normalizer)
        self._taken: list[_Taken] = []
        self._lags: list[int] = []  # of the last update
        self._num_refused, self._depths = 0, 0
        self._stops = False
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == kit.group.world_size
        machine = None if local else os.environ["MASTER_ADDR"]
        self._door = Door(kit.group.store, machine, config.dist.timeout_s)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)

    def reset(self, iteration: int) -> None:
        """Wait for all actors, and have them begin."""
        self._version = iteration
        if iteration:
            warn(
                "async_actors goes on approximately: actors begin new episodes, and who comes when is chance"
            )
        while any(actor.wire is None for actor in self._actors.values()):
            self._ready()
        self._answer()

    def collect(self, iteration: int) -> Collected:
        self._num_refused = self._depths = 0
        episodes: list[Episode] = []
        while len(self._taken) < self._per_update:
            ready = self._ready()
            for place, actor in enumerate(ready[: self._per_update - len(self._taken)]):
                if actor.wire is None:  # lost meanwhile
                    continue
                num_taken = len(self._taken)
                found = self._take(actor)
                if len(self._taken) > num_taken:
                    self._depths += len(ready) - place
                    episodes += found
                self._answer()
        return Collected(0, episodes, None)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        self._taken.sort()
        lags = [taken.lag for taken in self._taken]
        assert max(lags) <= self._max_lag, (lags, self._max_lag)
        update = self.learner.update(self._joined(lags), iteration, progress)
        self._version, self._lags = iteration, lags
        self._taken.clear()
        self._answer()
        return update

    def _joined(self, lags: list[int]) -> Rollout:
        """Return the rollouts taken side by side, in the order of actors and their numbers."""
        rows = self._room[[taken.row for taken in self._taken]]
        rollout = self._rollouts.unpack(rows, self._kit.device)
        if self.learner.correction == "none" or not any(lags):
            return rollout
        # [K] -> [K * E]
        is_old = torch.tensor(lags).repeat_interleave(self._kit.shape.local_num_envs) > 0
        kit = self._kit
        return with_ratios(rollout, is_old.to(kit.device), kit.model, kit.spec, kit.obs_normalizer)

    # -- actors --------------------------------------------------------------------------------------------------

    def _ready(self) -> list[_Actor]:
        """Wait until something comes, let in who comes, and return whose rollouts there are, longest under way first.

        Raises CollectiveError where an actor's is not there in time.
        """
        timeout_s, connected = self._kit.config.dist.timeout_s, [a for a in self._actors.values() if a.wire]
        now = time.monotonic()
        began = [a.since for a in connected if a.is_acting] or [a.since for a in self._actors.values()]
        with self._group.wait_for("actor"):
            events = self._selector.select(max(0.0, min(began) + timeout_s - now))
        ready = [key.data for key, _ in events if key.data is not None]
        if any(key.data is None for key, _ in events):
            self._let_in()
            ready = [actor for actor in ready if actor.wire is not None]
        late = [
            a for a in connected if a.is_acting and a not in ready and time.monotonic() - a.since > timeout_s
        ]
        if late or not events:
            self._give_up(late or [a for a in self._actors.values() if a.wire is None])
        return sorted(ready, key=lambda actor: actor.since)

    def _let_in(self) -> None:
        came = self._door.let_in()
        if came is None or came[0] not in self._actors:
            return
        actor, wire = self._actors[came[0]], came[1]
        if actor.wire is not None:  # its last process is gone, and nobody has noticed yet
            self._forget(actor)
        # Numbers that no rollout of this run has had: noise and seeds follow from them. From 0 where it all begins.
        actor.first = (self._version << 32) + (actor.num_hellos << 24)
        actor.num_hellos += 1
        actor.wire, actor.is_acting, actor.since = wire, False, time.monotonic()
        self._selector.register(wire, selectors.EVENT_READ, actor)

    def _take(self, actor: _Actor) -> list[Episode]:
        """Receive an actor's rollout, and keep it unless it is too old; return the episodes that ended in it."""
        wire, row = actor.wire, len(self._taken)
        assert wire is not None
        start = time.perf_counter()
        try:
            sent = Sent(*wire.unpack(SENT))
            wire.receive(as_bytes(self._room[row]))
            episodes = receive_episodes(wire, sent.num_episodes)
        except OSError as e:
            self._lose(actor, e)
            return []
        self._group.record(Record(start, time.perf_counter()))
        actor.is_acting, actor.since = False, time.monotonic()
        self._stops |= bool(sent.asks_to_stop)
        lag = self._version - sent.version
        is_refused = lag > self._max_lag
        actor.news = _with(actor.news, sent, num_steps=0 if is_refused else sent.num_steps)
        if is_refused:
            self._num_refused += 1
            return []
        self._taken.append(_Taken(actor.rank, sent.number, lag, row))
        return episodes

    def _answer(self) -> None:
        """Have those actors go on whose next rollouts can be used, those first that have waited longest."""
        waiting = [a for a in self._actors.values() if a.wire is not None and not a.is_acting]
        for actor in sorted(waiting, key=lambda a: a.since):
            num_acting = sum(a.is_acting for a in self._actors.values())
            if updates_ahead(len(self._taken), num_acting, self._per_update) > self._max_lag:
                return
            self._send(actor, Answer(self._version, actor.first))

    def _send(self, actor: _Actor, answer: Answer) -> None:
        assert actor.wire is not None
        start, num_bytes = time.perf_counter(), actor.wire.num_bytes
        try:
            self._parameters.send(actor.wire, answer)
        except OSError as e:
            self._lose(actor, e)
            return
        self._group.record(Record(start, time.perf_counter(), num_bytes=actor.wire.num_bytes - num_bytes))
        actor.is_acting, actor.since, actor.first = True, time.monotonic(), -1

    def _lose(self, actor: _Actor, error: OSError) -> None:
        """Go on without an actor until it comes back, or raise CollectiveError."""
        self._forget(actor)
        if self._kit.config.dist.on_lost == "stop":
            raise CollectiveError(
                f"rank 0, the learner, lost rank {actor.rank}, an actor: {error}"
            ) from error

    def _forget(self, actor: _Actor) -> None:
        assert actor.wire is not None
        self._selector.unregister(actor.wire)
        actor.wire.close()
        actor.wire, actor.is_acting, actor.since = None, False, time.monotonic()

    def _give_up(self, late: list[_Actor]) -> NoReturn:
        timeout_s = self._kit.config.dist.timeout_s
        waited_s = time.monotonic() - min(actor.since for actor in late)
        leave_word(self._group.store, 0, f"for {waited_s:.1f} s, in update {self._version + 1}")
        raise CollectiveError(
            f"rank 0, the learner, on {socket.gethostname()} had no rollout from "
            f"{in_words([actor.rank for actor in late])} for {waited_s:.1f} s (limit dist.timeout_s={timeout_s:g})"
        )

    # -- what others ask -----------------------------------------------------------------------------------------

    def measured(self) -> dict[str, float]:
        lags = self._lags
        counts, below = {}, -1
        for name, most in _LAGS.items():
            counts[f"dist/lag_{name}"] = float(sum(below < lag <= most for lag in lags))
            below = most
        return {
            "dist/lag_mean": sum(lags) / len(lags),
            "dist/lag_max": max(lags),
            **counts,
            "dist/lag_8": sum(lag > below for lag in lags),
            "dist/queue_depth": self._depths / len(lags),
            "dist/refused": self._num_refused,
            "dist/restarts": sum(max(0, actor.num_hellos - 1) for actor in self._actors.values()),
        }

    def news(self) -> tuple[News, ...]:
        found = tuple(actor.news for actor in self._actors.values())
        for actor in self._actors.values():
            actor.news = News()
        return found

    def rest(self) -> None:
        """Wait until every actor has its rollout to send: what is acted while the clock stands would cost nothing."""
        acting = [actor.wire for actor in self._actors.values() if actor.wire is not None and actor.is_acting]
        with selectors.DefaultSelector() as selector, self._group.wait_for("actor"):
            for wire in acting:
                selector.register(wire, selectors.EVENT_READ)
            while selector.get_map():
                events = selector.select(self._kit.config.dist.timeout_s)
                if not events:  # `collect` will say whose is late
                    return
                for key, _ in events:
                    selector.unregister(key.fileobj)

    def is_asked_to_stop(self) -> bool:
        return self._stops

    def finish(self) -> None:
        """Tell actors that it is over, and wait until each has heard it: at the end of the rollout it is in."""
        for actor in self._actors.values():
            if actor.wire is not None:
                with suppress(OSError):
                    actor.wire.send(ANSWER.pack(*END))
        while any(actor.wire for actor in self._actors.values()):
            events = self._selector.select(self._kit.config.dist.timeout_s)
            for actor in (key.data for key, _ in events if key.data is not None):
                if actor.wire.drain():
                    self._forget(actor)
            if not events:
                return
            if any(key.data is None for key, _ in events) and (came := self._door.let_in()) is not None:
                with suppress(OSError):  # started again too late
                    came[1].send(ANSWER.pack(*END))
                came[1].close()

    def close(self) -> None:
        for actor in self._actors.values():
            if actor.wire is not None:
                self._forget(actor)
        self._selector.close()
        self._door.close()


def largest_lag(max_lag: int | None, num_actors: int, per_update: int) -> int:
    """Return max_lag, or by default the least with which no actor ever waits for the end of an update."""
    return updates_ahead(per_update, num_actors - 1, per_update) if max_lag is None else max_lag


def updates_ahead(num_taken: int, num_acting: int, per_update: int) -> int:
    """Return how many updates come before that which the next actor to begin will have its rollout in.

    num_taken rollouts wait for the next update already, and those of num_acting actors are expected before its own.
    """
    return (num_taken + num_acting) // per_update


def _with(news: News, sent: Sent, num_steps: int) -> News:
    return News(
        news.num_steps + num_steps,
        news.t_iter + sent.t_iter,
        news.t_rollout + sent.t_rollout,
        news.t_comm + sent.t_comm,
        {"learner": news.waited.get("learner", 0.0) + sent.t_wait},
        news.num_messages + sent.num_sends,
        news.num_bytes + sent.num_bytes,
    )
