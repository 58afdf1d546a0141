"""Write time_to_475.csv: seconds from the shell's return key until an evaluation of CartPole reaches 475.

.venv/bin/python experiments/published_scores/time_to_target.py

Five seeds in turn, each the whole command as a user would type it, timed from before it starts until its metrics.jsonl
holds the evaluation of 100 episodes; wall_s there is the training alone. cpu_s: processor time of the
whole command, to its end. load: the machine's, of the last minute.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
SEEDS, TARGET, PATIENCE_S = range(5), 475.0, 300.0
COMMAND = [
    "-m", "ddppo.train", "env=cartpole", "ppo.total_steps=40000", f"target_return={TARGET:g}", "eval.every_steps=5000",
    "eval.episodes=100",
    "eval.final_episodes=0", "checkpoint.every_steps=0", "log.tensorboard=false", "log.progress=none",
]  # fmt: skip


def reached(path: Path) -> dict[str, Any] | None:
    """Return the first line of a metrics.jsonl whose evaluation reached the target; None as long as there is none."""
    if not path.is_file():
        return None
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    evaluated = (json.loads(line) for line in whole if '"eval/return_mean"' in line)
    return next((line for line in evaluated if line["eval/return_mean"] >= TARGET), None)


def timed(seed: int, folder: Path) -> dict[str, Any]:
    """Run the command in `folder` and return its row. Raises CalledProcessError or TimeoutError."""
    load, began, found = os.getloadavg()[0], time.perf_counter(), None
    process = subprocess.Popen([sys.executable, *COMMAND, f"seed={seed}", f"hydra.run.dir={folder}"])
    while (found := reached(folder / "metrics.jsonl")) is None and process.poll() is None:
        if time.perf_counter() - began > PATIENCE_S:
            process.kill()
            raise TimeoutError(f"seed {seed} has not reached {TARGET:g} in {PATIENCE_S:.0f} s")
        time.sleep(0.01)
    seconds = time.perf_counter() - began
    _, status, usage = (
        os.wait4(process.pid, 0) if process.returncode is None else (0, process.returncode, None)
    )
    if status or found is None or usage is None:
        raise subprocess.CalledProcessError(status, COMMAND)
    return {
        "seed": seed,
        "seconds": round(seconds, 2),
        "training_s": round(found["wall_s"], 2),
        "env_steps": found["env_steps"],
        "return_mean": found["eval/return_mean"],
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "load": round(load, 1),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [timed(seed, Path(folder) / str(seed)) for seed in SEEDS]
    with open(HERE / "time_to_475.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(row)
    print({name: median(row[name] for row in rows) for name in ("seconds", "training_s", "cpu_s", "load")})


if __name__ == "__main__":
    main()
