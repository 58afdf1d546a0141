"""The best circuit that was found, with the rewrites that lead to it from the original, which anyone can repeat."""

from collections.abc import Iterable
from typing import NamedTuple

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.equivalence import Verdict, verify
from ddppo.domains.circuits.quantum.rewriting import Rewriter, digest
from ddppo.errors import ConfigError


class Found(NamedTuple):
    """A circuit, its cost, and (node, rule) of every rewrite from `original` to it; nodes count in canonical order."""

    name: str
    original: Circuit
    circuit: Circuit
    cost: float
    rewrites: tuple[tuple[int, int], ...]


def replayed(rewriter: Rewriter, original: Circuit, rewrites: Iterable[tuple[int, int]]) -> Circuit:
    """Return what the rewrites make of a circuit. Raises ConfigError that counts up to the first that cannot be."""
    circuit = original.canonical()
    for number, (node, rule) in enumerate(rewrites, 1):
        try:
            circuit, _ = rewriter.apply(circuit, node, rule)
        except ConfigError as e:
            raise ConfigError(
                f"rewrite {number}: {e}: replay with the original and the rules that it was found by"
            ) from e
    return circuit


def check_replay(found: Found, rewriter: Rewriter) -> None:
    """Repeat the rewrites. Raises ConfigError where they make another circuit than the one that was found."""
    circuit = replayed(rewriter, found.original, found.rewrites)
    if digest(circuit) != digest(found.circuit):
        raise ConfigError(
            f"{found.name}: its {len(found.rewrites)} rewrites lead to another circuit of {len(circuit)} gates: "
            "replay with the original and the rules that it was found by"
        )


def confirmed(found: Found, rewriter: Rewriter) -> Verdict:
    """Repeat the rewrites, and compare what they make with the original as unitaries. Raises as check_replay."""
    check_replay(found, rewriter)
    return verify(found.original, found.circuit)
