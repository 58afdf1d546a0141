"""Write results.csv, results.md, rollouts.md, curve.csv and curve.svg from what success.py and a run have written.

python experiments/real_model/table.py run=/tmp/grpo text=a.jsonl shots=b.jsonl supervised=c.jsonl grpo=d.jsonl

Several files of a stage have commas between them.
"""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.domains.text.rollouts import RolloutRecord, TurnRecord, read_rollouts
from ddppo.study.page.chart import Axis, Chart
from experiments.real_model.success import wilson
from experiments.real_model.supervised import TASKS

HERE = Path(__file__).resolve().parent
SHOWN = "iam_list_users,ssm_get_parameter,s3_list_buckets,dynamodb_put_item,sqs_list_queues"  # in rollouts.md
MOST_LINES = 3  # of an answer there
SPLIT = {task: split for split, tasks in TASKS.items() for task in tasks}
Records = Sequence[RolloutRecord]


def num_hints(record: RolloutRecord) -> int:
    return sum(turn.action == "hint" for turn in record.turns)


def cell(records: Records) -> str:
    """Return the share solved with its interval, the share solved without a hint, and the mean score."""
    if not records:
        return "-"
    won = sum(bool(record.is_success) for record in records)
    low, high = wilson(won, len(records))
    alone = np.mean([bool(record.is_success) and num_hints(record) == 0 for record in records])
    score = np.mean([record.episode_return for record in records])
    return f"**{won / len(records):.2f}** [{low:.2f}, {high:.2f}], {alone:.2f}, {score:.2f}"


def table(stages: Mapping[str, Records]) -> str:
    """Return a row for each tier and each split, a column for each stage."""
    every = [record for records in stages.values() for record in records]
    groups: dict[str, Callable[[RolloutRecord], bool]] = {}
    for tier in dict.fromkeys(str(record.tier) for record in every):
        groups[tier] = lambda record, of=tier: record.tier == of
    for split in TASKS:
        groups[split] = lambda record, of=split: SPLIT.get(str(record.task)) == of
    lines = [f"| | {' | '.join(stages)} |", "|---" * (len(stages) + 1) + "|"]
    for name, belongs in groups.items():
        cells = [cell([record for record in records if belongs(record)]) for records in stages.values()]
        num_tasks = len({record.task for record in every if belongs(record)})
        lines.append(f"| {name}, {num_tasks} tasks | {' | '.join(cells)} |")
    return "\n".join(lines)


def dialogues(stages: Mapping[str, Records], tasks: Sequence[str]) -> str:
    """Return the first episode of each of these tasks at each stage."""
    parts = []
    for task in tasks:
        for stage, records in stages.items():
            record = next(record for record in records if record.task == task)
            lines = [record.prompt or ""]
            for turn in record.turns:
                lines.append(f"> {' / '.join((turn.typed or '').removesuffix('<|im_end|>').splitlines())}")
                lines += (turn.answer or "").splitlines()[:MOST_LINES]
            head = f"## {task} ({SPLIT.get(task, record.tier)}), {stage}: score {record.episode_return:.2f}"
            parts.append("\n".join([head, "", "```", *lines, "```"]))
    return "\n\n".join(parts)


def curve(run: Path, before: Records) -> list[dict[str, float]]:
    """Return for each iteration of a run the success and the mean score of its rollouts.

    The curriculum gives each iteration other tasks. Beside them stands how the model solved the same tasks before the
    run, in the episodes `before`.
    """
    solved, score = ({task: [] for task in SPLIT} for _ in range(2))
    for record in before:
        solved[record.task].append(record.is_success)
        score[record.task].append(record.episode_return)
    rollouts = [each for each in read_rollouts(run) if each.kind == "training"]
    rows = []
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if line["rank"] != 0:
            continue
        of = [each for each in rollouts if each.iteration == line["iteration"]]
        row = {
            "iteration": line["iteration"],
            "minutes": line["wall_s"] / 60,
            "tokens": line["env_steps"],
            "solved": np.mean([each.is_success for each in of]),
            "solved_before": np.mean([np.mean(solved[each.task]) for each in of]),
            "score": np.mean([each.episode_return for each in of]),
            "score_before": np.mean([np.mean(score[each.task]) for each in of]),
            "groups_without_spread": line["train/groups_without_spread"],
            "approx_kl": line["train/approx_kl"],
            "seconds_rollout": line["time/t_rollout"],
            "seconds_learn": line["time/t_learn"],
        }
        rows.append({name: round(float(x), 4) for name, x in row.items()})
    return rows


def chart(rows: Sequence[Mapping[str, float]]) -> Chart:
    drawn = Chart(
        "curve", "SmolLM2-135M on tasks of a simulated cloud", Axis("minutes"), Axis("mean", shows=(0.0, 1.0))
    )
    minutes = [row["minutes"] for row in rows]
    for name, colour, label in (
        ("solved", "blue", "solved, GRPO"),
        ("solved_before", "grey", "solved before, same tasks"),
        ("score", "orange", "score, GRPO"),
        ("score_before", "green", "score before, same tasks"),
    ):
        drawn.line(minutes, [row[name] for row in rows], colour, label)
    return drawn


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path: str) -> Records:
    found = []
    for line in Path(path).read_text().splitlines():
        fields = json.loads(line)
        found.append(RolloutRecord(**fields | {"turns": [TurnRecord(**turn) for turn in fields["turns"]]}))
    return found


def counted(stage: str, records: Records) -> list[dict[str, Any]]:
    """Return a row for each task."""
    rows = []
    for task in dict.fromkeys(str(record.task) for record in records):
        of = [record for record in records if record.task == task]
        row = {"stage": stage, "task": task, "tier": of[0].tier, "split": SPLIT.get(task, "unseen")}
        row |= {"episodes": len(of), "solved": sum(bool(each.is_success) for each in of)}
        row["solved_without_hints"] = sum(bool(each.is_success) and num_hints(each) == 0 for each in of)
        row["score"] = round(float(np.mean([each.episode_return for each in of])), 4)
        rows.append(row)
    return rows


def main(words: Sequence[str]) -> None:
    given = dict(word.split("=", 1) for word in words)
    run, shown = given.pop("run"), given.pop("shown", SHOWN).split(",")
    stages = {
        stage: [each for path in paths.split(",") for each in read(path)] for stage, paths in given.items()
    }
    write_csv(HERE / "results.csv", [row for stage, of in stages.items() for row in counted(stage, of)])
    (HERE / "results.md").write_text(table(stages) + "\n")
    (HERE / "rollouts.md").write_text("# Rollouts of five tasks\n\n" + dialogues(stages, shown) + "\n")
    print(table(stages))
    write_csv(HERE / "curve.csv", rows := curve(Path(run), stages["supervised"]))
    (HERE / "curve.svg").write_text(chart(rows).svg(standalone=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
