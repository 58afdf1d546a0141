"""Write results.csv, curves.csv, a figure for each kind of task and table.md: scores of presets beside published ones.

.venv/bin/python -m experiments.published_scores.table outputs/sweeps/published_scores outputs/sweeps/pong

The score of a run is the mean return of its deterministic evaluation at the end. Runs are told by task, W and
seed; those of results.csv that no folder has stay, so that studies add to it.
"""

import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddppo.files import replacing, write_text
from ddppo.policies.scores import by_task
from ddppo.statistics import LEAST_SEEDS, median
from ddppo.study.measure.statistics import difference
from ddppo.study.page.chart import Axis, Chart
from ddppo.study.runs.records import read_curves

HERE = Path(__file__).resolve().parent
NUM_POINTS = 40  # of a run's curve
KEY = ("env", "world_size", "seed")
Row = dict[str, Any]


class Target(NamedTuple):
    """What is asked of the IQM, and of every seed; what others published; how many digits behind the point tell."""

    at_least: float = -math.inf
    each: float = -math.inf
    published: Mapping[str, float] = {}
    decimals: int = 0

    @property
    def whole(self) -> float:
        """The score that curves are shares of: the first that was published, or what is asked."""
        return next(iter(self.published.values()), self.at_least)

    def said(self, score: float) -> str:
        return f"{score:,.{self.decimals}f}"


FIGURES = {  # name and title of a figure, and its tasks
    ("robots", "Robots and landers"): {
        "HalfCheetah-v5": Target(5000, published={"SB3 zoo": 5819, "CleanRL": 1443, "Tianshou": 5784}),
        "Hopper-v5": Target(2400, published={"SB3 zoo": 2410, "CleanRL": 2383, "Tianshou": 2609}),
        "Walker2d-v5": Target(3400, published={"SB3 zoo": 3479, "CleanRL": 2288, "Tianshou": 3589}),
        "LunarLander-v3": Target(250, 200, {"SB3 zoo": 242}),
        "BipedalWalker-v3": Target(250, published={"SB3 zoo": 287}),
    },
    ("memory_and_pixels", "Memory and pixels"): {
        "ddppo/TMaze-v0": Target(0.95, decimals=2),
        "ddppo/MaskedCartPole-v0": Target(450),
        "MiniGrid-DoorKey-6x6-v0": Target(0.9, decimals=2),
        "ALE/Pong-v5": Target(18, published={"CleanRL": 20.4, "SB3 zoo": 21.0}, decimals=1),
        "ALE/Breakout-v5": Target(published={"SB3 zoo": 398}),
    },
}
TARGETS = {env: target for targets in FIGURES.values() for env, target in targets.items()}
COLOURS = ("blue", "orange", "green", "red", "purple")


def result(summary: Mapping[str, Any]) -> Row:
    """Return the row of a completed run."""
    config, final = summary["config"], summary["eval"]["final"]
    return {
        "env": config["env"]["id"],
        "world_size": summary["world_size"],
        "seed": config["seed"],
        "env_steps": summary["env_steps"],
        "episodes": int(final["episodes"]),
        "return_mean": round(final["return_mean"], 2),
        "return_std": round(final["return_std"], 2),
        "return_min": round(final["return_min"], 2),
        "wall_min": round(summary["wall_s"] / 60, 1),
        "commit": (summary["git_commit"] or "unknown")[:7],
    }


def curve(row: Row, folder: Path) -> list[Row]:
    """Return NUM_POINTS rows of the return that training saw, of the last 100 episodes."""
    found = read_curves(folder / "metrics.jsonl")[0]["rollout/return_mean"]
    kept = np.unique(np.linspace(0, len(found) - 1, NUM_POINTS).round().astype(int))
    key = {name: row[name] for name in KEY}
    return [
        {**key, "env_steps": int(found.env_steps[i]), "return_mean": round(float(found.values[i]), 2)}
        for i in kept
    ]


