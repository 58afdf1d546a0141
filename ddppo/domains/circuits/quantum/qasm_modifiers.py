"""The modifiers of OpenQASM 3: ctrl, negctrl, inv and pow, https://openqasm.com/language/gates.html.

A phase of a gate becomes a rotation once the gate is controlled. So controlled gates are not found by expansion, which
drops phases: CONTROLLED names the controlled form of each gate of the library, and a gate that the file defines is
controlled gate by gate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ddppo.domains.circuits.quantum.circuit import NoAngle
from ddppo.domains.circuits.quantum.qasm_gates import MOST_CALLS, AnyGate, Call, Definition, Modified
from ddppo.domains.circuits.quantum.qasm_tokens import Tokens, expression, value

# -- The library of OpenQASM 3 beside qelib1.inc, and controlled forms of its gates ------------------------------------


TEXT_3 = """
gate phase(lambda) q { p(lambda) q; }
gate cphase(lambda) a,b { cp(lambda) a,b; }
"""
CONTROLLED = {
    "id": "c_id", "x": "cx", "cx": "ccx", "CX": "ccx", "y": "cy", "z": "cz", "cz": "ccz", "h": "ch", "sx": "csx",
    "sxdg": "c_sxdg", "s": "c_s", "sdg": "c_sdg", "t": "c_t", "tdg": "c_tdg", "swap": "cswap", "gphase": "p", "p": "cp",
    "phase": "cp", "u1": "cp", "cp": "c_cp", "cphase": "c_cp", "cu1": "c_cp", "rx": "crx", "ry": "cry", "rz": "crz",
    "cy": "c_cy", "ch": "c_ch", "csx": "c_csx", "crx": "c_crx", "cry": "c_cry", "crz": "c_crz",
    "U": "c_U", "u2": "c_u2", "u3": "c_u3",
}  # fmt: skip
# U(t, f, l) of OpenQASM 3 is e^{i t/2} times the matrix of OpenQASM 2. The first element of the latter is real. u2 and
# u3 have determinant 1.
CONTROLLED_TEXT = """
gate c_id a,b { }
gate c_sxdg a,b { h b; cp(-pi/2) a,b; h b; }
gate c_s a,b { cp(pi/2) a,b; }
gate c_sdg a,b { cp(-pi/2) a,b; }
gate c_t a,b { cp(pi/4) a,b; }
gate c_tdg a,b { cp(-pi/4) a,b; }
gate c_cp(lambda) a,b,c { cp(lambda/2) b,c; cx a,b; cp(-lambda/2) b,c; cx a,b; cp(lambda/2) a,c; }
gate c_crz(lambda) a,b,c { crz(lambda/2) b,c; cx a,b; crz(-lambda/2) b,c; cx a,b; crz(lambda/2) a,c; }
gate c_crx(theta) a,b,c { h c; c_crz(theta) a,b,c; h c; }
gate c_cry(theta) a,b,c { cry(theta/2) b,c; cx a,b; cry(-theta/2) b,c; cx a,b; cry(theta/2) a,c; }
gate c_cy a,b,c { sdg c; ccx a,b,c; s c; }
gate c_ch a,b,c { s c; h c; t c; ccx a,b,c; tdg c; h c; sdg c; }
gate c_csx a,b,c { h c; c_cp(pi/2) a,b,c; h c; }
gate c_U(theta,phi,lambda) a,b { cu(theta,phi,lambda,theta/2) a,b; }
gate c_u3(theta,phi,lambda) a,b { cu(theta,phi,lambda,-(phi+lambda)/2) a,b; }
gate c_u2(phi,lambda) a,b { cu(pi/2,phi,lambda,-(phi+lambda)/2) a,b; }
"""


class Controlled(NamedTuple):
    """A gate of the library, and the gate with one control more, which is its first wire."""

    gate: AnyGate
    form: AnyGate


class NotControlled(ValueError):
    """No controlled form of a gate is known."""


# -- Reading modifiers, and the gate that they make --------------------------------------------------------------------


MODIFIERS = ("ctrl", "negctrl", "inv", "pow")


class Modifier(NamedTuple):
    """A modifier in front of a gate."""

    word: str  # one of MODIFIERS
    number: int  # of controls, or the power


def modifier(tokens: Tokens, word: str) -> Modifier:
    """Read the rest of `ctrl(2) @`, `inv @` or `pow(-2) @` behind its word. Raises ConfigError."""
    number = 1
    if word != "inv" and tokens.take("("):
        line = tokens.line
        try:
            given = value(expression(tokens, ()), {})
        except NoAngle as e:
            tokens.fail(f"{word}: {e}", line)
        tokens.expect(")", f"after the number of {word}")
        if given != int(given) or abs(given) > MOST_CALLS:
            tokens.fail(
                f"{word}({given:.6g}): only whole numbers up to {MOST_CALLS:,} are read; write the gate that it "
                "stands for",
                line,
            )
        number = int(given)
        if word != "pow" and number < 1:
            tokens.fail(f"{word}({number}): there is at least 1 control", line)
    elif word == "pow":
        tokens.fail("pow needs its exponent in brackets, as in pow(2) @ s")
    tokens.expect("@", f"after {word}")
    return Modifier(word, -1 if word == "inv" else number)


def modified(gate: AnyGate, modifiers: Sequence[Modifier], known: Mapping[str, Controlled]) -> AnyGate:
    """Return the gate with these modifiers, the outermost first. Its first wires are the controls, in their order.

    Controls, powers and inverses commute, so that all controls are added first. Raises NotControlled.
    """
    power, num_controls = 1, 0
    negated: list[int] = []
    for each in modifiers:
        if each.word in ("inv", "pow"):
            power *= each.number
            continue
        if each.word == "negctrl":
            negated += range(num_controls, num_controls + each.number)
        num_controls += each.number
    if abs(power) > MOST_CALLS or num_controls > 2 * len(known):
        raise NotControlled(
            f"{gate.name} with so many modifiers has more than {MOST_CALLS:,} gates: split it"
        )
    found = gate
    for _ in range(num_controls):
        found = _controlled(found, known)
    return Modified(gate.name, found, power, tuple(negated))


def _controlled(gate: AnyGate, known: Mapping[str, Controlled]) -> AnyGate:
    """Return the gate with one control more, in front of its wires."""
    # 1. A gate of the library: gates are the same if they are one object, as a file may define another of this name.
    for each in known.values():
        if each.gate is gate:
            return each.form
    # 2. A gate with modifiers, and a gate that the file defines.
    if isinstance(gate, Modified):
        negated = tuple(k + 1 for k in gate.negated)
        return replace(gate, gate=_controlled(gate.gate, known), negated=negated)
    if isinstance(gate, Definition) and gate.is_own:
        body = tuple(
            Call(_controlled(call.gate, known), call.arguments, (0, *(w + 1 for w in call.wires)))
            for call in gate.body
        )
        return replace(gate, num_wires=gate.num_wires + 1, body=body)
    raise NotControlled(
        f"no controlled form of {gate.name} is known: write it by ccx and ancillas, or by gates with one control"
    )
