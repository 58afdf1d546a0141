"""Processor time of a step of MuJoCo's robots: mj_step alone, Gymnasium, env.backend=sync and batched; and of training.

python experiments/speed/robots.py                # steps of all tasks, one thread
python experiments/speed/robots.py training=true  # HalfCheetah's training instead (experiment=bench/w4), W=1, one core

Processor time, not wall time, so that other programs on the machine count less; ratios are medians over rounds in which
all ways take turns. Actions are Gaussian, as those of a policy that begins to learn. A training's time per step is the
difference of two runs of different length, without the start.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.make import make_vec_env
from ddppo.envs.single import make_task

ROBOTS = (
    *("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "HumanoidStandup"),
    *("Swimmer", "Reacher", "Pusher", "InvertedPendulum", "InvertedDoublePendulum"),
)
ROUNDS, ROUND_STEPS, ENVS = 9, 800, 8
SHORT, LONG = 8 * 2048, 40 * 2048  # env steps of the two trainings
TRAINING_ROUNDS = 3


def simulating(env_id: str) -> Callable[[], float]:
    """Return a function that gives the seconds of mj_step alone in a step: episodes of Gymnasium, simulated again."""
    import mujoco

    wrapped, actions = task_and_actions(env_id)
    task: Any = wrapped.unwrapped
    starts = {0: (task.data.qpos.copy(), task.data.qvel.copy())}
    for k, action in enumerate(actions):
        _, _, terminated, truncated, _ = wrapped.step(action)
        if terminated or truncated:
            wrapped.reset()
            starts[k + 1] = task.data.qpos.copy(), task.data.qvel.copy()

    def measure() -> float:
        start = time.thread_time()
        for k, action in enumerate(actions):
            if k in starts:
                mujoco.mj_resetData(task.model, task.data)
                task.data.qpos[:], task.data.qvel[:] = starts[k]
            task.data.ctrl[:] = action
            mujoco.mj_step(task.model, task.data, nstep=task.frame_skip)
        return (time.thread_time() - start) / ROUND_STEPS

    return measure


def gymnasium(env_id: str) -> Callable[[], float]:
    """Return a function that gives the seconds of a step of Gymnasium's environment, resets included."""
    task, actions = task_and_actions(env_id)

    def measure() -> float:
        start = time.thread_time()
        task.reset(seed=0)
        for action in actions:
            _, _, terminated, truncated, _ = task.step(action)
            if terminated or truncated:
                task.reset()
        return (time.thread_time() - start) / ROUND_STEPS

    return measure


def task_and_actions(env_id: str) -> tuple[Any, np.ndarray]:
    task: Any = make_task(EnvConfig(id=env_id))
    task.reset(seed=0)
    drawn = np.random.default_rng(0).standard_normal((ROUND_STEPS, *task.action_space.shape), np.float32)
    return task, np.clip(drawn, task.action_space.low, task.action_space.high)


def batch(env_id: str, backend: str) -> Callable[[], float]:
    """Return a function that gives the seconds of a step of one of our environments, resets included."""
    envs = make_vec_env(EnvConfig(id=env_id, backend=backend), range(ENVS), rank=0, cores=1)
    envs.reset(range(ENVS))
    shape = ROUND_STEPS // ENVS, ENVS, *envs.spec.action.shape
    actions = np.random.default_rng(0).standard_normal(shape, np.float32)  # clipped by the batch

    def measure() -> float:
        start = time.thread_time()
        envs.reset(range(ENVS))
        for action in actions:
            envs.step(action)
        return (time.thread_time() - start) / ROUND_STEPS

    return measure


def of_training(backend: str) -> float:
    """Return the processor seconds of a step of training on one core."""
    seconds = []
    for steps in (SHORT, LONG):
        with tempfile.TemporaryDirectory() as folder:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [
                *("taskset", "-c", str(min(os.sched_getaffinity(0)))),
                *(sys.executable, "-m", "ddppo.train", "experiment=bench/w4", f"env.backend={backend}"),
                *(["env.num_workers=null"] if backend == "sync" else []),
                *(f"ppo.total_steps={steps}", f"hydra.run.dir={folder}/run"),
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return (seconds[1] - seconds[0]) / (LONG - SHORT)


def main() -> None:
    print(
        "us of processor time a step: median of rounds; in brackets mj_step's time as a share of it, median of ratios"
    )
    if "training=true" not in sys.argv[1:]:
        print("| task | mj_step | Gymnasium | sync | batched |\n|---|---|---|---|---|")
        for name in [name for name in sys.argv[1:] if name in ROBOTS] or ROBOTS:
            env_id = f"{name}-v5"
            ways = simulating(env_id), gymnasium(env_id), batch(env_id, "sync"), batch(env_id, "batched")
            row([[way() for way in ways] for _ in range(ROUNDS + 1)][1:], name)
        return
    print("| training | mj_step | sync | batched |\n|---|---|---|---|")
    simulate = simulating("HalfCheetah-v5")
    simulate()
    rounds = []
    for _ in range(TRAINING_ROUNDS):
        times = []
        for backend in ("sync", "batched"):
            # mj_step before and after each pair of runs, since the machine's speed changes.
            times += [*(simulate() for _ in range(ROUNDS)), of_training(backend)]
        sync, batched = times[ROUNDS], times[-1]
        rounds.append(
            [
                median([*times[:ROUNDS], *times[ROUNDS + 1 : -1], *(simulate() for _ in range(ROUNDS))]),
                sync,
                batched,
            ]
        )
        print(rounds[-1], file=sys.stderr, flush=True)
    row(rounds, "HalfCheetah")


def row(rounds: list[list[float]], name: str) -> None:
    columns = list(zip(*rounds, strict=True))
    shares = [median(each[0] / each[k] for each in rounds) for k in range(len(columns))]
    cells = [f"{1e6 * median(x):.1f} ({share:.2f})" for x, share in zip(columns, shares, strict=True)]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
