"""The origin of results: versions, the git commit, and the machines of the run's ranks, for summary.json.

Commands that read summaries import this file, so only `gather_machines`, which ranks call, imports torch.
"""

import json
import math
import os
import platform
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ddppo
from ddppo.processes.machine import allowed_cores, at_most, available_cores, cpu_quota

if TYPE_CHECKING:
    from ddppo.collectives.group import Group

# -- Code: versions and the commit.


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that results depend on; None for a package that is missing."""
    found: dict[str, str | None] = {"python": platform.python_version(), "ddppo": ddppo.__version__}
    for package in ("torch", "gymnasium", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def git_state(folder: Path | None = None) -> dict[str, Any]:
    """Return git_commit and git_dirty (uncommitted or untracked files) of the checkout that ddppo runs from.

    Both are None if ddppo does not run from a checkout, for example from a virtual environment.
    """
    folder = folder or Path(ddppo.__file__).resolve().parent.parent
    no_checkout = {"git_commit": None, "git_dirty": None}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # site-packages may lie inside the checkout of another project.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != folder.resolve():
            return no_checkout
        return {"git_commit": git("rev-parse", "HEAD"), "git_dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return no_checkout


# -- Hardware: this process's machine.


def machine(*, gpu: str | None = None) -> dict[str, Any]:
    """Return hostname, CPU model, cores this process may use, memory in GB, and `gpu`, the accelerator's name."""
    return {
        "hostname": socket.gethostname(),
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": gpu,
        "platform": platform.platform(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    if sys.platform == "darwin":
        with suppress(OSError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            names = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return next(iter(names), platform.processor() or platform.machine())


# -- Hardware: the machines of all ranks.


_MESSAGE_BYTES = 1 << 12  # fixed size of a rank's description; its core mask may name thousands of cores


def gather_machines(group: "Group", gpu: str | None = None) -> list[dict[str, Any]]:
    """Return hostname, cpu, gpu, cores and ranks of each machine of the run, ordered by their first ranks.

    All ranks call it.
    """
    import torch

    from ddppo.collectives.meeting import machine_number
    from ddppo.collectives.peers import OwnPace

    here = machine(gpu=gpu)
    quota = cpu_quota()
    description = {
        "number": machine_number(),  # identifies the machine
        **{key: here[key] for key in ("hostname", "cpu", "gpu")},
        "cores": hex(sum(1 << core for core in allowed_cores())),  # one bit per core that this rank may use
        "quota": None if math.isinf(quota) else quota,  # cores, by the container's limit
    }
    text = json.dumps(description)
    # Ranks at their own pace have no collectives: they write their descriptions into the launcher's store.
    if isinstance(group, OwnPace):
        return merge_machines([json.loads(each) for each in group.words("machine", text)])
    row = text.encode().ljust(_MESSAGE_BYTES)
    assert len(row) == _MESSAGE_BYTES, text
    rows = group.gather(torch.frombuffer(bytearray(row), dtype=torch.uint8))
    return merge_machines([json.loads(bytes(row.tolist())) for row in rows])


def merge_machines(descriptions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry per machine from one description per rank.

    Machines are told apart by number: two machines may have the same hostname, and two nodes of a cluster may be one
    machine. `cores` counts the cores that any of its ranks may use, because a scheduler may have bound each rank to
    cores of its own, within the container's quota.
    """
    # Group the ranks by machine.
    ranks_of: dict[int, list[int]] = {}
    for rank, description in enumerate(descriptions):
        ranks_of.setdefault(description["number"], []).append(rank)
    machines = []
    for ranks in ranks_of.values():
        # Cores of all its ranks together, at most the quota.
        cores, quota, first = 0, 0.0, descriptions[ranks[0]]
        for description in (descriptions[rank] for rank in ranks):
            cores |= int(description["cores"], 16)
            quota = max(quota, description["quota"] or math.inf)
        about = {key: first[key] for key in ("hostname", "cpu", "gpu")}
        machines.append({**about, "cores": at_most(cores.bit_count(), quota), "ranks": ranks})
    return machines
