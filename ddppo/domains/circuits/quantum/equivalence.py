"""Whether two circuits are equal up to a phase (`verify`), and circuits applied to states.

Up to 10 qubits, or 12 where time does not matter, the unitaries are compared; above, the images of random states.
"""

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddppo.domains.circuits.quantum.circuit import CX, RZ, TURN, Circuit, Gate, H, X
from ddppo.domains.circuits.quantum.rewriting import differing_parts
from ddppo.errors import ConfigError

# -- A circuit applied to states, and random states ------------------------------------------------------------------
# x, cx and rz permute basis states and change their phases. Both are collected, phases in exact integer units, and
# applied together at the next h. Wire 0 is the first axis: basis state i has bit (i >> (n - 1 - w)) & 1 on wire w.


States = NDArray[np.complex128]  # [2^n, K], K states in columns


def applied(circuit: Circuit, states: States) -> States:
    """Return U states [2^n, K] for K states in columns, up to a global phase of U."""
    size = 2**circuit.num_qubits
    assert states.shape[0] == size, (states.shape, circuit.num_qubits)
    pending = _MonomialMap(circuit.num_qubits)
    for gate in circuit:
        if gate.kind == H:
            states = _hadamard(pending.applied(states), gate.wires[0])
            pending = _MonomialMap(circuit.num_qubits) if pending.is_used else pending
        else:
            pending.add(gate)
    return pending.applied(states)


def unitary(circuit: Circuit) -> States:
    """Return U [2^n, 2^n] up to a phase."""
    return applied(circuit, np.eye(2**circuit.num_qubits, dtype=np.complex128))


class _MonomialMap:
    """The product of x, cx and rz gates: new[i] = exp(2 pi sqrt(-1) turns[i] / TURN) old[source[i]]."""

    def __init__(self, num_qubits: int) -> None:
        self._source = np.arange(2**num_qubits)
        self._turns = np.zeros(2**num_qubits, np.int64)  # overflow at 2^64, a multiple of TURN, does no harm
        self.is_used = self._is_permuted = self._is_turned = False

    def add(self, gate: Gate) -> None:
        self.is_used = True
        if gate.kind == RZ:
            self._is_turned = True
            self._turns.reshape(2 ** gate.wires[0], 2, -1)[:, 1] += gate.angle
            return
        # x and cx swap the two halves of the target's axis.
        self._is_permuted = True
        for values in (self._source, self._turns):
            halves = self._halves(values, gate)
            halves[...] = halves[:, :, ::-1].copy()

    def _halves(self, values: NDArray[np.int64], gate: Gate) -> NDArray[np.int64]:
        """Return a view of the values for which the control, if any, is 1; its third axis is the target's bit."""
        if gate.kind == X:
            return values.reshape(1, 2 ** gate.wires[0], 2, -1)
        assert gate.kind == CX, gate
        control, target = gate.wires
        low, high = min(gate.wires), max(gate.wires)
        by_bits = values.reshape(2**low, 2, 2 ** (high - low - 1), 2, -1)
        if control < target:
            return by_bits[:, 1]
        return by_bits[:, :, :, 1].swapaxes(1, 2)

    def applied(self, states: States) -> States:
        if self._is_permuted:
            states = np.take(states, self._source, axis=0)
        if self._is_turned:
            turns = (self._turns & (TURN - 1)) * (2 * np.pi / TURN)
            states = states * np.exp(1j * turns)[:, None]
        return states


def _hadamard(states: States, wire: int) -> States:
    old = states.reshape(2**wire, 2, -1)
    new = np.empty_like(old)
    np.add(old[:, 0], old[:, 1], out=new[:, 0])
    np.subtract(old[:, 0], old[:, 1], out=new[:, 1])
    new *= np.sqrt(0.5)
    return new.reshape(states.shape)


