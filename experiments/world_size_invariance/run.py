"""Runs of 50 iterations at W = 1, 2, 4 and 8: hashes of parameters, differences per iteration, and what it costs.

    python experiments/world_size_invariance/run.py [task ...]      # of TASKS, all if none is named
    python experiments/world_size_invariance/run.py cost
    python experiments/world_size_invariance/run.py table           # of what is there, for README.md

Writes hashes.csv and differences.csv, or cost.json, beside itself; rows of other tasks stay.
"""

import csv
import hashlib
import itertools
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ddppo.records import checkpoint

HERE = Path(__file__).parent
ITERATIONS = 50
WORLD_SIZES = (1, 2, 4, 8)
STAGES = ((4, 17), (2, 34), (8, ITERATIONS))  # ranks, and the iteration at which they stop
SMALL = ("env.num_envs=8", "ppo.num_epochs=1", "ppo.num_minibatches=2", "ppo.lr_schedule=none")
NORMALIZED = ("ppo.normalize_obs=true", "ppo.normalize_rewards=true")
TASKS: dict[str, tuple[int, tuple[str, ...]]] = {  # rollout_steps, and what makes the task
    "cartpole": (16, ("env=cartpole",)),
    "cartpole-eager": (16, ("env=cartpole", "compile=off")),
    "pendulum": (16, ("env=pendulum", *NORMALIZED)),
    "lunarlander": (16, ("env=lunarlander", *NORMALIZED)),
    "pong-cnn": (4, ("env=atari", "env.id=ALE/Pong-v5", "model=cnn", "model.hidden_sizes=[64]")),
    "circuits": (16, ("env=circuit", "model=gnn", "model.graph_width=32", "model.graph_layers=2")),
    "cage2": (25, ("env=cage2",)),
}
QUIET = (
    "eval.final_episodes=0", "eval.every_steps=0", "log.progress=none", "log.tensorboard=false", "checkpoint.keep=60",
)  # fmt: skip


