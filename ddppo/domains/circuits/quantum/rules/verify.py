"""Proof by numbers that both sides of a rule are equal up to phase for every value of its parameters."""

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from ddppo.domains.circuits.quantum.angles import TURN
from ddppo.domains.circuits.quantum.circuit import CX, RZ, X
from ddppo.domains.circuits.quantum.rules.rule import Gates, Rule, parameters_of

TOLERANCE = 1e-10
_OFFSET = (
    0.1  # of the grid, in radians: away from the multiples of pi/4, where circuits that differ may agree
)


def difference(rule: Rule) -> float:
    """Return the largest entry of U - c V, |c| = 1, over a grid of parameters that suffices for all; 0 if equal.

    With z = e^{ia} each entry of U and V is a polynomial in z and 1/z, and U, V are equal up to phase where all
    U_ij V_kl - U_kl V_ij vanish. A gate of coefficient c contributes z^0 or z^c, so these have powers of z from some
    m to m + D, D the sum of |c| over the gates of both sides. D + 1 points evenly on the circle determine such a
    polynomial, by a Fourier transform that multiplies errors by no more than D + 1; likewise each further parameter.
    """
    parameters = sorted(parameters_of(rule.source))
    axes = []
    for k in parameters:
        degree = sum(abs(gate.angle.coefficients[k]) for gates in rule for gate in gates)
        axes.append(_OFFSET + 2 * np.pi * np.arange(degree + 1) / (degree + 1))
    points = np.array(list(itertools.product(*axes))).reshape(math.prod(map(len, axes)), len(axes))
    source, target = (unitaries(gates, rule.num_wires, parameters, points) for gates in rule)
    flat, other = source.reshape(len(points), -1), target.reshape(len(points), -1)
    largest = np.argmax(np.abs(other), axis=1)[:, None]
    phase = np.take_along_axis(flat, largest, 1) / np.take_along_axis(other, largest, 1)
    return float(max(np.abs(flat - phase * other).max(), np.abs(np.abs(phase) - 1).max()))


def unitaries(
    gates: Gates, num_wires: int, parameters: list[int], points: NDArray[np.float64]
) -> NDArray[np.complex128]:
    """Return [K, 2^num_wires, 2^num_wires] at points [K, parameters] in radians; wire 0 is the lowest bit."""
    size = 2**num_wires
    index = np.arange(size)
    state = np.tile(np.eye(size, dtype=np.complex128), (len(points), 1, 1))
    for gate in gates:
        bit = 1 << gate.wires[0]
        is_one = (index & bit) > 0
        if gate.kind == X:
            state = state[:, index ^ bit]
        elif gate.kind == CX:
            state = state[:, np.where(is_one, index ^ (1 << gate.wires[1]), index)]
        elif gate.kind == RZ:
            coefficients = np.array([gate.angle.coefficients[k] for k in parameters], np.float64)
            angle = points @ coefficients + 2 * np.pi * gate.angle.constant / TURN
            state[:, is_one] *= np.exp(1j * angle)[:, None, None]
        else:
            zero, one = state[:, ~is_one], state[:, is_one]
            state[:, ~is_one], state[:, is_one] = (zero + one) / math.sqrt(2), (zero - one) / math.sqrt(2)
    return state
