"""How many environment steps a second does each backend give? README.md says what to call.

A process per checkout holds a batch of every backend at once; they step in turn, a slice of a second each, round by
round, so that what else runs on the machine meets all of them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

TASKS = {
    "CartPole-v1": {"id": "CartPole-v1"},
    "HalfCheetah-v5": {"id": "HalfCheetah-v5"},
    "busy 1 ms": {"id": "ddppo/Synthetic-v0", "kwargs": {"step_time_s": 0.001, "busy": True}},
    "asleep 2 ms": {"id": "ddppo/Synthetic-v0", "kwargs": {"step_time_s": 0.002}},
}
SLICE_S = 0.2


def serve(task: str, num_envs: int, backends: list[str], real_time: bool) -> None:
    """Step the batch of the backend that a line of standard input names, and answer with steps per second."""
    import os

    import numpy as np

    from ddppo.config.settings import EnvConfig
    from ddppo.envs.make import make_vec_env

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # MuJoCo warns there
    batches, cores = {}, len(os.sched_getaffinity(0))
    for backend in backends:
        start = time.perf_counter()
        batches[backend] = envs = make_vec_env(
            EnvConfig(backend=backend, **TASKS[task]), range(num_envs), rank=0, cores=cores
        )
        envs.reset(list(range(num_envs)))
        print(time.perf_counter() - start, file=answers)
    rng, action = np.random.default_rng(0), envs.spec.action
    actions = rng.standard_normal((16, num_envs, *action.shape)).astype(np.float32)
    if action.kind == "discrete":
        actions = rng.integers(0, action.sizes[0], (16, num_envs))
    for pid in family(os.getpid()) if real_time else []:
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(5))
    for line in sys.stdin:
        envs, num_steps, start = batches[line.strip()], 0, time.perf_counter()
        while time.perf_counter() - start < SLICE_S:
            envs.step(actions[num_steps % 16])
            num_steps += 1
        print(num_steps * num_envs / (time.perf_counter() - start), file=answers)
    for envs in batches.values():
        envs.close()


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def measure(
    task: str, num_envs: int, sides: dict[Path, list[str]], rounds: int, real_time: bool
) -> list[dict]:
    """Return a row per checkout and backend: the steps per second of every round, and seconds to the first reset."""
    children = {
        checkout: subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[0] = '.'; sys.path.append({str(Path(__file__).parent)!r})\n"
             f"from measure import serve\nserve({task!r}, {num_envs}, {backends}, {real_time})"],
            cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for checkout, backends in sides.items()
    }  # fmt: skip
    rows = [
        {"task": task, "num_envs": num_envs, "checkout": str(checkout), "backend": backend, "rates": []}
        for checkout, backends in sides.items()
        for backend in backends
    ]
    for row in rows:
        row["start_s"] = float(children[Path(row["checkout"])].stdout.readline())
    for _ in range(rounds):
        for row in rows:
            child = children[Path(row["checkout"])]
            print(row["backend"], file=child.stdin, flush=True)
            row["rates"].append(float(child.stdout.readline()))
    for child in children.values():
        child.communicate()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sides", nargs="+", help="folder:backend,backend, e.g. .:sync,pool ../older:sync,async"
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--num-envs", type=int, nargs="+", default=[8, 64, 100])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="run before all else, where others use the machine; needs root",
    )
    parser.add_argument("--out", type=Path, help="a file that gets a line of JSON per row")
    options = parser.parse_args()
    sides = {
        Path(folder): names.split(",") for folder, _, names in (s.rpartition(":") for s in options.sides)
    }
    for task in options.tasks:
        for num_envs in options.num_envs:
            rows = measure(task, num_envs, sides, options.rounds, options.real_time)
            for row in rows:
                said = f"{statistics.median(row['rates']):10,.0f}/s, made in {row['start_s']:.1f} s"
                print(f"{task:15} {num_envs:4} {row['checkout']} {row['backend']:7} {said}", flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
