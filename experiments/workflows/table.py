"""Write searches.csv, presets.csv and table.md: searches over orders, and the six presets trained alone.

.venv/bin/python -m experiments.workflows.table outputs/sweeps/workflows
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).resolve().parent
NUM_LAST = 5  # iterations that a score is of, as search.score_iterations


def searched(summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the row of a search."""
    found = json.loads((folder / "search.json").read_text())
    best, ended = found["best"], [trial for trial in found["trials"] if "score" in trial]
    later = [trial["episodes"] for trial in ended[1:] if trial["passed"]]
    return {
        "inherit": found["inherit"],
        "settle": summary["config"]["search"].get("settle_iterations", 0),
        "seed": summary["config"]["seed"],
        "episodes": ended[-1]["episodes_total"],
        "trials": len(ended),
        "passed": sum(trial["passed"] for trial in ended),
        "first_gate": ended[0]["episodes"] if ended[0]["passed"] else None,
        "later_gates": median(later) if later else None,
        "best_order": best["order"],
        "score": round(best["score"], 2),
        "compliance": round(best["compliance"], 3),
        "minutes": round(summary["wall_s"] / 60, 1),
    }


def alone(summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the row of a preset that was trained alone."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    last = [row for row in map(json.loads, lines) if "task/return" in row][-NUM_LAST:]
    config = summary["config"]
    return {
        "preset": config["env"]["kwargs"]["order"],
        "seed": config["seed"],
        "episodes": summary["env_steps"] // config["ppo"]["rollout_steps"],
        "score": round(mean(row["task/return"] for row in last), 2),
        "compliance": round(mean(row["task/compliance"] for row in last), 3),
        "minutes": round(summary["wall_s"] / 60, 1),
    }


def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        with open(HERE / name, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def table(searches: Sequence[dict[str, Any]], presets: Sequence[dict[str, Any]]) -> str:
    columns = ["inherit, settle, seed", "episodes", "best order", "return", "compliance", "trials, passed"]
    columns += ["to first gate", "later ones"]
    lines = [_line(columns), _line(["---"] * len(columns))]
    for row in searches:
        how = f"{row['inherit']}, {row['settle']}, {row['seed']}"
        gates = [
            "never" if row[name] is None else f"{row[name]:,.0f}" for name in ("first_gate", "later_gates")
        ]
        found = [row["best_order"], row["score"], row["compliance"], f"{row['trials']}, {row['passed']}"]
        lines.append(_line([how, f"{row['episodes']:,}", *found, *gates]))
    columns = ["preset alone", "episodes", "return by seed", "mean", "compliance by seed"]
    lines += ["", _line(columns), _line(["---"] * len(columns))]
    of_presets: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in presets:
        of_presets[row["preset"], row["episodes"]].append(row)
    for (preset, episodes), rows in of_presets.items():
        returns, kept = (", ".join(str(row[name]) for row in rows) for name in ("score", "compliance"))
        average = f"{mean(row['score'] for row in rows):.2f}"
        lines.append(_line([preset, f"{episodes:,}", returns, average, kept]))
    return "\n".join(lines)


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main(sweep: str) -> None:
    searches, presets = [], []
    for path in sorted(Path(sweep).glob("*/summary.json")):
        summary = json.loads(path.read_text())
        if summary["status"] != "completed":
            continue
        if summary["config"]["search"]["name"]:
            searches.append(searched(summary, path.parent))
        else:
            presets.append(alone(summary, path.parent))
    if not searches and not presets:
        sys.exit(f"no completed run in {sweep}; nothing was written")
    searches.sort(key=lambda row: (row["settle"], row["inherit"], row["seed"]))
    presets.sort(key=lambda row: (row["episodes"], row["preset"], row["seed"]))
    write("searches.csv", searches)
    write("presets.csv", presets)
    text = table(searches, presets)
    (HERE / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
