"""The search for rewriting rules, `ddppo-circuit rules`.

`classes` enumerates small circuits and groups those that are equal up to a phase; `pairs` makes rules of a group;
`independent` drops rules that smaller rules imply; `search_rules` is the command.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddppo.config.fields import setting
from ddppo.domains.circuits.quantum.circuit import CX, RZ, TURN, H, X
from ddppo.domains.circuits.quantum.ecc import read_ecc
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.quantum.rules import (
    PARAMETERS,
    TOLERANCE,
    Expression,
    Gates,
    Rule,
    SymbolicGate,
    canonical,
    circuit,
    constant,
    difference,
    front,
    in_order,
    is_connected,
    parameters_of,
    read_own,
    wires_of,
    write,
)
from ddppo.errors import ConfigError

# -- All small circuits with symbolic angles, in classes of equal circuits -------------------------------------------
# The algorithm is RepGen of Quartz (Xu et al. 2022, arXiv:2204.09033, algorithm 1). Circuits grow by one gate at the
# end. A circuit grows only if it is the least of its class, and if the same holds without its first gate.
# Fingerprints are computed exactly, over a prime field: e^{ia} is a random number, e^{i pi/4} an eighth root of
# unity, and h is [[1, 1], [1, -1]]. A circuit acts on a random vector; the fingerprint is the quotient of two random
# linear forms of the result, in which scalars, and so phases, cancel. Different circuits share a fingerprint with a
# probability of about (degree / 2^31)^2; `difference` in rules.py detects them later.


Words = NDArray[np.int8]  # [M, L], letters of the alphabet
Residues = NDArray[np.uint64]
_PRIMES = (2147483497, 2147483489)  # 1 mod 8, so that eighth roots of unity exist; products fit in 64 bits
_CHUNK = 200_000  # circuits that are extended at once; bounds memory
# Angles of rz: sums of a and b with coefficients up to 1, and multiples of pi/2.
_SYMBOLIC = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
_QUARTERS = (2, 4, 6)  # of eighths of a turn


@dataclass(frozen=True)
class RuleSpace:
    """The circuits to search. Each parameter occurs at most once in a circuit."""

    num_qubits: int
    num_gates: int  # at most
    # Of h, x, cx, rz (angles +-a, +-b, their sums, +-pi/2 and pi), s (rz by +-pi/2 and pi only), and p (rz by +-a, +-b
    # and their sums only).
    kinds: tuple[str, ...]

    def alphabet(self) -> list[SymbolicGate]:
        """Return all gates that a circuit may consist of. A circuit is a word of indices into this list."""
        qubits = range(self.num_qubits)
        letters = [
            SymbolicGate(kind, (w,))
            for kind, name in ((H, "h"), (X, "x"))
            if name in self.kinds
            for w in qubits
        ]
        if "cx" in self.kinds:
            letters += [SymbolicGate(CX, (v, w)) for v in qubits for w in qubits if v != w]
        # "p" and "s" are the two parts of "rz": symbolic angles, and multiples of pi/2.
        angles: list[Expression] = []
        if {"rz", "p"} & set(self.kinds):
            none = (0,) * (len(PARAMETERS) - 2)
            angles += [Expression((*pair, *none)) for pair in _SYMBOLIC]
        if {"rz", "s"} & set(self.kinds):
            angles += [constant(eighths) for eighths in _QUARTERS]
        return letters + [SymbolicGate(RZ, (w,), angle) for angle in angles for w in qubits]

    def __str__(self) -> str:
        return f"{self.num_qubits}:{self.num_gates}:{'+'.join(self.kinds)}"


def classes(space: RuleSpace, seed: int = 0) -> Iterator[list[Gates]]:
    """Yield each class of two or more circuits with the same fingerprint, the shortest circuit first."""
    alphabet = space.alphabet()
    layers = list(_layers(space, alphabet, seed))
    # Sort all circuits of all lengths by fingerprint; each run of equal fingerprints is a class.
    prints = np.concatenate([prints for _, prints in layers])
    order = np.argsort(prints, kind="stable")  # stable: shorter circuits stay first
    bounds = np.flatnonzero(np.concatenate([[True], prints[order][1:] != prints[order][:-1], [True]]))
    starts = np.cumsum([0, *(len(words) for words, _ in layers)])
    for begin, end in pairwise(bounds):
        if end - begin > 1:
            members = order[begin:end]
            lengths = np.searchsorted(starts, members, side="right") - 1
            yield [
                tuple(alphabet[k] for k in layers[length][0][member - starts[length]])
                for length, member in zip(lengths, members, strict=True)
            ]


def count(space: RuleSpace, seed: int = 0) -> list[int]:
    """Return the number of circuits that the search visits, by number of gates from 0 on."""
    return [len(words) for words, _ in _layers(space, space.alphabet(), seed)]


def _layers(space: RuleSpace, alphabet: list[SymbolicGate], seed: int) -> Iterator[tuple[Words, Residues]]:
    """Yield the circuits of each number of gates, as words, with their fingerprints."""
    grammar = _Grammar(alphabet)
    fields = [_Field(p, space.num_qubits, alphabet, np.random.default_rng([seed, p])) for p in _PRIMES]
    words: Words = np.zeros((1, 0), np.int8)
    states = [field.start[None] for field in fields]
    prints = _fingerprints(fields, states)
    seen = prints
    yield words, prints
    for length in range(1, space.num_gates + 1):
        # 1. Extend each word by each gate that the grammar allows, and apply that gate to its state.
        grown, found = [], []
        grown_states: list[list[Residues]] = [[] for _ in fields]
        for letter, rows in grammar.extensions(words):
            after = [f.applied(letter, s[rows]) for f, s in zip(fields, states, strict=True)]
            found.append(_fingerprints(fields, after))
            grown.append(np.column_stack([words[rows], np.full(len(rows), letter, np.int8)]))
            if length < space.num_gates:
                for kept, new in zip(grown_states, after, strict=True):
                    kept.append(new)
        members, prints = np.concatenate(grown), np.concatenate(found)
        yield members, prints
        # 2. Only the least word of each new class grows further.
        if length < space.num_gates:
            least = _least_of_new(members, prints, seen)
            seen = np.concatenate([seen, prints[least]])
            words = members[least]
            states = [np.concatenate(parts)[least] for parts in grown_states]


def _least_of_new(words: Words, prints: Residues, seen: Residues) -> NDArray[np.intp]:
    """Return, for each fingerprint that was not seen before, the lexicographically first word."""
    order = np.lexsort((*words.T[::-1], prints))
    ordered = prints[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    return np.sort(order[is_first & ~np.isin(ordered, seen)])


class _Grammar:
    """The words that are visited.

    Of words that differ by swaps of gates on disjoint wires, one is visited; each parameter occurs at most once; and
    the word without its first gate is the least of its class.
    """

    def __init__(self, alphabet: Sequence[SymbolicGate]) -> None:
        self._size = len(alphabet)
        wires = [set(letter.wires) for letter in alphabet]
        self._apart = np.array([[not (v & w) for w in wires] for v in wires])
        self._uses = np.array([sum(1 << k for k in letter.angle.parameters) for letter in alphabet])

    def extensions(self, words: Words) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Yield (letter, rows of the words that may be extended by it), in chunks."""
        length = words.shape[1]
        uses = np.bitwise_or.reduce(self._uses[words], axis=1) if length else np.zeros(len(words), np.int64)
        least = np.sort(self._codes(words))
        tails = self._codes(words[:, 1:]) * self._size
        for letter in range(self._size):
            may = (uses & self._uses[letter]) == 0  # no parameter occurs twice
            # If the letter could be moved ahead of a greater letter, the same circuit has a lesser word.
            slides = np.ones(len(words), bool)
            for column in range(length - 1, -1, -1):
                slides = slides & self._apart[letter][words[:, column]]
                may &= ~(slides & (letter < words[:, column]))
            # The word without its first gate, extended by the letter, is among the words of this length.
            if length:
                place = np.minimum(np.searchsorted(least, tails + letter), len(least) - 1)
                may &= least[place] == tails + letter
            rows = np.flatnonzero(may)
            for begin in range(0, len(rows), _CHUNK):
                yield letter, rows[begin : begin + _CHUNK]

    def _codes(self, words: Words) -> NDArray[np.int64]:
        powers = self._size ** np.arange(words.shape[1])[::-1]
        return (words.astype(np.int64) * powers).sum(1)