def merged(name: str, rows: Iterable[Row]) -> list[Row]:
    """Return `rows` with those of the file `name` whose run is none of theirs, in the order of runs; writes them."""
    new = list(rows)
    known = {tuple(str(row[k]) for k in KEY) for row in new}
    if (HERE / name).is_file():
        with open(HERE / name, newline="") as file:
            new += [row for row in csv.DictReader(file) if tuple(row[k] for k in KEY) not in known]
    new.sort(key=lambda row: (row["env"], int(row["world_size"]), int(row["seed"]), int(row["env_steps"])))
    with replacing(HERE / name) as file:
        writer = csv.DictWriter(file, new[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(new)
    return new


def groups(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """Return the rows by task and W, in their order."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["env"], int(row["world_size"])), []).append(row)
    return found


def table(rows: Sequence[Row]) -> str:
    columns = [
        "task",
        "steps",
        "W",
        "seeds",
        "IQM",
        "95 % interval",
        "each seed",
        "asked",
        "reached",
        "published",
    ]
    lines = [_line(columns), _line(["---"] * len(columns))]
    for (env, world_size), of_group in groups(rows).items():
        scores = [float(row["return_mean"]) for row in of_group]
        said = by_task([{"env": env, "return_mean": score} for score in scores])[env]
        low, high = said["return_iqm_interval"]
        target = TARGETS[env]
        steps = max(int(row["env_steps"]) for row in of_group)
        cells = [env, f"{steps:,}", world_size, len(scores), target.said(said["return_iqm"])]
        interval = f"{target.said(low)} to {target.said(high)}"
        cells += [interval if math.isfinite(low) else "too few seeds"]
        cells += [", ".join(map(target.said, scores)), *_verdict(target, said["return_iqm"], scores)]
        lines.append(
            _line([*cells, ", ".join(f"{name} {target.said(x)}" for name, x in target.published.items())])
        )
    return "\n".join([*lines, *_agreement(rows)])


def _verdict(target: Target, score: float, scores: Sequence[float]) -> tuple[str, str]:
    """Return what is asked, and whether it is reached."""
    if not math.isfinite(target.at_least):
        return "", ""
    asked = f">= {target.said(target.at_least)}"
    if math.isfinite(target.each):
        asked += f", each >= {target.said(target.each)}"
    is_reached = score >= target.at_least and min(scores) >= target.each
    return asked, ("yes" if is_reached else "NO") + ("" if len(scores) >= LEAST_SEEDS else ", so far")


def _agreement(rows: Sequence[Row]) -> list[str]:
    """Return a line for every task of two W that says whether their means differ, by Welch's interval."""
    lines, of_groups = [], groups(rows)
    for env in dict.fromkeys(env for env, _ in of_groups):
        sizes = [world_size for of_env, world_size in of_groups if of_env == env]
        if len(sizes) < 2:
            continue
        first, last = (
            [float(row["return_mean"]) for row in of_groups[env, w]] for w in (sizes[0], sizes[-1])
        )
        low, high = difference(first, last)
        if math.isfinite(low):
            verdict, said = "holds 0" if low <= 0 <= high else "DOES NOT HOLD 0", TARGETS[env].said
            lines.append(
                f"- {env}: W={sizes[0]} less W={sizes[-1]} is {said(low)} to {said(high)} (95 %), which {verdict}"
            )
    return ["", *lines] if lines else []


def chart(name: str, title: str, points: Sequence[Row]) -> Chart:
    """Return the training return over `Target.whole` against the part of the steps, median and range over seeds."""
    drawn = Chart(
        name,
        f"{title}: training return",
        Axis("share of the steps", shows=(0,)),
        Axis("share of the published or asked score", shows=(0, 1)),
    )
    colours = dict(zip(dict.fromkeys(env for env, _ in groups(points)), COLOURS, strict=False))
    for (env, world_size), of_group in groups(points).items():
        seeds: dict[str, list[Row]] = {}
        for row in of_group:
            seeds.setdefault(str(row["seed"]), []).append(row)
        last = min(max(int(row["env_steps"]) for row in of_seed) for of_seed in seeds.values())
        xs = np.linspace(0, last, NUM_POINTS + 1)[1:]
        score = TARGETS[env].whole
        shares = np.array(
            [
                np.interp(xs, [int(r["env_steps"]) for r in s], [float(r["return_mean"]) / score for r in s])
                for s in seeds.values()
            ]
        )
        middle, done = [median(column) for column in shares.T.tolist()], (xs / last).tolist()
        if world_size == 1:
            drawn.band(done, shares.min(axis=0).tolist(), shares.max(axis=0).tolist(), colours[env])
        label = f"{env.rpartition('/')[2].split('-')[0]}, W={world_size}"
        drawn.line(done, middle, colours[env], label, dashed=world_size > 1)
    return drawn


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main(folders: Sequence[str]) -> None:
    rows, points = [], []
    for path in (path for folder in folders for path in sorted(Path(folder).rglob("summary.json"))):
        summary = json.loads(path.read_text())
        if summary["status"] == "completed" and summary["config"]["env"]["id"] in TARGETS:
            rows.append(result(summary))
            points += curve(rows[-1], path.parent)
    if not rows and not (HERE / "results.csv").is_file():
        sys.exit(f"no completed run in {' '.join(folders) or 'no folder'}; nothing was written")
    text = table(merged("results.csv", rows))
    write_text(HERE / "table.md", text + "\n")
    curves = merged("curves.csv", points)
    for (name, title), targets in FIGURES.items():
        if drawn := [point for point in curves if point["env"] in targets]:
            write_text(HERE / f"{name}.svg", chart(name, title, drawn).svg(standalone=True) + "\n")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
