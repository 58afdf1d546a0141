"""What a lost rank costs: seconds until the others have ended and until the run goes on, and iterations done again.

    python experiments/lost_ranks/measure.py <empty folder>

And what keeping a state costs, of a small and of a larger model. Prints both as tables.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ddppo.records import checkpoint
from ddppo.records.checkpoint import copied

STEPS = 256  # of an iteration of env=cartpole: 8 environments, 32 steps
LIMIT_S = 120.0


def processes(title: str) -> set[int]:
    """Return the processes whose title begins so and that still run."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            runs = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            if runs and (entry / "cmdline").read_bytes().decode(errors="replace").startswith(title):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def wait(condition: Any, what: str) -> float:
    """Wait for a condition; return when it was met."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"no {what} within {LIMIT_S:g} s"
        time.sleep(0.005)
    return time.monotonic()


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(folder: Path, world_size: int, every: int) -> tuple[float, float, int]:
    """Kill rank 1 of a run; return seconds to the end of the others, to the next iteration, and iterations lost."""
    command = [
        sys.executable, "-m", "ddppo.train", "env=cartpole", "ppo.total_steps=100000000", "eval.final_episodes=0",
        "log.progress=none", "log.tensorboard=false", f"checkpoint.every_steps={every * STEPS}",
        f"dist.world_size={world_size}", "dist.on_lost=restart", f"hydra.run.dir={folder}",
    ]  # fmt: skip
    metrics, title = folder / "metrics.jsonl", f"ddppo.launch.rank {folder} rank "
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait(lambda: num_lines(metrics) >= 35 * world_size, "iteration 35")
            before = processes(title)
            (victim,) = (pid for pid in before if pid in processes(f"{title}1 "))
            start = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            ended = wait(lambda: not processes(title) & before, "end of the others")
            wait((folder / "restarts.jsonl").exists, "restart")
            superseded = folder / "metrics.superseded.jsonl"
            size = num_lines(metrics)
            wait(lambda: processes(f"{title}0 ") - before, "new rank 0")
            wait(lambda: superseded.exists() or num_lines(metrics) > size, "new beginning")
            size = num_lines(metrics)
            went_on = wait(lambda: num_lines(metrics) > size, "next iteration")
            return ended - start, went_on - start, num_lines(superseded) // world_size
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def keeping(folder: Path, num_parameters: int) -> tuple[float, float]:
    """Return milliseconds, medians of 20: for a copy of a state, which training waits for, and for its checkpoint."""
    vector = torch.rand(num_parameters)
    state = {"model": vector, "optimizer": [vector.clone(), vector.clone()]}
    in_memory, on_disk = [], []
    for number in range(20):
        start = time.perf_counter()
        copy = copied(state)
        middle = time.perf_counter()
        checkpoint.save_iteration(folder, number, copy, keep=2)
        in_memory.append(middle - start)
        on_disk.append(time.perf_counter() - middle)
    return 1000 * median(in_memory), 1000 * median(on_disk)


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    print(
        "| ranks | checkpoint every | all have ended after | the next iteration is done after | lost iterations |"
    )
    print("|---|---|---|---|---|")
    for world_size, every in ((2, 1), (2, 10), (4, 10)):
        ended, went_on, lost = killed(folder / f"{world_size}-{every}", world_size, every)
        print(f"| {world_size} | {every} iterations | {ended:.2f} s | {went_on:.2f} s | {lost} |", flush=True)
    print("\n| parameters | copy, in memory | its checkpoint, by a thread |\n|---|---|---|")
    for num_parameters in (9_155, 1_700_000):
        in_memory, on_disk = keeping(folder / f"of-{num_parameters}", num_parameters)
        print(f"| {num_parameters:,} | {in_memory:.2f} ms | {on_disk:.2f} ms |", flush=True)


if __name__ == "__main__":
    main()
