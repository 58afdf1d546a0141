"""The command `ddppo-circuit`: compares, draws and shrinks circuits of OpenQASM files.

One dataclass of options and one function for each verb; VERBS at the end lists them, and `run` dispatches.
"""

import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import MISSING

from ddppo.config.fields import setting
from ddppo.domains.circuits.optimise import (
    AT_RANDOM,
    BIAS,
    BestSoFar,
    Budget,
    RunPolicy,
    Walk,
    Workers,
    learning_walk,
    policy_of_run,
    policy_walk,
    random_walk,
    read_rewrites,
    repeated,
    rewriter_of,
    search,
    started,
)
from ddppo.domains.circuits.page import ComparisonOptions, compare
from ddppo.domains.circuits.quantum import Circuit, equivalence
from ddppo.domains.circuits.quantum.benchmarks import noted
from ddppo.domains.circuits.quantum.costs import COSTS, Cost, by_gate, counts, measures, qualified
from ddppo.domains.circuits.quantum.costs import cost as cost_named
from ddppo.domains.circuits.quantum.coupling import coupling as coupling_named
from ddppo.domains.circuits.quantum.drawing import as_svg, as_text
from ddppo.domains.circuits.quantum.gate_sets import GATE_SETS, NAM, GateSet
from ddppo.domains.circuits.quantum.gate_sets import gate_set as gate_set_named
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, write
from ddppo.domains.circuits.quantum.qasm_reader import parse as parse_qasm
from ddppo.domains.circuits.quantum.rewriting import Rewriter, merged
from ddppo.domains.circuits.quantum.rule_search import RULES_USAGE, RulesOptions, search_rules
from ddppo.domains.circuits.task.board import STARTS, rules_digest
from ddppo.domains.circuits.task.board import rewriter as rewriter_named
from ddppo.domains.circuits.walk import FastWalk
from ddppo.errors import ConfigError, StorageError, TrainingError, near
from ddppo.files import write_json, write_text
from ddppo.options import door, parse
from ddppo.package import versions
from ddppo.processes.machine import available_cores
from ddppo.processes.signals import StopRequest
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


_OPTIMISE = """ddppo-circuit optimise <circuit> out=<file> [minutes=10] [run=<run folder>] [key=value ...]
ddppo-circuit optimise my.qasm out=smaller.qasm minutes=10 cost=cx_count
Ctrl-C ends the search early; the best circuit is verified and written. A second Ctrl-C skips the verification."""
_MINUTES = 1.0
_MOST_BIAS = 50.0  # e^(8 bias), for a rule that removes 8 gates, has to be a number


@dataclass(slots=True)
class OptimiseOptions:
    circuit: str = setting(MISSING, "a circuit")
    out: str = setting(MISSING, "the OpenQASM 2 file that is written")
    rewrites: str | None = setting(None, "the file that the rewrites go to, for `replay`")
    minutes: float | None = setting(None, f"how long to search; {_MINUTES:g} if null", above=0)
    steps: int | None = setting(
        None, "of every worker, instead of minutes: the result then follows from seed and workers", low=1
    )
    run: str | None = setting(
        None, "a run folder of env=circuit: its policy rewrites, instead of walks that learn here"
    )
    checkpoint: str = setting("last", "of the run: last, best, or the path of a checkpoint file")
    cost: str | None = setting(
        None,
        f"the number to make small: {', '.join(COSTS)}, a sum such as gate_count+2*cx_count, or my_pkg:cost; "
        "gate_count, or the run's, if null",
    )
    gate_set: str = setting(NAM.name, "of the file that is written and of the cost", choices=_GATE_SETS)
    rules: str | None = setting(
        None, "a file of rules, or an ECC file of Quartz (.json); the package's or the run's if null"
    )
    coupling: str | None = setting(
        None, "pairs of qubits that may have a cx: line, ring, grid:3x4, 0-1,1-2, or a file; all if null"
    )
    start: str = setting(
        "merge", "merge the rotations first, or begin from the circuit as given", choices=STARTS
    )
    bias: float | None = setting(
        None,
        f"a rewrite that adds n gates has chance ~ e^(-bias n); 0 is uniform, {BIAS:g} if null; not with run=",
        low=0,
        high=_MOST_BIAS,
    )
    learn: bool | None = setting(
        None,
        "prefer rewrites as they paid on other circuits, and learn more on this one; false: choose at random. true if "
        "null and the cost is a sum over the gates h, x, cx and rz; depth and costs in another gate set are none",
    )
    beside_random: bool = setting(
        False,
        "afterwards, search at random from the same start, with the same minutes or steps, and say what that finds",
    )
    seed: int = setting(0, "of all that is drawn", low=0)
    workers: int | None = setting(None, "processes; as many as there are cores if null", low=1)


@dataclass(frozen=True, slots=True)
class Job:
    """The inputs of a search, all of them checked."""

    original: Circuit
    start: Circuit  # the original, or the original with merged rotations
    cost_name: str
    cost: Cost
    rewriter: Rewriter
    keywords: dict[str, Any]  # of CircuitEnv, without the circuit
    gate_set: GateSet  # of the file that is written
    policy: RunPolicy | None  # None: random rewrites


