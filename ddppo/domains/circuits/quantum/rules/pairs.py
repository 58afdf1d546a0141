"""From classes of equal circuits to rules: all ordered pairs but those that others imply."""

from collections.abc import Iterable, Iterator
from random import Random

from ddppo.domains.circuits.quantum.angles import TURN
from ddppo.domains.circuits.quantum.circuit import RZ
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.quantum.rules.rule import (
    PARAMETERS,
    Gates,
    Rule,
    canonical,
    circuit,
    front,
    is_connected,
    parameters_of,
    wires_of,
)


def pairs(members: list[Gates], growth: int) -> Iterator[Rule]:
    """Yield the rules of one class, shortest member first, each in its canonical form.

    A source is connected and its angles are constants or parameters of their own. Not yielded are pairs with a common
    first or last gate, whose rest is a smaller rule; pairs of two circuits that a third is shorter than, as the source
    leads to that one first; targets that are longer by more than `growth`, or that stand for a single gate.
    """
    shortest = len(members[0])
    for source in members:
        if not source or not is_connected(source) or any(len(g.angle.parameters) > 1 for g in source):
            continue
        for target in members:
            if (
                target is source
                or len(target) > len(source) + growth
                or (len(target) > len(source) and len(source) == 1)
                or shortest < min(len(source), len(target))
                or not wires_of(target) <= wires_of(source)
                or not parameters_of(target) <= parameters_of(source)
                or front(source) & front(target)
                or front(reversed(source)) & front(reversed(target))
            ):
                continue
            yield canonical(Rule(source, target))


def by_size(rules: Iterable[Rule]) -> list[Rule]:
    """Return them each once, small before large, general before special."""

    def place(rule: Rule) -> tuple[object, ...]:
        angles = [gate.angle for gates in rule for gate in gates if gate.kind == RZ]
        num_special = sum(not angle.parameters for angle in angles)
        return max(map(len, rule)), num_special, sum(map(len, rule)), str(rule)

    return sorted(set(rules), key=place)


def independent(rules: list[Rule], steps: int) -> list[Rule]:
    """Return the rules, in their order, that those before do not make up for.

    They do by at most `steps` rewrites, on circuits no longer than the longer side, from source to target; or by one
    that leaves no more gates of the source than the rule does. Parameters are random here, as no rule expects.
    """
    random = Random(0)
    values = [random.randrange(TURN) for _ in PARAMETERS]
    kept: list[Rule] = []
    rewriter = Rewriter(kept)
    for rule in rules:
        source, target = (circuit(gates, rule.num_wires, values) for gates in rule)
        shrunk = (len(rewriter.apply(source, *pair)[0]) for pair in rewriter.pairs(source).tolist())
        if any(size < len(source) and size <= len(target) for size in shrunk):
            continue
        if rewriter.leads_to(source, target, steps=steps, most_gates=max(map(len, rule))):
            continue
        kept.append(rule)
        rewriter = Rewriter(kept)
    return kept
