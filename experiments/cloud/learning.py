"""Write learning.csv, .md and .svg: the share of the cloud's easy tasks that each run of a sweep achieves.

PYTHONPATH=. .venv/bin/python experiments/cloud/learning.py outputs/sweeps/cloud_learning
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ddppo.study.page.chart import Axis, Chart

HERE = Path(__file__).resolve().parent
TIERS = ("warm-up", "beginner")
ASKED = 0.8
COLOURS = {"grpo, tiers": "blue", "grpo, uniform": "orange", "ppo, tiers": "green"}


@dataclass(frozen=True, slots=True)
class Run:
    """One run. at_first: success of its first rollouts, drawn before anything was learned. rows: its evaluations."""

    way: str
    seed: int
    at_first: float
    rows: list[dict[str, Any]]
    wall_s: float

    def tokens_to(self, rate: float) -> int | None:
        """Return after how many tokens an evaluation was first at `rate` in every tier, None if none was."""
        at = (
            row["env_steps"]
            for row in self.rows
            if all(row[f"eval/success_rate_{tier}"] >= rate for tier in TIERS)
        )
        return next(at, None)


def read(folder: Path) -> Run | None:
    """Return the run of a folder, None unless it is completed."""
    summary = json.loads((folder / "summary.json").read_text())
    if summary["status"] != "completed":
        return None
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    config = summary["config"]
    return Run(
        way=f"{config['ppo']['algorithm']}, {config['curriculum']['name']}",
        seed=config["seed"],
        at_first=rows[0]["rollout/success_rate"],
        rows=[row for row in rows if "eval/success_rate" in row],
        wall_s=summary["wall_s"],
    )


def table(ways: dict[str, list[Run]]) -> str:
    lines = [
        f"| | first rollouts | warm-up at the end | beginner | tokens to {ASKED} in both | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for way, runs in ways.items():
        cells = [", ".join(f"{run.at_first:.2f}" for run in runs)]
        cells += [", ".join(f"{run.rows[-1][f'eval/success_rate_{t}']:.2f}" for run in runs) for t in TIERS]
        reached = [run.tokens_to(ASKED) for run in runs]
        cells.append(", ".join("never" if at is None else f"{at:,}" for at in reached))
        cells.append(", ".join(f"{run.wall_s / 60:.0f}" for run in runs))
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def chart(ways: dict[str, list[Run]]) -> Chart:
    """Draw success against tokens, the median over the seeds of each way."""
    drawn = Chart(
        "learning",
        "38 tasks of a simulated cloud, median of seeds",
        Axis("tokens typed"),
        Axis("share achieved"),
    )
    for way, runs in ways.items():
        num = min(len(run.rows) for run in runs)
        steps = [median(run.rows[k]["env_steps"] for run in runs) for k in range(num)]
        rates = [median(run.rows[k]["eval/success_rate"] for run in runs) for k in range(num)]
        drawn.line(steps, rates, COLOURS.get(way, "grey"), way)
    return drawn


def write_csv(runs: Sequence[Run]) -> None:
    with open(HERE / "learning.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["way", "seed", "tokens", "wall_s", "success", *TIERS])
        for run in runs:
            for row in run.rows:
                rates = [row["eval/success_rate"], *(row[f"eval/success_rate_{tier}"] for tier in TIERS)]
                said = (f"{rate:.3f}" for rate in rates)
                writer.writerow([run.way, run.seed, row["env_steps"], f"{row['wall_s']:.0f}", *said])


def main(sweep: str) -> None:
    found = [run for path in sorted(Path(sweep).glob("*/summary.json")) if (run := read(path.parent))]
    if not found:
        sys.exit(f"no completed run in {sweep}; nothing was written")
    found.sort(key=lambda run: (run.way, run.seed))
    ways: dict[str, list[Run]] = defaultdict(list)
    for run in found:
        ways[run.way].append(run)
    write_csv(found)
    (HERE / "learning.md").write_text(table(ways) + "\n")
    (HERE / "learning.svg").write_text(chart(ways).svg(standalone=True) + "\n")
    print(table(ways))


if __name__ == "__main__":
    main(*sys.argv[1:])
