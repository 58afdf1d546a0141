"""The verb `optimise` of `python -m ddppo.domains.circuits`: a circuit made smaller, at random or by a run's policy."""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from ddppo.config import setting
from ddppo.domains.circuits.optimise.of_run import OfRun, of_run
from ddppo.domains.circuits.optimise.rewrites import STARTS, started
from ddppo.domains.circuits.optimise.search import Best, Budget, search
from ddppo.domains.circuits.optimise.walk import Walk, random_walk
from ddppo.domains.circuits.optimise.workers import Workers
from ddppo.domains.circuits.quantum import Circuit, equivalence
from ddppo.domains.circuits.quantum.costs import Cost, counts, measures
from ddppo.domains.circuits.quantum.costs import cost as cost_named
from ddppo.domains.circuits.quantum.qasm import as_qasm, write
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.quantum.sources import noted
from ddppo.domains.circuits.task.starts import rewriter as rewriter_of
from ddppo.domains.circuits.task.starts import rules_digest
from ddppo.errors import ConfigError, StorageError, TrainingError
from ddppo.files import write_json
from ddppo.options import parse
from ddppo.processes.machine import available_cores
from ddppo.processes.signals import StopRequest

_USAGE = """ddppo-circuit optimise <circuit> out=<file> [minutes=10] [run=<run folder>] [key=value ...]
ddppo-circuit optimise my.qasm out=smaller.qasm minutes=10 cost=cx_count
Ctrl-C ends the search early; what was found is verified and written all the same. Another leaves out the verifying."""
_MINUTES = 1.0
_BIAS = 3.0  # of 0 to 6 the best over mod5_4, vbe_adder_3 and gf2^4_mult after 20,000 steps, by a little


