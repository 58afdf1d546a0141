"""Write results.csv, results.md, rollouts.md, curve.csv and curve.svg from what success.py and a run have written.

python experiments/real_model/table.py run=/tmp/grpo untrained=a.json supervised=b.json grpo=c.json
"""

import csv
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.study.page.chart import Axis, Chart
from experiments.real_model.success import wilson
from experiments.real_model.supervised import TASKS

HERE = Path(__file__).resolve().parent
SPLIT = {task: split for split, tasks in TASKS.items() for task in tasks}
Rows = Sequence[Mapping[str, Any]]


def num_hints(row: Mapping[str, Any]) -> int:
    return len(re.findall(r"\bhint [123]: ", row["text"]))


def cell(rows: Rows) -> str:
    """Return solved / episodes with its interval, and the mean score."""
    if not rows:
        return "-"
    won = sum(row["success"] for row in rows)
    low, high = wilson(won, len(rows))
    alone = sum(row["success"] and num_hints(row) == 0 for row in rows)
    score = np.mean([row["score"] for row in rows])
    return f"**{won / len(rows):.2f}** [{low:.2f}, {high:.2f}], {alone / len(rows):.2f}, {score:.2f}"


def table(stages: Mapping[str, Rows]) -> str:
    """Return success with its interval, success without a hint, and score: stages by tier, and by split."""
    every = [row for rows in stages.values() for row in rows]
    groups = {
        tier: (lambda row, of=tier: row["tier"] == of) for tier in dict.fromkeys(r["tier"] for r in every)
    }
    groups |= {split: (lambda row, of=split: SPLIT.get(row["task"]) == of) for split in TASKS}
    lines = [f"| | {' | '.join(stages)} |", "|---" * (len(stages) + 1) + "|"]
    for name, belongs in groups.items():
        of_group = [[row for row in rows if belongs(row)] for rows in stages.values()]
        num = len({row["task"] for row in every if belongs(row)})
        lines.append(f"| {name} ({num} tasks) | {' | '.join(map(cell, of_group))} |")
    return "\n".join(lines)


def dialogues(stages: Mapping[str, Rows], tasks: Sequence[str]) -> str:
    """Return the first episode of each of these tasks at each stage, as the model has read and typed it."""
    parts = []
    for task in tasks:
        for stage, rows in stages.items():
            row = next(row for row in rows if row["task"] == task)
            text = row["text"].replace("<|im_end|>", "").split("<|im_start|>")
            shown = "\n".join(line for part in text if part.strip() for line in part.strip().splitlines())
            parts.append(
                f"## {task} ({SPLIT.get(task, row['tier'])}), {stage}: score {row['score']:.2f}\n\n```\n{shown}\n```"
            )
    return "\n\n".join(parts)


def curve(run: Path) -> list[dict[str, float]]:
    """Return for each iteration of a run the success and the mean score of its rollouts."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    names = {
        "minutes": lambda row: row["wall_s"] / 60,
        "tokens": lambda row: row["env_steps"],
        "success": lambda row: row["rollout/success_rate"],
        "score": lambda row: row["rollout/group_return_mean"],
        "hints": lambda row: row["reward/hints"],
        "groups_without_spread": lambda row: row["train/groups_without_spread"],
        "seconds_rollout": lambda row: row["time/t_rollout"],
        "seconds_learn": lambda row: row["time/t_learn"],
    }
    return [
        {name: round(float(of(row)), 4) for name, of in names.items()}
        for row in lines
        if "rollout/success_rate" in row and "rollout/group_return_mean" in row
    ]


def chart(rows: Sequence[Mapping[str, float]]) -> Chart:
    drawn = Chart(
        "curve", "SmolLM2-135M on tasks of a simulated cloud, GRPO", Axis("minutes"), Axis("mean of rollouts")
    )
    minutes = [row["minutes"] for row in rows]
    drawn.line(minutes, [row["success"] for row in rows], "blue", "solved")
    drawn.line(minutes, [row["score"] for row in rows], "orange", "score (a hint costs 15 %)")
    return drawn


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(words: Sequence[str]) -> None:
    given = dict(word.split("=", 1) for word in words)
    run = given.pop("run", None)
    shown = given.pop(
        "shown", "iam_get_user,s3_make_bucket,iam_list_users,sqs_list_queues,sns_delete_topic"
    ).split(",")
    stages = {stage: json.loads(Path(path).read_text())["episodes"] for stage, path in given.items()}
    counted = []
    for stage, rows in stages.items():
        for task in dict.fromkeys(row["task"] for row in rows):
            of = [row for row in rows if row["task"] == task]
            solved, score = sum(row["success"] for row in of), float(np.mean([row["score"] for row in of]))
            alone = sum(row["success"] and num_hints(row) == 0 for row in of)
            counted.append(
                {"stage": stage, "task": task, "tier": of[0]["tier"], "split": SPLIT.get(task, "unseen"),
                 "episodes": len(of), "solved": solved, "solved_without_hints": alone, "score": round(score, 4)}
            )  # fmt: skip
    write_csv(HERE / "results.csv", counted)
    (HERE / "results.md").write_text(table(stages) + "\n")
    (HERE / "rollouts.md").write_text("# Rollouts of five tasks\n\n" + dialogues(stages, shown) + "\n")
    print(table(stages))
    if run:
        write_csv(HERE / "curve.csv", rows := curve(Path(run)))
        (HERE / "curve.svg").write_text(chart(rows).svg(standalone=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
