"""The door `python -m ddppo.domains.circuits`: circuits of OpenQASM 2 files compared, drawn, and made smaller."""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import MISSING

from ddppo.config import setting
from ddppo.errors import ConfigError, near
from ddppo.files import write_text
from ddppo.options import door, parse
from ddppo.package import versions
from ddppo.terminal import warn

_USAGE = """ddppo-circuit verify a.qasm b.qasm                  are they equal, up to a phase?
ddppo-circuit show my.qasm [format=text,svg,qasm]   draw it, or write it in h, x, cx and rz
ddppo-circuit optimise my.qasm out=smaller.qasm     make it smaller by rewriting, verified; minutes=10
ddppo-circuit replay my.qasm rewrites.json          repeat how that was found, and verify it
ddppo-circuit merge my.qasm out=smaller.qasm        add up rotations about one parity
ddppo-circuit rules out=my.rules [key=value ...]    search for rules to rewrite circuits by

A circuit is an OpenQASM 2 file or the name of a benchmark, e.g. tof_3.
Exit code 0, 1 where verify or replay finds a difference, or 2 for a mistake in the command or a file.
`ddppo-circuit <verb> --help` lists the settings of a verb."""
_LEAST_WIDTH = 20


@dataclass(slots=True)
class VerifyOptions:
    circuit: str = setting(MISSING, "a circuit")
    others: list[str] = setting(meaning="the circuit that it is compared with", factory=list)
    seed: int = setting(0, "of the random states that stand for a unitary of many qubits", low=0)


@dataclass(slots=True)
class ShowOptions:
    circuit: str = setting(MISSING, "a circuit")
    format: str = setting("text", "how it is shown", choices=("text", "svg", "qasm"))
    out: str | None = setting(None, "the file that it goes to, instead of the terminal")
    width: int | None = setting(
        None, "letters, of an SVG pixels; the terminal's and 1100 if null", low=_LEAST_WIDTH
    )


@dataclass(slots=True)
class MergeOptions:
    circuit: str = setting(MISSING, "a circuit")
    out: str = setting(MISSING, "the OpenQASM 2 file that is written")


def verify(options: VerifyOptions) -> int:
    """Print whether two circuits are equal; return 0 if so, else 1."""
    from ddppo.domains.circuits.quantum import equivalence
    from ddppo.domains.circuits.quantum.sources import noted

    if len(options.others) != 1:
        raise ConfigError(f"verify compares two circuits, and {1 + len(options.others)} are given")
    a, b = (noted(source) for source in (options.circuit, options.others[0]))
    verdict = equivalence.verify(a.circuit, b.circuit, options.seed)
    print(verdict)
    return 0 if verdict.is_equal else 1


def show(options: ShowOptions) -> int:
    """Draw a circuit, or write it."""
    from ddppo.domains.circuits.quantum.costs import counts
    from ddppo.domains.circuits.quantum.drawing import as_svg, as_text
    from ddppo.domains.circuits.quantum.qasm import as_qasm
    from ddppo.domains.circuits.quantum.sources import noted

    if options.width is not None and options.format == "qasm":
        raise ConfigError(f"width={options.width} has no effect on format=qasm: leave it out")
    circuit, names, _ = noted(options.circuit)
    heading = f"{options.circuit}: {counts(circuit)}"
    if options.format == "text":
        width = options.width or shutil.get_terminal_size((100, 0)).columns
        said = f"{heading}\n\n{as_text(circuit, names, max(width, _LEAST_WIDTH))}\n"
    elif options.format == "svg":
        said = as_svg(circuit, names, heading, options.width or 1100)
    else:
        said = as_qasm(circuit)
    if options.out is None:
        print(said, end="")
    else:
        write_text(Path(options.out), said)
    return 0


def merge(options: MergeOptions) -> int:
    """Write the circuit with its rotations merged, once that is verified to be equal."""
    from ddppo.domains.circuits.quantum import equivalence
    from ddppo.domains.circuits.quantum.costs import counts
    from ddppo.domains.circuits.quantum.merging import merged
    from ddppo.domains.circuits.quantum.qasm import write
    from ddppo.domains.circuits.quantum.sources import noted

    circuit = noted(options.circuit).circuit
    smaller = merged(circuit)
    try:
        verdict = equivalence.verify(circuit, smaller)
        assert verdict.is_equal, verdict
        said = str(verdict)
    except ConfigError as e:  # more qubits than memory holds
        said = "equal by construction, not verified"
        warn(str(e))
    write(smaller, options.out)
    print(f"{options.circuit}: {counts(circuit)}\n{options.out}: {counts(smaller)}\n{said}")
    return 0


class Verb(NamedTuple):
    """What stands after the door's name; more: the field of further words, as in `ddppo.options.parse`."""

    options: type
    run: Callable[..., int]
    usage: str
    more: str | None = None


VERBS = {
    "verify": Verb(
        VerifyOptions, verify, "python -m ddppo.domains.circuits verify <circuit> <circuit>", "others"
    ),
    "show": Verb(ShowOptions, show, "python -m ddppo.domains.circuits show <circuit> [key=value ...]"),
    "merge": Verb(MergeOptions, merge, "python -m ddppo.domains.circuits merge <circuit> out=<file>"),
}
# Verbs of which only those who use them import what they need: each module has a main() that returns the exit code.
_ELSEWHERE = {
    "optimise": "ddppo.domains.circuits.optimise.command",
    "replay": "ddppo.domains.circuits.optimise.replay",
    "rules": "ddppo.domains.circuits.quantum.rules.command",
}


@door()
def main() -> None:
    """Run the command line; the exit code is that of the usage."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit code. Raises ConfigError."""
    word = arguments[0] if arguments else ""
    if word in ("-h", "--help"):
        print(_USAGE)
        return 0
    if word == "--version":
        print(versions())
        return 0
    if word in _ELSEWHERE:
        code: int = import_module(_ELSEWHERE[word]).main(arguments[1:])
        return code
    verbs = [*VERBS, *_ELSEWHERE]
    if word not in VERBS:
        known = ", ".join(verbs)
        raise ConfigError(
            f"{word}{near(word, verbs)} is no verb: python -m ddppo.domains.circuits is followed by one of {known}"
            if word
            else f"nothing to do: python -m ddppo.domains.circuits is followed by one of {known}; --help says more"
        )
    verb = VERBS[word]
    options: Any = parse(verb.options, arguments[1:], usage=verb.usage, path="circuit", more=verb.more)
    return verb.run(options)


if __name__ == "__main__":
    main()
