"""`python -m ddppo.device_check`: what runs on this machine's devices, with what numbers, and how fast.

1. Devices: what torch sees, and what sums gradients between them.
2. Paths: each path of the code trains for a few iterations on the CPU and on the device, from the same seed. The table
   has the largest difference of a parameter, relative to the largest parameter.
3. Speed: steps/s of the bench's workloads, and of environments that live on the device, eager and compiled.

Everything is printed as Markdown, row by row, to be pasted into an issue.
"""

import contextlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddppo.config.fields import setting
from ddppo.errors import ConfigError, TrainingError
from ddppo.package import versions
from ddppo.study.bench.measured import Clock, measure, this_code
from ddppo.study.bench.workloads import fixed, missing_extra

_SHORT = ("ppo.total_steps=1536", "env.num_envs=8", "ppo.rollout_steps=64")  # three iterations
_REPLAY = ("algorithm.total_steps=1024", "algorithm.learning_starts=256")
# What is tried, by the name in the table. Every path also runs at W=1 unless it says another number of ranks.
PATHS: dict[str, tuple[str, ...]] = {
    "PPO, discrete actions": ("env=cartpole", *_SHORT),
    "PPO, continuous actions": ("env=pendulum", *_SHORT),
    "normalised observations and rewards": (
        *("env=pendulum", "ppo.normalize_obs=true", "ppo.normalize_rewards=true"),
        *_SHORT,
    ),
    "a model with memory": ("env=cartpole", "model=gru", *_SHORT),
    "two ranks": ("env=cartpole", "dist.world_size=2", *_SHORT),
    "REINFORCE": ("env=cartpole", "algorithm=reinforce", "algorithm.total_steps=2000"),
    "DQN": ("env=cartpole", "algorithm=dqn", *_REPLAY),
    "SAC": ("env=pendulum", "algorithm=sac", *_REPLAY),
    "environments on the device": ("env=cartpole_device", *_SHORT),
    # Where the device can, kernels of acting and of minibatches are recorded.
    "environments on the device, compiled": ("env=cartpole_device", "compile=torch", *_SHORT),
}
# A sampled action changes if the numbers it is drawn by change by rounding; then rollouts part. So the runs are short,
# and a difference above this is called one.
TOLERANCE = 1e-3
_QUIET = ("log.progress=none", "log.tensorboard=false", "eval.final_episodes=0", "eval.every_steps=0")
_RESIDENT = ("env=cartpole_device", "env.num_envs=4096", "ppo.rollout_steps=32")
_LIMIT_S = (
    300.0  # of one short run; on a machine that does much else it may be too short, so it is no failure
)


@dataclass(slots=True)
class DeviceCheckConfig:
    device: str = setting(
        "auto",
        "the device to compare with the CPU, as in docs/devices.md; auto takes the accelerator that torch sees",
    )
    speed: bool = setting(True, "measure steps/s too")
    seconds: float = setting(3.0, "seconds of training in each measurement of speed", above=0, high=3600)
    out: str | None = setting(None, "a .json file for the numbers, besides the printed tables")


def device_check(options: DeviceCheckConfig) -> bool:
    """Print the tables; return whether every path runs, with the CPU's numbers on the device."""
    if options.out is not None and Path(options.out).suffix != ".json":
        raise ConfigError(f"out={options.out}: give a file that ends in .json")
    from ddppo.device import accelerators, resolve

    kind, num_devices = accelerators()
    device = options.device if options.device != "auto" else kind
    resolve(device)  # one that is unknown, or not there, is a mistake in the command
    # 1. The machine.
    about = _about(kind, num_devices)
    print("\n".join(f"{name}: {text}" for name, text in about.items()), flush=True)
    # 2. Paths.
    print(f"\n{_paths_head(device)}", flush=True)
    rows = []
    for name, overrides in PATHS.items():
        rows.append(_try_path(name, overrides, device, num_devices))
        print(_path_row(rows[-1]), flush=True)
    # 3. Speeds.
    speeds = _speeds(device, num_devices, options.seconds) if options.speed else {}
    if options.out is not None:
        found = {"about": about, "paths": rows, "speeds": speeds}
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return all(row["failed"] is None and not row["differs"] for row in rows)


def _about(kind: str, num_devices: int) -> dict[str, str]:
    """Return the lines about this machine: versions, processor, devices, collectives."""
    import torch
    import torch.distributed as dist

    from ddppo.device import backend_of, name_of
    from ddppo.records.provenance import machine

    here = machine()
    devices = [torch.device(kind, index) for index in range(num_devices)]
    names = [f"{device}: {name_of(device)}, collectives by {backend_of(device)}" for device in devices]
    backends = [name for name in ("gloo", "nccl", "xccl", "mpi") if getattr(dist, f"is_{name}_available")()]
    return {
        "versions": versions().replace("\n", ", "),
        "platform": here["platform"],
        "cpu": f"{here['cpu']}, {here['cores']} cores, {here['memory_gb']} GB",
        "devices": "; ".join(names) or "no accelerator that torch sees: only the CPU is tried",
        "collectives": ", ".join(backends),
    }