def optimise(options: OptimiseOptions) -> int:
    """Make a circuit smaller: search by rewrites, verify, write, and print a summary."""
    # 1. Check the options and read all files.
    job = _job(options)
    print(f"{options.circuit}: {counts(job.original, job.gate_set)}", flush=True)
    if job.start is not job.original:
        print(f"rotations merged: {counts(job.start, job.gate_set)}", flush=True)
    # 2. Search. A circuit that merging has emptied is the best there is.
    best = BestSoFar(job.start, job.start, float(job.cost(job.start)))
    is_stopped = False
    if len(job.start):
        tried, is_stopped = _search(job, options, best)
        print(f"{tried:,} rewrites tried, {len(best.rewrites)} of them lead to the best", flush=True)
    # 3. Verify and write.
    code = _finish(job, options, best)
    # 4. The same again at random, to compare with.
    if options.beside_random and is_stopped:
        print("at random: left out, because a signal ended the search above")
    elif options.beside_random and len(job.start):
        at_random = BestSoFar(job.start, job.start, float(job.cost(job.start)))
        _search(replace(job, policy=None), replace(options, learn=False), at_random)
        print(f"at random: {job.cost_name} {at_random.cost:g}; above: {best.cost:g}")
    return code


def _job(options: OptimiseOptions) -> Job:
    """Check all options and read all files, before a process starts. Raises ConfigError."""
    # 1. Options that exclude one another.
    if options.minutes is not None and options.steps is not None:
        raise ConfigError(
            f"minutes={options.minutes:g} and steps={options.steps} both say how long: give one of them"
        )
    if options.run is None and options.checkpoint != "last":
        raise ConfigError(f"checkpoint={options.checkpoint} has no effect without run=: leave it out")
    if options.run is not None and options.learn:
        raise ConfigError(
            "learn=true with run=: the run's policy chooses and learns nothing more: leave one of both out"
        )
    if options.run is not None and options.bias is not None:
        raise ConfigError(
            f"bias={options.bias:g} has no effect with run=, as its policy chooses: leave it out"
        )
    # 2. Files to write: a mistake there must not show after the search.
    for name in ("out", "rewrites"):
        path = getattr(options, name)
        if path is not None and (not Path(path).absolute().parent.is_dir() or Path(path).is_dir()):
            raise ConfigError(
                f"{name}={path}: there is no such folder, or it is one itself: name a file in one that is"
            )
    if options.rewrites is not None and Path(options.rewrites).absolute() == Path(options.out).absolute():
        raise ConfigError(f"rewrites={options.rewrites}: out= is the same file: name another")
    # 3. The circuit, and the settings of the task: the user's, else the run's, else the defaults.
    original = noted(options.circuit).circuit
    if not len(original):
        raise ConfigError(f"circuit={options.circuit}: it has no gates, so there is nothing to make smaller")
    policy = (
        None
        if options.run is None
        else policy_of_run(options.run, options.checkpoint, options.rules, options.coupling)
    )
    keywords: dict[str, Any] = dict(AT_RANDOM if policy is None else policy.keywords)
    gate_set = gate_set_named(options.gate_set)
    keywords["cost"] = qualified(options.cost or keywords.get("cost", "gate_count"), gate_set)
    keywords["rules"] = options.rules or keywords.get("rules")
    keywords["coupling"] = options.coupling or keywords.get("coupling")
    if keywords["coupling"] is not None:
        coupling_named(keywords["coupling"], original.num_qubits).check(original, options.circuit)
    cost = cost_named(keywords["cost"])
    can_learn = by_gate(keywords["cost"]) is not None
    if options.learn and not can_learn:
        raise ConfigError(
            f"learn=true with cost={keywords['cost']}: walks learn where the cost is a sum over the gates h, x, cx and "
            "rz: use learn=false"
        )
    if options.beside_random and policy is None and (options.learn is False or not can_learn):
        why = "learn=false" if can_learn else f"cost={keywords['cost']}, by which no walk learns"
        raise ConfigError(
            f"beside_random=true with {why}: the search is at random already: leave one of both out"
        )
    gate_set.of(original)  # raises ConfigError for a rotation that it cannot write
    start = started(original, options.start)
    if start == original or cost(start) > cost(original):  # merging moves rotations, which may add depth
        start = original
    rewriter = rewriter_named(keywords["rules"], keeps_pairs=keywords["coupling"] is not None)
    return Job(original, start, keywords["cost"], cost, rewriter, keywords, gate_set, policy)


