"""What `include "qelib1.inc";` gives: its gates, and a few that others add, in h, x, cx and rz up to a phase.

Cross, Bishop, Smolin, Gambetta, "Open Quantum Assembly Language", arXiv:1707.03429, says what each one does.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

from ddppo.domains.circuits.quantum.angles import PI, TURN, of_radians
from ddppo.domains.circuits.quantum.circuit import CX, RZ, Gate, H, X


class Primitive(NamedTuple):
    """A gate that is not defined by others; gates_of: its gates, from the values of parameters and the wires."""

    name: str
    num_parameters: int
    num_wires: int
    gates_of: Callable[[tuple[Decimal, ...], tuple[int, ...]], list[Gate]]


def u(angles: tuple[Decimal, ...], wires: tuple[int, ...]) -> list[Gate]:
    """Return U(theta, phi, lambda) = Rz(phi) Ry(theta) Rz(lambda), in as few gates as theta allows.

    Ry(0) = 1, Ry(pi/2) = H Z, Ry(pi) = Z X, Ry(-pi/2) = Z H up to phase, else Ry(t) = S H Rz(t) H S^-1.
    """
    theta, phi, lam = (of_radians(angle) for angle in angles)
    quarter = TURN // 4
    h = Gate(H, wires)
    found = {
        0: [_rz(phi + lam, wires)],
        quarter: [_rz(lam + PI, wires), h, _rz(phi, wires)],
        PI: [Gate(X, wires), _rz(phi - lam + PI, wires)],
        3 * quarter: [_rz(lam, wires), h, _rz(phi + PI, wires)],
    }.get(theta, [_rz(lam - quarter, wires), h, _rz(theta, wires), h, _rz(phi + quarter, wires)])
    return [gate for gate in found if gate.kind != RZ or gate.angle]


def _rz(angle: int, wires: tuple[int, ...]) -> Gate:
    return Gate(RZ, wires, angle % TURN)


BUILT_IN = {
    "U": Primitive("U", 3, 1, u),
    "CX": Primitive("CX", 0, 2, lambda _, wires: [Gate(CX, wires)]),
}
NAM = {
    "h": Primitive("h", 0, 1, lambda _, wires: [Gate(H, wires)]),
    "x": Primitive("x", 0, 1, lambda _, wires: [Gate(X, wires)]),
    "cx": Primitive("cx", 0, 2, lambda _, wires: [Gate(CX, wires)]),
    "rz": Primitive("rz", 1, 1, lambda angles, wires: [_rz(of_radians(angles[0]), wires)]),
}
TEXT = """
gate u3(theta,phi,lambda) q { U(theta,phi,lambda) q; }
gate u(theta,phi,lambda) q { U(theta,phi,lambda) q; }
gate u2(phi,lambda) q { U(pi/2,phi,lambda) q; }
gate u1(lambda) q { rz(lambda) q; }
gate p(lambda) q { rz(lambda) q; }
gate u0(gamma) q { }
gate id q { }
gate z a { rz(pi) a; }
gate s a { rz(pi/2) a; }
gate sdg a { rz(-pi/2) a; }
gate t a { rz(pi/4) a; }
gate tdg a { rz(-pi/4) a; }
gate y a { z a; x a; }
gate rx(theta) a { h a; rz(theta) a; h a; }
gate ry(theta) a { U(theta,0,0) a; }
gate sx a { h a; s a; h a; }
gate sxdg a { h a; sdg a; h a; }
gate cz a,b { h b; cx a,b; h b; }
gate cy a,b { sdg b; cx a,b; s b; }
gate swap a,b { cx a,b; cx b,a; cx a,b; }
gate iswap a,b { s a; s b; h a; cx a,b; cx b,a; h b; }
gate ch a,b { s b; h b; t b; cx a,b; tdg b; h b; sdg b; }
gate ccz a,b,c {
  cx b,c; tdg c; cx a,c; t c; cx b,c; tdg c; cx a,c; t b; t c; cx a,b; t a; tdg b; cx a,b; }
gate ccx a,b,c { h c; ccz a,b,c; h c; }
gate cswap a,b,c { cx c,b; ccx a,b,c; cx c,b; }
gate rccx a,b,c { h c; t c; cx b,c; tdg c; cx a,c; t c; cx b,c; tdg c; h c; }
gate crz(lambda) a,b { rz(lambda/2) b; cx a,b; rz(-lambda/2) b; cx a,b; }
gate crx(lambda) a,b { h b; crz(lambda) a,b; h b; }
gate cry(lambda) a,b { ry(lambda/2) b; cx a,b; ry(-lambda/2) b; cx a,b; }
gate cu1(lambda) a,b { rz(lambda/2) a; cx a,b; rz(-lambda/2) b; cx a,b; rz(lambda/2) b; }
gate cp(lambda) a,b { cu1(lambda) a,b; }
gate csx a,b { h b; cu1(pi/2) a,b; h b; }
gate cu3(theta,phi,lambda) c,t {
  rz((lambda+phi)/2) c; rz((lambda-phi)/2) t; cx c,t;
  U(-theta/2,0,-(phi+lambda)/2) t; cx c,t; U(theta/2,phi,0) t; }
gate cu(theta,phi,lambda,gamma) c,t { rz(gamma) c; cu3(theta,phi,lambda) c,t; }
gate rzz(theta) a,b { cx a,b; rz(theta) b; cx a,b; }
gate rxx(theta) a,b { h a; h b; rzz(theta) a,b; h a; h b; }
gate ryy(theta) a,b { rx(pi/2) a; rx(pi/2) b; rzz(theta) a,b; rx(-pi/2) a; rx(-pi/2) b; }
gate rzx(theta) a,b { h b; rzz(theta) a,b; h b; }
"""
