"""Write learning.csv, .md and .svg: what PPO comes to against CAGE 2's attackers, beside what is published.

.venv/bin/python -m experiments.cage2.learning outputs/sweeps/cage2
"""

import csv
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from ddppo.study.page.chart import Axis, Chart

HERE = Path(__file__).resolve().parent
COLOURS = {"b_line": "blue", "meander": "orange"}
# Mean returns of 100 steps: asked of us, of the PPO that CCS published, of the best on the challenge's board (Cardiff).
PUBLISHED = {"b_line": (-60.0, -30.19, -13.76), "meander": (-60.0, -22.21, -16.6)}
WORST_DRAWN = -150.0  # below it nothing is drawn: the curves begin near -1,000


@dataclass(frozen=True, slots=True)
class Run:
    """One run. rows: its evaluations, the last of more episodes."""

    red: str
    seed: int
    rows: list[dict[str, Any]]
    wall_s: float


def read(folder: Path) -> Run | None:
    """Return the run of a folder, None unless it is completed."""
    summary = json.loads((folder / "summary.json").read_text())
    if summary["status"] != "completed":
        return None
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    config = summary["config"]
    evaluated = [row for row in rows if "eval/return_mean" in row]
    return Run(config["env"]["kwargs"]["red"], config["seed"], evaluated, summary["wall_s"])


def table(of_reds: dict[str, list[Run]]) -> str:
    lines = [
        "| against | asked | by seed | mean | published PPO (CCS) | best published (Cardiff) | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for red, runs in of_reds.items():
        asked, ppo, best = PUBLISHED[red]
        ends = [run.rows[-1]["eval/return_mean"] for run in runs]
        by_seed = ", ".join(f"{end:.1f}" for end in ends)
        minutes = ", ".join(f"{run.wall_s / 60:.1f}" for run in runs)
        lines.append(f"| {red} | {asked:g} | {by_seed} | **{mean(ends):.1f}** | {ppo} | {best} | {minutes} |")
    return "\n".join(lines)


def chart(of_reds: dict[str, list[Run]]) -> Chart:
    """Draw return against steps, the median over seeds, and the published PPO."""
    drawn = Chart(
        "learning", "CAGE 2, 100 steps, median of seeds", Axis("steps"), Axis("return", shows=(0.0,))
    )
    for red, runs in of_reds.items():
        points = [
            (rows[0]["env_steps"], median(row["eval/return_mean"] for row in rows))
            for rows in zip(*(run.rows for run in runs), strict=True)
        ]
        shown = [(steps, value) for steps, value in points if value >= WORST_DRAWN]
        drawn.line([steps for steps, _ in shown], [value for _, value in shown], COLOURS[red], red)
        drawn.line([0, points[-1][0]], [PUBLISHED[red][1]] * 2, "grey", f"{red}, published PPO")
    return drawn


def main(sweep: str) -> None:
    found = [run for path in sorted(Path(sweep).glob("*/summary.json")) if (run := read(path.parent))]
    if not found:
        sys.exit(f"no completed run in {sweep}; nothing was written")
    of_reds: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(found, key=lambda run: (run.red, run.seed)):
        of_reds[run.red].append(run)
    with open(HERE / "learning.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["red", "seed", "steps", "wall_s", "return"])
        for runs in of_reds.values():
            for run in runs:
                writer.writerows(
                    [
                        run.red,
                        run.seed,
                        row["env_steps"],
                        f"{row['wall_s']:.0f}",
                        f"{row['eval/return_mean']:.2f}",
                    ]
                    for row in run.rows
                )
    (HERE / "learning.md").write_text(table(of_reds) + "\n")
    (HERE / "learning.svg").write_text(chart(of_reds).svg(standalone=True) + "\n")
    print(table(of_reds))


if __name__ == "__main__":
    main(*sys.argv[1:])
