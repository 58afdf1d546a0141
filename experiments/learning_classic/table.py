"""Print the learning table of a sweep: python experiments/learning_classic/table.py <sweep folder> ...

The score of a seed is the mean return of the deterministic evaluation at the end. Tasks are summarised over seeds by
the IQM with a 95 % percentile bootstrap interval (rliable's method, arXiv:2108.13264). Writes results.json and
table.md beside this file. Reads summary.json files, never folder names.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from ddppo.statistics import bootstrap, iqm

HERE = Path(__file__).resolve().parent
THRESHOLDS = {"CartPole-v1": 495.0, "Acrobot-v1": -80.0, "LunarLander-v3": 240.0, "Pendulum-v1": -200.0}


def iqms(samples: np.ndarray) -> np.ndarray:
    """Return the IQM over the last axis, as `bootstrap` wants it."""
    return np.apply_along_axis(iqm, -1, samples)


def main() -> None:
    runs = defaultdict(list)
    for path in (path for folder in sys.argv[1:] for path in sorted(Path(folder).glob("*/summary.json"))):
        s = json.loads(path.read_text())
        if s["status"] == "completed":
            runs[s["config"]["env"]["id"], s["world_size"]].append(s)
    if not runs:
        sys.exit(f"no completed run in {' '.join(sys.argv[1:]) or 'no folder'}; nothing was written")
    rows = []
    for (env_id, world_size), summaries in sorted(runs.items()):
        scores = [s["eval"]["final"]["return_mean"] for s in summaries]
        low, high = bootstrap(iqms, scores)
        rows.append(
            {
                "env": env_id,
                "world_size": world_size,
                "env_steps": max(s["env_steps"] for s in summaries),
                "seeds": sorted(s["config"]["seed"] for s in summaries),
                "episodes": int(summaries[0]["eval"]["final"]["episodes"]),
                "iqm": iqm(scores),
                "interval": [low, high],
                "scores": scores,
                "threshold": THRESHOLDS[env_id],
                "wall_s_median": float(np.median([s["wall_s"] for s in summaries])),
                "git_commits": sorted({s["git_commit"] or "unknown" for s in summaries}),
            }
        )
    (HERE / "results.json").write_text(json.dumps(rows, indent=2) + "\n")
    lines = [
        "| task | steps | W | seeds | IQM | 95 % interval | asked | reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        reached = "yes" if r["iqm"] >= r["threshold"] else "NO"
        low, high = r["interval"]
        lines.append(
            f"| {r['env']} | {r['env_steps']:,} | {r['world_size']} | {len(r['seeds'])} | {r['iqm']:.1f} "
            f"| {low:.1f} to {high:.1f} | >= {r['threshold']:.0f} | {reached} |"
        )
    table = "\n".join(lines)
    (HERE / "table.md").write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main()
