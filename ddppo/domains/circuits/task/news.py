"""What an environment tells the others between iterations, as bytes: circuits, length caps, and counts."""

import functools
import json
import zlib
from typing import Any, NamedTuple

from ddppo.domains.circuits.task.packing import REWRITE_BYTES, of_text, text


class Told(NamedTuple):
    """A circuit that was found, with the packed rewrites that lead to it from the original.

    ancestors: (rewrites up to it, digest) of circuits on the way that all environments were told of, the nearest
    first. is_start: an episode went on from it, so that others may begin there.
    """

    cost: float
    digest: bytes
    packed: bytes
    rewrites: bytes
    ancestors: tuple[tuple[int, bytes], ...]
    is_start: bool

    @property
    def num_rewrites(self) -> int:
        return len(self.rewrites) // REWRITE_BYTES


class OfStart(NamedTuple):
    """What is told of one starting circuit. buffer: circuits, levels and bytes kept by the one who tells."""

    circuits: tuple[Told, ...]
    cap: int
    buffer: tuple[int, int, int]


class News(NamedTuple):
    """of_starts: one of each starting circuit, in order. counts: the state of Counts; None of what a journal kept."""

    of_starts: tuple[OfStart, ...]
    counts: dict[str, Any] | None


def written(news: News) -> bytes:
    said = {
        "starts": [[[_said(told) for told in of.circuits], of.cap, of.buffer] for of in news.of_starts],
        "counts": news.counts,
    }
    return zlib.compress(json.dumps(said).encode(), 1)


@functools.lru_cache(maxsize=1)
def read_all(news: tuple[bytes, ...]) -> tuple[News, ...]:
    """Return what was told; silence is left out. The environments of a process share one reading of an exchange."""
    return tuple(_read(each) for each in news if each)


def _read(news: bytes) -> News:
    said = json.loads(zlib.decompress(news))
    return News(
        tuple(
            OfStart(tuple(_told(*told) for told in circuits), cap, tuple(buffer))
            for circuits, cap, buffer in said["starts"]
        ),
        said["counts"],
    )


def _said(told: Told) -> list[Any]:
    ancestors = [[length, digest.hex()] for length, digest in told.ancestors]
    return [told.cost, told.digest.hex(), text(told.packed), text(told.rewrites), ancestors, told.is_start]


def _told(cost: float, digest: str, packed: str, rewrites: str, ancestors: list[Any], is_start: bool) -> Told:
    known = tuple((length, bytes.fromhex(name)) for length, name in ancestors)
    return Told(float(cost), bytes.fromhex(digest), of_text(packed), of_text(rewrites), known, is_start)
