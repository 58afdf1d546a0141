"""Write own.csv, cloud.csv, first.csv and cloud.svg of the sweeps that run.sh makes, and print README.md's tables.

python experiments/algorithms/table.py
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from ddppo.algorithms.known import training_section
from ddppo.records import checkpoint
from ddppo.study.page.chart import Axis, Chart

HERE = Path(__file__).resolve().parent
SWEEPS = HERE.parents[1] / "outputs" / "sweeps"
ORDER = ("ddp", "sync_actors", "async_actors", "multi_learner", "env_workers", "central_inference")
TIERS = ("warm-up", "beginner")
COLOURS = {"ddp": "blue", "sync_actors": "orange", "env_workers": "green"}


class Run(NamedTuple):
    folder: Path
    topology: str
    world_size: int
    seed: int
    summary: dict[str, Any]

    @property
    def dtype(self) -> str:
        return self.summary["config"]["dtype"]

    @property
    def total_steps(self) -> int:
        config = self.summary["config"]
        return config[training_section(config)]["total_steps"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics of rank 0, which has those of all ranks."""
        rows = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        return [row for row in rows if row["rank"] == 0]

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "eval/return_mean" in row]

    def differs_from(self, other: "Run", metric: str) -> str:
        """Return the first iteration in which a metric differs, in any bit."""
        pairs = zip(self.rows, other.rows, strict=False)
        return next((str(x["iteration"]) for x, y in pairs if x[metric] != y[metric]), "never")

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters after each iteration."""
        paths = sorted((self.folder / "checkpoints").glob("iteration_*"))
        models = (checkpoint.load(path)["model"].values() for path in paths)
        return [torch.cat([x.reshape(-1) for x in parts]).double() for parts in models]


def read(sweep: str) -> list[Run]:
    """Return the completed runs of a sweep, one process first."""
    found = []
    for path in sorted((SWEEPS / sweep).glob("*/summary.json")):
        summary = json.loads(path.read_text())
        if summary["status"] == "completed":
            topology = summary["config"]["dist"]["topology"]
            found.append(
                Run(path.parent, topology, summary["world_size"], summary["config"]["seed"], summary)
            )
    return sorted(
        found, key=lambda run: (run.world_size > 1, ORDER.index(run.topology), run.total_steps, run.seed)
    )


def write(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with (HERE / name).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def of_topologies(runs: Iterable[Run]) -> dict[tuple[str, int], list[Run]]:
    groups: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.topology, run.world_size].append(run)
    return groups


def own() -> None:
    """Write and print the scores of REINFORCE, and the hashes of its parameters at the end."""
    runs = read("algorithms_own")
    columns = ["topology", "ranks", "total_steps", "seed", "env_steps", "return_mean", "params_hash"]
    rows = []
    for run in runs:
        score = run.summary["eval"]["final"]["return_mean"]
        of_run = [run.topology, run.world_size, run.total_steps, run.seed, run.summary["env_steps"], score]
        rows.append([*of_run, run.summary["params_hash"]])
    write("own.csv", columns, rows)
    steps = sorted({run.total_steps for run in runs})
    hashes = {(run.total_steps, run.seed): run.summary["params_hash"] for run in reversed(runs)}
    print("| | W | " + " | ".join(f"{n:,} steps" for n in steps) + " | parameters at the end |")
    print("|---|---|" + "---|" * (len(steps) + 1))
    for (topology, world_size), same in of_topologies(runs).items():
        cells = [
            ", ".join(
                f"{run.summary['eval']['final']['return_mean']:.0f}" for run in same if run.total_steps == n
            )
            for n in steps
        ]
        alike = all(run.summary["params_hash"] == hashes[run.total_steps, run.seed] for run in same)
        print(f"| {topology} | {world_size} | {' | '.join(cells)} | {'equal' if alike else 'other bits'} |")


def cloud() -> None:
    """Write the evaluations of GRPO, draw them, and print success after equally many tokens."""
    runs = read("algorithms_cloud")
    rows = []
    for run in runs:
        for row in run.evaluations:
            rates = [row["eval/success_rate"], *(row[f"eval/success_rate_{tier}"] for tier in TIERS)]
            rows.append(
                [run.topology, run.world_size, run.seed, row["env_steps"], *(f"{x:.3f}" for x in rates)]
            )
    write("cloud.csv", ["topology", "ranks", "seed", "tokens", "success", *TIERS], rows)
    chart = Chart(
        "cloud", "38 tasks of a simulated cloud, GRPO", Axis("tokens typed"), Axis("share achieved")
    )
    for (topology, _), same in of_topologies(runs).items():
        curves = [run.evaluations for run in same]
        at = [mean(row["env_steps"] for row in rows) for rows in zip(*curves, strict=False)]
        rates = [[row["eval/success_rate"] for row in rows] for rows in zip(*curves, strict=False)]
        chart.band(at, [min(r) for r in rates], [max(r) for r in rates], COLOURS[topology])
        chart.line(at, [mean(r) for r in rates], COLOURS[topology], topology)
    (HERE / "cloud.svg").write_text(chart.svg(standalone=True) + "\n")
    print(
        "| seed | | W | "
        + " | ".join(f"{n:,}" for n in range(10_000, 60_001, 10_000))
        + " | loss | returns |"
    )
    print("|---|---|---|" + "---|" * 8)
    one = {run.seed: run for run in runs if run.world_size == 1}
    for run in sorted(runs, key=lambda run: run.seed):
        cells = [f"{row['eval/success_rate']:.2f}" for row in run.evaluations]
        cells += [
            run.differs_from(one[run.seed], name)
            for name in ("train/policy_loss", "rollout/group_return_mean")
        ]
        print(f"| {run.seed} | {run.topology} | {run.world_size} | {' | '.join(cells)} |")


def first() -> None:
    """Write and print the largest difference of a parameter to one process, after each of the first iterations."""
    rows: list[list[Any]] = []
    for part in ("own", "cloud"):
        runs = read(f"algorithms_{part}_first")
        one = {run.dtype: run.parameters for run in runs if run.world_size == 1}
        for run in runs[len(one) :]:
            both = zip(run.parameters, one[run.dtype], strict=True)
            apart = [(x - y).abs().max().item() for x, y in both]
            name = [part, run.dtype, run.topology, run.world_size]
            rows += [[*name, k, f"{x:.2g}"] for k, x in enumerate(apart, start=1)]
            print(*name, "equal" if not any(apart) else f"{max(apart):.1e}", sep=" | ")
    write("first.csv", ["part", "dtype", "topology", "ranks", "iteration", "largest"], rows)


if __name__ == "__main__":
    for part in (own, cloud, first):
        part()
        print()