class _Field:
    """Applies gates, each up to a scalar, to vectors of residues modulo a prime, [M, 2^num_qubits]."""

    def __init__(
        self, prime: int, num_qubits: int, alphabet: list[SymbolicGate], rng: np.random.Generator
    ) -> None:
        self._prime, self._alphabet = prime, alphabet
        self._p = np.uint64(prime)
        self._index = np.arange(2**num_qubits)
        self.start, self._above, self._below = rng.integers(1, prime, (3, 2**num_qubits)).astype(np.uint64)
        # An eighth root of unity stands for e^{i pi/4}: r = g^((p - 1) / 8) with r^4 = -1.
        root = next(
            root
            for root in (pow(int(g), (prime - 1) // 8, prime) for g in rng.integers(2, prime, 99))
            if pow(root, 4, prime) == prime - 1
        )
        values = [int(z) for z in rng.integers(2, prime, len(PARAMETERS))]  # of e^{ia}, e^{ib}, ...
        self._phases = [np.uint64(self._phase(letter.angle, root, values)) for letter in alphabet]

    def _phase(self, angle: Expression, root: int, values: list[int]) -> int:
        eighth = constant(1).constant
        phase = pow(root, angle.constant // eighth, self._prime)
        for value, coefficient in zip(values, angle.coefficients, strict=True):
            phase = phase * pow(value, coefficient, self._prime) % self._prime
        return phase

    def applied(self, letter: int, states: Residues) -> Residues:
        gate = self._alphabet[letter]
        bit = 1 << gate.wires[0]
        is_one = (self._index & bit) > 0
        if gate.kind == X:
            return states[:, self._index ^ bit]
        if gate.kind == CX:
            return states[:, np.where(is_one, self._index ^ (1 << gate.wires[1]), self._index)]
        after = states.copy()
        if gate.kind == RZ:
            after[:, is_one] = after[:, is_one] * self._phases[letter] % self._p
            return after
        zero, one = states[:, ~is_one], states[:, is_one]
        after[:, ~is_one] = (zero + one) % self._p
        after[:, is_one] = (zero + self._p - one) % self._p
        return after

    def quotient(self, states: Residues) -> Residues:
        """Return <above, state> / <below, state>, in which scalars cancel."""
        above = (states * self._above % self._p).sum(1) % self._p
        below = (states * self._below % self._p).sum(1) % self._p
        inverse, exponent = np.ones_like(below), self._prime - 2
        # Fermat's little theorem: 1 / below = below^(p - 2).
        while exponent:
            if exponent & 1:
                inverse = inverse * below % self._p
            below = below * below % self._p
            exponent >>= 1
        return above * inverse % self._p


def _fingerprints(fields: Sequence[_Field], states: Sequence[Any]) -> Residues:
    """Return fingerprints [M]: the quotients over both fields, each in 32 bits."""
    first, second = (field.quotient(s) for field, s in zip(fields, states, strict=True))
    return first << np.uint64(32) | second


# -- From classes of equal circuits to rules: all ordered pairs except those that other rules imply ------------------


def pairs(members: list[Gates], growth: int) -> Iterator[Rule]:
    """Yield the rules of one class, in canonical form. `members` starts with the shortest circuit.

    The gates of a source are connected, and each angle is a constant or a single parameter. Left out are
    - pairs with a common first or last gate: the rest is a smaller rule;
    - pairs of circuits that are both longer than the shortest member: the source can be rewritten to that one first;
    - targets that are longer than the source by more than `growth` gates, or longer than a source of one gate.
    """
    # Sources that can be matched, each with all targets that its rule may have.
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
    """Return each rule once, small rules before large ones, general rules before special ones."""

    def place(rule: Rule) -> tuple[object, ...]:
        angles = [gate.angle for gates in rule for gate in gates if gate.kind == RZ]
        num_special = sum(not angle.parameters for angle in angles)
        return max(map(len, rule)), num_special, sum(map(len, rule)), str(rule)

    return sorted(set(rules), key=place)


def independent(rules: list[Rule], steps: int) -> list[Rule]:
    """Return the rules, in their order, that the rules before them do not imply.

    A rule is implied if at most `steps` rewrites lead from its source to its target, by circuits no longer than its
    longer side; or if one rewrite makes its source as short as its target does.
    """
    # Random values of the parameters: no rule with a constant angle matches them by accident.
    random = Random(0)
    values = [random.randrange(TURN) for _ in PARAMETERS]
    kept: list[Rule] = []
    rewriter = Rewriter(kept)
    for rule in rules:
        # Implied if one kept rule makes the source as short as the target, or if some of them lead to the target.
        source, target = (circuit(gates, rule.num_wires, values) for gates in rule)
        shrunk = (len(rewriter.apply(source, *pair)[0]) for pair in rewriter.pairs(source).tolist())
        if any(size < len(source) and size <= len(target) for size in shrunk):
            continue
        if rewriter.leads_to(source, target, steps=steps, most_gates=max(map(len, rule))):
            continue
        kept.append(rule)
        rewriter = Rewriter(kept)
    return kept


# -- The command `ddppo-circuit rules`: search, verify, write ----------------------------------------------------------


_KINDS = ("h", "x", "cx", "rz", "s", "p")
RULES_USAGE = """ddppo-circuit rules out=my.rules [key=value ...]
ddppo-circuit rules out=my.rules spaces=3:4:h+x+cx+rz,2:5:h+x+cx+rz steps=2
A space is QUBITS:GATES:KINDS: all circuits up to so many gates out of h, x, cx, and
rz (angles a, b, their sums, and multiples of pi/2), s (multiples of pi/2 only), p (a, b and their sums only).
A rule of your own reads as `x 0; rz(a) 0 -> rz(-a) 0; x 0`: where its left side is, its right side may stand."""


@dataclass(slots=True)
class RulesOptions:
    out: str = setting("nam.rules", "the file of rules to write")
    spaces: str | None = setting(
        "3:5:h+x+cx+rz,3:6:cx+p", "what is searched, QUBITS:GATES:KINDS and so on; null is nothing"
    )
    own: str | None = setting(
        None,
        "a text file of rules of your own, one a line, or an ECC file of Quartz (.json), verified and added",
    )
    growth: int = setting(2, "how many gates more than its source a target may have", low=0)
    steps: int = setting(3, "a rule is left out if so many smaller rules make up for it", low=1)
    seed: int = setting(0, "of the random numbers of fingerprints", low=0)


def search_rules(options: RulesOptions) -> int:
    """Search for rules, verify them, write the file and print a summary; return 0."""
    spaces = [_space(word) for word in options.spaces.split(",")] if options.spaces else []
    if not spaces and options.own is None:
        raise ConfigError("spaces=null leaves no rules: search a space, or name a file of rules, own=my.txt")
    if not Path(options.out).absolute().parent.is_dir():
        raise ConfigError(f"out={options.out}: there is no such folder: make it, or name another")
    own: Sequence[Rule] = []
    if options.own:
        path = Path(options.own)
        own = read_ecc(path, "own").rules if path.suffix == ".json" else read_own(path)
    # 1. Pairs of circuits with the same fingerprint, of all spaces.
    began = time.monotonic()
    found: set[Rule] = set()
    searched = {}
    for size in spaces:
        space = RuleSpace(*size)
        searched[str(space)] = sum(count(space, options.seed))
        known = len(found)
        for members in classes(space, options.seed):
            found.update(pairs(members, options.growth))
        print(f"{space}: {searched[str(space)]} circuits, {len(found) - known} more pairs", flush=True)
    # 2. Keep the pairs that are equal for all parameters, and of these the ones that smaller rules do not imply.
    true = [rule for rule in by_size(found) if difference(rule) < TOLERANCE]
    print(f"{len(found)} pairs, {len(true)} of them verified", flush=True)
    kept = in_order([*independent(true, options.steps), *own])
    # 3. Write the file. Its header holds the command that makes it again.
    seconds = time.monotonic() - began
    searched_for = options.spaces or "null"
    beside = f" own={Path(options.own).name}" if options.own else ""
    given = f"spaces={searched_for}{beside} growth={options.growth} steps={options.steps} seed={options.seed}"
    made_by = {
        "command": f"python -m ddppo.domains.circuits rules {given} out={Path(options.out).name}",
        "seconds": round(seconds),
        "circuits": searched,
        "pairs": len(found),
        "verified": len(true),
    }
    write(Path(options.out), kept, made_by)
    sizes = Counter(max(map(len, rule)) for rule in kept)
    by_gates = ", ".join(f"{count} of {size} gates" for size, count in sorted(sizes.items()))
    print(f"{options.out}: {len(kept)} rules in {seconds:.0f} s ({by_gates})")
    return 0


def _space(word: str) -> tuple[int, int, tuple[str, ...]]:
    """Return qubits, gates and kinds of a space such as `3:4:h+x+cx+rz`. Raises ConfigError."""
    parts = word.strip().split(":")
    kinds = tuple(parts[2].split("+")) if len(parts) == 3 else ()
    if not kinds or not set(kinds) <= set(_KINDS) or not all(part.isdigit() for part in parts[:2]):
        raise ConfigError(f"spaces={word}: a space is QUBITS:GATES:KINDS, such as 3:4:h+x+cx+rz")
    qubits, gates = int(parts[0]), int(parts[1])
    if not (1 <= qubits <= 4 and 1 <= gates <= 8):
        raise ConfigError(f"spaces={word}: rules have 1 to 4 qubits and 1 to 8 gates")
    return qubits, gates, kinds
