"""A rank at its own pace: it meets the others in no collective, and finds them through the launcher's store."""

import socket
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from ddppo.collectives.contract import Group
from ddppo.collectives.peers import in_words, leave_word
from ddppo.errors import CollectiveError
from ddppo.tracebacks import first_sentence


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
