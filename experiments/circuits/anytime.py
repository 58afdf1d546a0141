"""The benchmarks made smaller by walks that learn and by walks at random: least gates against CPU seconds.

PYTHONPATH=. .venv/bin/python experiments/circuits/anytime.py run seconds=30 circuits=tof_3,mod5_4  # of seed 0
PYTHONPATH=. .venv/bin/python experiments/circuits/anytime.py run seconds=120 seeds=0,1 circuits=gf2^6_mult
PYTHONPATH=. .venv/bin/python experiments/circuits/anytime.py write

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

from ddppo.domains.circuits.env_walk import AT_RANDOM, BIAS, PATIENCE
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
# name: (how it learns, patience, number of walks)
WAYS: dict[str, tuple[LearningRule | None, float, int]] = {
    "random": (None, 0.0, 1),
    "learned": (LearningRule(), PATIENCE, 1),
    "learned_2": (LearningRule(), PATIENCE, 2),
}
GOAL_S = 120.0  # seconds of CPU
_STEPS = 200  # between two looks at the clock
_ROUND_STEPS = 5000  # of several walks before they exchange their best circuits, as in `optimise`


def run(way: str, circuit: str, seed: int, seconds: float) -> None:
    """Walk for so many seconds of CPU, unless it is done; verify what was found and write it.

    Several walks take turns, and seconds are those of each: they are the workers of `optimise`, on cores of their own.
    """
    path = RUNS / f"{seconds:g}_s" / way / f"{circuit}_{seed}.json"
    if path.exists():
        return
    learning, patience, number = WAYS[way]
    env = {**AT_RANDOM, "circuit": circuit, "start": "merge"}
    # The walks of `optimise`, whose seeds are derived from these.
    walks = [
        FastWalk(env, seed + 1000 * k, prior=BIAS, patience=patience, learning=learning)
        for k in range(number)
    ]
    trace, least, messages = [], float("inf"), []
    began = time.process_time()  # the rules have been read, which takes as long for every way
    while (used := (time.process_time() - began) / number) < seconds:
        steps = _STEPS if number == 1 else _ROUND_STEPS
        progress = [walk.go(messages, steps, float("inf")) for walk in walks]
        messages = [each for walk in progress for each in walk.messages] if number > 1 else []
        num_steps = sum(each.num_steps for each in progress)
        if (cost := min(each.cost for each in progress)) < least:
            least = cost
            trace.append([round((time.process_time() - began) / number, 3), num_steps, least])
    walk = min(walks, key=lambda each: each.facts().best_cost)
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
        "num_steps": num_steps,
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


def at(found: dict[str, Any], seconds: float) -> float | None:
    """Return the least cost after so many seconds of CPU; None of a run that was shorter."""
    if found["cpu_s"] < seconds:
        return None
    return min(cost for cpu_s, _, cost in found["trace"] if cpu_s <= max(seconds, found["trace"][0][0]))


def median_at(runs: list[dict[str, Any]], seconds: float) -> float | None:
    costs = [cost for each in runs if (cost := at(each, seconds)) is not None]
    return median(costs) if costs else None


def read(out: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the runs by way and circuit, in the order of their seeds; of each seed the longest.

    Runs of which only the rows in `out` are left, written by an earlier `write`, count too.
    """
    runs: dict[tuple[str, str, int], dict[str, Any]] = {}
    rows = list(csv.DictReader((out / "results.csv").open())) if (out / "results.csv").exists() else []
    curves = list(csv.DictReader((out / "curves.csv").open())) if rows else []
    for row in rows:
        key = row["way"], row["circuit"], int(row["seed"])
        of_run = [each for each in curves if (each["way"], each["circuit"], int(each["seed"])) == key]
        trace = [[float(each["cpu_s"]), int(each["steps"]), float(each["gates"])] for each in of_run]
        runs[key] = row | {"cpu_s": float(row["cpu_s"]), "trace": trace, "cost": trace[-1][2]}
    for path in RUNS.glob("*_s/*/*.json"):
        circuit, _, seed = path.stem.rpartition("_")
        key = path.parent.name, circuit, int(seed)
        found = json.loads(path.read_text())
        if key not in runs or found["cpu_s"] >= runs[key]["cpu_s"]:
            runs[key] = found
    done: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for way in WAYS:
        for circuit in CIRCUITS:
            seeds = sorted(seed for a, b, seed in runs if (a, b) == (way, circuit))
            if seeds:
                done[way, circuit] = [runs[way, circuit, seed] | {"seed": seed} for seed in seeds]
    return done


