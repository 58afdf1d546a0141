"""The benchmarks made smaller by walks that learn and by walks at random: least gates against CPU seconds.

PYTHONPATH=. .venv/bin/python experiments/circuits/anytime.py run seconds=30 circuits=tof_3,mod5_4  # of seed 0
PYTHONPATH=. .venv/bin/python experiments/circuits/anytime.py run seconds=120 seeds=0,1 circuits=gf2^6_mult
PYTHONPATH=. .venv/bin/python experiments/circuits/anytime.py write seconds=120

A run is one walk (`ddppo-circuit optimise workers=1`) in this process, for so many seconds of its CPU time. Its result
is replayed rewrite by rewrite, compared with the original, and kept in outputs/circuits/anytime/; a run that is there
is not done again. `write` makes results.csv, curves.csv, table.md and the best circuits in anytime/ beside this file.
"""

import csv
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ddppo.domains.circuits.env_walk import AT_RANDOM, BIAS
from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.costs import cx_count
from ddppo.domains.circuits.quantum.equivalence import verify
from ddppo.domains.circuits.quantum.qasm_reader import as_qasm
from ddppo.domains.circuits.quantum.rewriting import digest, merged
from ddppo.domains.circuits.task.board import rules_digest
from ddppo.domains.circuits.walk import FastWalk, LearningRule, rewrites_of
from ddppo.files import write_json, write_text

HERE = Path(__file__).resolve().parent
RUNS = Path("outputs/circuits/anytime")
CIRCUITS = (
    "tof_3", "barenco_tof_3", "mod5_4", "tof_5", "mod_mult_55", "vbe_adder_3", "barenco_tof_5", "csla_mux_3",
    "rc_adder_6", "gf2^4_mult", "qft_8", "tof_10", "gf2^5_mult", "gf2^6_mult", "gf2^7_mult", "gf2^8_mult",
)  # fmt: skip
# name: (learns, start)
WAYS = {
    "random": (False, "merge"),
    "learned": (True, "merge"),
    "random_given": (False, "given"),
    "learned_given": (True, "given"),
}
_STEPS = 200  # between two looks at the clock


def run(way: str, circuit: str, seed: int, seconds: float) -> None:
    """Walk for so many seconds of CPU, unless it is done; verify what was found and write it."""
    path = RUNS / f"{seconds:g}_s" / way / f"{circuit}_{seed}.json"
    if path.exists():
        return
    learns, start = WAYS[way]
    env = {**AT_RANDOM, "circuit": circuit, "start": start}
    walk = FastWalk(env, seed, prior=BIAS, learning=LearningRule() if learns else None)
    trace, least = [], float("inf")
    began = time.process_time()  # the rules have been read, which takes as long for every way
    while (used := time.process_time() - began) < seconds:
        walk.go([], _STEPS, float("inf"))
        facts = walk.facts()
        if facts.best_cost < least:
            least = facts.best_cost
            trace.append([round(time.process_time() - began, 3), facts.num_steps, least])
    facts = walk.facts()
    original, (smaller, places) = benchmark(circuit), walk.best()
    began_from = merged(original) if walk.start == merged(original).canonical() else original
    again, rewrites = rewrites_of(walk.rewriter, began_from, places)
    assert digest(again) == digest(smaller), f"{path}: the rewrites lead to another circuit"
    verdict = verify(original, smaller)
    assert verdict.is_equal, f"{path}: {verdict}"
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "name": circuit,
        "cost": least,
        "cx": int(cx_count(smaller)),
        "depth": smaller.depth,
        "num_rewrites": len(rewrites),
        "cpu_s": round(used, 2),
        "num_steps": facts.num_steps,
        "trace": trace,
        "verified": str(verdict),
        "start": "given" if began_from is original else "merge",
        "original": as_qasm(original),
        "smaller": as_qasm(again),
        "rules": rules_digest(walk.rewriter),
        "rewrites": rewrites,
    }
    write_json(path, content)
    print(f"{way} {circuit} seed {seed}: {least:g} gates after {trace[-1][0]:g} s, {verdict}", flush=True)


def at(found: dict[str, Any], seconds: float) -> float:
    """Return the least cost after so many seconds of CPU; of a run that was shorter, at its end."""
    return min(cost for cpu_s, _, cost in found["trace"] if cpu_s <= max(seconds, found["trace"][0][0]))


