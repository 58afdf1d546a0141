"""How many steps a second do 100 environments give, by who steps them? README.md says what to call.

All batches are made first and step in turn, a slice of a second each, round by round, so that what else runs on the
machine meets all of them. Writes a line of CSV for each.
"""

import argparse
import csv
import os
import statistics
import time
from pathlib import Path

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
from experiments.env_backends.measure import family

SLICE_S = 0.3


def ways(num_envs: int, names: list[str]) -> dict[str, dict[str, object]]:
    """Return the settings of env.* by the name of a way to step."""
    every: dict[str, dict[str, object]] = {
        "batched": {"backend": "batched"},
        "sync": {"backend": "sync"},
        "pool": {"backend": "pool"},
        "a process each": {"backend": "pool", "num_workers": num_envs},
    }
    return {name: every[name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--env", default="ddppo/CAGE2-v0", help="or ddppo/CybORG-v0, where CybORG is installed"
    )
    parser.add_argument("--num-envs", type=int, default=100)
    parser.add_argument("--ways", nargs="+", default=["batched", "sync", "pool", "a process each"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="run before all else, where others use the machine; needs root",
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("pool.csv"))
    options = parser.parse_args()
    num_envs, cores = options.num_envs, len(os.sched_getaffinity(0))
    batches, started, rates = {}, {}, {}
    for name, settings in ways(num_envs, options.ways).items():
        start = time.perf_counter()
        env = EnvConfig(id=options.env, num_envs=num_envs, **settings)  # type: ignore[arg-type]
        batches[name] = make_vec_env(env, range(num_envs), rank=0, cores=cores)
        batches[name].reset(range(num_envs))
        started[name], rates[name] = time.perf_counter() - start, []
    for pid in family(os.getpid()) if options.real_time else []:
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(5))
    actions = np.random.default_rng(0).integers(0, 145, (64, num_envs))
    for _ in range(options.rounds):
        for name, envs in batches.items():
            num_steps, start = 0, time.perf_counter()
            while time.perf_counter() - start < SLICE_S:
                envs.step(actions[num_steps % 64])
                num_steps += 1
            rates[name].append(num_envs * num_steps / (time.perf_counter() - start))
    rows = [
        {
            "env": options.env,
            "num_envs": num_envs,
            "way": name,
            "steps_per_s": round(statistics.median(found)),
            "least": round(min(found)),
            "most": round(max(found)),
            "made_in_s": round(started[name], 2),
            "cores": cores,
        }
        for name, found in rates.items()
    ]
    for row in rows:
        print(", ".join(f"{key}={value}" for key, value in row.items()))
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for envs in batches.values():
        envs.close()


if __name__ == "__main__":
    main()
