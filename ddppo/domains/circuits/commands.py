"""The command `ddppo-circuit`: compares, draws and shrinks circuits of OpenQASM files.

One dataclass of options and one function for each verb; VERBS at the end lists them, and `run` dispatches.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import MISSING

from ddppo.config.fields import setting
from ddppo.domains.circuits.optimise import OPTIMISE_USAGE, OptimiseOptions, optimise
from ddppo.domains.circuits.page import ComparisonOptions, compare
from ddppo.domains.circuits.quantum import equivalence
from ddppo.domains.circuits.quantum.benchmarks import noted
from ddppo.domains.circuits.quantum.costs import counts
from ddppo.domains.circuits.quantum.drawing import as_svg, as_text
from ddppo.domains.circuits.quantum.gate_sets import GATE_SETS, NAM
from ddppo.domains.circuits.quantum.gate_sets import gate_set as gate_set_named
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, write
from ddppo.domains.circuits.quantum.qasm_reader import parse as parse_qasm
from ddppo.domains.circuits.quantum.rewriting import merged
from ddppo.domains.circuits.quantum.rule_search import RULES_USAGE, RulesOptions, search_rules
from ddppo.domains.circuits.task.lineage import read_rewrites, repeated, rewriter_of
from ddppo.errors import ConfigError, near
from ddppo.files import write_text
from ddppo.options import door, parse
from ddppo.package import versions
from ddppo.terminal import warn

_USAGE = """python -m ddppo.domains.circuits <verb>, or

ddppo-circuit verify a.qasm b.qasm                  are they equal, up to a phase?
ddppo-circuit show my.qasm [format=text,svg,qasm]   draw it, or write it in a gate set
ddppo-circuit optimise my.qasm out=smaller.qasm     make it smaller by rewriting, verified; minutes=10
ddppo-circuit compare my.qasm smaller.qasm          beside others; html=page.html draws both and each rewrite
ddppo-circuit replay my.qasm rewrites.json          repeat how that was found, and verify it
ddppo-circuit merge my.qasm out=smaller.qasm        add up rotations about one parity
ddppo-circuit rules out=my.rules [key=value ...]    search for rules to rewrite circuits by

A circuit is an OpenQASM 2 or 3 file or the name of a benchmark, e.g. tof_3.
Exit code 0, 1 where verify or replay finds a difference, or 2 for a mistake in the command or a file.
`ddppo-circuit <verb> --help` lists the settings of a verb."""
_LEAST_WIDTH = 20
_GATE_SETS = tuple(GATE_SETS)


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
    gate_set: str = setting(NAM.name, "of format=qasm, and of the counts above a drawing", choices=_GATE_SETS)


@dataclass(slots=True)
class MergeOptions:
    circuit: str = setting(MISSING, "a circuit")
    out: str = setting(MISSING, "the OpenQASM 2 file that is written")
    gate_set: str = setting(NAM.name, "of the file and of the counts", choices=_GATE_SETS)


def verify(options: VerifyOptions) -> int:
    """Print whether two circuits are equal; return 0 if so, else 1."""
    if len(options.others) != 1:
        raise ConfigError(f"verify compares two circuits, and {1 + len(options.others)} are given")
    a, b = (noted(source) for source in (options.circuit, options.others[0]))
    verdict = equivalence.verify(a.circuit, b.circuit, options.seed, equivalence.MOST_WHOLE_QUBITS)
    print(verdict)
    return 0 if verdict.is_equal else 1


def show(options: ShowOptions) -> int:
    """Draw a circuit, or write it as OpenQASM 2."""
    if options.width is not None and options.format == "qasm":
        raise ConfigError(f"width={options.width} has no effect on format=qasm: leave it out")
    # A terminal has a width in letters, an SVG in pixels; QASM has none.
    circuit, names, _ = noted(options.circuit)
    gate_set = gate_set_named(options.gate_set)
    heading = f"{options.circuit}: {counts(circuit, gate_set)}"
    if options.format == "text":
        width = options.width or shutil.get_terminal_size((100, 0)).columns
        content = f"{heading}\n\n{as_text(circuit, names, max(width, _LEAST_WIDTH))}\n"
    elif options.format == "svg":
        content = as_svg(circuit, names, heading, options.width or 1100)
    else:
        content = as_qasm(circuit, gate_set)
    if options.out is None:
        print(content, end="")
    else:
        write_text(Path(options.out), content)
    return 0


def merge(options: MergeOptions) -> int:
    """Write the circuit with merged rotations, after verifying that it is equal."""
    circuit = noted(options.circuit).circuit
    gate_set = gate_set_named(options.gate_set)
    smaller = merged(circuit)
    read_again = parse_qasm(as_qasm(smaller, gate_set)).circuit  # to compare the translation, too
    try:
        verdict = equivalence.verify(circuit, read_again, whole_qubits=equivalence.MOST_WHOLE_QUBITS)
        assert verdict.is_equal, verdict
        how = str(verdict)
    except ConfigError as e:  # states of so many qubits do not fit in memory
        how = "equal by construction, not verified"
        warn(str(e))
    write(smaller, options.out, gate_set)
    print(
        f"{options.circuit}: {counts(circuit, gate_set)}\n{options.out}: {counts(smaller, gate_set)}\n{how}"
    )
    return 0


_REPLAY = """ddppo-circuit replay <circuit> <rewrites> [out=<file>] [rules=<file>]
The rewrites are a file that `optimise` wrote by rewrites=, or a run's best/<circuit>.json."""


