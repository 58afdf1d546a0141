"""How long does a run take from the shell's return key to its first iteration? README.md says what to call.

Each start is a command of its own, ended at the first whole line of metrics.jsonl. Checkouts are
measured in turn, round by round, so that what else runs on the machine meets all of them.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# 64 x 128 steps, 4 epochs x 4 minibatches: the first iteration is part of what is measured.
WORK = [
    "env=cartpole",
    "env.num_envs=64",
    "ppo.rollout_steps=128",
    "ppo.num_epochs=4",
    "ppo.num_minibatches=4",
]
ENDLESS = ["ppo.total_steps=1000000000", "log.progress=none"]


def seconds_to_first_iteration(checkout: Path, world_size: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "ddppo.train", *WORK, *ENDLESS, f"dist.world_size={world_size}"]
        start = time.monotonic()
        with subprocess.Popen(
            [*command, f"hydra.run.dir={run_dir}"], cwd=checkout, stderr=subprocess.PIPE, text=True
        ) as process:
            metrics = run_dir / "metrics.jsonl"
            while not (metrics.exists() and "\n" in metrics.read_text()):
                if process.poll() is not None:
                    sys.exit(f"{checkout}, W = {world_size}: {process.communicate()[1]}")
                time.sleep(0.005)
            seconds = time.monotonic() - start
            process.send_signal(signal.SIGTERM)
            process.communicate()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path, nargs="+", help="folders, e.g. . ../older")
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[1, 2, 4, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a JSON file for all numbers")
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {str(checkout): {} for checkout in options.checkouts}
    for world_size in options.world_sizes:
        for _ in range(options.rounds):
            for checkout in options.checkouts:
                seconds = seconds_to_first_iteration(checkout, world_size)
                found[str(checkout)].setdefault(str(world_size), []).append(round(seconds, 2))
        for checkout, by_world_size in found.items():
            values = by_world_size[str(world_size)]
            print(
                f"W = {world_size:2}  {checkout}: {statistics.median(values):.2f} s of {values}", flush=True
            )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
