"""Write topologies.md: steps a second of each run of a sweep, by circuit, topology, ranks and observers.

PYTHONPATH=. .venv/bin/python experiments/circuits/topologies.py outputs/sweeps/circuits_rates
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent


def main(sweep: str) -> None:
    runs: dict[tuple[str, str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(Path(sweep).glob("*/summary.json")):
        summary = json.loads(path.read_text())
        if summary["status"] == "completed":
            dist = summary["config"]["dist"]
            observers = dist["observers"] or 0 if dist["topology"] == "central_inference" else 0
            circuit = summary["config"]["env"]["kwargs"]["circuit"]
            runs[circuit, dist["topology"], summary["world_size"], observers].append(summary)
    if not runs:
        sys.exit(f"no completed run in {sweep}; nothing was written")
    lines = [
        "| circuit | topology | ranks | observers | steps/s of each seed | t_rollout | t_learn | t_sync + t_comm |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (circuit, topology, world_size, observers), of in sorted(runs.items()):
        rates = ", ".join(f"{summary['fps']:,.0f}" for summary in of)
        shares = [share(of, "t_rollout"), share(of, "t_learn"), share(of, "t_sync", "t_comm")]
        cells = [circuit, topology, world_size, observers or "", rates, *(f"{part:.0%}" for part in shares)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    (HERE / "topologies.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def share(summaries: list[dict[str, Any]], *parts: str) -> float:
    """Return which share of an iteration these parts take, the median over seeds."""
    of = [summary["time"] for summary in summaries]
    return median(sum(time[part]["mean"] for part in parts) / time["t_iter"]["mean"] for time in of)


if __name__ == "__main__":
    main(*sys.argv[1:])
