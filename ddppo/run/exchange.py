"""What environments tell one another between iterations, whichever ranks and processes step them."""

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch

from ddppo.collectives import Group
from ddppo.envs.publishing import PublishingEnvs
from ddppo.envs.saving import packed, unpacked
from ddppo.errors import EnvStateError, TrainingError
from ddppo.ppo.collector import Collector
from ddppo.run.parts import Parts

_SIZE = struct.Struct("<q")


class NoExchange:
    """Of environments that keep to themselves, as most do."""

    def begin(self, reset: Callable[[], None], state: Mapping[str, Any] | None) -> None:
        """Start the environments by `reset`: in the midst of what `state` returned, or anew, hearing what is known."""
        reset()

    def meet(self) -> list[bytes]:
        """Take part in the exchange after an iteration; return the news of all environments."""
        return []

    def state(self) -> dict[str, Any] | None:
        """Return what all environments are in the midst of, for a checkpoint of rank 0; None where one cannot say."""
        return None


class Exchange(NoExchange):
    """Hands what every environment published to every other, in the order of their indices in the run.

    So nothing follows from who steps which of them. dealt: how many each rank steps that steps some, in the order in
    which they are dealt. envs: of this rank, None where it steps none. collector: of a rank that acts. known: what the
    run folder knows, as news; [] on other ranks than 0. All ranks meet, once in an iteration.
    """

    def __init__(
        self,
        group: Group,
        dealt: Mapping[int, int],
        envs: PublishingEnvs | None,
        collector: Collector | None,
        known: Callable[[], list[bytes]],
    ) -> None:
        self._group = group
        self._dealt = dealt
        self._envs = envs
        self._collector = collector
        self._known = known

    def begin(self, reset: Callable[[], None], state: Mapping[str, Any] | None) -> None:
        if state is None:
            reset()
            self._inform(range(self._envs.num_envs) if self._envs is not None else [])
            return
        if self._envs is not None:
            first = self._envs.names.indices.start
            of_all = _unpacked(state["envs"].numpy().tobytes())[first : first + self._envs.num_envs]
            self._envs.go_on_from({"envs": [unpacked(zlib.decompress(each)) for each in of_all]})
        reset()
        collector = self._collector
        if collector is not None:
            mine = state["episodes"][collector.first_env : collector.first_env + collector.env.num_envs]
            collector.starts[:], collector.returns[:], collector.lengths[:] = zip(*mine, strict=True)

    def meet(self) -> list[bytes]:
        mine = self._envs.publish() if self._envs is not None else []
        lost = self._envs.made_anew() if self._envs is not None else []
        parts, any_lost = gather_bytes(self._group, _packed(mine), asks=bool(lost))
        if any_lost:  # with its process; what it has heard so far it heard of
            self._inform(lost)
        news: list[bytes] = []
        for rank, num_envs in self._dealt.items():
            news += _unpacked(parts[rank]) or [b""] * num_envs
        if self._envs is not None:
            self._envs.receive(news)
        return news

    def state(self) -> dict[str, Any] | None:
        mine: list[bytes] = []
        if self._envs is not None:
            with suppress(EnvStateError):  # of the task, or of a process that was lost
                mine = [zlib.compress(packed(each), 1) for each in self._envs.state()["envs"]]
        parts, _ = gather_bytes(self._group, _packed([self._under_way(), *mine]), at_root=True)
        if not parts:
            return None
        of_ranks = [_unpacked(part) for part in parts]
        if any(len(of_ranks[rank]) - 1 < num_envs for rank, num_envs in self._dealt.items()):
            return None
        envs = _packed([each for rank in self._dealt for each in of_ranks[rank][1:]])
        return {
            "envs": torch.frombuffer(bytearray(envs), dtype=torch.uint8),
            "episodes": [each for of_rank in of_ranks for each in json.loads(of_rank[0])],
        }

    def _under_way(self) -> bytes:
        """Return of every episode that this rank acts in: whether it only begins, its return and length so far."""
        if self._collector is None:
            return b"[]"
        rows = (self._collector.starts, self._collector.returns, self._collector.lengths)
        return json.dumps([list(row) for row in zip(*map(np.ndarray.tolist, rows), strict=True)]).encode()

    def _inform(self, envs: Sequence[int]) -> None:
        parts, _ = gather_bytes(self._group, _packed(self._known()))
        before = _unpacked(parts[0])
        if before and envs:
            assert self._envs is not None
            self._envs.receive(before, envs)


def make_exchange(parts: Parts, group: Group, known: Callable[[], list[bytes]]) -> NoExchange:
    """Return the exchange of a rank of these parts."""
    if parts.spec.journal is None:
        return NoExchange()
    stepping, program = parts.layout.stepping, parts.program
    dealt = {rank: len(parts.shape.env_indices(place)) for place, rank in enumerate(stepping)}
    if program.env is None and group.rank in dealt:
        raise TrainingError(
            f"rank {group.rank}: its program, {type(program).__name__}, steps environments that publish and does not "
            "name them: have it set self.env (ddppo.distributed.programs.kit.Program)"
        )
    collector = cast(Collector | None, program.collector)  # text publishes nothing
    return Exchange(group, dealt, cast(PublishingEnvs | None, program.env), collector, known)


def gather_bytes(
    group: Group, mine: bytes, *, asks: bool = False, at_root: bool = False
) -> tuple[list[bytes], bool]:
    """Return the bytes of all ranks, [] but on rank 0 if `at_root`, and whether any of them asks.

    A gather of sizes, then one of as much as the longest, where there is any.
    """
    heads = group.gather(torch.tensor([len(mine), asks])).tolist()
    sizes = [size for size, _ in heads]
    any_asks = any(asked for _, asked in heads)
    if not any(sizes):
        return [b""] * len(sizes), any_asks
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded.numpy()[: len(mine)] = memoryview(mine)
    rows = group.gather_at_root(padded) if at_root else group.gather(padded)
    if rows is None:
        return [], any_asks
    return [row[:size].tobytes() for row, size in zip(rows.numpy(), sizes, strict=True)], any_asks


def _packed(news: Sequence[bytes]) -> bytes:
    """Return news one after another, each behind its size; b"" for none at all."""
    if not any(news):
        return b""
    return b"".join(_SIZE.pack(len(each)) + each for each in news)


def _unpacked(content: bytes) -> list[bytes]:
    news, at = [], 0
    while at < len(content):
        (size,) = _SIZE.unpack_from(content, at)
        at += _SIZE.size
        news.append(content[at : at + size])
        at += size
    return news
