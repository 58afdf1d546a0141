"""How many steps of CAGE 2 a second, of all environments together? Writes speed.csv and prints its table.

    python -m experiments.cage2.speed

Ways take turns, a slice of time each, and each is told by its fastest slice: other programs only ever slow one down.
"""

import csv
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.domains.cage2 import games as module
from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.rules import NUM_ACTIONS
from ddppo.envs.make import make_vec_env

SLICE_S, SLICES = 0.02, 60
Way = Callable[[np.ndarray], object]


def games(num_envs: int, in_cpp: bool) -> Way:
    """Return the step of games alone; they go on for ever."""
    made = Games(num_envs, "meander")
    made.reset(np.arange(num_envs), np.arange(num_envs, dtype=np.uint64))
    chosen = module.step_in_cpp
    module.step_in_cpp = chosen if in_cpp else lambda: None  # which the first step asks
    made.step(np.zeros(num_envs, np.int64))
    module.step_in_cpp = chosen
    return made.step


def environments(num_envs: int, backend: str, num_workers: int | None) -> Way:
    """Return the step of environments as a rank has them, whose episodes end and begin."""
    env = EnvConfig(
        id="ddppo/CAGE2-v0",
        num_envs=num_envs,
        backend=backend,
        num_workers=num_workers,
        kwargs={"red": "meander"},
    )
    made = make_vec_env(env, range(num_envs), rank=0, cores=1)
    made.reset(range(num_envs))
    return made.step


def main() -> None:
    rows: dict[tuple[str, int], Way] = {}
    for num_envs in (1, 100, 1024):
        rows["games, NumPy", num_envs] = games(num_envs, in_cpp=False)
        rows["games, C++", num_envs] = games(num_envs, in_cpp=True)
        rows["env.backend=batched", num_envs] = environments(num_envs, "batched", None)
    rows["env.backend=sync", 100] = environments(100, "sync", None)
    rows["env.backend=pool, 2 processes", 100] = environments(100, "pool", 2)
    rows["env.backend=pool, 100 processes", 100] = environments(100, "pool", 100)
    rng = np.random.default_rng(0)
    actions = {key: rng.integers(NUM_ACTIONS, size=(64, key[1])) for key in rows}
    best = dict.fromkeys(rows, 0.0)
    for _ in range(SLICES):
        for key, step in rows.items():
            best[key] = max(best[key], steps_per_s(step, actions[key]) * key[1])
    found = [{"way": way, "environments": n, "steps_per_s": round(best[way, n])} for way, n in rows]
    with Path(__file__).with_name("speed.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, found[0])
        writer.writeheader()
        writer.writerows(found)
    print("| way | environments | steps/s |\n|---|---|---|")
    for row in found:
        print(f"| {row['way']} | {row['environments']:,} | {row['steps_per_s']:,} |")


def steps_per_s(step: Way, actions: np.ndarray) -> float:
    """Return calls of `step` a second, over SLICE_S seconds."""
    num_calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SLICE_S:
        step(actions[num_calls % len(actions)])
        num_calls += 1
    return num_calls / elapsed


if __name__ == "__main__":
    main()