@dataclass(slots=True)
class ReplayOptions:
    circuit: str = setting(MISSING, "the original circuit")
    rewrites: list[str] = setting(meaning="the file of rewrites", factory=list)
    out: str | None = setting(None, "the OpenQASM 2 file that what they make is written to")
    rules: str | None = setting(None, "the file of rules that they were found by; the package's if null")


def replay(options: ReplayOptions) -> int:
    """Repeat the rewrites of a file, verify and write the result; return 0 if it is equal to the original, else 1."""
    if len(options.rewrites) != 1:
        raise ConfigError(
            f"replay takes a circuit and a file of rewrites, and {len(options.rewrites)} files are given"
        )
    # Repeat the rewrites, from the start that the file names, and compare the result with the original as unitaries.
    original = noted(options.circuit).circuit
    held = read_rewrites(Path(options.rewrites[0]))
    made = repeated(held, original, rewriter_of(held, options.rules))
    start = " of the circuit with its rotations merged" if held.start == "merge" else ""
    print(f"{options.circuit}: {counts(original)}")
    print(f"after {len(held.rewrites)} rewrites{start}: {counts(made)}", flush=True)
    verdict = equivalence.verify(original, made, whole_qubits=equivalence.MOST_WHOLE_QUBITS)
    print(verdict)
    if options.out is not None and verdict.is_equal:
        write(made, options.out)
    return 0 if verdict.is_equal else 1


_COMPARE = """ddppo-circuit compare <circuit> <result> [<result> ...] [html=<file>] [key=value ...]
A result is an OpenQASM file, a file of rewrites (`optimise` writes one by rewrites=), or a run folder.
Exit code 1 if one of them is not equal to the circuit."""


class Verb(NamedTuple):
    """One verb of the command."""

    options: type
    run: Callable[..., int]
    usage: str
    path: str | None = "circuit"  # the field of the first word without `=`
    more: str | None = None  # the field of all further words without `=`


VERBS = {
    "verify": Verb(VerifyOptions, verify, "ddppo-circuit verify <circuit> <circuit>", more="others"),
    "show": Verb(ShowOptions, show, "ddppo-circuit show <circuit> [key=value ...]"),
    "merge": Verb(MergeOptions, merge, "ddppo-circuit merge <circuit> out=<file>"),
    "optimise": Verb(OptimiseOptions, optimise, OPTIMISE_USAGE),
    "compare": Verb(ComparisonOptions, compare, _COMPARE, more="results"),
    "replay": Verb(ReplayOptions, replay, _REPLAY, more="rewrites"),
    "rules": Verb(RulesOptions, search_rules, RULES_USAGE, path=None),
}


@door()
def main() -> None:
    """Run the command line and exit; the usage lists the exit codes."""
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
    if word not in VERBS:
        known = ", ".join(VERBS)
        raise ConfigError(
            f"{word}{near(word, list(VERBS))} is no verb: ddppo-circuit is followed by one of {known}"
            if word
            else f"nothing to do: ddppo-circuit is followed by one of {known}; --help says more"
        )
    # All verbs parse their options in the same way.
    verb = VERBS[word]
    options: Any = parse(verb.options, arguments[1:], usage=verb.usage, path=verb.path, more=verb.more)
    return verb.run(options)
