"""Runs of the studies here: one circuit, one seed, one way, for so many minutes of CPU; and what they found, checked.

A run has a folder of its own, outputs/circuits/<minutes>_minutes/<way>/<circuit>_<seed>. It is done if that holds
done.json: what is started again does what is missing.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.benchmarks import program
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import write
from ddppo.domains.circuits.quantum.rewriting import Rewriter, merged
from ddppo.domains.circuits.quantum.rules import packaged
from ddppo.domains.circuits.task.lineage import read_rewrites, repeated
from ddppo.files import write_json

HERE = Path(__file__).resolve().parent
RUNS = Path("outputs/circuits")
TO_STOP_S = 1800  # how long an iteration and its saving may last after the time is over, on a busy machine
POLL_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Way:
    """How circuits are made smaller: by a training, or else by `circuit optimise` at random, with these settings.

    is_merged: from the circuit with its rotations merged, rather than as it is or as the experiment says.
    """

    name: str
    settings: tuple[str, ...] = ()
    is_training: bool = True
    is_merged: bool = False
    experiment: str = "circuits/train"  # of a training


PPO, PPO_MERGED = Way("ppo"), Way("ppo_merged", is_merged=True)
# The published system, until it is stopped. It merges rotations by itself.
_ENDLESS = (
    *(
        "ppo.total_steps=1000000000",
        "dist.threads_per_rank=1",
        "eval.final_episodes=0",
        "checkpoint.every_steps=0",
    ),
    *("log.progress=none", "log.tensorboard=false"),
)
QUARL = Way("quarl", _ENDLESS, experiment="quarl")
UNIFORM = Way("uniform", ("bias=0",), is_training=False)  # every choice alike
RANDOM = Way("random", (), is_training=False)  # rules that add gates less often
RANDOM_MERGED = Way("random_merged", (), is_training=False, is_merged=True)  # what the door does by itself


@dataclass(frozen=True, slots=True)
class Point:
    """One improvement: the cost, when. cpu_s: seconds since the start, times the cores that the run had in the mean."""

    cost: float
    cpu_s: float
    env_steps: int


@dataclass(frozen=True, slots=True)
class Result:
    """What one run found. points: every improvement in order; circuit: the last, equal to the original."""

    way: str
    circuit_name: str
    seed: int
    minutes: float
    cpu_s: float
    points: tuple[Point, ...]
    circuit: Circuit
    file: Path | None
    num_rewrites: int
    verified_by: str


def folder(way: Way, circuit: str, seed: int, minutes: float) -> Path:
    return RUNS / f"{minutes:g}_minutes" / way.name / f"{circuit}_{seed}"


def do(way: Way, circuit: str, seed: int, minutes: float, world_size: int) -> None:
    """Run it until it and its processes have used so many minutes of CPU, unless it is done."""
    here = folder(way, circuit, seed, minutes)
    if (here / "done.json").exists():
        return
    if here.exists():  # of a run that was cut short; its minutes cannot be told any more
        shutil.rmtree(here)
    here.mkdir(parents=True)
    command = [
        *(training if way.is_training else optimising)(here, way, circuit, minutes),
        f"seed={seed}",
        f"{'dist.world_size' if way.is_training else 'workers'}={world_size}",
        *way.settings,
    ]
    print(" ".join(command), flush=True)
    began, used = time.monotonic(), 0.0
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(here / "said.txt", "w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environ)
        while process.poll() is None and used < 60 * minutes:
            time.sleep(POLL_S)
            used = max(used, cpu_s(process.pid))
        took = {"wall_s": time.monotonic() - began, "cpu_s": used}
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        code = process.wait(TO_STOP_S)
    if code not in (0, 128 + signal.SIGINT):
        raise SystemExit(f"exit code {code}: {here / 'said.txt'} says why")
    write_json(here / "done.json", {**took, "command": command})


def do_all(runs: Sequence[tuple[Way, str, int]], minutes: float, world_size: int, at_once: int) -> None:
    """Run what is not done of (way, circuit, seed), some side by side: time is counted in minutes of CPU.

    If one fails, those under way are finished, no further one begins, and its error is raised.
    """
    with ThreadPoolExecutor(at_once) as pool:
        under_way = [pool.submit(do, *run, minutes, world_size) for run in runs]
        wait(under_way, return_when=FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
    for run in under_way:
        if not run.cancelled():
            run.result()


def training(here: Path, way: Way, circuit: str, minutes: float) -> list[str]:
    """Return the command of a training that goes on until it is stopped."""
    if way.is_merged:
        write(merged(program(circuit).circuit), path := here / f"{circuit}.qasm")
        circuit = str(path)
    train = [sys.executable, "-m", "ddppo.train", f"experiment={way.experiment}", f"hydra.run.dir={here}"]
    return [*train, f"env.circuit={circuit}"]


def optimising(here: Path, way: Way, circuit: str, minutes: float) -> list[str]:
    """Return the command that rewrites at random until it is stopped."""
    optimise = [
        sys.executable,
        "-m",
        "ddppo.domains.circuits",
        "optimise",
        circuit,
        f"out={here / 'smaller.qasm'}",
    ]
    start = f"start={'merge' if way.is_merged else 'given'}"
    long = f"minutes={100 * minutes:g}"
    return [*optimise, "learn=false", f"rewrites={here / 'rewrites.json'}", start, long]


def cpu_s(root: int) -> float:
    """Return the CPU seconds of a process and all that it started, as far as they are there or were waited for."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))  # own and of children waited for
    of, found = {root}, 0
    while len(of) > found:
        found = len(of)
        of |= {process for process, parent in parents.items() if parent in of}
    return sum(ticks.get(process, 0) for process in of) / _TICKS


