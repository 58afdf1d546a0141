"""Quarl as published (experiment=quarl) beside random rewriting in the same time, both from merged rotations.

PYTHONPATH=. .venv/bin/python experiments/circuits/quarl.py run seeds=0,1 at_once=2   # what is missing; 24 CPU minutes
PYTHONPATH=. .venv/bin/python experiments/circuits/quarl.py write

`run` gives each run 2 minutes of CPU; a training then finishes its iteration. `write` repeats the rewrites of each
best circuit, compares it with the original, and writes quarl.csv beside this file: a row for each improvement.
"""

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.quantum.rules import packaged
from ddppo.domains.circuits.task.lineage import read_rewrites, repeated

sys.path.insert(0, str(Path(__file__).resolve().parent))
from runs import HERE, QUARL, RANDOM_MERGED, Way, do_all, folder, given

WAYS = (QUARL, RANDOM_MERGED)
CIRCUITS = ("tof_3", "barenco_tof_3", "mod5_4")
MINUTES = 2


def rows(way: Way, circuit: str, seed: int, rewriter: Rewriter) -> list[dict[str, object]]:
    """Return the improvements of a run, its best circuit verified; none if it has found nothing yet."""
    here = folder(way, circuit, seed, MINUTES)
    path = here / "best" / f"{circuit}.json" if way.is_training else here / "rewrites.json"
    if not path.exists():
        return []
    original, held = benchmark(circuit), read_rewrites(path)
    smaller = repeated(held, original, rewriter)
    verdict = verify(original, smaller)
    assert verdict.is_equal, f"{here}: {verdict}"
    assert len(smaller) == held.improvements[-1]["cost"], path
    # CPU seconds of the whole run; none for a training that is under way, or that took longer than runs.py waited.
    done = here / "done.json"
    cpu_s = f"{json.loads(done.read_text())['cpu_s']:.0f}" if done.exists() else ""
    return [
        {"circuit": circuit, "way": way.name, "seed": seed, "run_cpu_s": cpu_s, "gates": int(each["cost"])}
        | {"env_steps": int(each["env_steps"]), "wall_s": f"{each['wall_s']:.1f}"}
        for each in held.improvements
    ]


def write(circuits: Sequence[str], seeds: Sequence[int]) -> None:
    rewriter = Rewriter(packaged().rules)
    found = [
        row
        for circuit in circuits
        for way in WAYS
        for seed in seeds
        for row in rows(way, circuit, seed, rewriter)
    ]
    with open(HERE / "quarl.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    print((HERE / "quarl.csv").read_text())


def main(verb: str, *arguments: str) -> None:
    settings = given(arguments, circuits=",".join(CIRCUITS), seeds="0,1", at_once="2")
    circuits, seeds = settings["circuits"].split(","), [int(seed) for seed in settings["seeds"].split(",")]
    if verb == "write":
        write(circuits, seeds)
        return
    runs = [(way, circuit, seed) for seed in seeds for circuit in circuits for way in WAYS]
    do_all(runs, MINUTES, 1, int(settings["at_once"]))


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["write"]))
