"""Train the zoo's quick tasks with three seeds each, and keep the policy of seed 0 in ddppo/zoo/<name>.

    nice -n 19 python -m experiments.zoo.make                       # all that are kept
    nice -n 19 python -m experiments.zoo.make cartpole pendulum     # these

A run is `python -m ddppo.train experiment=zoo/<name>` with an evaluation of 100 episodes at its end, in
outputs/zoo/<name>/seed_<seed>: one that is complete is taken as it is. results.csv gets a line for each, with its
processor time.
"""

import csv
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from ddppo.policies import zoo

RUNS = Path("outputs/zoo")
RESULTS = Path(__file__).with_name("results.csv")
SEEDS = (0, 1, 2)
COLUMNS = (
    "name",
    "seed",
    "env_steps",
    "return_mean",
    "return_std",
    "return_min",
    "return_max",
    "cpu_s",
    "commit",
)
SETTINGS = (
    "eval.final_episodes=100",
    "checkpoint.every_steps=0",
    "log.progress=none",
    "log.tensorboard=false",
)


def train(name: str, seed: int, run: Path) -> float:
    """Train one run and return its processor time in seconds."""
    command = [sys.executable, "-m", "ddppo.train", f"experiment=zoo/{name}", f"seed={seed}", *SETTINGS]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, f"hydra.run.dir={run}"], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(name: str, seed: int, run: Path, cpu_s: float) -> dict[str, object]:
    summary = json.loads((run / "summary.json").read_text())
    final = {key: round(value, 2) for key, value in summary["eval"]["final"].items()}
    numbers = {key: final[key] for key in COLUMNS if key in final}
    commit = str(summary["git_commit"])[:7]
    return {
        "name": name,
        "seed": seed,
        "env_steps": summary["env_steps"],
        **numbers,
        "cpu_s": round(cpu_s, 1),
        "commit": commit,
    }


def main(names: list[str]) -> None:
    with RESULTS.open() as file:
        rows = {(each["name"], int(each["seed"])): each for each in csv.DictReader(file)}
    for name in names or zoo.names():
        for seed in SEEDS:
            run = RUNS / name / f"seed_{seed}"
            if not (run / "summary.json").is_file():
                rows[name, seed] = row(name, seed, run, train(name, seed, run))
        zoo.keep(RUNS / name / "seed_0", zoo.KEPT / name)
        # After each task, so that nothing is lost if the command is ended.
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[key] for key in sorted(rows))
        print(name, *(rows[name, seed]["return_mean"] for seed in SEEDS), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
