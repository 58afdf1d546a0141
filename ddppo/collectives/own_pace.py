"""A rank at its own pace: it meets the others in no collective, and finds them through the launcher's store."""

from datetime import timedelta

import torch.distributed as dist

from ddppo.collectives.contract import Group


class OwnPace(Group):
    """A group of one that knows its place among the ranks it was started with; every operation is the identity.

    store: of the launcher, where ranks leave word for one another.
    """

    name = "sockets"

    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout_s: float) -> None:
        super().__init__()
        self.rank, self.world_size = rank, world_size
        self.members = (rank,)
        self.store = store
        self.store.set_timeout(timedelta(seconds=timeout_s))

    def words(self, topic: str, mine: str) -> list[str]:
        """Return what every rank says of a topic, by rank; once, before it begins.

        Raises DistError where one does not come in time. A rank that is started again finds what the others said.
        """
        keys = [f"ddppo/{topic}/{rank}" for rank in range(self.world_size)]
        self.store.set(keys[self.rank], mine)
        return [self.store.get(key).decode() for key in keys]
