"""How often the choice to change nothing is offered, and how often episodes of experiment=quarl end by it.

PYTHONPATH=. .venv/bin/python experiments/circuits/nop.py           # two runs of a small network, 2 CPU minutes

Writes nop_offered.csv (random rewriting: how many rules match at a gate) and nop_ends.csv (an iteration a row, with
and without episode.nop_stop) beside this file.
"""

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ddppo.domains.circuits.task import CircuitEnv

HERE = Path(__file__).resolve().parent
CIRCUITS = ("tof_3", "barenco_tof_3", "mod5_4")
ENDED = ("too_costly", "nothing_changed", "cut")
SMALL = ("model.graph_width=32", "model.graph_layers=3", "distributed=ddp", "env.backend=sync")
QUIET = ("eval.final_episodes=0", "log.progress=none", "log.tensorboard=false", "checkpoint.every_steps=0")


def offered(circuit: str, num_steps: int = 300) -> dict[str, object]:
    """Return how many rules match at a gate of the circuits that random rewriting meets, means over steps."""
    env = CircuitEnv(circuit, episode={"nop": "never", "min_steps": 600}, start="merge")
    rng, found = np.random.default_rng(0), []
    obs, _ = env.reset(seed=0)
    for _ in range(num_steps):
        gates, pairs = int(obs["num_nodes"][0]), int(obs["num_pairs"][0])
        rules = np.bincount(obs["pairs"][:pairs, 0], minlength=gates)
        # The chance of NOP if it is one more choice at every gate, all gates and all choices at a gate are alike.
        adds = (obs["growth"][:pairs] > 0).mean()
        found.append([(rules == 0).mean(), rules.mean(), adds, (1 / (rules + 1)).mean()])
        obs, _, terminated, truncated, _ = env.step(int(rng.integers(pairs)))
        if terminated or truncated:
            obs, _ = env.reset()
    names = ("gates_without_a_rule", "rules_per_gate", "rules_that_add_gates", "chance_of_nop")
    return {"circuit": circuit} | {name: f"{x:.2f}" for name, x in zip(names, np.mean(found, 0), strict=True)}


def ends(nop_stop: str, circuit: str = "barenco_tof_3", num_steps: int = 15_360) -> list[dict[str, object]]:
    """Train for four iterations; return of each how its episodes ended and how many of its steps changed nothing."""
    with TemporaryDirectory() as folder:
        how = ["experiment=quarl", f"env.circuit={circuit}", f"env.episode.nop_stop={nop_stop}"]
        how += [*SMALL, *QUIET, f"ppo.total_steps={num_steps}", f"hydra.run.dir={folder}/run"]
        subprocess.run([sys.executable, "-m", "ddppo.train", *how], check=True, stdout=subprocess.DEVNULL)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    rows, before = [], 0
    for line in map(json.loads, lines):
        if "task/rewrites" not in line:
            continue
        steps, before = int(line["env_steps"]) - before, int(line["env_steps"])
        of_ends = {f"ended_{why}": int(line[f"task/ended_{why}"]) for why in ENDED}
        rows.append(
            {"circuit": circuit, "nop_stop": nop_stop, "env_steps": before, **of_ends}
            | {"steps_without_change": f"{1 - line['task/rewrites'] / steps:.2f}"}
            | {"best_cost": int(line[f"task/best_cost/{circuit}"])}
        )
    return rows


def write(name: str, rows: Sequence[dict[str, object]]) -> None:
    with open(HERE / name, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print((HERE / name).read_text())


if __name__ == "__main__":
    write("nop_offered.csv", [offered(circuit) for circuit in CIRCUITS])
    write("nop_ends.csv", [row for nop_stop in ("true", "false") for row in ends(nop_stop)])