def result(way: Way, circuit: str, seed: int, minutes: float, rewriter: Rewriter) -> Result | None:
    """Return what the run found, its rewrites repeated and the circuit that they lead to compared with the original.

    None where it is not done. A training that found nothing has the circuit that it began from.
    """
    here = folder(way, circuit, seed, minutes)
    if not (here / "done.json").exists():
        return None
    original = program(circuit).circuit
    is_of_merged = way.is_training and way.is_merged  # its original is that; `optimise` merges by itself
    start = merged(original) if is_of_merged else original
    path = next((here / "best").glob("*.json"), None) if way.is_training else here / "rewrites.json"
    took = json.loads((here / "done.json").read_text())
    cores = took["cpu_s"] / took["wall_s"]
    points, smaller, num_rewrites = (), start, 0
    if path is not None:
        held, said = read_rewrites(path), json.loads(path.read_text())
        smaller, num_rewrites = repeated(held, start, rewriter), len(held.rewrites)
        points = tuple(Point(p["cost"], p["wall_s"] * cores, p["env_steps"]) for p in said["improvements"])
        assert len(smaller) == said["cost"], f"{path}: the rewrites lead to {len(smaller)} gates"
    verdict = verify(original, smaller)
    assert verdict.is_equal, f"{here}: {verdict}"
    how = f"random states, wrong below {verdict.chance:.0e}" if verdict.chance else "the unitary"
    return Result(
        way.name,
        circuit,
        seed,
        minutes,
        took["cpu_s"],
        points,
        smaller,
        path,
        num_rewrites,
        f"replayed, {how}",
    )


def results(
    ways: Iterable[Way], circuits: Sequence[str], seeds: Sequence[int], minutes: float
) -> list[Result]:
    """Return what the runs found that are done, each checked."""
    rewriter = Rewriter(packaged().rules)
    of = [(way, circuit, seed, minutes) for way in ways for circuit in circuits for seed in seeds]
    return [found for each in of if (found := result(*each, rewriter)) is not None]


def keep(found: Result, out: Path) -> None:
    """Write the circuit, and the file of rewrites that lead to it, into the study's own folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{found.circuit_name}_{found.way}_{found.seed}"
    write(found.circuit, path.with_suffix(".qasm"))
    if found.file is not None:
        path.with_suffix(".json").write_text(json.dumps(json.loads(found.file.read_text())) + "\n")


def given(arguments: Sequence[str], **defaults: str) -> dict[str, str]:
    """Return the settings of a command line, key=value."""
    pairs = dict(argument.split("=", 1) for argument in arguments)
    unknown = set(pairs) - set(defaults)
    if unknown:
        sys.exit(f"{', '.join(sorted(unknown))}: no setting; there are {', '.join(defaults)}")
    return {**defaults, **pairs}
