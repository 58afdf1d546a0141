"""The learning curve of a run: mean return of its last 100 games against steps and the seconds of its iterations.

python experiments/pixels/curve.py outputs/pong > experiments/pixels/pong_seed0.csv
"""

import json
import sys
from pathlib import Path

EVERY = 50_000  # steps between rows


def main() -> None:
    seconds, due, row = 0.0, 0, None
    print("env_steps,return_mean,learn_and_rollout_s")
    for line in (Path(sys.argv[1]) / "metrics.jsonl").open():
        iteration = json.loads(line)
        if iteration["rank"] != 0:
            continue
        seconds += iteration["time/t_iter"]
        if (mean := iteration.get("rollout/return_mean")) is None:
            continue
        row = f"{iteration['env_steps']},{mean:.2f},{seconds:.0f}"
        if iteration["env_steps"] >= due:
            print(row)
            due, row = iteration["env_steps"] + EVERY, None
    if row is not None:
        print(row)


if __name__ == "__main__":
    main()
