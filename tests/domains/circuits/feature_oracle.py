"""The features of pairs, derived from circuits and rules in Python alone: what src/features.hpp must agree with.

A match is found by trying all assignments of the source's gates, not by the tree of steps.
"""

from itertools import product

import numpy as np

from ddppo.domains.circuits.quantum.circuit import CX, TURN, H, X

TOUCHES, MEETS, DISTANCES, AGES, ROLES, GROWTHS, MOST_WIRES, SLOTS = 3, 5, 5, 7, 3, 7, 4, 4096
OLD = 1 << 20


def offsets(num_rules):
    """Return where each feature's part of the table begins, and the size of the table. num_rules counts nop."""
    sizes = [
        num_rules * TOUCHES,
        GROWTHS * MEETS * DISTANCES,
        GROWTHS * AGES * TOUCHES,
        SLOTS,
        SLOTS,
        GROWTHS * MOST_WIRES * ROLES,
    ]
    return [0, *np.cumsum(sizes).tolist()]


def mixed(value, more):
    value = ((value ^ more) * 16777619) & 0xFFFFFFFF
    return value ^ (value >> 15)


class Wires:
    """The gates of a circuit on each of its wires, in order."""

    def __init__(self, circuit):
        self.gates = circuit.gates()
        self.on = [
            [i for i, gate in enumerate(self.gates) if w in gate.wires] for w in range(circuit.num_qubits)
        ]

    def beside(self, gate, wire, step):
        """Return the gate `step` places after this one on a wire, -1 if there is none."""
        place = self.on[wire].index(gate) + step
        return self.on[wire][place] if 0 <= place < len(self.on[wire]) else -1

    def code(self, gate, wire):
        if gate < 0:
            return 0
        here = self.gates[gate]
        if here.kind in (H, X):
            return 1 if here.kind == H else 2
        if here.kind == CX:
            return 3 if here.wires[0] == wire else 4
        eighths, rest = divmod(here.angle, TURN // 8)
        return 7 if rest else 5 if eighths % 2 else 6


def match_of(circuit, wires, source, node):
    """Return gates and wires (by the source's) of the match of a source with its first gate at a node.

    A source is connected, so that its other gates are found beside those found before.
    """
    found, on = {0: node}, {}

    def bind(k, gate):
        here, there = wires.gates[gate], source[k]
        if here.kind != there.kind:
            return False
        return all(
            on.setdefault(mine, theirs) == theirs
            for mine, theirs in zip(there.wires, here.wires, strict=True)
        )

    assert bind(0, node)
    left = set(range(1, len(source)))
    while left:
        for k, other in product(sorted(left), sorted(found)):
            for wire in set(source[k].wires) & set(source[other].wires):
                order = [i for i, gate in enumerate(source) if wire in gate.wires]
                if abs(order.index(k) - order.index(other)) == 1 and k in left:
                    gate = wires.beside(found[other], on[wire], order.index(k) - order.index(other))
                    assert gate >= 0
                    assert bind(k, gate)
                    found[k] = gate
                    left.discard(k)
    return [found[k] for k in range(len(source))], on


def distances(circuit, wires, fresh):
    """Return how many wires each gate is from a fresh one, 4 at most."""
    far = DISTANCES - 1
    found = [0 if i in fresh else far for i in range(len(wires.gates))]
    for _ in range(far):
        for i, gate in enumerate(wires.gates):
            for wire in gate.wires:
                for step in (-1, 1):
                    j = wires.beside(i, wire, step)
                    if j >= 0:
                        found[i] = min(found[i], found[j] + 1)
    return found


def features(circuit, rules, pairs, fresh, ages, plan):
    """Return the places in the table of each pair `[K, 6]`.

    plan(rule): the wires of the rule's source in the order in which C++ meets them.
    """
    wires, starts = Wires(circuit), offsets(len(rules) + 1)
    near_fresh = distances(circuit, wires, fresh)
    rows = []
    for node, rule in pairs:
        source, target = rules[rule]
        gates, on = match_of(circuit, wires, source, node)
        growth = int(np.clip(len(target) - len(source), -3, 3)) + 3
        # What the match covers.
        age = min(ages[i] for i in gates)
        bucket = age if age < 3 else 3 + sum(age >= limit for limit in (6, 12, 24))
        touch = 2 if age == 0 else 1 if any(i in fresh for i in gates) else 0
        near = min(near_fresh[i] for i in gates)
        # What is just outside.
        outside, meets, order = 2166136261, 0, plan(rule)
        for mine in order:
            covered = [gates[k] for k, gate in enumerate(source) if mine in gate.wires]
            wire = on[mine]
            places = sorted(wires.on[wire].index(i) for i in covered)
            before = wires.on[wire][places[0] - 1] if places[0] else -1
            after = wires.on[wire][places[-1] + 1] if places[-1] + 1 < len(wires.on[wire]) else -1
            outside = mixed(outside, wires.code(before, wire) * 8 + wires.code(after, wire))
            new = [(gate.kind, tuple(on[w] for w in gate.wires)) for gate in target if mine in gate.wires]
            ends = [
                (wires.gates[i].kind, tuple(wires.gates[i].wires)) if i >= 0 else None
                for i in (before, after)
            ]
            if not new:
                meets += ends[0] is not None and ends[0] == ends[1]
            else:
                meets += (ends[0] == new[0]) + (ends[1] == new[-1])
        # The first gate and what is around it.
        first = wires.gates[node]
        around = mixed(2166136261, wires.code(node, first.wires[0]))
        for wire in first.wires:
            for step in (-1, 1):
                at = node
                for _ in range(2):
                    at = wires.beside(at, wire, step) if at >= 0 else -1
                    around = mixed(around, wires.code(at, wire))
        on_first = [g for g in wires.gates if g.kind == CX]
        controls = sum(g.wires[0] == first.wires[0] for g in on_first)
        targets = sum(g.wires[1] == first.wires[0] for g in on_first)
        role = 0 if controls > targets else 1 if controls == targets else 2
        rows.append(
            [
                rule * TOUCHES + touch,
                starts[1] + (growth * MEETS + min(meets, MEETS - 1)) * DISTANCES + near,
                starts[2] + (growth * AGES + bucket) * TOUCHES + touch,
                starts[3] + mixed(outside, int(rule)) % SLOTS,
                starts[4] + mixed(around, growth) % SLOTS,
                starts[5] + (growth * MOST_WIRES + len(order) - 1) * ROLES + role,
            ]
        )
    return np.array(rows)


def plan_of(source):
    """Return the wires of a source in the order in which the search meets them (src/pattern.hpp)."""
    found, order, left = [0], list(source[0].wires), list(range(1, len(source)))

    def beside(k):
        for wire in source[k].wires:
            on = [i for i, gate in enumerate(source) if wire in gate.wires]
            place = on.index(k)
            if any(0 <= p < len(on) and on[p] in found for p in (place - 1, place + 1)):
                return True
        return False

    while left:
        k = next(k for k in left if beside(k))
        order += [wire for wire in source[k].wires if wire not in order]
        found.append(k)
        left.remove(k)
    return order