# -- Paths.


def _try_path(name: str, overrides: Sequence[str], device: str, num_devices: int) -> dict[str, Any]:
    """Train on the CPU, and on the device if it is another; return a row of the table."""
    row: dict[str, Any] = {
        "path": name, "difference": None, "differs": False, "failed": None, "unfinished": None,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ddppo-check-") as folder:
        commands = {"cpu": (*overrides, "device=cpu")}
        if device != "cpu":
            # Two ranks share a device where there is one only.
            shares = (
                ("dist.share_device=true",) if "dist.world_size=2" in overrides and num_devices < 2 else ()
            )
            commands[device] = (*overrides, f"device={device}", *shares)
        try:
            parameters = [_trained(command, Path(folder) / place) for place, command in commands.items()]
        except subprocess.TimeoutExpired:
            return row | {"unfinished": f"it took longer than {_LIMIT_S:.0f} s: is the machine busy?"}
        except TrainingError as e:
            return row | {"failed": str(e)}
    if len(parameters) == 2:
        row["difference"] = difference(*parameters)
        row["differs"] = not row["difference"] <= TOLERANCE
    return row


def _trained(overrides: Sequence[str], run_dir: Path) -> dict[str, Any]:
    """Train, and return the parameters of the last checkpoint.

    Raises TrainingError with the run's last line, or subprocess.TimeoutExpired.
    """
    from ddppo.records import checkpoint

    command = [sys.executable, "-m", "ddppo.train", *_QUIET, *overrides, f"hydra.run.dir={run_dir}"]
    found = subprocess.run(
        command,
        env=this_code().environ(),
        cwd=run_dir.parent,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    if found.returncode:
        lines = found.stderr.strip().splitlines() or [f"exit code {found.returncode}"]
        raise TrainingError(lines[-1].removeprefix("error: "))
    with contextlib.redirect_stderr(sys.stdout):
        return checkpoint.load(checkpoint.chosen("last", run_dir))["model"]


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference of a parameter, divided by the largest parameter; NaN if one is not finite."""
    most = max((one[name].double() - other[name].double()).abs().max().item() for name in one)
    largest = max(x.double().abs().max().item() for x in one.values())
    return most / largest if largest else math.nan


def _paths_head(device: str) -> str:
    column = "runs on the CPU" if device == "cpu" else f"CPU against device={device}"
    return f"| path | {column} |\n|---|---|"


def _path_row(row: dict[str, Any]) -> str:
    text = "yes"
    if row["failed"] is not None:
        text = f"**failed**: {row['failed']}"
    elif row["unfinished"] is not None:
        text = f"**unfinished**: {row['unfinished']}"
    elif row["difference"] is not None:
        text = f"{'**differs** ' if row['differs'] else ''}{row['difference']:.1e}"
    return f"| {row['path']} | {text} |"


# -- Speeds.


def _speeds(device: str, num_devices: int, seconds: float) -> dict[str, dict[str, float | str]]:
    """Print the table of steps/s row by row; return the numbers, or why there are none, by row and column."""
    found: dict[str, dict[str, float | str]] = {}
    workloads = {name: fixed(name) for name in ("W1", "W2", "W3", "W4")}
    tasks = {
        f"{name} of ddppo.bench": workload.overrides
        for name, workload in workloads.items()
        if missing_extra(workload) is None
    }
    tasks["CartPole on the device, 4,096 environments"] = _RESIDENT
    columns: dict[str, tuple[str, ...]] = {"cpu": ("device=cpu",)}
    if device != "cpu":
        columns[device] = (f"device={device}", "compile=off")
        columns[f"{device}, compiled"] = (f"device={device}", "compile=torch")
    if device != "cpu" and num_devices > 1:
        columns[f"{device}, W={num_devices}"] = (
            f"device={device}", "compile=off", f"dist.world_size={num_devices}", "scaling=weak"
        )  # fmt: skip
    clock = Clock(1.0, seconds)
    print(f"\n{_speed_head(columns)}", flush=True)
    for task, overrides in tasks.items():
        found[task] = {}
        for column, more in columns.items():
            try:
                run = measure(
                    this_code(), (*_QUIET, *overrides, *more, "ppo.total_steps=1000000000000"), clock
                )
                found[task][column] = run["fps"]
            except (ConfigError, TrainingError) as e:
                found[task][column] = str(e).splitlines()[-1]
        print(_speed_row(task, found[task]), flush=True)
    return found


def _speed_head(columns: Iterable[str]) -> str:
    names = list(columns)
    return f"| steps/s | {' | '.join(names)} |\n|---|{'---|' * len(names)}"


def _speed_row(task: str, row: dict[str, float | str]) -> str:
    cells = [f"{x:,.0f}" if isinstance(x, float) else f"**failed**: {x}" for x in row.values()]
    return f"| {task} | {' | '.join(cells)} |"
