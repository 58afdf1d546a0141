"""Circuits written in a gate set: nam (h, x, cx, rz), clifford_t, or ibm (sx, rz, x, cx).

A circuit in memory consists of h, x, cx and rz. `GateSet.of` translates it, and the costs of a gate set count the gates
of the translation (costs.py). The gates of a wire between two cx are a run; each run is translated by itself.
"""

import cmath
import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ddppo.domains.circuits.quantum.circuit import (
    CX,
    KINDS,
    PI,
    RZ,
    TURN,
    Circuit,
    H,
    of_radians,
    radians,
    written,
)
from ddppo.errors import ConfigError, near

# -- A circuit in a gate set ------------------------------------------------------------------------------------------


class NamedGate(NamedTuple):
    """A gate of a gate set."""

    name: str
    wires: tuple[int, ...]
    angle: int = 0  # of an rz, in units


# A run: kind and angle of each gate. Its translation: name and angle of each gate.
Run = tuple[tuple[int, int], ...]
Translation = tuple[tuple[str, int], ...]


class NoSuchAngle(ValueError):
    """A rotation that no gates of the gate set make."""


class GateSet(NamedTuple):
    """A gate set."""

    name: str
    gates: tuple[str, ...]
    of_run: Callable[[Run], Translation] | None  # raises NoSuchAngle; None leaves circuits as they are

    def of(self, circuit: Circuit) -> list[NamedGate]:
        """Return the circuit in this gate set, equal up to a phase. Raises ConfigError for an angle it cannot write."""
        if self.of_run is None:
            return [NamedGate(KINDS[gate.kind], gate.wires, gate.angle) for gate in circuit]
        found: list[NamedGate] = []
        runs: list[list[tuple[int, int]]] = [
            [] for _ in range(circuit.num_qubits)
        ]  # of each wire, since its last cx
        rows = zip(circuit.kinds.tolist(), circuit.wires.tolist(), circuit.angles.tolist(), strict=True)
        for kind, (first, second), angle in rows:
            if kind != CX:
                runs[first].append((kind, angle))
                continue
            for wire in (first, second):
                if runs[wire]:
                    found += self._translated(runs[wire], wire)
                    runs[wire] = []
            found.append(NamedGate("cx", (first, second)))
        for wire, run in enumerate(runs):
            found += self._translated(run, wire)
        return found

    def _translated(self, run: list[tuple[int, int]], wire: int) -> list[NamedGate]:
        assert self.of_run is not None
        on = (wire,)
        try:
            return [NamedGate(name, on, angle) for name, angle in self.of_run(tuple(run))]
        except NoSuchAngle as e:
            raise ConfigError(
                f"gate_set={self.name}: {e} on qubit {wire} is no multiple of pi/4, so no gates of "
                f"{', '.join(self.gates)} make it exactly: use nam or ibm, or approximate it before"
            ) from e


# -- Clifford+T: a rotation by a multiple of pi/4 is at most two gates ------------------------------------------------


_EIGHTHS = ((), ("t",), ("s",), ("s", "t"), ("z",), ("z", "t"), ("sdg",), ("tdg",))


