"""Walks of one process from the circuit as it is: by a trained policy that never saw the circuit, and at random.

PYTHONPATH=. python experiments/circuits/walks.py run=<run folder> seeds=3 steps=16000 > walks.csv

Ways: `policy`, of the run; `same_buffers`, at random with the buffers and episodes of the run; `optimise`, at random as
`circuit optimise` does it; `power`, at random with draw=power and episodes of up to 600 steps. A row for every thousand
steps: the cost of the best circuit so far and the seconds of CPU since the walk began. Every last best is repeated from
the original by its rewrites and compared with it.
"""

import csv
import math
import sys
import time
from dataclasses import dataclass

from ddppo.config.fields import setting
from ddppo.domains.circuits.env_walk import AT_RANDOM, BIAS, Walk, policy_of_run, policy_walk, random_walk
from ddppo.domains.circuits.quantum.benchmarks import program
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.quantum.rules import packaged
from ddppo.domains.circuits.task.lineage import replayed
from ddppo.domains.circuits.walk import FastWalk, rewrites_of
from ddppo.options import parse

ROUND = 1000  # steps between two rows, and between two exchanges of messages


@dataclass(slots=True)
class Options:
    run: str = setting("", "run folder of the policy")
    circuits: str = setting("vbe_adder_3,gf2^4_mult", "names or files, separated by commas")
    ways: str = setting("policy,same_buffers,optimise,power", "which walks, separated by commas")
    seeds: int = setting(3, "number of seeds, from 0 on", low=1)
    steps: int = setting(16000, "of each walk", low=ROUND)


def walk_of(way: str, circuit: str, seed: int, options: Options) -> Walk | FastWalk:
    found = policy_of_run(options.run, "last", None)
    keywords = {"circuit": circuit, "cost": "gate_count"}
    if way == "policy":
        return policy_walk(found.keywords | keywords, found.config, found.checkpoint, 0, seed)
    if way == "same_buffers":
        return random_walk(found.keywords | keywords | {"observe": "graph"}, BIAS, 0, seed)
    return random_walk(keywords | (AT_RANDOM if way == "optimise" else {}), BIAS, 0, seed)


def main() -> None:
    options = parse(Options, sys.argv[1:], usage=__doc__ or "")
    rewriter = Rewriter(packaged().rules)
    table = csv.writer(sys.stdout)
    table.writerow(["circuit", "way", "seed", "steps", "cpu_s", "cost"])
    for circuit in options.circuits.split(","):
        original = program(circuit).circuit
        for seed in range(options.seeds):
            for way in options.ways.split(","):
                walk, began, last = walk_of(way, circuit, seed, options), time.process_time(), None
                messages: list[bytes] = []
                for number in range(options.steps // ROUND):
                    progress = walk.go(messages, ROUND, math.inf)
                    messages = progress.messages
                    if (
                        progress.rewrites is not None or progress.places is not None
                    ):  # places: of a walk in C++
                        last = progress
                    cpu_s = f"{time.process_time() - began:.2f}"
                    table.writerow([circuit, way, seed, (number + 1) * ROUND, cpu_s, f"{progress.cost:g}"])
                best = original
                if last is not None and last.places is not None:
                    best, _ = rewrites_of(rewriter, original, last.places)
                elif last is not None and last.rewrites is not None:
                    best = replayed(rewriter, original, last.rewrites)
                assert len(best) == progress.cost, (circuit, way, seed)
                assert verify(original, best).is_equal, (circuit, way, seed)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
