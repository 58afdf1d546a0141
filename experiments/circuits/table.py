"""The benchmarks made smaller by a trained policy and at random, beside other optimisers and published figures.

PYTHONPATH=. .venv/bin/python experiments/circuits/table.py run minutes=5 at_once=2   # what is missing of it
PYTHONPATH=. .venv/bin/python experiments/circuits/table.py write minutes=5

`run` takes circuits x seeds x ways x minutes of CPU, at_once side by side, with world_size processes each. `write`
repeats all rewrites, verifies, and writes results.csv, curves.csv, table.md and the best circuits into out=, a folder
beside this file; it reads others.csv (others.py) and published.csv.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from ddppo.domains.circuits.quantum.benchmarks import benchmark
from ddppo.domains.circuits.quantum.costs import cx_count
from ddppo.domains.circuits.quantum.rewriting import merged

sys.path.insert(0, str(Path(__file__).resolve().parent))
from runs import HERE, PPO, PPO_MERGED, RANDOM, RANDOM_MERGED, UNIFORM, Result, do_all, given, keep, results

# The circuits of the table; beside them there are larger ones (docs/circuits_reference.md).
CIRCUITS = ("tof_3", "barenco_tof_3", "mod5_4", "tof_5", "vbe_adder_3", "gf2^4_mult")
ASKED = {"tof_3": 39, "barenco_tof_3": 46, "mod5_4": 51, "tof_5": 87, "vbe_adder_3": 115}
WAYS = (UNIFORM, RANDOM, RANDOM_MERGED, PPO, PPO_MERGED)


def write(found: Sequence[Result], circuits: Sequence[str], out: Path) -> None:
    """Write all files of the study from its results."""
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "results.csv", [row(result) for result in found])
    write_csv(
        out / "curves.csv",
        [
            {"circuit": r.circuit_name, "way": r.way, "seed": r.seed}
            | {"cpu_s": f"{p.cpu_s:.1f}", "env_steps": p.env_steps, "cost": p.cost}
            for r in found
            for p in r.points
        ],
    )
    for circuit in circuits:
        for way in WAYS:
            of = [r for r in found if (r.circuit_name, r.way) == (circuit, way.name)]
            if of:
                keep(min(of, key=lambda r: len(r.circuit)), out)
    table = "\n".join([*against_others(found, circuits), "", *over_seeds(found, circuits)])
    (out / "table.md").write_text(table + "\n")
    print(table)


def row(result: Result) -> dict[str, object]:
    """Return the line of one run."""
    circuit = result.circuit
    return {
        "circuit": result.circuit_name,
        "way": result.way,
        "seed": result.seed,
        "minutes": result.minutes,
        "cpu_min": f"{result.cpu_s / 60:.1f}",
        "gates": len(circuit),
        "cx": int(cx_count(circuit)),
        "depth": circuit.depth,
        "s_to_best": seconds(result, len(circuit)),
        "s_to_asked": seconds(result, ASKED.get(result.circuit_name)),
        "rewrites": result.num_rewrites,
        "verified_by": result.verified_by,
    }


def seconds(result: Result, cost: float | None) -> str:
    """Return after how many seconds of CPU a cost was reached, or nothing."""
    at = [p.cpu_s for p in result.points if cost is not None and p.cost <= cost]
    return f"{min(at):.1f}" if at else ""


def against_others(found: Sequence[Result], circuits: Iterable[str]) -> list[str]:
    """Return a table of gates, in brackets cx: what each way reached at best."""
    others, published = (read_csv(name) for name in ("others.csv", "published.csv"))
    ways = [way for way in WAYS if any(r.way == way.name for r in found)]
    titles = ["gates (cx)", "original", "merge", "qiskit", "pyzx", "Nam et al.", "Quartz"]
    titles += [*(way.name.replace("_", ", ") for way in ways), "asked"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for circuit in circuits:
        of = [r for r in found if r.circuit_name == circuit]
        cells = [
            *(said(len(c), int(cx_count(c))) for c in (benchmark(circuit), merged(benchmark(circuit)))),
            *(least(others, circuit, name) for name in ("qiskit", "pyzx")),
            *(least(published, circuit, name) for name in ("Nam", "Quartz")),
            *(
                min(
                    ((len(r.circuit), int(cx_count(r.circuit))) for r in of if r.way == way.name),
                    default=None,
                )
                for way in ways
            ),
            ASKED.get(circuit, ""),
        ]
        words = [said(*cell) if isinstance(cell, tuple) else str(cell or "") for cell in cells]
        lines.append(f"| {circuit} | {' | '.join(words)} |")
    return lines


def over_seeds(found: Sequence[Result], circuits: Iterable[str]) -> list[str]:
    """Return a table of what each seed reached, and how soon."""
    lines = [
        "| | | gates of each seed | depth of the best | rewrites | CPU min a run | s to best | s to asked |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for circuit in circuits:
        for way in WAYS:
            of = [r for r in found if (r.circuit_name, r.way) == (circuit, way.name)]
            if not of:
                continue
            best = min(of, key=lambda r: len(r.circuit))
            asked = [float(s) for r in of if (s := seconds(r, ASKED.get(circuit)))]
            to_best = [float(s) for r in of if (s := seconds(r, len(r.circuit)))]
            cells = [
                ", ".join(str(len(r.circuit)) for r in of),
                best.circuit.depth,
                best.num_rewrites,
                f"{median(r.cpu_s for r in of) / 60:.1f}",
                f"{median(to_best):.0f}" if to_best else "",
                f"{median(asked):.0f} ({len(asked)} of {len(of)})" if asked else "",
            ]
            lines.append(f"| {circuit} | {way.name} | {' | '.join(map(str, cells))} |")
    return lines


def least(rows: Iterable[dict[str, str]], circuit: str, name: str) -> str:
    """Return the fewest gates that an optimiser of this name made of the circuit."""
    of = [row for row in rows if row["circuit"] == circuit and row["optimiser"].startswith(name)]
    if not of:
        return ""
    best = min(of, key=lambda row: int(row["gates"]))
    method = best["optimiser"].split()[-1] if name == "pyzx" else ""
    return f"{said(int(best['gates']), int(best['cx']) if best['cx'] else None)} {method}".strip()


def said(gates: int, cx: int | None = None) -> str:
    return f"{gates} ({cx})" if cx is not None else str(gates)


def read_csv(name: str) -> list[dict[str, str]]:
    with open(HERE / name, newline="") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(verb: str, *arguments: str) -> None:
    settings = given(
        arguments,
        ways=",".join(way.name for way in WAYS),
        circuits=",".join(CIRCUITS),
        seeds="0,1,2",
        minutes="5",
        world_size="1",
        at_once="2",
        out="table",
    )
    ways = [way for way in WAYS if way.name in settings["ways"].split(",")]
    circuits = settings["circuits"].split(",")
    seeds = [int(seed) for seed in settings["seeds"].split(",")]
    minutes = float(settings["minutes"])
    if verb == "write":
        write(results(ways, circuits, seeds, minutes), circuits, HERE / settings["out"])
        return
    runs = [(way, circuit, seed) for seed in seeds for circuit in circuits for way in ways]
    do_all(runs, minutes, int(settings["world_size"]), int(settings["at_once"]))


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["write"]))