def write(marks: Sequence[float], out: Path) -> None:
    """Write the tables, the curves and the best circuits of all runs."""
    out.mkdir(parents=True, exist_ok=True)
    done = read(out)
    rows, curves = [], []
    for (way, circuit), runs in done.items():
        for each in runs:
            name = {"circuit": circuit, "way": way, "seed": each["seed"]}
            costs = {f"gates_{mark:g}_s": "" if (x := at(each, mark)) is None else f"{x:g}" for mark in marks}
            kept = ("cx", "depth", "num_steps", "num_rewrites", "verified")
            rows.append(name | {"cpu_s": each["cpu_s"]} | costs | {key: each[key] for key in kept})
            curves += [
                name | {"cpu_s": s, "steps": n, "gates": f"{gates:g}"} for s, n, gates in each["trace"]
            ]
        best = min(runs, key=lambda each: (each["cost"], int(each["cx"])))
        if "smaller" in best:  # else its file is there from an earlier `write`
            write_text(out / f"{circuit}.qasm", best["original"])
            write_text(out / f"{circuit}_{way}.qasm", best["smaller"])
    write_csv(out / "results.csv", rows)
    write_csv(out / "curves.csv", curves)
    lines = table(done, marks)
    write_text(out / "table.md", "\n".join(lines) + "\n")
    print(*lines, sep="\n")


def table(done: dict[tuple[str, str], list[dict[str, Any]]], marks: Sequence[float]) -> list[str]:
    """Return the table of medians over seeds, with the figures of others."""
    others, published = (
        list(csv.DictReader((HERE / name).open())) for name in ("others.csv", "published.csv")
    )
    shown = ("random", "learned")
    titles = ["gates", "original", "`merge`", "qiskit", "pyzx", "Nam et al.", "Quartz"]
    titles += [f"{way}, {', '.join(f'{mark:g}' for mark in marks)} s" for way in shown]
    titles += [f"s to random's at {GOAL_S:g} s: random", "learned"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for circuit in CIRCUITS:
        if ("random", circuit) not in done:
            continue
        original = benchmark(circuit)
        cells = [str(len(original)), str(len(merged(original)))]
        for rows, name in ((others, "qiskit"), (others, "pyzx"), (published, "Nam"), (published, "Quartz")):
            found = [int(r["gates"]) for r in rows if r["circuit"] == circuit and name in r["optimiser"]]
            cells.append(str(min(found)) if found else "")
        for way in shown:
            costs = [median_at(done.get((way, circuit), []), mark) for mark in marks]
            cells.append(", ".join(f"{cost:g}" for cost in costs if cost is not None))
        both = [done.get((way, circuit), []) for way in ("random", "learned")]
        # When the median of each way is at random's median after GOAL_S.
        goal = median_at(both[0], GOAL_S)
        when = [when_median_is(runs, goal) if runs and goal is not None else "" for runs in both]
        lines.append(f"| {circuit} | {' | '.join([*cells, *when])} |")
    return lines


def when_median_is(runs: list[dict[str, Any]], goal: float) -> str:
    """Return the first time at which the median over runs is at most a cost."""
    moments = sorted({cpu_s for each in runs for cpu_s, _, _ in each["trace"]})
    found = (t for t in moments if (cost := median_at(runs, t)) is not None and cost <= goal)
    return next((f"{t:.2f}" for t in found), "not reached")


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
        "marks": "1,4,30,40,120,600",
    }
    given |= dict(pair.split("=", 1) for pair in pairs)
    seconds = float(given["seconds"])
    if verb == "write":
        write([float(mark) for mark in given["marks"].split(",")], HERE / "anytime")
        return
    for seed in map(int, given["seeds"].split(",")):
        for circuit in given["circuits"].split(","):
            for way in given["ways"].split(","):
                run(way, circuit, seed, seconds)


if __name__ == "__main__":
    main()
