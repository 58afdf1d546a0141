"""Disturb a run at random instants until it completes all the same, and look whether it is the run it would have been.

    python -m tests.fault.chaos <empty folder> [kills=100] [seed=0] [task=lunarlander] [<settings of ddppo.train>]

kills=n: so many ends by SIGKILL, dealt among ranks, processes of environments, the process they are forked from, and
the command itself; besides, for every eight of them, one of each: a full disk, a truncated checkpoint, a frozen
process. The run folder is on a disk of its own where that may be. What does not hold is printed, a line each; exit
code 1 if anything was. faults.csv has a line a fault, result.json their sums.
"""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ddppo.processes.signals import take_in_orphans
from tests.fault.disturbed import DISK_MB, DisturbedRun
from tests.support import wait_until

TASKS = {  # settings, and steps of an iteration, which takes some 30 ms where nothing disturbs it
    "cartpole": (
        ["env=cartpole", "env.num_envs=8", "ppo.rollout_steps=32", "env.slow_ranks={0:0.001,1:0.001}"],
        8 * 32,
    ),
    "lunarlander": (
        [
            "env=lunarlander",
            "env.num_envs=4",
            "env.backend=pool",
            "env.num_workers=2",
            "ppo.rollout_steps=32",
        ],
        4 * 32,
    ),
}
ITERATIONS_A_FAULT, ITERATIONS_AT_THE_END = 30, 120
SETTINGS = [
    "ppo.num_epochs=2", "ppo.num_minibatches=2", "dist.world_size=2", "dist.on_lost=restart",
    "dist.max_restarts=100000", "dist.timeout_s=10", "checkpoint.keep=3", "eval.final_episodes=0",
    "log.progress=none",
]  # fmt: skip
KILLS = ("rank", "environments", "server", "command")
OTHERS = ("disk", "checkpoint", "freeze")
_NAMESPACE = "DDPPO_CHAOS_NAMESPACE"


def plan(num_kills: int, drawn: random.Random, *, has_pool: bool) -> list[str]:
    """Return what is done in turn: kills dealt evenly, and of the other faults one for every eight, at least one."""
    kinds = [kind for kind in KILLS if has_pool or kind != "environments"]
    faults = [kinds[n % len(kinds)] for n in range(num_kills)] + list(OTHERS) * max(1, num_kills // 8)
    drawn.shuffle(faults)
    return faults


def comparable(run_dir: Path) -> list[dict]:
    """Return the lines of a run's metrics without what clocks say and what restarts change."""
    clocks = (
        "time/",
        "dist/",
        "wall_s",
        "rollout/fps",
        "rollout/local_fps",
        "rollout/env_restarts",
        "resumed",
    )
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: x for k, x in record.items() if not k.startswith(clocks)} for record in records]


