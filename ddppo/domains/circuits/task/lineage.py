"""The history of circuits, rewrite by rewrite, and the messages in which environments exchange circuits.

`Lineage` stores which rewrites made each circuit; `Found` is a best circuit with its rewrites, and `check_replay`
repeats them; `RewritesFile` is a file of rewrites; `EnvMessage` is the message of an environment.
"""

import functools
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.equivalence import Verdict, verify
from ddppo.domains.circuits.quantum.qasm_reader import parse
from ddppo.domains.circuits.quantum.rewriting import Rewriter, digest, merged
from ddppo.domains.circuits.task.board import STARTS, rewriter, rules_digest
from ddppo.domains.circuits.task.settings import (
    REWRITE_BYTES,
    Rewrites,
    of_text,
    text,
    unpacked_rewrites,
)
from ddppo.errors import ConfigError

# -- A tree of rewrites from an original circuit; each step is kept as long as something refers to it ----------------


ORIGINAL = -1  # the step of the original circuit, which no rewrite made
_COLUMNS = 5
_PARENT, _NODE, _RULE, _USES, _LENGTH = range(_COLUMNS)
_GRAFT = -1  # in column _NODE: the step stands for several rewrites
_GRAFT_BYTES, _NAME_BYTES = 150, 280  # measured overhead of Python for a graft and for a name
_MOST_ANCESTORS = 8  # that a message lists

# (number of rewrites from the original, digest) of each ancestor, the nearest first.
Ancestors = tuple[tuple[int, bytes], ...]