def product_state(num_qubits: int, rng: np.random.Generator) -> States:
    """Return a product [2^n, 1] of random states of single qubits, each uniform on its sphere."""
    state = np.ones(1, np.complex128)
    for _ in range(num_qubits):
        pair = rng.normal(size=2) + 1j * rng.normal(size=2)
        state = np.multiply.outer(state, pair / np.linalg.norm(pair)).ravel()
    return state[:, None]


def stabiliser_state(num_qubits: int, rng: np.random.Generator) -> States:
    """Return the state [2^n, 1] made by a random circuit of h, s and cx, with three layers of cx on random pairs."""
    gates: list[Gate] = []
    for _ in range(3):
        for wire in range(num_qubits):
            gates += [Gate(H, (wire,))] * int(rng.integers(2))
            gates.append(Gate(RZ, (wire,), int(rng.integers(4)) * TURN // 4))
            gates.append(Gate(H, (wire,)))
        order = rng.permutation(num_qubits).tolist()
        gates += [Gate(CX, pair) for pair in zip(order[::2], order[1::2], strict=False)]
    state = np.zeros((2**num_qubits, 1), np.complex128)
    state[0] = 1
    return applied(Circuit.from_gates(num_qubits, gates), state)


# -- Whether two circuits are the same unitary up to a phase: exactly for few qubits, else by random states ----------


WHOLE_QUBITS = 10  # up to this number of qubits, whole unitaries are compared: a second or less
MOST_WHOLE_QUBITS = 12  # likewise where time does not matter: 1 to 20 s, by the number of h
_BLOCK = 2**18  # elements of a unitary that are computed at a time: 4 MB stay in the cache
TOLERANCE = 1e-8  # of one element of a unitary
_STATE_TOLERANCE = 1e-10  # of the distance of two states
_DISTANCE = 0.1  # distance of unitaries to which the bound on the error applies
_CHANCE = 1e-12  # bound on the probability of an error
_NUM_STABILISER = 2  # stabiliser states beside the product states; the bound does not need them
_BYTES = 500  # memory per amplitude: up to 8 states in four copies


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `verify`."""

    is_equal: bool
    how: str  # the comparison, in words
    distance: float  # the largest difference found
    chance: float = 0.0  # bound on the probability that circuits called equal are not

    def __str__(self) -> str:
        if not self.is_equal:
            return f"not equal: {self.how}"
        odds = f"; the chance to be wrong is below {self.chance:.0e}" if self.chance else ""
        return f"equal up to a phase: {self.how}{odds}"


def verify(a: Circuit, b: Circuit, seed: int = 0, whole_qubits: int = WHOLE_QUBITS) -> Verdict:
    """Return whether U_b = e^{i phi} U_a for some phi.

    Common gates at the beginnings and ends are left out, and so are qubits that no other gate touches: P A S and P B S
    are equal if and only if A and B are. Up to `whole_qubits`, all elements of the unitaries are compared, to 1e-8.
    Above, images of random states are compared; `chance_to_miss` bounds the error. Raises ConfigError if memory cannot
    hold the states.
    """
    if a.num_qubits != b.num_qubits:
        return Verdict(False, f"they have {a.num_qubits} and {b.num_qubits} qubits", math.inf)
    if a == b:
        return Verdict(True, "they are the same gates", 0.0)
    a, b = differing_parts(a, b)
    if a.num_qubits <= whole_qubits:
        return _whole(a, b)
    _check_memory(a.num_qubits)
    return _by_states(a, b, np.random.default_rng(seed))


def _whole(a: Circuit, b: Circuit) -> Verdict:
    """Compare max |U_b - e^{i phi} U_a| with the tolerance, some columns at a time; the first of them determine phi."""
    size = 2**a.num_qubits
    phase, distance = 1.0 + 0.0j, 0.0
    for begin in range(0, size, max(1, _BLOCK // size)):
        columns = np.eye(size, min(size, max(1, _BLOCK // size)), -begin, np.complex128)
        first, second = applied(a, columns), applied(b, columns)
        if begin == 0:
            phase = _phase(first, second)
        distance = max(distance, float(np.abs(second - phase * first).max()))
        if distance > TOLERANCE:
            return Verdict(False, f"an element of the unitary differs by {distance:.3g}", distance)
    how = (
        f"all elements of the unitary agree to {TOLERANCE:.0e} on the {_qubits(a.num_qubits)} where gates differ "
        f"(largest difference {distance:.1e})"
    )
    return Verdict(True, how, distance)


def _by_states(a: Circuit, b: Circuit, rng: np.random.Generator) -> Verdict:
    """Apply both circuits to random states. One phase has to fit all states; the first state determines it."""
    # As many product states as bring the probability of an error below _CHANCE, and one for the phase.
    n = a.num_qubits
    missed = chance_to_miss(n)
    num_product = 1 + max(1, math.ceil(math.log(_CHANCE) / math.log(missed)))
    # The first state alone reveals nearly every difference, and saves the work of the others.
    one = product_state(n, rng)
    first, second = applied(a, one), applied(b, one)
    phase = _phase(first, second)
    worst = _distance(second, phase * first)
    if worst <= _STATE_TOLERANCE:
        others = [product_state(n, rng) for _ in range(num_product - 1)]
        states = np.hstack([*others, *(stabiliser_state(n, rng) for _ in range(_NUM_STABILISER))])
        worst = max(worst, _distance(applied(b, states), phase * applied(a, states)))
    if worst > _STATE_TOLERANCE:
        return Verdict(False, f"they take a random state of {n} qubits to states {worst:.3g} apart", worst)
    how = (
        f"the images of {num_product} random product states and {_NUM_STABILISER} random stabiliser states agree to "
        f"{_STATE_TOLERANCE:.0e} on the {_qubits(n)} where gates differ (largest distance {worst:.1e})"
    )
    return Verdict(True, how, worst, missed ** (num_product - 1))


def _phase(first: States, second: States) -> complex:
    overlap = complex(np.vdot(first, second))
    return overlap / abs(overlap) if overlap else 1.0


def _distance(first: States, second: States) -> float:
    return float(np.linalg.norm(first - second, axis=0).max())


def chance_to_miss(num_qubits: int) -> float:
    """Return a bound on the probability that one random product state misses a difference of .1 or more.

    Let M = U_b - c U_a with |M|^2, the sum of its squared elements, >= .1^2, for any c. Contracting the tensor M with
    a uniform state of one qubit leaves a share s of |M|^2. s is a convex combination of U and 1 - U with U uniform,
    so P(s < x) <= x for x <= 1/2, and s dominates min(U, 1/2). After n qubits, -ln of the remaining share is at most
    a sum of n variables max(E, ln 2), E exponential: n ln 2 + a Gamma(b) variable with b ~ Binomial(n, 1/2). The
    difference is missed if less than (1e-10)^2 remains. The first state determines c, and is therefore not counted.
    """
    room = 2 * math.log(_DISTANCE / _STATE_TOLERANCE) - num_qubits * math.log(2)
    assert room > 0, num_qubits  # holds up to 59 qubits
    tail, term, chance = 0.0, math.exp(-room), 0.0
    # tail = P(Gamma(b) > room) = e^-room sum over k < b of room^k / k!
    for b in range(num_qubits + 1):
        chance += math.comb(num_qubits, b) / 2**num_qubits * tail
        tail += term
        term *= room / (b + 1)
    return chance


def _check_memory(num_qubits: int) -> None:
    needed = _BYTES * 2**num_qubits
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory / 2:
        most = int(math.log2(memory / 2 / _BYTES))
        raise ConfigError(
            f"the circuits differ on {num_qubits} qubits: their states need {_size(needed)} of this machine's "
            f"{_size(memory)}. Here up to {most} qubits can be compared; compare them in parts"
        )


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.0f} GB"


def _qubits(number: int) -> str:
    return f"{number} qubit{'' if number == 1 else 's'}"