@dataclass(slots=True)
class OptimiseOptions:
    circuit: str = setting(MISSING, "a circuit")
    out: str = setting(MISSING, "the OpenQASM 2 file that is written")
    rewrites: str | None = setting(None, "the file that the rewrites go to, for `replay`")
    minutes: float | None = setting(None, f"how long to search; {_MINUTES:g} if null", above=0)
    steps: int | None = setting(
        None, "of every worker, instead of minutes: the result then follows from seed and workers", low=1
    )
    run: str | None = setting(None, "a run folder of env=circuit, whose policy rewrites; at random if null")
    checkpoint: str = setting("last", "of the run: last, best, or the path of a checkpoint file")
    cost: str | None = setting(
        None,
        "what is to become small: gate_count, cx_count, cx_weighted, depth or my_pkg:cost; gate_count, or the run's, "
        "if null",
    )
    rules: str | None = setting(None, "a file of rules; the package's or the run's if null")
    start: str = setting(
        "merge", "merge the rotations first, or begin from the circuit as given", choices=STARTS
    )
    bias: float | None = setting(
        None,
        f"of random rewrites: one that adds n gates has chance ~ e^(-bias n); 0 is uniform, {_BIAS:g} if null",
        low=0,
    )
    seed: int = setting(0, "of all that is drawn", low=0)
    workers: int | None = setting(None, "processes; as many as there are cores if null", low=1)


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done, once it is known that it can be. keywords: of the environments, all but the circuit."""

    original: Circuit
    start: Circuit
    cost_name: str
    cost: Cost
    rewriter: Rewriter
    keywords: dict[str, Any]
    policy: OfRun | None


def main(arguments: Sequence[str]) -> int:
    """Search, verify, write, and print what came of it; return the exit code."""
    options = parse(OptimiseOptions, arguments, usage=_USAGE, path="circuit")
    job = _job(options)
    print(f"{options.circuit}: {counts(job.original)}", flush=True)
    if job.start is not job.original:
        print(f"rotations merged: {counts(job.start)}", flush=True)
    best = Best(job.start, job.start, float(job.cost(job.start)))
    if len(job.start):
        tried = _searched(job, options, best)
        print(f"{tried:,} rewrites tried, {len(best.rewrites)} of them lead to the best", flush=True)
    return _finish(job, options, best)


def _job(options: OptimiseOptions) -> Job:
    """Check all that can be checked before a process starts. Raises ConfigError."""
    if options.minutes is not None and options.steps is not None:
        raise ConfigError(
            f"minutes={options.minutes:g} and steps={options.steps} both say how long: give one of them"
        )
    if options.run is None and options.checkpoint != "last":
        raise ConfigError(f"checkpoint={options.checkpoint} has no effect without run=: leave it out")
    if options.run is not None and options.bias is not None:
        raise ConfigError(
            f"bias={options.bias:g} has no effect with run=, whose policy chooses: leave it out"
        )
    for name in ("out", "rewrites"):
        path = getattr(options, name)
        if path is not None and (not Path(path).absolute().parent.is_dir() or Path(path).is_dir()):
            raise ConfigError(
                f"{name}={path}: there is no such folder, or it is one itself: name a file in one that is"
            )
    if options.rewrites is not None and Path(options.rewrites).absolute() == Path(options.out).absolute():
        raise ConfigError(f"rewrites={options.rewrites}: out= is the same file: name another")
    original = noted(options.circuit).circuit
    if not len(original):
        raise ConfigError(f"circuit={options.circuit}: it has no gates, so there is nothing to make smaller")
    policy = None if options.run is None else of_run(options.run, options.checkpoint, options.rules)
    keywords: dict[str, Any] = {} if policy is None else dict(policy.keywords)
    keywords["cost"] = options.cost or keywords.get("cost", "gate_count")
    keywords["rules"] = options.rules or keywords.get("rules")
    cost = cost_named(keywords["cost"])
    start = started(original, options.start)
    if start == original or cost(start) > cost(original):  # a rotation that moves may add depth
        start = original
    return Job(original, start, keywords["cost"], cost, rewriter_of(keywords["rules"]), keywords, policy)


def _searched(job: Job, options: OptimiseOptions, best: Best) -> int:
    """Search from the start, and return how many rewrites were tried."""
    minutes = _MINUTES if options.minutes is None and options.steps is None else options.minutes
    budget = Budget(math.inf if minutes is None else 60 * minutes, options.steps or math.inf)
    with tempfile.TemporaryDirectory() as folder, StopRequest() as stop:
        path = Path(folder) / "start.qasm"  # environments take circuits by their paths
        write(job.start, path)
        keywords = {**job.keywords, "circuit": str(path)}
        number = options.workers or available_cores()
        with Workers([_walk(job, options, keywords, index) for index in range(number)]) as workers:
            stop.listen()
            long = f"{options.steps:,} steps each" if minutes is None else f"{minutes:g} minutes"
            who = "by the run's policy" if job.policy else "at random"
            print(f"{number} workers rewrite {who} for {long}; Ctrl-C ends it early", flush=True)
            return search(workers, best, job.rewriter, job.cost, budget, stop)


def _walk(job: Job, options: OptimiseOptions, keywords: dict[str, Any], index: int) -> Callable[[], Walk]:
    if job.policy is None:
        bias = _BIAS if options.bias is None else options.bias
        return partial(random_walk, keywords, bias, index, options.seed)
    return partial(_policy_walk, keywords, job.policy, index, options.seed)


def _policy_walk(keywords: dict[str, Any], policy: OfRun, index: int, seed: int) -> Walk:
    from ddppo.domains.circuits.optimise.policy import policy_walk  # torch, in the process that walks

    return policy_walk(keywords, policy.config, policy.checkpoint, index, seed)


def _finish(job: Job, options: OptimiseOptions, best: Best) -> int:
    """Verify what was found, write it, and say what it is. Raises TrainingError where it is not equal."""
    before = float(job.cost(job.original))
    if best.cost >= before:
        write(job.original, options.out)
        _write_rewrites(job, options, Best(job.original, job.original, before), "given", "it is the original")
        print(
            f"not made smaller: {job.cost_name} {before:g} is the least that was found; {options.out} is the circuit "
            "as given"
        )
        return 0
    print("verifying; Ctrl-C leaves it out", flush=True)
    verified = _verified(job, best)
    try:
        write(best.circuit, options.out)
    except StorageError:  # a disk that is full by now: what was found is not lost
        print(as_qasm(best.circuit), end="")
        raise
    start = "given" if job.start is job.original else "merge"
    _write_rewrites(job, options, best, start, verified)
    print(f"{options.out}: {counts(best.circuit)}\n{job.cost_name} {before:g} -> {best.cost:g}\n{verified}")
    return 0


def _verified(job: Job, best: Best) -> str:
    """Return how the best is known to be equal to the original; its rewrites were repeated when it was told of."""
    try:
        verdict = equivalence.verify(job.original, best.circuit)
    except (ConfigError, KeyboardInterrupt) as e:  # more qubits than memory holds, or than somebody waits for
        why = str(e) or "interrupted"
        return f"equal by its rewrites, which were repeated, each by a verified rule; not compared as a whole: {why}"
    if not verdict.is_equal:
        raise TrainingError(
            f"{len(best.rewrites)} rewrites led to a circuit that is {verdict}: a rule or the rewriting is wrong, and "
            "nothing was written"
        )
    return str(verdict)


def _write_rewrites(job: Job, options: OptimiseOptions, best: Best, start: str, verified: str) -> None:
    """Write how the circuit was found, in the form of a run's best/<circuit>.json, with the start besides."""
    if options.rewrites is None:
        return
    said = {
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
    write_json(Path(options.rewrites), said)
