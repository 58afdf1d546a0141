"""A group of several ranks: when all were last heard of, and which of them are silent when a collective fails."""

import copy
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from ddppo.collectives.group import Board, CollectiveTiming, Group
from ddppo.errors import CollectiveError
from ddppo.tracebacks import first_sentence

# -- A rank at its own pace: it meets the others in no collective, and finds them through the launcher's store.


class OwnPace(Group):
    """A group of one that knows its place among the ranks it was started with; every operation is the identity.

    store: of the launcher, where ranks leave word for one another.
    """

    name = "sockets"

    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout_s: float) -> None:
        super().__init__()
        self.rank, self.world_size = rank, world_size
        self.members = (rank,)
        self.store, self._timeout_s = store, timeout_s
        self.store.set_timeout(timedelta(seconds=timeout_s))

    def words(self, topic: str, mine: str) -> list[str]:
        """Return what every rank says of a topic, by rank; once, before it begins.

        Raises CollectiveError where one does not come in time. A rank that is started again finds what others said.
        """
        keys = [f"ddppo/{topic}/{rank}" for rank in range(self.world_size)]
        try:
            self.store.set(keys[self.rank], mine)
            return [self.store.get(key).decode() for key in keys]
        except dist.DistError as e:
            who = "the launcher's store"
            with suppress(dist.DistError):
                silent = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
                leave_word(self.store, self.rank, f"for {self._timeout_s:.1f} s, never heard of")
                who = in_words(silent)
            raise CollectiveError(
                f"rank {self.rank} on {socket.gethostname()} did not hear of {who} within dist.timeout_s="
                f"{self._timeout_s:g}: {first_sentence(e)}"
            ) from e


if TYPE_CHECKING:  # what is compiled and imports no torch is in this package too
    import torch.distributed as dist

# Where ranks that lost their peers leave word in the store.
_WORD, _NUM_WORDS = "ddppo/word/{}", "ddppo/num_words"
_NUM_MET = "ddppo/num_met"


class Watch:
    """When this rank last heard of all the others, who leave word in `store` when they wait in vain.

    members: the ranks of the run that it watches, itself among them.
    """

    def __init__(self, rank: int, world_size: int, store: "dist.Store", timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.members = tuple(range(world_size))
        self.timeout_s = timeout_s
        self.iteration = 0
        self.at_loss: list[Callable[[], None]] = []  # tells those who wait for this rank in other ways
        self._store = store
        self._heard_at = time.perf_counter()
        self._heard_in = 0

    def among(self, members: tuple[int, ...]) -> "Watch":
        """Return one over some of the ranks, to whom a rank that gives up with all of them tells it too."""
        watch = copy.copy(self)  # and with the same list of whom to tell
        watch.members = members
        watch.heard(time.perf_counter())
        return watch

    def heard(self, now: float) -> None:
        """Note that a collective has ended, which none leaves before all came."""
        self._heard_at, self._heard_in = now, self.iteration

    def lost(self, what: str, waited_s: float) -> str:
        """Say who waited where, how long, and which ranks were behind or gone."""
        silence_s = time.perf_counter() - self._heard_at
        for tell in self.at_loss:
            tell()
        word = f"for {silence_s:.1f} s, last heard of {_when(self._heard_in)}"
        try:
            silent = self._leave_word(word)
            who = f"no word from {in_words(silent)} {word}" if silent else "all others lost theirs too"
        except (RuntimeError, ValueError) as e:  # the store went with the rank or launcher that held it
            who = f"nobody knows whom, for the rendezvous store does not answer ({type(e).__name__})"
        return (
            f"rank {self.rank} on {socket.gethostname()} lost its peers in a {what} {_when(self.iteration)} after "
            f"waiting {waited_s:.1f} s (limit dist.timeout_s={self.timeout_s:g}): {who}"
        )

    def _leave_word(self, word: str) -> list[int]:
        """Tell the others and the launcher that this rank lives; return the members that do not within a second."""
        self._store.set_timeout(timedelta(seconds=2))
        leave_word(self._store, self.rank, word)
        end = time.monotonic() + 1.0
        while self._store.add(_NUM_WORDS, 0) < self.world_size - 1 and time.monotonic() < end:
            time.sleep(0.05)
        return [rank for rank in self.members if not self._store.check([_WORD.format(rank)])]


class Peers(Group):
    """A rank among others; `watch` knows its place among all, also where this group holds only some of them.

    meet: makes the group of some of the ranks, for the n-th time; of a group of all of them. make_board: makes their
    n-th board.
    """

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.rank, self.world_size = watch.members.index(watch.rank), len(watch.members)
        self.members = watch.members
        self.watch = watch
        self.meet: Callable[[Watch, tuple[int, ...], int], Group | None] | None = None
        self.make_board: Callable[[Watch, int], Board] | None = None
        self._num_met = self._num_boards = 0
        self._subgroups: list[Group] = []

    def subgroup(self, ranks: Sequence[int]) -> Group | None:
        if tuple(ranks) == self.members:
            return self
        if len(ranks) == 1:
            alone = Group()
            alone.members = tuple(ranks)
            return alone if self.watch.rank in ranks else None
        assert self.meet is not None, "a group of some ranks has no subgroups"
        assert list(ranks) == sorted(set(ranks)), f"places follow ranks, also in process groups: {ranks}"
        self._num_met += 1
        found = self.meet(self.watch, tuple(ranks), self._num_met)
        if found is not None:
            self._subgroups.append(found)
        return found

    def board(self) -> Board:
        assert self.make_board is not None, "a group of some ranks has no board"
        self._num_boards += 1
        return self.make_board(self.watch, self._num_boards)

    def begin(self, iteration: int) -> None:
        self.watch.iteration = iteration
        for group in self._subgroups:
            group.begin(iteration)

    def record(self, record: CollectiveTiming) -> None:
        self.records.append(record)
        self.watch.heard(record.end)

    def lost(self, what: str, waited_s: float) -> str:
        return self.watch.lost(what, waited_s)

    def close(self) -> None:
        import torch.distributed as dist

        # Made by the group of all ranks, or besides it for dist.grad_sync=ddp.
        if self.world_size == self.watch.world_size and dist.is_initialized():
            dist.destroy_process_group()


def shared_by_all(store: "dist.Store") -> "dist.Store":
    """Return the store without the prefixes under which one process group alone would read it."""
    import torch.distributed as dist

    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def note_met(store: "dist.Store") -> None:
    """Tell the launcher that this rank has met all the others, and from now on notices the end of any."""
    store.add(_NUM_MET, 1)


def have_met(store: "dist.Store", world_size: int) -> bool:
    """Return whether all ranks have said so."""
    return store.add(_NUM_MET, 0) >= world_size


def leave_word(store: "dist.Store", rank: int, word: str) -> None:
    """Tell the other ranks and the launcher for how long this one has not heard of all of them: "for 8.1 s, ..."."""
    store.set(_WORD.format(rank), word)
    store.add(_NUM_WORDS, 1)


def last_words(store: "dist.Store", world_size: int) -> dict[int, str]:
    """Return the words of the ranks that left one."""
    words = {rank: _WORD.format(rank) for rank in range(world_size)}
    return {rank: store.get(word).decode() for rank, word in words.items() if store.check([word])}


def in_words(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _when(iteration: int) -> str:
    return f"in iteration {iteration}" if iteration else "before the first iteration"
