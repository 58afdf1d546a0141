"""Settings of walks that learn, and walks at random, on the circuits of tuning.py: gates left after so much CPU time.

PYTHONPATH=. python experiments/circuits/tuning.py outputs/circuits/tuning
PYTHONPATH=. python experiments/circuits/learning.py run seconds=16 seeds=0,1            # done walks are not done again
PYTHONPATH=. python experiments/circuits/learning.py run seconds=60 seeds=0 circuits=net_12,net_16 ways=random,learned
PYTHONPATH=. python experiments/circuits/learning.py write                               # prints the table of README.md

`run` appends a line to learning/tried.csv for each walk. Circuits found here are counted, not verified; those of
anytime.py are verified.
"""

import csv
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

from ddppo.domains.circuits.env_walk import AT_RANDOM, BIAS, PATIENCE
from ddppo.domains.circuits.walk import FastWalk, LearningRule

FOLDER = "outputs/circuits/tuning"
TRIED = Path(__file__).resolve().parent / "learning" / "tried.csv"
CIRCUITS = ("qft_6", "qft_7", "gf2_3_mult", "net_8", "poly_4", "net_12", "net_16")
MARKS = (1, 4, 8, 16)  # seconds of CPU
_STEPS = 200  # between two looks at the clock
_TURN = 5000  # steps of each of two walks
_GENTLE = (1, 3, 3, 3, 3, 2, 4, 3, 2, 0, 1, 3, 2, 1, 0)
_SLOWER = (4, 4, 4, 4, 4, 2, 2, 1.5, 1, 0, 1, 1, 1, 1, 0)
_ALONE = {
    "turns": False,
    "undo": 0.0,
}  # no episodes at random, and taking back is as likely as it is by `shipped`
# How each way differs from the walks of `optimise` that learn: `patience`, a second walk `beside` in turns with it, in
# the same process, each of which gets every new best of the other, and settings of LearningRule.
WAYS: dict[str, dict[str, Any]] = {
    "random": {"learns": False, "patience": 0.0},
    "random, anew": {"learns": False},
    "learned": {},
    "undo=-8": {"undo": -8.0},
    "slower level": {"shipped": _SLOWER},
    "undo=0": {"undo": 0.0},
    "undo=0 never anew": {"undo": 0.0, "patience": 0.0},
    # Earlier ones.
    "weights alone": {**_ALONE},
    "two in turns": {**_ALONE, "beside": "at random"},
    "never anew": {**_ALONE, "patience": 0.0},
    "weights fixed": {**_ALONE, "rate": 0.0},
    "fewer removals": {**_ALONE, "shipped": _GENTLE},
    "from zero": {**_ALONE, "shipped": (0.0,) * 15, "limit": 3.0},
}


def gates_at(circuit: str, way: str, seed: int, seconds: float) -> list[float]:
    """Return the least gates of a walk after each mark up to `seconds` of CPU."""
    given = dict(WAYS[way])
    patience = given.pop("patience", PATIENCE)
    beside = given.pop("beside", None)
    rule = None if given.pop("learns", True) is False else LearningRule(**given)
    rules = [rule] if beside is None else [rule, None]
    env = {**AT_RANDOM, "circuit": f"{FOLDER}/{circuit}.qasm"}
    walks = [
        FastWalk(env, seed + 1000 * k, prior=BIAS, patience=0.0 if beside and k else patience, learning=each)
        for k, each in enumerate(rules)
    ]
    messages: list[bytes] = []
    began, found = time.process_time(), []
    for mark in (each for each in MARKS if each <= seconds):
        while time.process_time() - began < mark:
            for walk in walks:
                messages = walk.go(messages, _STEPS if beside is None else _TURN, float("inf")).messages
        found.append(min(walk.facts().best_cost for walk in walks))
    return found


def read() -> list[dict[str, str]]:
    return list(csv.DictReader(TRIED.open())) if TRIED.exists() else []


def run(circuits: list[str], ways: list[str], seeds: list[int], seconds: float) -> None:
    """Append the walks that are not there yet."""
    for seed in seeds:
        for circuit in circuits:
            for way in ways:
                done = {(row["circuit"], row["way"], row["seed"], row["seconds"]) for row in read()}
                if (circuit, way, str(seed), f"{seconds:g}") in done:
                    continue
                found = gates_at(circuit, way, seed, seconds)
                with TRIED.open("a", newline="") as file:
                    out = csv.writer(file, lineterminator="\n")
                    if file.tell() == 0:
                        out.writerow(
                            ["circuit", "way", "seed", "seconds", *(f"gates_{mark}_s" for mark in MARKS)]
                        )
                    row = [circuit, way, seed, f"{seconds:g}", *(f"{gates:g}" for gates in found)]
                    out.writerow([*row, *[""] * (len(MARKS) - len(found))])


def write() -> None:
    """Print the means over seeds after each mark, and in brackets the number of seeds, for each way and circuit."""
    rows = read()
    circuits = [each for each in CIRCUITS if any(row["circuit"] == each for row in rows)]
    print(
        f"| gates after {', '.join(map(str, MARKS))} s | {' | '.join(circuits)} |\n|{'---|' * (1 + len(circuits))}"
    )
    for way in (each for each in WAYS if any(row["way"] == each for row in rows)):
        cells = []
        for circuit in circuits:
            of_both = [row for row in rows if (row["circuit"], row["way"]) == (circuit, way)]
            seen = [[float(x) for row in of_both if (x := row[f"gates_{mark}_s"])] for mark in MARKS]
            cells.append(", ".join(f"{mean(each):.1f}".removesuffix(".0") for each in seen if each))
            cells[-1] += f" ({len(of_both)})" if of_both else ""
        print(f"| {way} | {' | '.join(cells)} |")


def main() -> None:
    verb, *pairs = sys.argv[1:]
    given = {"circuits": ",".join(CIRCUITS), "ways": ",".join(WAYS), "seeds": "0", "seconds": "16"}
    given |= dict(pair.split("=", 1) for pair in pairs)
    if verb == "write":
        return write()
    circuits, ways, seeds = (given[key].split(",") for key in ("circuits", "ways", "seeds"))
    return run(circuits, ways, list(map(int, seeds)), float(given["seconds"]))


if __name__ == "__main__":
    main()