def _search(job: Job, options: OptimiseOptions, best: BestSoFar) -> tuple[int, bool]:
    """Search from the start; return the number of rewrites tried, and whether a signal ended the search."""
    minutes = _MINUTES if options.minutes is None and options.steps is None else options.minutes
    budget = Budget(math.inf if minutes is None else 60 * minutes, options.steps or math.inf)
    with tempfile.TemporaryDirectory() as folder, StopRequest() as stop:
        path = Path(folder) / "start.qasm"  # CircuitEnv reads circuits from files
        write(job.start, path)
        keywords = {**job.keywords, "circuit": str(path), "start": "given"}  # merged already, if it is to be
        # Forked before Ctrl-C is handled here: the workers ignore it.
        number = options.workers or available_cores()
        with Workers([_walk(job, options, keywords, index) for index in range(number)]) as workers:
            stop.listen()
            long = f"{options.steps:,} steps each" if minutes is None else f"{minutes:g} minutes"
            s = "s" if number == 1 else ""  # of verbs
            how = (
                "by the run's policy"
                if job.policy
                else f"and learn{s}"
                if _learns(job, options)
                else "at random"
            )
            subject = "1 worker" if number == 1 else f"{number} workers"
            print(f"{subject} rewrite{s} {how} for {long}; Ctrl-C ends it early", flush=True)
            return search(workers, best, job.rewriter, job.cost, budget, stop), stop.requested


def _learns(job: Job, options: OptimiseOptions) -> bool:
    """Return whether walks learn: where they can, unless the user wants otherwise."""
    return job.policy is None and options.learn is not False and by_gate(job.cost_name) is not None


def _walk(
    job: Job, options: OptimiseOptions, keywords: dict[str, Any], index: int
) -> Callable[[], Walk | FastWalk]:
    if job.policy is None:
        bias = BIAS if options.bias is None else options.bias
        if _learns(job, options):
            return partial(learning_walk, keywords, bias, index, options.seed)
        return partial(random_walk, keywords, bias, index, options.seed)
    return partial(policy_walk, keywords, job.policy.config, job.policy.checkpoint, index, options.seed)


def _finish(job: Job, options: OptimiseOptions, best: BestSoFar) -> int:
    """Verify the best circuit, write it and print its numbers. Raises TrainingError if it is not equal."""
    # 1. Nothing smaller: write the original, so that the output file exists in every case.
    before = float(job.cost(job.original))
    if best.cost >= before:
        as_given = BestSoFar(job.original, job.original, before)
        # In another gate set, the file holds a translation, which is compared.
        verified = "it is the original" if job.gate_set is NAM else _verified(job, as_given)
        write(job.original, options.out, job.gate_set)
        _write_rewrites(job, options, as_given, "given", verified)
        print(
            f"not made smaller: {job.cost_name} {before:g} is the least that was found; {options.out} is the circuit "
            "as given"
        )
        if job.gate_set is not NAM:
            print(f"{counts(job.original, job.gate_set)}\n{verified}")
        return 0
    # 2. Verify, then write the circuit and its rewrites.
    print("verifying; Ctrl-C leaves it out", flush=True)
    verified = _verified(job, best)
    try:
        write(best.circuit, options.out, job.gate_set)
    except StorageError:  # the disk may be full by now: print the circuit, so that it is not lost
        print(as_qasm(best.circuit, job.gate_set), end="")
        raise
    start = "given" if job.start is job.original else "merge"
    _write_rewrites(job, options, best, start, verified)
    print(
        f"{options.out}: {counts(best.circuit, job.gate_set)}\n{job.cost_name} {before:g} -> {best.cost:g}\n{verified}"
    )
    return 0


def _verified(job: Job, best: BestSoFar) -> str:
    """Compare the best circuit with the original; return in words how it was verified.

    (`BestSoFar.update` has repeated its rewrites already.)
    """
    read_again = parse_qasm(as_qasm(best.circuit, job.gate_set)).circuit  # to compare the translation, too
    try:
        verdict = equivalence.verify(job.original, read_again, whole_qubits=equivalence.MOST_WHOLE_QUBITS)
    except (ConfigError, KeyboardInterrupt) as e:  # too many qubits for memory, or Ctrl-C
        why = str(e) or "interrupted"
        return f"equal by its rewrites, which were repeated, each by a verified rule; not compared as a whole: {why}"
    if not verdict.is_equal:
        raise TrainingError(
            f"{len(best.rewrites)} rewrites led to a circuit that is {verdict}: a rule or the rewriting is wrong, and "
            "nothing was written"
        )
    return str(verdict)


def _write_rewrites(job: Job, options: OptimiseOptions, best: BestSoFar, start: str, verified: str) -> None:
    """Write the file of rewrites: the format of a run's best/<circuit>.json, and the start."""
    if options.rewrites is None:
        return
    content = {
        "name": options.circuit,
        "cost": best.cost,
        **measures(best.circuit),
        "num_rewrites": len(best.rewrites),
        "original_cost": float(job.cost(job.original)),
        "original": as_qasm(job.original),
        "smaller": as_qasm(best.circuit),
        "verified": verified,
        "start": start,
        "rules": rules_digest(job.rewriter),
        "improvements": best.improvements,
        "rewrites": best.rewrites,
    }
    write_json(Path(options.rewrites), content)


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
    "optimise": Verb(OptimiseOptions, optimise, _OPTIMISE),
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
