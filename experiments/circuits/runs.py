"""Runs of the studies here: one circuit, one seed, one way, for so many minutes; and what they found, checked.

A run has a folder of its own, outputs/circuits/<way>/<circuit>_<seed>. It is done if that holds done.json: what is
started again does what is missing.
"""

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddppo.circuits import Circuit
from ddppo.circuits.equivalence import verify
from ddppo.circuits.qasm import as_qasm, parse, write
from ddppo.circuits.rewriting import Rewriter
from ddppo.circuits.rules import packaged
from ddppo.circuits.sources import program
from ddppo.envs.tasks.circuit.found import replayed
from ddppo.files import write_json, write_text

HERE = Path(__file__).resolve().parent
RUNS = Path("outputs/circuits")
TO_STOP_S = 120  # how long an iteration and its saving may last after the time is over


@dataclass(frozen=True, slots=True)
class Way:
    """How circuits are made smaller: a training with these overrides, or of None rewriting at random."""

    name: str
    overrides: tuple[str, ...] | None = ()


PPO, RANDOM = Way("ppo"), Way("random", None)


@dataclass(frozen=True, slots=True)
class Point:
    """One improvement: the cost, when."""

    cost: float
    wall_s: float
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
    rewrites: tuple[tuple[int, int], ...]
    verified_by: str


def folder(way: Way, circuit: str, seed: int) -> Path:
    return RUNS / way.name / f"{circuit}_{seed}"


def do(way: Way, circuit: str, seed: int, minutes: float, world_size: int) -> None:
    """Run it, unless it is done."""
    here = folder(way, circuit, seed)
    if (here / "done.json").exists():
        return
    command = (
        optimising(here, circuit, seed, minutes, world_size)
        if way.overrides is None
        else training(here, circuit, seed, world_size, way.overrides)
    )
    here.mkdir(parents=True, exist_ok=True)
    print(" ".join(command), flush=True)
    before, began = cpu_s(), time.monotonic()
    with open(here / "said.txt", "w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            code = process.wait(60 * minutes + (TO_STOP_S if way.overrides is None else 0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            code = process.wait(TO_STOP_S)
    if code not in (0, 128 + signal.SIGTERM):
        sys.exit(f"exit code {code}: {here / 'said.txt'} says why")
    took = {"minutes": minutes, "wall_s": time.monotonic() - began, "cpu_s": cpu_s() - before}
    write_json(here / "done.json", {**took, "command": command})


def training(here: Path, circuit: str, seed: int, world_size: int, overrides: Iterable[str]) -> list[str]:
    """Return the command of a training that goes on until it is stopped."""
    train = [sys.executable, "-m", "ddppo.train", "experiment=circuits/train", f"hydra.run.dir={here}"]
    return [*train, f"env.circuit={circuit}", f"seed={seed}", f"dist.world_size={world_size}", *overrides]


def optimising(here: Path, circuit: str, seed: int, minutes: float, workers: int) -> list[str]:
    """Return the command that rewrites at random for so many minutes."""
    optimise = [sys.executable, "-m", "ddppo.circuit", "optimise", circuit, f"out={here / 'smaller.qasm'}"]
    rewrites = f"rewrites={here / 'rewrites.json'}"
    return [*optimise, f"minutes={minutes}", f"seed={seed}", f"workers={workers}", rewrites]


def cpu_s() -> float:
    """Return the CPU seconds of all processes that this one started, and those that they did, once they ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def result(way: Way, circuit: str, seed: int, rewriter: Rewriter) -> Result:
    """Return what the run found, its rewrites repeated and the circuit that they lead to compared with the original."""
    here = folder(way, circuit, seed)
    done = json.loads((here / "done.json").read_text())
    original = program(circuit).circuit
    found = said_of(here / "rewrites.json" if way.overrides is None else best_of(here), original)
    assert parse(found["original"]).circuit == original, f"{here} is of another circuit than {circuit}"
    rewrites = tuple((int(node), int(rule)) for node, rule in found["rewrites"])
    smaller = replayed(rewriter, original, rewrites)
    assert len(smaller) == found["cost"], f"{here}: the rewrites lead to {len(smaller)} gates"
    verdict = verify(original, smaller)
    assert verdict.is_equal, f"{here}: {verdict}"
    how = f"random states, wrong below {verdict.chance:.0e}" if verdict.chance else "the unitary"
    points = tuple(Point(p["cost"], p["wall_s"], p["env_steps"]) for p in found["improvements"])
    return Result(
        way.name, circuit, seed, done["minutes"], done["cpu_s"], points, smaller, rewrites, f"replayed, {how}"
    )


def best_of(run: Path) -> Path:
    """Return the file of the best circuit of a run folder, which is there once one was found."""
    return next((run / "best").glob("*.json"), run / "best" / "none.json")


def said_of(path: Path, original: Circuit) -> dict[str, Any]:
    """Return what a file says of the best circuit; without a file that is the original."""
    if path.exists():
        return json.loads(path.read_text())
    return {"original": as_qasm(original), "cost": len(original), "improvements": [], "rewrites": []}


def results(ways: Iterable[Way], circuits: Sequence[str], seeds: Sequence[int]) -> list[Result]:
    """Return what the runs found that are done, each checked."""
    rewriter = Rewriter(packaged().rules)
    of = [(way, circuit, seed) for way in ways for circuit in circuits for seed in seeds]
    return [result(*each, rewriter) for each in of if (folder(*each) / "done.json").exists()]


def keep(found: Result, out: Path) -> None:
    """Write the circuit, and the rewrites that lead to it, into the study's own folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{found.circuit_name}_{found.way}_{found.seed}"
    write(found.circuit, path.with_suffix(".qasm"))
    original = as_qasm(program(found.circuit_name).circuit)
    said = {"original": original, "cost": len(found.circuit), "rewrites": found.rewrites}
    write_text(path.with_suffix(".json"), json.dumps(said) + "\n")


def given(arguments: Sequence[str], **defaults: str) -> dict[str, str]:
    """Return the settings of a command line, key=value."""
    pairs = dict(argument.split("=", 1) for argument in arguments)
    unknown = set(pairs) - set(defaults)
    if unknown:
        sys.exit(f"{', '.join(sorted(unknown))}: no setting; there are {', '.join(defaults)}")
    return {**defaults, **pairs}
