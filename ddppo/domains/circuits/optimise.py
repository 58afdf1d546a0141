"""The verb `optimise` of `ddppo-circuit`: check the options, search (workers.py), verify, write.

`OptimiseOptions` are the options, `Job` the checked inputs. Read `optimise` first.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from ddppo.config.fields import setting
from ddppo.domains.circuits.env_walk import (
    AT_RANDOM,
    BIAS,
    RunPolicy,
    Walk,
    learning_walk,
    policy_of_run,
    policy_walk,
    random_walk,
)
from ddppo.domains.circuits.quantum import Circuit, equivalence
from ddppo.domains.circuits.quantum.benchmarks import noted
from ddppo.domains.circuits.quantum.costs import COSTS, Cost, by_gate, counts, measures, qualified
from ddppo.domains.circuits.quantum.costs import cost as cost_named
from ddppo.domains.circuits.quantum.coupling import coupling as coupling_named
from ddppo.domains.circuits.quantum.gate_sets import GATE_SETS, NAM, GateSet
from ddppo.domains.circuits.quantum.gate_sets import gate_set as gate_set_named
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm, parse, write
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.task.board import STARTS, rewriter, rules_digest
from ddppo.domains.circuits.task.lineage import started
from ddppo.domains.circuits.walk import FastWalk
from ddppo.domains.circuits.workers import BestSoFar, Budget, Workers, search
from ddppo.errors import ConfigError, StorageError, TrainingError
from ddppo.files import write_json
from ddppo.processes.machine import available_cores
from ddppo.processes.signals import StopRequest

OPTIMISE_USAGE = """ddppo-circuit optimise <circuit> out=<file> [minutes=10] [run=<run folder>] [key=value ...]
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
    gate_set: str = setting(NAM.name, "of the file that is written and of the cost", choices=tuple(GATE_SETS))
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
    by_rules = rewriter(keywords["rules"], keeps_pairs=keywords["coupling"] is not None)
    return Job(original, start, keywords["cost"], cost, by_rules, keywords, gate_set, policy)


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
    read_again = parse(as_qasm(best.circuit, job.gate_set)).circuit  # to compare the translation, too
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