class Lineage:
    """Steps (parent, node, rule) with reference counts. Kept circuits and later steps refer to a step.

    A circuit received from another environment is a graft: one step for several rewrites. Circuits that all
    environments know are named by their digests. A graft starts at the nearest named ancestor that is still here, so
    that a shared history is stored once.
    """

    def __init__(self) -> None:
        self._table = np.zeros((0, _COLUMNS), np.int32)
        self._free: list[int] = []  # unused rows of the table
        self._grafts: dict[int, bytes] = {}  # packed rewrites of each graft
        self._graft_bytes = 0
        self._names: dict[int, bytes] = {}  # step -> digest of its circuit
        self._named: dict[bytes, int] = {}  # the inverse of _names

    def __len__(self) -> int:
        return len(self._table) - len(self._free)

    @property
    def nbytes(self) -> int:
        return (
            len(self) * self._table.itemsize * _COLUMNS + self._graft_bytes + len(self._names) * _NAME_BYTES
        )

    def add(self, parent: int, node: int, rule: int) -> int:
        """Return the new step that applies a rule at a node of the circuit of `parent`. The caller holds it."""
        return self._add_row(parent, node, rule, 1)

    def graft(self, rewrites: bytes, ancestors: Ancestors) -> int:
        """Return the step that these packed rewrites, counted from the original, lead to. The caller holds it.

        Args:
            ancestors: circuits on the way, the nearest first; the first may be the final circuit itself.
        """
        # Only the rewrites behind the nearest known ancestor are stored.
        parent, length = next(
            ((self._named[name], length) for length, name in ancestors if name in self._named), (ORIGINAL, 0)
        )
        tail = rewrites[length * REWRITE_BYTES :]
        if not tail:
            self.hold(parent)
            return parent
        step = self._add_row(parent, _GRAFT, 0, len(tail) // REWRITE_BYTES)
        self._grafts[step] = tail
        self._graft_bytes += len(tail) + _GRAFT_BYTES
        return step

    def name(self, step: int, digest: bytes) -> None:
        """Record that all environments know the circuit of `step`."""
        if step != ORIGINAL and step not in self._names and digest not in self._named:
            self._names[step], self._named[digest] = digest, step

    def hold(self, step: int) -> None:
        if step != ORIGINAL:
            self._table[step, _USES] += 1

    def release(self, step: int) -> None:
        """Drop one reference to a step. A step without references is freed, and its reference to its parent dropped."""
        while step != ORIGINAL:
            self._table[step, _USES] -= 1
            if self._table[step, _USES]:
                return
            # Free the step, then go on to its parent.
            self._free.append(step)
            if step in self._grafts:
                self._graft_bytes -= len(self._grafts.pop(step)) + _GRAFT_BYTES
            if step in self._names:
                del self._named[self._names.pop(step)]
            step = int(self._table[step, _PARENT])

    def length(self, step: int) -> int:
        """Return the number of rewrites from the original to the circuit of `step`."""
        return 0 if step == ORIGINAL else int(self._table[step, _LENGTH])

    def rewrites(self, step: int) -> Rewrites:
        """Return (node, rule) of every rewrite from the original to the circuit of `step`, in order."""
        found: list[tuple[int, int]] = []
        cells = self._table.reshape(-1).data  # a memoryview is read several times as fast as an array
        while step != ORIGINAL:
            row = _COLUMNS * step
            # A graft stands for many rewrites at once, another step for one.
            if cells[row + _NODE] == _GRAFT:
                found.extend(reversed(unpacked_rewrites(self._grafts[step])))
            else:
                found.append((cells[row + _NODE], cells[row + _RULE]))
            step = cells[row + _PARENT]
        return tuple(reversed(found))

    def ancestors(self, step: int) -> Ancestors:
        """Return the nearest named circuits on the way from the original to the circuit of `step`."""
        found = []
        for at in self._back(step):
            if at in self._names:
                found.append((self.length(at), self._names[at]))
                if len(found) == _MOST_ANCESTORS:
                    break
        return tuple(found)

    def state(self) -> dict[str, Any]:
        return {
            "table": self._table.tolist(),
            "free": list(self._free),
            "grafts": [[step, text(rewrites)] for step, rewrites in self._grafts.items()],
            "names": [[step, digest.hex()] for step, digest in self._names.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._table = np.array(state["table"], np.int32).reshape(-1, _COLUMNS)
        self._free = list(state["free"])
        self._grafts = {step: of_text(rewrites) for step, rewrites in state["grafts"]}
        self._graft_bytes = sum(len(rewrites) + _GRAFT_BYTES for rewrites in self._grafts.values())
        self._names = {step: bytes.fromhex(digest) for step, digest in state["names"]}
        self._named = {digest: step for step, digest in self._names.items()}

    def _back(self, step: int) -> Iterable[int]:
        while step != ORIGINAL:
            yield step
            step = int(self._table[step, _PARENT])

    def _add_row(self, parent: int, node: int, rule: int, num_rewrites: int) -> int:
        # The table doubles when it is full; rows of freed steps are used again.
        if not self._free:
            size = len(self._table)
            self._table = np.concatenate([self._table, np.zeros((max(size, 64), _COLUMNS), np.int32)])
            self._free = list(range(len(self._table) - 1, size - 1, -1))
        step = self._free.pop()
        self._table[step] = parent, node, rule, 1, self.length(parent) + num_rewrites
        self.hold(parent)
        return step


# -- A best circuit, with the rewrites that lead to it from the original. Repeating them checks it. ------------------


class Found(NamedTuple):
    """A circuit found from an original."""

    name: str  # of the original
    original: Circuit
    circuit: Circuit
    cost: float
    rewrites: tuple[tuple[int, int], ...]  # (node, rule) of each; nodes are counted in canonical order


def replayed(rewriter: Rewriter, original: Circuit, rewrites: Iterable[tuple[int, int]]) -> Circuit:
    """Return the circuit after these rewrites. Raises ConfigError with the number of the first that does not apply."""
    circuit = original.canonical()
    for number, (node, rule) in enumerate(rewrites, 1):
        try:
            circuit, _ = rewriter.apply(circuit, node, rule)
        except ConfigError as e:
            raise ConfigError(
                f"rewrite {number}: {e}: replay with the original circuit and the rules of the search"
            ) from e
    return circuit


def check_replay(found: Found, rewriter: Rewriter) -> None:
    """Repeat the rewrites. Raises ConfigError if they do not lead to the circuit that was found."""
    circuit = replayed(rewriter, found.original, found.rewrites)
    if digest(circuit) != digest(found.circuit):
        raise ConfigError(
            f"{found.name}: its {len(found.rewrites)} rewrites lead to another circuit of {len(circuit)} gates: "
            "replay with the original circuit and the rules of the search"
        )


def confirmed(found: Found, rewriter: Rewriter) -> Verdict:
    """Repeat the rewrites, and compare the result with the original as unitaries. Raises as check_replay."""
    check_replay(found, rewriter)
    return verify(found.original, found.circuit)


# -- Files of rewrites, by which anyone can repeat a search's result and check it ------------------------------------
# `optimise` writes them by rewrites=, and runs write best/<circuit>.json.


class RewritesFile(NamedTuple):
    """The content of a file of rewrites."""

    path: Path
    start: str  # one of STARTS
    rewrites: tuple[tuple[int, int], ...]  # (node, rule) of each
    original: Circuit | None  # None if the file does not hold it
    rules: str | None  # digest of the rules; None if the file does not hold it
    smaller: Circuit | None  # what the rewrites lead to, as the file has it
    verified: str  # how it was compared with the original, in words; "" if the file does not say
    improvements: list[dict[str, float]]  # each best on the way: cost, gates, env_steps, wall_s and more


def read_rewrites(path: Path) -> RewritesFile:
    """Read a file of rewrites. Raises ConfigError."""
    # A file may be any JSON: check the type of every value that is used.
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"rewrites={path}: cannot be read ({e}): name a file that `optimise` or a run wrote"
        ) from e
    try:
        pairs = tuple((int(node), int(rule)) for node, rule in held["rewrites"])
        start, rules = held.get("start", "given"), held.get("rules")
        original, smaller = (
            parse(held[key]).circuit if key in held else None for key in ("original", "smaller")
        )
        improvements = [
            {str(key): float(value) for key, value in each.items()} for each in held.get("improvements", [])
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ConfigError(
            f"rewrites={path}: not a file of rewrites ({type(e).__name__}: {e}): name one that `optimise` or a run "
            "wrote"
        ) from e
    if start not in STARTS:
        raise ConfigError(f"rewrites={path}: its start={start} is none of {', '.join(STARTS)}")
    verified = str(held.get("verified", ""))
    return RewritesFile(path, start, pairs, original, rules, smaller, verified, improvements)


def rewriter_of(held: RewritesFile, rules: str | None) -> Rewriter:
    """Return the rules of a file (null: the package's) by which the rewrites were found: all, or those that keep pairs.

    If neither are, return all; `repeated` then raises the error.
    """
    for keeps_pairs in (False, True):
        found = rewriter(rules, keeps_pairs=keeps_pairs)
        if held.rules in (None, rules_digest(found)):
            return found
    return rewriter(rules)


def repeated(held: RewritesFile, original: Circuit, rewriter: Rewriter) -> Circuit:
    """Return the circuit after these rewrites. Raises ConfigError for another original or other rules."""
    if held.original is not None and held.original.canonical() != original.canonical():
        raise ConfigError(
            f"rewrites={held.path}: they start from another circuit: the file's `original` has {len(held.original)} "
            f"gates, this one has {len(original)}"
        )
    if held.rules is not None and held.rules != rules_digest(rewriter):
        raise ConfigError(
            f"rewrites={held.path}: they were found with other rules than these {len(rewriter.rules)}: name the file "
            "of the right ones by rules="
        )
    try:
        return replayed(rewriter, started(original, held.start), held.rewrites)
    except ConfigError as e:
        raise ConfigError(f"rewrites={held.path}: {e}") from e


def started(original: Circuit, start: str) -> Circuit:
    """Return the circuit that rewriting starts from."""
    return merged(original) if start == "merge" else original


# -- Messages between environments, exchanged after each iteration: circuits, length caps and counts -----------------


class SharedCircuit(NamedTuple):
    """A circuit that an environment sends to all others."""

    cost: float
    digest: bytes
    packed: bytes  # the circuit
    rewrites: bytes  # packed, from the original to the circuit
    ancestors: Ancestors  # circuits on the way that all environments know
    is_start: bool  # episodes may start there; false if its own episode ended with it

    @property
    def num_rewrites(self) -> int:
        return len(self.rewrites) // REWRITE_BYTES


class StartMessage(NamedTuple):
    """The part of a message that concerns one original circuit."""

    circuits: tuple[SharedCircuit, ...]
    cap: int  # the environment's own length cap
    buffer: tuple[int, int, int]  # circuits, levels and bytes in its buffer


class EnvMessage(NamedTuple):
    """The message of an environment, or of a journal at the start of a run."""

    starts: tuple[StartMessage, ...]  # one for each original circuit, in their order
    counts: dict[str, Any] | None  # of Counts; None in the message of a journal


def encode_message(message: EnvMessage) -> bytes:
    plain = {
        "starts": [
            [[_encode_circuit(shared) for shared in start.circuits], start.cap, start.buffer]
            for start in message.starts
        ],
        "counts": message.counts,
    }
    return zlib.compress(json.dumps(plain).encode(), 1)


@functools.lru_cache(maxsize=1)
def decode_messages(messages: tuple[bytes, ...]) -> tuple[EnvMessage, ...]:
    """Return the decoded messages; empty ones are left out.

    All environments of a process receive the same messages: the cache decodes them once.
    """
    return tuple(_decode(each) for each in messages if each)


def _decode(message: bytes) -> EnvMessage:
    plain = json.loads(zlib.decompress(message))
    return EnvMessage(
        tuple(
            StartMessage(tuple(_decode_circuit(*shared) for shared in circuits), cap, tuple(buffer))
            for circuits, cap, buffer in plain["starts"]
        ),
        plain["counts"],
    )


def _encode_circuit(shared: SharedCircuit) -> list[Any]:
    ancestors = [[length, digest.hex()] for length, digest in shared.ancestors]
    return [
        shared.cost,
        shared.digest.hex(),
        text(shared.packed),
        text(shared.rewrites),
        ancestors,
        shared.is_start,
    ]


def _decode_circuit(
    cost: float, digest: str, packed: str, rewrites: str, ancestors: list[Any], is_start: bool
) -> SharedCircuit:
    known = tuple((length, bytes.fromhex(name)) for length, name in ancestors)
    return SharedCircuit(
        float(cost), bytes.fromhex(digest), of_text(packed), of_text(rewrites), known, is_start
    )
