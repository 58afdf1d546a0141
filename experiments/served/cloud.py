"""Steps per second of the simulated cloud through 1, 2, 4 and 8 sessions, and where the processor's time goes.

python -m experiments.served.cloud [seconds=10] [sessions=1,2,4,8]

Lines are drawn by chance from the task grammar, tasks from the easy tiers; most lines are refused, as when a training
begins. Each session is told its next line as soon as it has answered.
"""

import os
import sys
import time

import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.domains.cloud.tokenizer import CloudDialogue, CloudTokens
from ddppo.domains.text.turns import make_turns
from experiments.served.messages import cpu_s, processes

EASY = ("warm-up", "beginner")


def main(seconds: float, sessions: list[int]) -> None:
    env = EnvConfig(id="ddppo/Cloud-v0", backend="remote", kwargs={"tasks": list(EASY)})
    for num in sessions:
        began = time.perf_counter()
        turns = make_turns(env, range(num), rank=0, timeout_s=300.0, max_restarts=0)
        t_open = time.perf_counter() - began
        try:
            row = measured(turns, num, seconds)
        finally:
            turns.close()
        print(f"{num} sessions, opened in {t_open:.1f} s: {row}", flush=True)


def measured(turns, num: int, seconds: float) -> str:
    random, tokens = np.random.default_rng(0), CloudTokens(turn_tokens=8, obs_tokens=64)
    tasks = list(turns.spec.tasks)
    dialogues: list[CloudDialogue | None] = [None] * num
    counts = {"steps": 0, "episodes": 0}

    def begin(i: int) -> None:
        dialogues[i] = None
        counts["episodes"] += 1
        turns.begin(i, int(random.integers(2**31)), {"task": str(random.choice(tasks)), "chaos": 0.0})

    def hear(turn) -> None:
        i = turn.env
        counts["steps"] += dialogues[i] is not None
        if turn.is_over:
            return begin(i)
        dialogues[i] = dialogue = dialogues[i] or tokens.begin(turn.obs)
        while not dialogue.is_over:
            dialogue.push(int(random.choice(np.flatnonzero(dialogue.allowed()))))
        turns.act(i, dialogue.action())

    server = next(pid for pid in descendants("ddppo server of"))
    worlds = processes("ddppo slot", processes("ddppo.processes.forking", server)[0])
    for i in range(num):
        begin(i)
    while counts["steps"] < 40 * num:  # what is loaded when first used
        for turn in turns.ready(0.0):
            hear(turn)
    before = [cpu_s(server), sum(map(cpu_s, worlds)), time.process_time()]
    counts |= {"steps": 0, "episodes": 0}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for turn in turns.ready(0.0):
            hear(turn)
    spent = [cpu_s(server), sum(map(cpu_s, worlds)), time.process_time()]
    of = [(b - a) / counts["steps"] * 1e3 for a, b in zip(before, spent, strict=True)]
    rate = counts["steps"] / seconds
    return (
        f"{rate:.0f} steps/s, {counts['episodes'] / seconds:.1f} episodes/s; CPU a step: worlds {of[1]:.2f} ms, "
        f"server {of[0]:.2f} ms, this process {of[2]:.2f} ms; in all {sum(of) * rate / 1e3:.2f} cores"
    )


def descendants(name: str) -> list[int]:
    """Return the processes whose title holds `name` and whose parent's parent is this one."""
    return [pid for middle in processes("", os.getpid()) for pid in processes(name, middle)]


if __name__ == "__main__":
    given = dict(word.split("=") for word in sys.argv[1:])
    main(float(given.get("seconds", 10)), [int(num) for num in given.get("sessions", "1,2,4,8").split(",")])
