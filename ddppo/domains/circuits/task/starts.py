"""What a circuit environment is given: the circuits to start from, and rules made ready."""

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.costs import Cost
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.quantum.rules import packaged, read
from ddppo.domains.circuits.quantum.sources import program
from ddppo.errors import ConfigError


class Start(NamedTuple):
    """An original circuit, in canonical order, what the user calls it, and its cost."""

    name: str
    circuit: Circuit
    cost: float


def starts(given: str | Sequence[str], cost: Cost) -> tuple[Start, ...]:
    """Return the circuits that a benchmark's name, a QASM path, or several of these mean. Raises ConfigError."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"circuit={given}: give a benchmark's name, the path of a QASM file, or a list of these"
        )
    twice = [name for k, name in enumerate(names) if name in names[:k]]
    if twice:
        raise ConfigError(f"circuit={','.join(names)}: {twice[0]} is there twice: name each once")
    found = []
    for name in names:
        circuit = program(name).circuit.canonical()
        if not len(circuit):
            raise ConfigError(
                f"circuit={name}: it has no gates, so there is nothing to rewrite: leave it out"
            )
        found.append(Start(name, circuit, float(cost(circuit))))
    return tuple(found)


def rewriter(path: str | None) -> Rewriter:
    """Return the rules of a file (null: the package's), made ready once in a process. Raises ConfigError."""
    if path is None:
        return _ready(None, b"")
    try:
        content = hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        content = b""  # the reader says what is wrong
    return _ready(str(path), content)


@functools.lru_cache(maxsize=4)
def _ready(path: str | None, content: bytes) -> Rewriter:
    return Rewriter((packaged() if path is None else read(Path(path))).rules)


@functools.lru_cache(maxsize=4)
def rules_digest(rewriter: Rewriter) -> str:
    """Return 16 bytes, in hexadecimal, that tell rules and their order from others."""
    return hashlib.blake2b("\n".join(map(str, rewriter.rules)).encode(), digest_size=16).hexdigest()