def read(seconds: float) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the runs that are done by way and circuit, in the order of their seeds: for each circuit the longest ones.

    Runs that are longer than `seconds` do not count; shorter ones do, for circuits that need no more.
    """
    lengths = sorted(float(path.name.removesuffix("_s")) for path in RUNS.glob("*_s"))
    done: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for length in (each for each in lengths if each <= seconds):
        for way in WAYS:
            for circuit in CIRCUITS:
                paths = sorted((RUNS / f"{length:g}_s" / way).glob(f"{circuit}_*.json"), key=seed_of)
                if paths:
                    found = [json.loads(path.read_text()) | {"seed": seed_of(path)} for path in paths]
                    done[way, circuit] = found
    return done


def seed_of(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def write(seconds: float, marks: Sequence[float], out: Path) -> None:
    """Write the tables, the curves and the best circuits of all runs that are done."""
    out.mkdir(parents=True, exist_ok=True)
    done = read(seconds)
    rows, curves = [], []
    for (way, circuit), runs in done.items():
        for each in runs:
            costs = {f"gates_{mark:g}_s": at(each, mark) for mark in marks}
            rows.append(
                {"circuit": circuit, "way": way, "seed": each["seed"], "cpu_s": each["cpu_s"], **costs}
                | {key: each[key] for key in ("cx", "depth", "num_steps", "num_rewrites", "verified")}
            )
            curves += [
                {
                    "circuit": circuit,
                    "way": way,
                    "seed": each["seed"],
                    "cpu_s": s,
                    "steps": steps,
                    "gates": gates,
                }
                for s, steps, gates in each["trace"]
            ]
        best = min(runs, key=lambda each: (each["cost"], each["cx"]))
        write_text(out / f"{circuit}.qasm", best["original"])
        write_text(out / f"{circuit}_{way}.qasm", best["smaller"])
    write_csv(out / "results.csv", rows)
    write_csv(out / "curves.csv", curves)
    lines = table(done, seconds, marks)
    write_text(out / "table.md", "\n".join(lines) + "\n")
    print(*lines, sep="\n")


def table(
    done: dict[tuple[str, str], list[dict[str, Any]]], seconds: float, marks: Sequence[float]
) -> list[str]:
    """Return the table of medians over seeds, with the figures of others."""
    others, published = (
        list(csv.DictReader((HERE / name).open())) for name in ("others.csv", "published.csv")
    )
    ways = [way for way in WAYS if any(key[0] == way for key in done)]
    titles = ["gates", "original", "`merge`", "qiskit", "pyzx", "Nam et al.", "Quartz"]
    titles += [f"{way}, {mark:g} s" for way in ways for mark in marks] + [
        "s to random's last: random",
        "learned",
    ]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for circuit in CIRCUITS:
        if not any((way, circuit) in done for way in ways):
            continue
        original = benchmark(circuit)
        cells = [str(len(original)), str(len(merged(original)))]
        for rows, name in ((others, "qiskit"), (others, "pyzx"), (published, "Nam"), (published, "Quartz")):
            found = [int(r["gates"]) for r in rows if r["circuit"] == circuit and name in r["optimiser"]]
            cells.append(str(min(found)) if found else "")
        for way in ways:
            runs = done.get((way, circuit), [])
            cells += [f"{median(at(each, mark) for each in runs):g}" if runs else "" for mark in marks]
        cells += times(done, circuit, seconds)
        lines.append(f"| {circuit} | {' | '.join(cells)} |")
    return lines


def times(done: dict[tuple[str, str], list[dict[str, Any]]], circuit: str, seconds: float) -> list[str]:
    """Return when the median of walks that learn is at the last median of those at random, and when that is there."""
    random, learned = (done.get((way, circuit)) for way in ("random", "learned"))
    if not random or not learned:
        return ["", ""]
    goal = median(at(each, seconds) for each in random)
    found = [when_median_is(runs, goal, seconds) for runs in (random, learned)]
    return ["not reached" if each is None else f"{each:.2f}" for each in found]


def when_median_is(runs: list[dict[str, Any]], goal: float, seconds: float) -> float | None:
    """Return the first time at which the median over runs is at most a cost."""
    moments = sorted({cpu_s for each in runs for cpu_s, _, _ in each["trace"] if cpu_s <= seconds + 1})
    return next((t for t in moments if median(at(each, t) for each in runs) <= goal), None)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    verb, *pairs = sys.argv[1:]
    given = {
        "seconds": "120",
        "seeds": "0",
        "ways": "random,learned",
        "circuits": ",".join(CIRCUITS),
        "marks": "",
    }
    given |= dict(pair.split("=", 1) for pair in pairs)
    seconds = float(given["seconds"])
    if verb == "write":
        marks = (
            [float(mark) for mark in given["marks"].split(",")] if given["marks"] else [seconds / 4, seconds]
        )
        write(seconds, marks, HERE / "anytime")
        return
    for seed in map(int, given["seeds"].split(",")):
        for circuit in given["circuits"].split(","):
            for way in given["ways"].split(","):
                run(way, circuit, seed, seconds)


if __name__ == "__main__":
    main()
