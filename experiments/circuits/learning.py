"""Walks that learn beside walks at random on the circuits of tuning.py: gates left after so many seconds of CPU.

PYTHONPATH=. python experiments/circuits/tuning.py outputs/circuits/tuning
PYTHONPATH=. python experiments/circuits/learning.py circuits=net_12,net_16 seeds=2 marks=1,4            # as shipped
PYTHONPATH=. python experiments/circuits/learning.py circuits=net_12,net_16 seeds=2 marks=1,4 way=random
PYTHONPATH=. python experiments/circuits/learning.py circuits=net_16 rate=0 shipped=3,3,3,3,3,4,4,3,2,0,1,1,1,1,0

Writes a CSV on standard output: the mean of the seeds at each mark. `rate`, `gamma`, `limit`, `decay` and `shipped` are
those of LearningRule. Circuits found here are counted, not verified; those of anytime.py are verified.
"""

import csv
import sys
import time
from statistics import mean

from ddppo.domains.circuits.env_walk import AT_RANDOM, BIAS
from ddppo.domains.circuits.walk import FastWalk, LearningRule

FOLDER = "outputs/circuits/tuning"
_STEPS = 200  # between two looks at the clock


def gates_at(circuit: str, seed: int, rule: LearningRule | None, marks: list[float]) -> list[float]:
    """Return the least gates of a walk after each mark, in seconds of CPU."""
    walk = FastWalk({**AT_RANDOM, "circuit": f"{FOLDER}/{circuit}.qasm"}, seed, prior=BIAS, learning=rule)
    began, found = time.process_time(), []
    for mark in marks:
        while time.process_time() - began < mark:
            walk.go([], _STEPS, float("inf"))
        found.append(walk.facts().best_cost)
    return found


def main() -> None:
    given = {
        "circuits": "tof_7,gf2_3_mult,net_8,net_12,net_16",
        "seeds": "2",
        "marks": "1,4",
        "way": "learned",
    }
    given |= dict(argument.split("=", 1) for argument in sys.argv[1:])
    marks = [float(mark) for mark in given["marks"].split(",")]
    settings = {key: float(given[key]) for key in ("rate", "gamma", "limit", "decay") if key in given}
    if "shipped" in given:
        settings["shipped"] = tuple(float(each) for each in given["shipped"].split(","))  # type: ignore[assignment]
    rule = None if given["way"] == "random" else LearningRule(**settings)  # type: ignore[arg-type]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["circuit", "way", "settings", "seeds", *(f"gates_{mark:g}_s" for mark in marks)])
    named = " ".join(argument for argument in sys.argv[1:] if argument.split("=")[0] in settings)
    for circuit in given["circuits"].split(","):
        runs = [gates_at(circuit, seed, rule, marks) for seed in range(int(given["seeds"]))]
        out.writerow([circuit, given["way"], named, given["seeds"], *map(mean, zip(*runs, strict=True))])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
