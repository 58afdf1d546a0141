"""How long does a run take from the shell's return key to its first iteration? README.md says what to call.

Each start is a command of its own, ended at the first whole line of metrics.jsonl. Checkouts are
measured in turn, round by round, so that what else runs on the machine meets all of them. Processor
time, of all processes of the command, says more than seconds if the machine has other work.
"""

import argparse
import csv
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from ddppo.processes.machine import descendants

# 64 x 128 steps, 4 epochs x 4 minibatches: the first iteration is part of what is measured.
WORK = [
    "env=cartpole",
    "env.num_envs=64",
    "ppo.rollout_steps=128",
    "ppo.num_epochs=4",
    "ppo.num_minibatches=4",
]
ENDLESS = ["ppo.total_steps=1000000000", "log.progress=none"]


# Commands that start nothing: help, a name and a value that are mistakes, and a value that breaks a rule.
SHORT = [["--help"], ["foo.bar=1"], ["env.num_envs=x"], ["ppo.clip_coef=-1.0"]]


def cpu_seconds(pid: int) -> float:
    """Return the processor time, user and system, of a process and its descendants, those that ended included."""
    total = 0.0
    for each in [pid, *descendants(pid)]:
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def first_iteration(checkout: Path, world_size: int) -> tuple[float, float]:
    """Return the seconds and the processor time until the first iteration has ended."""
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
            seconds, cpu = time.monotonic() - start, cpu_seconds(process.pid)
            process.send_signal(signal.SIGTERM)
            process.communicate()
    return seconds, cpu


def short_command(checkout: Path, arguments: list[str]) -> tuple[float, float]:
    """Return the seconds and the processor time of a command that starts nothing."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "ddppo.train", *arguments], cwd=checkout, capture_output=True)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path, nargs="+", help="folders, e.g. . ../older")
    parser.add_argument("--world-sizes", type=int, nargs="*", default=[1, 2, 4, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a CSV file for all numbers: a row per start")
    options = parser.parse_args()
    commands: dict[str, Callable[[Path], tuple[float, float]]] = {
        " ".join(arguments): partial(short_command, arguments=arguments) for arguments in SHORT
    }
    for world_size in options.world_sizes:
        commands[f"W = {world_size}"] = partial(first_iteration, world_size=world_size)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {str(each): {} for each in options.checkouts}
    for name, measure in commands.items():
        for _ in range(options.rounds):
            for checkout in options.checkouts:
                seconds, cpu = measure(checkout)
                found[str(checkout)].setdefault(name, []).append((round(seconds, 2), round(cpu, 2)))
        for checkout, by_name in found.items():
            seconds, cpu = (statistics.median(values) for values in zip(*by_name[name], strict=True))
            print(
                f"{name:14} {checkout}: {seconds:.2f} s, processor {cpu:.2f} s, of {by_name[name]}",
                flush=True,
            )
        if options.out:
            write(options.out, found)


def write(path: Path, found: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    """Write a row for each start so far."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["commit", "command", "round", "seconds", "processor_s"])
        for checkout, by_name in found.items():
            for name, values in by_name.items():
                rows.writerows([commit(Path(checkout)), name, *row] for row in numbered(values))


def numbered(values: list[tuple[float, float]]) -> list[tuple[int, float, float]]:
    return [(number, *value) for number, value in enumerate(values, 1)]


def commit(checkout: Path) -> str:
    """Return the short hash of a checkout's commit."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
