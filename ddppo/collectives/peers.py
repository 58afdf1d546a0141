"""Parts that all groups of several ranks share: their store, subgroups, and finding lost ranks when a collective fails.

A collective ends only after every rank has called it, so its end proves that all ranks were alive (`Watch.heard`). A
rank with a failed collective leaves a word in the launcher's store and waits a second for others to do so. The ranks
without a word are the lost ones, and the error names them. `OwnPace` is the group of a rank that takes part in no
collective and uses the store alone.
"""

import copy
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from ddppo.collectives.group import Board, CollectiveTiming, Group
from ddppo.errors import CollectiveError, first_sentence

# -- Where ranks of one machine meet.

_MOST_WAITING = 1024  # connections that the store has yet to accept


def store_of_this_machine(address: str, timeout_s: float = 300.0) -> dist.TCPStore:
    """Open a store at any free port of a loopback address, in which ranks of this machine meet.

    By default torch's store listens on all interfaces, whatever the address, and it has no password.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, 0), family=family, backlog=_MOST_WAITING)
    port = listening.getsockname()[1]
    return dist.TCPStore(
        address, port, is_master=True, timeout=timedelta(seconds=timeout_s), wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )  # fmt: skip


# -- A rank at its own pace: it takes part in no collective, and finds other ranks through the launcher's store.


class OwnPace(Group):
    """The group of a rank at its own pace. It knows its rank and world_size, but its collectives are the identity."""

    name = "sockets"

    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout_s: float) -> None:
        super().__init__()
        self.rank, self.world_size = rank, world_size
        self.members = (rank,)
        # The launcher's, in which ranks leave words for one another.
        self.store, self._timeout_s = (
            store,
            timeout_s,
        )
        self.store.set_timeout(timedelta(seconds=timeout_s))

    def words(self, topic: str, own: str) -> list[str]:
        """Return the word of every rank on a topic, by rank. Each rank calls it once per topic, before it starts work.

        Raises CollectiveError if a rank's word does not come in time. A rank that is started again finds the words of
        its first start.
        """
        keys = [f"ddppo/{topic}/{rank}" for rank in range(self.world_size)]
        try:
            self.store.set(keys[self.rank], own)
            return [self.store.get(key).decode() for key in keys]
        except dist.DistError as e:
            # Name the ranks without a word; if the store itself is gone, name the store.
            missing = "the launcher's store"
            with suppress(dist.DistError):
                silent = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
                leave_word(self.store, self.rank, f"for {self._timeout_s:.1f} s, never heard of")
                missing = in_words(silent)
            raise CollectiveError(
                f"rank {self.rank} on {socket.gethostname()} did not hear of {missing} within dist.timeout_s="
                f"{self._timeout_s:g}: {first_sentence(e)}"
            ) from e


# -- A rank in a group of several.

# Keys of the store: the word of a rank that lost its peers, the number of such words, the number of ranks that met.
_WORD, _NUM_WORDS = "ddppo/word/{}", "ddppo/num_words"
_NUM_MET = "ddppo/num_met"


class Watch:
    """Knows when this rank last heard of all other members, and finds the lost ones when a collective fails."""

    def __init__(self, rank: int, world_size: int, store: dist.Store, timeout_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.members = tuple(range(world_size))  # ranks of the run that are watched, this one included
        self.timeout_s = timeout_s
        self.iteration = 0
        # Called when a collective fails. Ranks that wait for this one in shared memory are woken, and fail too.
        self.at_loss: list[Callable[[], None]] = []
        self._store = store
        self._heard_at = time.perf_counter()
        self._heard_in = 0

    def among(self, members: tuple[int, ...]) -> "Watch":
        """Return a watch over some of the ranks, for a subgroup."""
        # The copy shares the list at_loss: a failure in one group ends the waits in all of them.
        watch = copy.copy(self)
        watch.members = members
        watch.heard(time.perf_counter())
        return watch

    def heard(self, now: float) -> None:
        """Note that a collective has ended. None leaves it before all have called it, so all members were alive."""
        self._heard_at, self._heard_in = now, self.iteration

    def lost(self, what: str, waited_s: float) -> str:
        """Return the error message: which rank waited in which collective, how long, and which ranks are silent."""
        silence_s = time.perf_counter() - self._heard_at
        for tell in self.at_loss:
            tell()
        word = f"for {silence_s:.1f} s, last heard of {_when(self._heard_in)}"
        try:
            silent = self._leave_word(word)
            lost = (
                f"no word from {in_words(silent)} {word}"
                if silent
                else "all other ranks lost their peers too"
            )
        except (RuntimeError, ValueError) as e:  # the rank or launcher that held the store is gone
            lost = f"the lost ranks are unknown, because the rendezvous store does not answer ({type(e).__name__})"
        return (
            f"rank {self.rank} on {socket.gethostname()} lost its peers in a {what} {_when(self.iteration)} after "
            f"waiting {waited_s:.1f} s (limit dist.timeout_s={self.timeout_s:g}): {lost}"
        )

    def _leave_word(self, word: str) -> list[int]:
        """Leave a word for the other ranks and the launcher; return the members without one a second later."""
        self._store.set_timeout(timedelta(seconds=2))
        leave_word(self._store, self.rank, word)
        end = time.monotonic() + 1.0
        while self._store.add(_NUM_WORDS, 0) < self.world_size - 1 and time.monotonic() < end:
            time.sleep(0.05)
        return [rank for rank in self.members if not self._store.check([_WORD.format(rank)])]


class Peers(Group):
    """A rank in a group of several: all ranks of the run, or a subgroup of them."""

    sums_in_pairs = False

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.rank, self.world_size = watch.members.index(watch.rank), len(watch.members)
        self.members = watch.members
        self.watch = watch
        # The group of all ranks makes subgroups and boards with these two; `ddppo.collectives.meeting` sets them. Their
        # last argument counts the calls, so that all ranks use the same keys of the store.
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
        assert self.meet is not None, "a subgroup makes no subgroups"
        assert list(ranks) == sorted(set(ranks)), f"ranks must ascend, as in torch's process groups: {ranks}"
        self._num_met += 1
        found = self.meet(self.watch, tuple(ranks), self._num_met)
        if found is not None:
            self._subgroups.append(found)
        return found

    def board(self) -> Board:
        assert self.make_board is not None, "a subgroup has no board"
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
        # The default process group belongs to the group of all ranks. dist.grad_sync=ddp needs it also if collectives
        # go through shared memory.
        if self.world_size == self.watch.world_size and dist.is_initialized():
            dist.destroy_process_group()


def shared_by_all(store: dist.Store) -> dist.Store:
    """Return the store without the prefixes that process groups add to its keys."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def note_met(store: dist.Store) -> None:
    """Tell the launcher that this rank has met all others. From now on it notices the end of any of them."""
    store.add(_NUM_MET, 1)


def have_met(store: dist.Store, world_size: int) -> bool:
    """Return whether all ranks have called `note_met`."""
    return store.add(_NUM_MET, 0) >= world_size


def leave_word(store: dist.Store, rank: int, word: str) -> None:
    """Tell the other ranks and the launcher that this rank lost its peers. The word begins with "for 8.1 s, "."""
    store.set(_WORD.format(rank), word)
    store.add(_NUM_WORDS, 1)


def last_words(store: dist.Store, world_size: int) -> dict[int, str]:
    """Return the words by rank, of the ranks that left one."""
    words = {rank: _WORD.format(rank) for rank in range(world_size)}
    return {rank: store.get(word).decode() for rank, word in words.items() if store.check([word])}


def in_words(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _when(iteration: int) -> str:
    return f"in iteration {iteration}" if iteration else "before the first iteration"
