"""Files that say by which rewrites a circuit was found, so that anyone can repeat and check it.

`optimise` writes them, and runs do, best/<circuit>.json.
"""

import json
from pathlib import Path
from typing import NamedTuple

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.merging import merged
from ddppo.domains.circuits.quantum.qasm import parse
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.task.found import replayed
from ddppo.domains.circuits.task.starts import rules_digest
from ddppo.errors import ConfigError

STARTS = ("merge", "given")


class Rewrites(NamedTuple):
    """What a file holds: (node, rule) of every rewrite, and the start from which they lead.

    original and rules are those it was found by, None where the file does not say.
    """

    path: Path
    start: str
    rewrites: tuple[tuple[int, int], ...]
    original: Circuit | None
    rules: str | None


def read(path: Path) -> Rewrites:
    """Return what a file says. Raises ConfigError where it is none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"rewrites={path}: cannot be read ({e}): name a file that `optimise` or a run wrote"
        ) from e
    try:
        pairs = tuple((int(node), int(rule)) for node, rule in held["rewrites"])
        start, rules = held.get("start", "given"), held.get("rules")
        original = parse(held["original"]).circuit if "original" in held else None
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ConfigError(
            f"rewrites={path}: not a file of rewrites ({type(e).__name__}: {e}): name one that `optimise` or a run "
            "wrote"
        ) from e
    if start not in STARTS:
        raise ConfigError(f"rewrites={path}: its start={start} is none of {', '.join(STARTS)}")
    return Rewrites(path, start, pairs, original, rules)


def repeated(held: Rewrites, original: Circuit, rewriter: Rewriter) -> Circuit:
    """Return what the rewrites make of the original. Raises ConfigError where they are of another, or other rules."""
    if held.original is not None and held.original.canonical() != original.canonical():
        raise ConfigError(
            f"rewrites={held.path}: they begin from another circuit, of {len(held.original)} gates, which the file "
            f"holds as `original`; this one has {len(original)}"
        )
    if held.rules is not None and held.rules != rules_digest(rewriter):
        raise ConfigError(
            f"rewrites={held.path}: they were found by other rules than these {len(rewriter.rules)}: name the file of "
            "those by rules="
        )
    try:
        return replayed(rewriter, started(original, held.start), held.rewrites)
    except ConfigError as e:
        raise ConfigError(f"rewrites={held.path}: {e}") from e


def started(original: Circuit, start: str) -> Circuit:
    """Return the circuit that rewriting begins from."""
    return merged(original) if start == "merge" else original