def train(*arguments: str) -> None:
    command = [sys.executable, "-m", "ddppo.train", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def arguments_of(task: str, iterations: int) -> list[str]:
    steps, of_task = TASKS[task]
    total = [f"ppo.rollout_steps={steps}", f"ppo.total_steps={iterations * steps * 8}"]
    return [*of_task, *SMALL, *total, *QUIET, "checkpoint.every_steps=1"]


def vectors(run_dir: Path) -> list[torch.Tensor]:
    """Return the parameters after each iteration."""
    paths = sorted((run_dir / "checkpoints").glob("iteration_*"))
    models = [checkpoint.load(path)["model"].values() for path in paths]
    return [torch.cat([x.reshape(-1) for x in parts]) for parts in models]


def hash_of(vector: torch.Tensor) -> str:
    return hashlib.blake2b(vector.numpy().tobytes(), digest_size=8).hexdigest()


def compare(task: str, folder: Path) -> tuple[list[dict], list[dict]]:
    """Return a row of each run, and of each iteration of the runs at W > 1."""
    sizes = ",".join(map(str, WORLD_SIZES))
    sweep = [
        "-m",
        f"dist.world_size={sizes}",
        "dist.reduction=ordered,fast",
        f"hydra.sweep.dir={folder}/sweep",
    ]
    train(*arguments_of(task, ITERATIONS), *sweep)
    runs = {}
    for path in (folder / "sweep").glob("*/summary.json"):
        of_run = json.loads(path.read_text())
        runs[of_run["config"]["dist"]["reduction"], of_run["world_size"]] = vectors(path.parent)
    hashes, differences = [], []
    for reduction, world_size in itertools.product(("ordered", "fast"), WORLD_SIZES):
        found, one = runs[reduction, world_size], runs[reduction, 1]
        row = {"task": task, "reduction": reduction, "ranks": str(world_size)}
        apart = [(x.double() - y.double()).abs().max().item() for x, y in zip(found, one, strict=True)]
        hashes.append({**row, "iterations": len(found), "hash": hash_of(found[-1])})
        if world_size > 1:
            differences += [
                {**row, "iteration": k, "largest": f"{x:.3g}"} for k, x in enumerate(apart, start=1)
            ]
    return [*hashes, staged(task, folder / "staged")], differences


def staged(task: str, run_dir: Path) -> dict:
    """Return the row of a run that stops and goes on with other numbers of ranks."""
    for place, (world_size, until) in enumerate(STAGES):
        where = [f"dist.world_size={world_size}", f"ppo.total_steps={until * TASKS[task][0] * 8}"]
        if place == 0:
            train(*arguments_of(task, until), "dist.reduction=ordered", *where, f"hydra.run.dir={run_dir}")
        else:
            train(f"resume={run_dir}", *where)
    last = vectors(run_dir)[-1]
    ranks = " -> ".join(str(world_size) for world_size, _ in STAGES)
    return {
        "task": task,
        "reduction": "ordered",
        "ranks": ranks,
        "iterations": ITERATIONS,
        "hash": hash_of(last),
    }


def rewrite(name: str, rows: list[dict]) -> None:
    """Replace what the file holds of the rows' tasks."""
    path, columns = HERE / name, list(rows[0])
    tasks, kept = {row["task"] for row in rows}, []
    if path.exists():
        with path.open() as file:
            kept = [row for row in csv.DictReader(file) if row["task"] not in tasks]
    order = list(TASKS)
    of_all = sorted([*kept, *rows], key=lambda row: order.index(row["task"]))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(of_all)


def cost() -> None:
    """Measure processor time per step of the bench's workloads at W = 1, where ordered costs most.

    What a short run takes is taken off a long one's: both start alike. Processor time is the same on a busy machine,
    and the two reductions take turns.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for workload, (short, long) in {
        "w1": (1024, 1_500_000),
        "w2": (8192, 2_000_000),
        "w3": (1024, 5120),
    }.items():
        of_workload = found.setdefault(workload, {"fast": [], "ordered": []})
        for _ in range(3):
            for reduction, values in of_workload.items():
                more = processor_s(workload, reduction, long) - processor_s(workload, reduction, short)
                values.append(round(1e6 * more / (long - short), 2))
        print(workload, of_workload, flush=True)
    (HERE / "cost.json").write_text(json.dumps(found, indent=1) + "\n")


def processor_s(workload: str, reduction: str, steps: int) -> float:
    """Return what a run on one rank takes of processors, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        sizes = [f"ppo.total_steps={steps}", f"dist.reduction={reduction}", "checkpoint.every_steps=0"]
        train(
            f"experiment=bench/{workload}",
            *sizes,
            *QUIET,
            "dist.threads_per_rank=1",
            f"hydra.run.dir={folder}/run",
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def read(name: str) -> list[dict[str, str]]:
    with (HERE / name).open() as file:
        return list(csv.DictReader(file))


def table() -> None:
    """Print a row of Markdown for each task: the hashes of ordered runs, and how far fast ones are from W = 1."""
    hashes, differences = read("hashes.csv"), read("differences.csv")
    for task in TASKS:
        found = {(row["reduction"], row["ranks"]): row["hash"] for row in hashes if row["task"] == task}
        if not found:
            continue
        of_ordered = list(dict.fromkeys(x for (reduction, _), x in found.items() if reduction == "ordered"))
        apart = {
            k: max(
                float(row["largest"])
                for row in differences
                if (row["task"], row["reduction"], row["iteration"]) == (task, "fast", str(k))
            )
            for k in (1, 10, 25, ITERATIONS)
        }
        runs = sum(reduction == "ordered" for reduction, _ in found)
        far = " | ".join(f"{x:.1e}" for x in apart.values())
        print(f"| {task} | {runs} | {', '.join(of_ordered)} | {far} |")


def main() -> None:
    if sys.argv[1:] == ["table"]:
        table()
        return
    if sys.argv[1:] == ["cost"]:
        cost()
        return
    for task in sys.argv[1:] or list(TASKS):
        with tempfile.TemporaryDirectory() as folder:
            hashes, differences = compare(task, Path(folder))
        rewrite("hashes.csv", hashes)
        rewrite("differences.csv", differences)
        for row in hashes:
            print(row["task"], row["reduction"], row["ranks"], row["hash"], flush=True)


if __name__ == "__main__":
    main()
