"""What do policies that were trained in our CAGE 2 come to in CybORG? Writes transfer.csv.

python -m experiments.cage2.transfer RUN_FOLDER... [--episodes 100]     (CybORG installed: docs/cage2.md)

Each policy takes its likeliest action. Both games have CybORG's quirk of OTService.
"""

import argparse
import csv
import json
import math
from pathlib import Path

import gymnasium as gym
import numpy as np

from ddppo import load_policy
from ddppo.domains.cage2.cyborg import CyborgEnv
from ddppo.domains.cage2.env import CageEnv
from ddppo.policies.acting import LoadedPolicy

_FOLDER = Path(__file__).parent


def returns(policy: LoadedPolicy, env: gym.Env, episodes: int) -> np.ndarray:
    """Play episodes with the seeds 0, 1, ...; return their sums of rewards `[episodes]`."""
    sums = np.zeros(episodes)
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        is_over = False
        while not is_over:
            obs, reward, terminated, is_over, _ = env.step(int(policy(obs)))
            sums[seed] += float(reward)
            assert not terminated
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--episodes", type=int, default=100)
    given = parser.parse_args()
    rows = []
    for run in given.runs:
        config = json.loads((run / "summary.json").read_text())["config"]
        policy, red = load_policy(run), config["env"]["kwargs"]["red"]
        row = {"red": red, "seed": config["seed"], "episodes": given.episodes}
        for name, env in (("ours", CageEnv(red, faithful_ot_quirk=True)), ("cyborg", CyborgEnv(red))):
            found = returns(policy, env, given.episodes)
            row |= {
                name: round(float(found.mean()), 2),
                f"{name}_error": round(float(found.std(ddof=1)) / math.sqrt(given.episodes), 2),
            }
        rows.append(row)
        print(row, flush=True)
    with (_FOLDER / "transfer.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
