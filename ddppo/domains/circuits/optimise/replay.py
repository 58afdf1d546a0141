"""The verb `replay` of `ddppo-circuit`: repeats the rewrites of a file, and verifies what they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from ddppo.config import setting
from ddppo.domains.circuits.optimise import rewrites as files
from ddppo.domains.circuits.quantum import equivalence
from ddppo.domains.circuits.quantum.costs import counts
from ddppo.domains.circuits.quantum.qasm import write
from ddppo.domains.circuits.quantum.sources import noted
from ddppo.domains.circuits.task.starts import rewriter
from ddppo.errors import ConfigError
from ddppo.options import parse

_USAGE = """python -m ddppo.domains.circuits replay <circuit> <rewrites> [out=<file>] [rules=<file>]
The rewrites are a file that `optimise` wrote by rewrites=, or a run's best/<circuit>.json."""


@dataclass(slots=True)
class ReplayOptions:
    circuit: str = setting(MISSING, "the original circuit")
    rewrites: list[str] = setting(meaning="the file of rewrites", factory=list)
    out: str | None = setting(None, "the OpenQASM 2 file that what they make is written to")
    rules: str | None = setting(None, "the file of rules that they were found by; the package's if null")


def main(arguments: Sequence[str]) -> int:
    """Repeat, verify, write; return 0 where the circuit is equal to the original, else 1."""
    options = parse(ReplayOptions, arguments, usage=_USAGE, path="circuit", more="rewrites")
    if len(options.rewrites) != 1:
        raise ConfigError(
            f"replay takes a circuit and a file of rewrites, and {len(options.rewrites)} files are given"
        )
    original = noted(options.circuit).circuit
    held = files.read(Path(options.rewrites[0]))
    made = files.repeated(held, original, rewriter(options.rules))
    start = " of the circuit with its rotations merged" if held.start == "merge" else ""
    print(f"{options.circuit}: {counts(original)}")
    print(f"after {len(held.rewrites)} rewrites{start}: {counts(made)}", flush=True)
    verdict = equivalence.verify(original, made)
    print(verdict)
    if options.out is not None and verdict.is_equal:
        write(made, options.out)
    return 0 if verdict.is_equal else 1
