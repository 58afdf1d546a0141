"""Write table.csv, table.md, curves.csv and figure.svg: what stragglers cost, by the rule that ends rollouts early.

python experiments/stragglers/table.py [<folder of sweeps>], by default outputs/sweeps
"""

import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from ddppo.study.page.chart import Axis, Chart

HERE = Path(__file__).resolve().parent
WORKLOADS = {
    "cartpole": "CartPole, one rank of four 10 times slower, 1 and 10 ms a step",
    "long": "The same for 5,000 steps, 3 and 30 ms each",
    "tails": "Steps of 1 ms in the mean with a heavy tail",
    "tails5": "The same for 5,000 steps, 5 ms each",
}
COLOURS = ("ink", "blue", "orange", "green", "purple", "red")
WARM_UP = 2


def rule(config: dict[str, Any]) -> str:
    """Return how a run ended rollouts, as a reader would say it."""
    dist = config["dist"]
    if dist["topology"] == "ddp":
        return "ddp"
    if (cap := dist["rollout_time_cap_s"]) is not None:
        return f"cap {cap:g} s"
    return "throughput" if dist["preempt_rule"] == "throughput" else f"fraction {dist['sync_frac']:g}"


def measured(folder: Path) -> dict[str, Any]:
    """Return the row of a run."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    late = [line for line in lines if line["iteration"] > WARM_UP]
    t_iter = defaultdict(float)
    for line in late:
        t_iter[line["iteration"]] = max(t_iter[line["iteration"]], line["time/t_iter"])
    ranks = sorted({line["rank"] for line in late})
    left_out = [
        mean(line.get("dist/preempted_fraction", 0.0) for line in late if line["rank"] == rank)
        for rank in ranks
    ]
    target = summary.get("target") or {}
    return {
        "rule": rule(summary["config"]),
        "seed": summary["config"]["seed"],
        "iterations": summary["iterations"],
        "t_iter": round(median(t_iter.values()), 4),
        "t_iter_mean": round(mean(t_iter.values()), 4),
        "steps_per_s": round(sum(line["rollout/local_steps"] for line in late) / sum(t_iter.values())),
        "rho_sync": round(mean(line["dist/rho_sync"] for line in late), 3),
        "left_out": " ".join(f"{share:.2f}" for share in left_out),
        "awaited": round(mean(line.get("dist/awaited_ranks", len(ranks)) for line in late), 2),
        "target_s": round(target.get("time_to_target_s") or math.inf, 1),
        "wall_s": round(summary["wall_s"], 1),
        "return": round((summary["eval"]["final"] or {}).get("return_mean", math.nan), 1),
        "commit": (summary["git_commit"] or "unknown")[:7],
    }


def curve(folder: Path) -> list[tuple[float, float]]:
    """Return wall-clock seconds and returns of a run's evaluations."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["wall_s"], line["eval/return_mean"]) for line in lines if "eval/return_mean" in line]


def table(rows: Sequence[dict[str, Any]]) -> str:
    head = [
        "rule",
        "seeds",
        "t_iter",
        "of ddp's",
        "its mean",
        "steps/s",
        "rho_sync",
        "waits for",
        "left out, by rank",
        "target after",
        "return",
    ]
    lines = []
    for workload, said in WORKLOADS.items():
        if not any(row["workload"] == workload and row["rule"] == "ddp" for row in rows):
            continue
        of_rules: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["workload"] == workload:
                of_rules[row["rule"]].append(row)
        lines += ["", f"{said}:", "", _line(head), _line(["---"] * len(head))]
        for name, same in of_rules.items():
            t_iter, of_ddp = (median(r["t_iter"] for r in x) for x in (same, of_rules["ddp"]))
            shares = zip(*(map(float, r["left_out"].split()) for r in same), strict=True)
            cells = [
                name,
                str(len(same)),
                f"{t_iter * 1000:.0f} ms",
                f"{t_iter / of_ddp:.2f}",
                f"{median(r['t_iter_mean'] for r in same) * 1000:.0f} ms",
                f"{median(r['steps_per_s'] for r in same):,.0f}",
                f"{median(r['rho_sync'] for r in same):.2f}",
                f"{mean(r['awaited'] for r in same):.1f} ranks",
                " ".join(f"{mean(share):.2f}" for share in shares),
                _listed("never" if math.isinf(r["target_s"]) else f"{r['target_s']:.0f} s" for r in same),
                _listed(f"{r['return']:g}" for r in same),
            ]
            lines.append(_line(cells))
    return "\n".join(lines[1:]) + "\n"


def _listed(values: Iterable[str]) -> str:
    found = list(values)
    return "" if set(found) <= {"nan", "never"} else ", ".join(found)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    with open(HERE / name, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    sweeps = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/sweeps")
    rows, points = [], []
    for workload in WORKLOADS:
        for path in sorted((sweeps / f"stragglers_{workload}").glob("*/summary.json")):
            if json.loads(path.read_text())["status"] != "completed":
                continue
            row = {"workload": workload, **measured(path.parent)}
            rows.append(row)
            points += [
                {**{k: row[k] for k in ("workload", "rule", "seed")}, "wall_s": s, "return": r}
                for s, r in curve(path.parent)
            ]
    if not rows:
        sys.exit(f"no completed run in {sweeps}/stragglers_*; nothing was written")
    rows.sort(key=lambda row: (row["workload"], row["rule"], row["seed"]))
    write("table.csv", rows)
    write("curves.csv", points)
    (HERE / "table.md").write_text(table(rows))
    title = "CartPole, one rank of four 10 times slower"
    chart = Chart(
        "figure",
        title,
        Axis("seconds of training"),
        Axis("return of evaluations, median of seeds", shows=(0.0, 500.0)),
    )
    names = dict.fromkeys(row["rule"] for row in rows if row["workload"] == "cartpole")
    for name, colour in zip(names, COLOURS, strict=False):
        own = [p for p in points if (p["workload"], p["rule"]) == ("cartpole", name)]
        of_seeds = [[p for p in own if p["seed"] == seed] for seed in sorted({p["seed"] for p in own})]
        times, returns = (
            [median(p[key] for p in same) for same in zip(*of_seeds, strict=False)]
            for key in ("wall_s", "return")
        )
        chart.line(times, returns, colour, name)
    (HERE / "figure.svg").write_text(chart.svg(standalone=True))


if __name__ == "__main__":
    main()