@functools.lru_cache(maxsize=1 << 14)
def _clifford_t(run: Run) -> Translation:
    """Add up neighbouring rotations, leave out h h and x x, and write each rotation as at most two gates."""
    # 1. `kept` is a stack: a gate meets the last one that is kept.
    kept: list[tuple[int, int]] = []
    for kind, angle in run:
        if kind == RZ:
            if kept and kept[-1][0] == RZ:
                angle = (angle + kept.pop()[1]) % TURN
            if angle:
                kept.append((RZ, angle))
        elif kept and kept[-1][0] == kind:
            kept.pop()
        else:
            kept.append((kind, 0))
    # 2. Write it.
    found: list[tuple[str, int]] = []
    for kind, angle in kept:
        if kind != RZ:
            found.append((KINDS[kind], 0))
            continue
        eighths, rest = divmod(angle, TURN // 8)
        if rest:
            raise NoSuchAngle(f"rz({written(angle)})")
        found += [(name, 0) for name in _EIGHTHS[eighths]]
    return tuple(found)


# -- IBM: every run is rz sx rz sx rz, or shorter ---------------------------------------------------------------------
# h = rz(pi/2) sx rz(pi/2) up to a phase. A run becomes rotations `angles` with one sx between two of them, and x at its
# end if `flipped`. A rotation by a multiple of pi/2 between two sx removes one or both of them, exactly.


_QUARTER = TURN // 4


@functools.lru_cache(maxsize=1 << 14)
def _ibm(run: Run) -> Translation:
    angles, flipped = [0], False
    for kind, angle in run:
        if kind == RZ:  # x rz(a) is rz(-a) x
            angles[-1] += -angle if flipped else angle
        elif kind == H:  # x h is h rz(pi)
            angles[-1] += _QUARTER
            angles.append(_QUARTER + (PI if flipped else 0))
            flipped = _without_quarters(angles)
        else:
            flipped = not flipped
    # Two sx suffice for any matrix; the rotations of three and more are computed as floats.
    if len(angles) > 3:
        angles, flipped = _of_matrix(_matrix(angles, flipped)), False
        flipped = _without_quarters(angles)
    # An sx between rotations by pi is sx x, so that each sx can take or give an x: take the shortest form.
    forms = [
        _given(angles, flipped, places)
        for size in range(len(angles))
        for places in itertools.combinations(range(len(angles) - 1), size)
    ]
    return min(forms, key=len)


def _without_quarters(angles: list[int]) -> bool:
    """Shorten `angles` while a rotation between two sx is a multiple of pi/2; return whether an x is left behind."""
    flipped = False
    while len(angles) > 2 and angles[-2] % _QUARTER == 0:
        quarters, last = angles.pop(-2) // _QUARTER % 4, angles.pop()
        if quarters == 0:  # sx sx = x, and x rz(a) = rz(-a) x
            angles[-1] -= last
            flipped = not flipped
        elif quarters == 2:  # sx rz(pi) sx = rz(pi)
            angles[-1] += PI + last
        else:  # sx rz(a) sx = rz(a) sx rz(a) for a = pi/2 and -pi/2
            angles[-1] += quarters * _QUARTER
            angles.append(quarters * _QUARTER + last)
    return flipped


def _given(angles: list[int], flipped: bool, places: tuple[int, ...]) -> Translation:
    """Return the gates after the sx at each of these places has taken or given an x."""
    turned = list(angles)
    for place in places:
        turned[place] += PI
        turned[place + 1] = PI - turned[place + 1]
        turned[place + 2 :] = [-angle for angle in turned[place + 2 :]]
        flipped = not flipped
    found: list[tuple[str, int]] = []
    for k, angle in enumerate(turned):
        found += [("sx", 0)] * (k > 0) + [("rz", angle % TURN)] * (angle % TURN != 0)
    return (*found, ("x", 0)) if flipped else tuple(found)


def _matrix(angles: list[int], flipped: bool) -> np.ndarray:
    half = np.array([[1 + 1j, 1 - 1j], [1 - 1j, 1 + 1j]]) / 2  # of sx
    product = np.eye(2, dtype=complex)
    for k, angle in enumerate(angles):
        turned = np.diag([1, cmath.exp(1j * radians(angle))])
        product = turned @ (half @ product if k else product)
    return product[::-1] if flipped else product


def _of_matrix(matrix: np.ndarray) -> list[int]:
    """Return angles of rz sx rz sx rz for a unitary: U = rz(phi) ry(theta) rz(lambda) = rz(phi+pi) sx rz(theta+pi) sx
    rz(lambda).
    """
    theta = 2 * math.atan2(abs(matrix[1, 0]), abs(matrix[0, 0]))
    if abs(matrix[0, 0]) > abs(matrix[1, 0]):
        total = cmath.phase(matrix[1, 1] / matrix[0, 0])  # phi + lambda
        phi = cmath.phase(matrix[1, 0] / matrix[0, 0]) if abs(matrix[1, 0]) > _SMALL else 0.0
        lam = total - phi
    else:
        lam = cmath.phase(-matrix[0, 1] / matrix[1, 0])  # lambda - phi
        phi = cmath.phase(matrix[1, 0] / matrix[0, 0]) if abs(matrix[0, 0]) > _SMALL else 0.0
        lam += phi
    return [_rounded(lam), _rounded(theta + math.pi), _rounded(phi + math.pi)]


_SMALL = 1e-12


def _rounded(angle: float) -> int:
    """Return the angle in units, as a multiple of pi/4 if it is one up to the errors of floats."""
    units = of_radians(angle)
    nearest = round(units / (TURN // 8)) * (TURN // 8)
    return nearest % TURN if abs(units - nearest) < 64 else units  # 64 units are 1.4e-12 radians


# -- The gate sets by name --------------------------------------------------------------------------------------------


NAM = GateSet("nam", ("h", "x", "cx", "rz"), None)
GATE_SETS = {
    "nam": NAM,
    "clifford_t": GateSet("clifford_t", ("h", "x", "cx", "s", "sdg", "t", "tdg", "z"), _clifford_t),
    "ibm": GateSet("ibm", ("sx", "rz", "x", "cx"), _ibm),
}


def gate_set(name: str) -> GateSet:
    """Return the gate set of this name. Raises ConfigError."""
    if name not in GATE_SETS:
        known = ", ".join(GATE_SETS)
        raise ConfigError(f"gate_set={name}{near(name, list(GATE_SETS))}: has to be one of {known}")
    return GATE_SETS[name]
