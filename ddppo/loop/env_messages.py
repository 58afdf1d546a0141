"""Messages between environments, exchanged once after every iteration, whichever ranks and processes step them.

A task that declares a journal (circuits share the rewrites that they found) publishes bytes from each environment. Each
environment receives those of all others, in the order of their global indices. So results do not depend on which rank
steps which environment.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from ddppo.collectives.group import Group, gather_bytes
from ddppo.distributed.topologies.base import RankContext
from ddppo.envs.vec_env import PublishingEnvs
from ddppo.errors import TrainingError

_SIZE = struct.Struct("<q")


class NoMessages:
    """For tasks that publish nothing, as most do."""

    def begin(self) -> None:
        """Send environments that begin anew the messages of the run so far."""

    def exchange(self) -> list[bytes]:
        """Exchange the messages of an iteration; return those of all environments, b"" for none."""
        return []


class EnvMessages(NoMessages):
    """Sends the messages of each environment to all others. All ranks call its methods together."""

    def __init__(
        self,
        group: Group,
        num_envs_by_rank: Mapping[int, int],  # of the ranks that step environments, in global order
        envs: PublishingEnvs | None,  # of this rank; None if it steps none
        earlier_messages: Callable[[], list[bytes]],  # of the run folder, on rank 0; [] on other ranks
    ) -> None:
        self._group = group
        self._num_envs_by_rank = num_envs_by_rank
        self._envs = envs
        self._earlier_messages = earlier_messages

    def begin(self) -> None:
        self._send_earlier(range(self._envs.num_envs) if self._envs is not None else [])

    def exchange(self) -> list[bytes]:
        local = self._envs.publish() if self._envs is not None else []
        # Environments of a restarted process have received nothing yet.
        restarted = self._envs.made_anew() if self._envs is not None else []
        by_rank, any_restarted = gather_bytes(self._group, joined(local), flag=bool(restarted))
        if any_restarted:
            self._send_earlier(restarted)
        messages: list[bytes] = []
        for rank, num_envs in self._num_envs_by_rank.items():
            messages += parted(by_rank[rank]) or [b""] * num_envs
        if self._envs is not None:
            self._envs.receive(messages)
        return messages

    def _send_earlier(self, envs: Sequence[int]) -> None:
        """Give these environments of this rank what rank 0's run folder holds."""
        by_rank, _ = gather_bytes(self._group, joined(self._earlier_messages()))
        earlier = parted(by_rank[0])
        if earlier and envs:
            assert self._envs is not None
            self._envs.receive(earlier, envs)


def make_env_messages(context: RankContext, earlier_messages: Callable[[], list[bytes]]) -> NoMessages:
    """Return what exchanges the messages of this rank's environments."""
    if context.spec.journal is None:
        return NoMessages()
    stepping, topology = context.layout.stepping, context.topology
    num_envs_by_rank = {rank: len(context.shape.env_indices(place)) for place, rank in enumerate(stepping)}
    if topology.env is None and context.group.rank in num_envs_by_rank:
        raise TrainingError(
            f"rank {context.group.rank}: its topology, {type(topology).__name__}, steps environments that publish and "
            "does not name them: have it set self.env (ddppo.distributed.topologies.base.Topology)"
        )
    return EnvMessages(
        context.group, num_envs_by_rank, cast(PublishingEnvs | None, topology.env), earlier_messages
    )


def joined(messages: Sequence[bytes]) -> bytes:
    """Return messages one after another, each behind its size; b"" if all are empty."""
    if not any(messages):
        return b""
    return b"".join(_SIZE.pack(len(message)) + message for message in messages)


def parted(content: bytes) -> list[bytes]:
    """Return the messages that `joined` put together."""
    messages, at = [], 0
    while at < len(content):
        (size,) = _SIZE.unpack_from(content, at)
        at += _SIZE.size
        messages.append(content[at : at + size])
        at += size
    return messages