def undisturbed(run_dir: Path, arguments: list[str]) -> float:
    """Run the same run in peace and return its seconds."""
    start = time.monotonic()
    command = [sys.executable, "-m", "ddppo.train", *arguments, f"hydra.run.dir={run_dir}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - start


def disturb(run: DisturbedRun, faults: list[str], drawn: random.Random) -> None:
    """Let the faults strike in turn, evenly over the iterations; one in five soon after the last, as ranks start."""
    run.start()
    for number, kind in enumerate(faults, 1):
        if drawn.random() < 0.2:
            delay_s = drawn.random() * 3.0
        else:
            delay_s = drawn.random() * 0.3
            run.reach(ITERATIONS_A_FAULT * number)
        run.reach(None, delay_s)
        if run.is_complete:
            run.wrong.append(f"the run was complete before fault {number} of {len(faults)}")
            return
        run.strike(kind)
    wait_until(lambda: run.keep_going() or run.is_complete, "end of the run")


def differences(expected: Path, found: Path) -> list[str]:
    """Say in what the disturbed run ended otherwise than the other."""
    wrong = []
    hashes = [json.loads((run / "summary.json").read_text())["params_hash"] for run in (expected, found)]
    if hashes[0] != hashes[1]:
        wrong.append(f"params_hash is {hashes[1]}, not {hashes[0]}")
    lines, others = comparable(expected), comparable(found)
    if len(lines) != len(others):
        wrong.append(f"metrics.jsonl has {len(others)} lines, not {len(lines)}")
    for line, other in zip(lines, others, strict=False):
        if line != other:
            names = [name for name in {**line, **other} if line.get(name) != other.get(name)]
            at = f"iteration {other['iteration']}, rank {other['rank']}"
            wrong.append(f"metrics.jsonl differs first in {at}: {', '.join(names)}")
            break
    return wrong


def chaos(folder: Path, kills: int, seed: int, task: str, more: list[str]) -> dict:
    """Do all of it and return the sums; what does not hold is under "wrong"."""
    drawn = random.Random(seed)
    of_task, steps = TASKS[task]
    faults = plan(kills, drawn, has_pool="env.backend=pool" in of_task)
    iterations = ITERATIONS_A_FAULT * len(faults) + ITERATIONS_AT_THE_END
    sizes = [f"ppo.total_steps={iterations * steps}", f"checkpoint.every_steps={10 * steps}", f"seed={seed}"]
    arguments = [*of_task, *SETTINGS, *sizes, *more]
    disk = folder / "disk"
    disk.mkdir()
    is_own_disk = os.environ.get(_NAMESPACE) == "own" and _mounted(disk)
    calm_s = undisturbed(disk / "calm", arguments)
    run = DisturbedRun(disk / "run", arguments, folder / "log", drawn, is_own_disk=is_own_disk)
    try:
        disturb(run, faults, drawn)
        run.look_for_leftovers()
        wrong = run.wrong + (
            differences(disk / "calm", disk / "run") if run.is_complete else ["never complete"]
        )
        lost = run.iterations_lost()
        summary = json.loads((disk / "run" / "summary.json").read_text())
    finally:
        run.end_all()
    with (folder / "faults.csv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, ["fault", "iteration", "iterations_lost", "seconds"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(run.faults)
    if is_own_disk:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    shutil.rmtree(disk, ignore_errors=True)
    return {
        "task": task, "seed": seed, "kills": sum(fault["fault"] in KILLS for fault in run.faults),
        "other_faults": sum(fault["fault"] in OTHERS for fault in run.faults), "starts_of_the_command": run.starts,
        "restarts_by_itself": summary["restarts"], "iterations": summary["iterations"],
        "iterations_lost": lost,
        "seconds": round(run.seconds, 1), "seconds_undisturbed": round(calm_s, 1),
        "params_hash": summary["params_hash"], "own_disk": is_own_disk, "wrong": wrong,
    }  # fmt: skip


def _mounted(disk: Path) -> bool:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk)]
    return subprocess.run(mount, capture_output=True).returncode == 0


def _in_a_namespace() -> None:
    """Start this program anew with mounts, /dev/shm and semaphores of its own, where this machine allows that."""
    unshare = ["unshare", "--mount", "--ipc", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    may = shutil.which("unshare") and subprocess.run([*unshare, "true"], capture_output=True).returncode == 0
    os.environ[_NAMESPACE] = "own" if may else "none"
    if may:
        os.execvp("unshare", [*unshare, sys.executable, "-m", "tests.fault.chaos", *sys.argv[1:]])


def main() -> None:
    words = {"kills": "100", "seed": "0", "task": "lunarlander"}
    folder, more = Path(sys.argv[1]).resolve(), []
    for argument in sys.argv[2:]:
        key, _, value = argument.partition("=")
        if key in words:
            words[key] = value
        else:
            more.append(argument)
    if _NAMESPACE not in os.environ:
        _in_a_namespace()
    if os.environ[_NAMESPACE] == "own":
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    take_in_orphans()
    folder.mkdir(parents=True, exist_ok=True)
    result = chaos(folder, int(words["kills"]), int(words["seed"]), words["task"], more)
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    sys.exit(bool(result["wrong"]))


if __name__ == "__main__":
    main()
