"""Write results.csv, curves.csv, table.md and a figure for each task: what memory is worth in tasks that need it.

python experiments/memory/table.py <sweep folder> ...

The score of a seed is the mean return of the deterministic evaluation at the end. Tasks are summarised over seeds by
the IQM with a 95 % percentile bootstrap interval (rliable's method, arXiv:2108.13264).
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ddppo.policies.scores import by_task
from ddppo.study.page.chart import Axis, Chart
from ddppo.study.runs.records import Curve, read_curves

HERE = Path(__file__).resolve().parent
ASKED = {"ddppo/TMaze-v0": 0.95, "ddppo/MaskedCartPole-v0": 450.0}
COLOURS = {"lstm": "blue", "gru": "orange", "none": "grey"}
NAMES = {"lstm": "LSTM", "gru": "GRU", "none": "MLP"}


class Run(NamedTuple):
    seed: int
    summary: dict[str, Any]
    curve: Curve  # of evaluations

    @property
    def score(self) -> float:
        return self.summary["eval"]["final"]["return_mean"]


def read(sweeps: list[str]) -> dict[tuple[str, str], list[Run]]:
    """Return the completed runs of sweeps by task and kind of memory."""
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for path in (path for sweep in sweeps for path in sorted(Path(sweep).glob("*/summary.json"))):
        summary = json.loads(path.read_text())
        if summary["status"] == "completed":
            config, (curves, _) = summary["config"], read_curves(path.with_name("metrics.jsonl"))
            run = Run(config["seed"], summary, curves["eval/return_mean"])
            found[config["env"]["id"], config["model"]["memory"]].append(run)
    return {
        key: sorted(found[key], key=lambda run: run.seed)
        for key in sorted(found, key=lambda key: (list(ASKED).index(key[0]), list(COLOURS).index(key[1])))
    }


def table(found: dict[tuple[str, str], list[Run]]) -> str:
    lines = [
        "| task | model | steps | seeds | IQM | 95 % interval | asked | each seed | steps/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (env_id, memory), runs in found.items():
        (of_task,) = by_task([{"env": env_id, "return_mean": run.score} for run in runs]).values()
        low, high = of_task["return_iqm_interval"]
        asked = "" if memory == "none" else f">= {ASKED[env_id]:g}"
        steps = max(run.summary["env_steps"] for run in runs)
        speed = median(run.summary["fps"] for run in runs)
        lines.append(
            f"| {env_id} | {NAMES[memory]} | {steps:,} | {len(runs)} | {of_task['return_iqm']:.2f} "
            f"| {low:.2f} to {high:.2f} | {asked} | {', '.join(f'{run.score:.2f}' for run in runs)} | {speed:,.0f} |"
        )
    return "\n".join(lines)


def chart(env_id: str, of_memory: dict[str, list[Run]]) -> Chart:
    """Draw return against steps: every seed, and the median of them."""
    drawn = Chart(
        env_id.partition("/")[2],
        env_id,
        Axis("environment steps"),
        Axis("return of 20 deterministic episodes"),
    )
    for memory, runs in of_memory.items():
        count = min(len(run.curve) for run in runs)
        steps = runs[0].curve.env_steps[:count].tolist()
        by_seed = [run.curve.values[:count].tolist() for run in runs]
        low, high = ([pick(values) for values in zip(*by_seed, strict=True)] for pick in (min, max))
        drawn.band(steps, low, high, COLOURS[memory])
        drawn.line(
            steps, [median(values) for values in zip(*by_seed, strict=True)], COLOURS[memory], NAMES[memory]
        )
    return drawn


def main(sweeps: list[str]) -> None:
    found = read(sweeps)
    if not found:
        sys.exit(f"no completed run in {' '.join(sweeps) or 'no folder'}; nothing was written")
    with (
        (HERE / "results.csv").open("w", newline="") as results,
        (HERE / "curves.csv").open("w", newline="") as curves,
    ):
        scores, points = (csv.writer(file, lineterminator="\n") for file in (results, curves))
        scores.writerow(
            ["env", "memory", "seed", "env_steps", "return_mean", "episodes", "wall_s", "git_commit"]
        )
        points.writerow(["env", "memory", "seed", "env_steps", "return_mean"])
        for key, runs in found.items():
            for run in runs:
                s, final = run.summary, run.summary["eval"]["final"]
                told = [
                    s["env_steps"],
                    run.score,
                    int(final["episodes"]),
                    f"{s['wall_s']:.0f}",
                    s["git_commit"],
                ]
                scores.writerow([*key, run.seed, *told])
                for steps, value in zip(run.curve.env_steps.tolist(), run.curve.values.tolist(), strict=True):
                    points.writerow([*key, run.seed, int(steps), round(value, 4)])
    for env_id in dict.fromkeys(env_id for env_id, _ in found):
        drawn = chart(env_id, {memory: runs for (of, memory), runs in found.items() if of == env_id})
        (HERE / f"{drawn.name}.svg").write_text(drawn.svg(standalone=True) + "\n")
    (HERE / "table.md").write_text(table(found) + "\n")
    print(table(found))


if __name__ == "__main__":
    main(sys.argv[1:])
