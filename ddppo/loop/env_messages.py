"""What environments tell one another between iterations, whichever ranks and processes step them."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from ddppo.collectives.group import Group, gather_bytes
from ddppo.distributed.topologies.base import RankContext
from ddppo.envs.vec_env import PublishingEnvs
from ddppo.errors import TrainingError

_SIZE = struct.Struct("<q")


class NoExchange:
    """Of environments that keep to themselves, as most do."""

    def begin(self) -> None:
        """Have environments that begin anew hear what is known."""

    def meet(self) -> list[bytes]:
        """Take part in the exchange after an iteration; return the news of all environments."""
        return []


class Exchange(NoExchange):
    """Hands what every environment published to every other, in the order of their indices in the run.

    So nothing follows from who steps which of them. dealt: how many each rank steps that steps some, in the order in
    which they are dealt. envs: of this rank, None where it steps none. known: what the run folder knows, as news; [] on
    other ranks than 0. All ranks meet, once in an iteration.
    """

    def __init__(
        self,
        group: Group,
        dealt: Mapping[int, int],
        envs: PublishingEnvs | None,
        known: Callable[[], list[bytes]],
    ) -> None:
        self._group = group
        self._dealt = dealt
        self._envs = envs
        self._known = known

    def begin(self) -> None:
        self._inform(range(self._envs.num_envs) if self._envs is not None else [])

    def meet(self) -> list[bytes]:
        mine = self._envs.publish() if self._envs is not None else []
        lost = self._envs.made_anew() if self._envs is not None else []
        parts, any_lost = gather_bytes(self._group, joined(mine), asks=bool(lost))
        if any_lost:  # with its process; what it has heard so far it heard of
            self._inform(lost)
        news: list[bytes] = []
        for rank, num_envs in self._dealt.items():
            news += parted(parts[rank]) or [b""] * num_envs
        if self._envs is not None:
            self._envs.receive(news)
        return news

    def _inform(self, envs: Sequence[int]) -> None:
        parts, _ = gather_bytes(self._group, joined(self._known()))
        before = parted(parts[0])
        if before and envs:
            assert self._envs is not None
            self._envs.receive(before, envs)


def make_exchange(parts: RankContext, group: Group, known: Callable[[], list[bytes]]) -> NoExchange:
    """Return the exchange of a rank of these parts."""
    if parts.spec.journal is None:
        return NoExchange()
    stepping, program = parts.layout.stepping, parts.topology
    dealt = {rank: len(parts.shape.env_indices(place)) for place, rank in enumerate(stepping)}
    if program.env is None and group.rank in dealt:
        raise TrainingError(
            f"rank {group.rank}: its program, {type(program).__name__}, steps environments that publish and does not "
            "name them: have it set self.env (ddppo.distributed.topologies.base.Topology)"
        )
    return Exchange(group, dealt, cast(PublishingEnvs | None, program.env), known)


def joined(news: Sequence[bytes]) -> bytes:
    """Return news one after another, each behind its size; b"" for none at all."""
    if not any(news):
        return b""
    return b"".join(_SIZE.pack(len(each)) + each for each in news)


def parted(content: bytes) -> list[bytes]:
    """Return what `joined` put together."""
    news, at = [], 0
    while at < len(content):
        (size,) = _SIZE.unpack_from(content, at)
        at += _SIZE.size
        news.append(content[at : at + size])
        at += size
    return news
