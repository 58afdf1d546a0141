"""Which update makes rewriting better than chance? Walks that learn while they walk, without the trainer.

PYTHONPATH=. python experiments/circuits/learning.py circuit=vbe_adder_3 steps=8000 seeds=4 > learning.csv

Each walk is one environment of `env=circuit` in one process: `random` chooses at random, `power` likewise with
draw=power and episodes of 600 steps; the others learn (ddppo/domains/circuits/walk_learning.py). An update can so be
tried in seconds; PPO's settings in conf/ppo/circuit.yaml follow what was found here.
"""

import csv
import math
import sys
import time
from dataclasses import dataclass
from typing import Any

from ddppo.config.fields import setting
from ddppo.domains.circuits.optimise import AT_RANDOM, learning_walk
from ddppo.domains.circuits.walk_learning import LearningRule
from ddppo.options import parse

ROUND, MARKS = 1000, (1000, 2000, 4000, 8000, 16000, 32000, 64000)
WAYS: dict[str, dict[str, Any]] = {  # name: what differs
    "random": {"rate": 0.0},
    "power": {"rate": 0.0},
    "learned": {},
    "slower": {"rate": 0.03},
    "faster": {"rate": 0.3},
    "one_step": {"lam": 0.0},  # A = r + gamma V(s') - V(s)
    "long": {"gamma": 0.97, "lam": 0.9},
    "narrow": {"limit": 1.5},
}


@dataclass(slots=True)
class Options:
    circuit: str = setting("vbe_adder_3", "name or file")
    ways: str = setting("random,power,learned", f"separated by commas, of {', '.join(WAYS)}")
    seeds: int = setting(3, "number of seeds, from 0 on", low=1)
    steps: int = setting(8000, "of each walk", low=1000)


def main() -> None:
    options = parse(Options, sys.argv[1:], usage=__doc__ or "")
    table = csv.writer(sys.stdout)
    table.writerow(["circuit", "way", "seed", "steps", "cpu_s", "cost"])
    name = options.circuit.rpartition("/")[2].removesuffix(".qasm")
    for way in options.ways.split(","):
        keywords = {"circuit": options.circuit, **({} if way == "power" else AT_RANDOM)}
        for seed in range(options.seeds):
            walk, began = learning_walk(keywords, LearningRule(**WAYS[way]), 0, seed), time.process_time()
            messages: list[bytes] = []
            for number in range(ROUND, options.steps + 1, ROUND):
                progress = walk.go(messages, ROUND, math.inf)
                messages = progress.messages
                if number in MARKS:
                    cpu_s = f"{time.process_time() - began:.2f}"
                    table.writerow([name, way, seed, number, cpu_s, f"{progress.cost:g}"])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
