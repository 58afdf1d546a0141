"""Ranks that mpirun, mpiexec or srun started: what these say to each process, in torchrun's variables.

`variables_of_rank` is called once, when the command begins (launch/torchrun.py). From then on the process is a rank as
under torchrun. Rank 0 opens the store in which the ranks meet (distributed/network.py), at one of these places:

    MASTER_ADDR and MASTER_PORT, if both are set.
    All ranks on one host: any free port. Rank 0 writes it to a file, and the name of the file follows from the job.
    srun on several nodes: the first node of the step, and a port that follows from the number of the step, unless one
    of the two is set.

mpirun does not say on which host rank 0 is. Over several hosts without MASTER_ADDR and MASTER_PORT it is refused.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddppo.errors import ConfigError
from ddppo.files import users_temporary_folder
from ddppo.processes.machine import at_most, cpu_quota

# Variables of our own, for a rank that one of the launchers below started.
LAUNCHER = "DDPPO_LAUNCHER"  # its name
MEETING = "DDPPO_MEETING"  # the file to which rank 0 writes where its store is
HOST_CORES = "DDPPO_HOST_CORES"  # number of cores that all ranks of this host may use


class _Launcher(NamedTuple):
    """A launcher, by the variables that it sets for each process."""

    name: str  # in messages
    rank: str
    size: str
    local_rank: str
    local_size: str  # of srun: the tasks of every node


# Beside SLURM, mpirun starts its processes on other hosts by srun, so MPI's variables come before SLURM's.
_LAUNCHERS = (
    _Launcher(
        "mpirun",  # Open MPI
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher(
        "mpirun",  # MVAPICH
        "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
    # STEP: set in a step of srun's, not in the script of a job.
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)  # fmt: skip
_PMIX = _Launcher(
    "a launcher that speaks PMIx", "PMIX_RANK", "", "", ""
)  # it does not tell the number of processes


class Copy(NamedTuple):
    """One of several copies of this command that a launcher started."""

    launcher: _Launcher
    number: int  # its rank
    size: str  # the number of copies, or N if the launcher does not tell it


def copy_of(environ: Mapping[str, str]) -> Copy | None:
    """Return which copy of several this process is; None if it was started once."""
    several = [each for each in _LAUNCHERS if environ.get(each.size, "1") != "1"]
    if "SLURM_PTY_PORT" in environ:  # a shell of srun -n 4 --pty bash
        several = [each for each in several if each.name != "srun"]
    # srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE too, but not what mpiexec says of this host.
    whole = [each for each in several if all(name in environ for name in each[1:])]
    for launcher in whole or several:
        return Copy(launcher, _number(environ.get(launcher.rank)), environ[launcher.size])
    if "PMIX_RANK" in environ and not any(launcher.size in environ for launcher in _LAUNCHERS):
        return Copy(_PMIX, _number(environ["PMIX_RANK"]), "N")
    return None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def variables_of_rank(copy: Copy, environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables of a rank that a launcher started as one of several, and our own of such ranks.

    Raises ConfigError if the launcher does not tell enough, or if the ranks could not find each other.
    """
    launcher = copy.launcher
    numbers = [environ.get(name, "") for name in (launcher.rank, launcher.size, launcher.local_rank)]
    if launcher is _PMIX or not all(number.isdecimal() for number in numbers):
        raise ConfigError(refusal(copy))
    rank, world_size, local_rank = map(int, numbers)
    if (hosts := _hosts(launcher, environ, world_size)) is None:
        raise ConfigError(refusal(copy))
    local_world_size, num_hosts = hosts

    # Where do the ranks meet?
    variables = {LAUNCHER: launcher.name}
    if not (environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")):
        if local_world_size == world_size:
            variables[MEETING] = str(_meeting_file(copy, environ))
        elif launcher.name == "srun":
            if (place := _first_node(environ)) is None:
                raise ConfigError(refusal(copy))
            variables |= place
        else:
            raise ConfigError(_homeless(copy, local_world_size))
    # How many cores has this host? The launcher may have bound each rank to one of them.
    cores = environ.get("SLURM_CPUS_ON_NODE", "") if launcher.name == "srun" else ""
    return variables | {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_WORLD_SIZE": str(num_hosts),
        HOST_CORES: cores or str(_cores_of(_launching_process(copy)[0])),
    }


def _hosts(launcher: _Launcher, environ: Mapping[str, str], world_size: int) -> tuple[int, int] | None:
    """Return the number of ranks on this host and the number of hosts; None if the launcher does not tell these."""
    if launcher.name == "srun":
        with suppress(ValueError, IndexError):
            per_node = tasks_per_node(environ.get(launcher.local_size, ""))
            return per_node[int(environ.get("SLURM_NODEID", ""))], len(per_node)
        return None
    text = environ.get(launcher.local_size, "")
    local_world_size = int(text) if text.isdecimal() else 0
    return (
        (local_world_size, -(-world_size // local_world_size)) if local_world_size else None
    )  # hosts: at least


def refusal(copy: Copy) -> str:
    """Return the message about copies that cannot be ranks of one run: each would train a run of its own."""
    size, number = copy.launcher.size, copy.launcher.rank
    known = f"{copy.size} copies of this command ({size}={copy.size})"
    unknown = f"this command as one of several ({number}={copy.number})"
    return (
        f"{copy.launcher.name} started {known if size else unknown}, and each would train a run of its own: start it "
        f"once, with dist.world_size={copy.size}, or by torchrun --nproc-per-node={copy.size} -m ddppo.train ..., or "
        "as a SLURM job by -m hydra/launcher=slurm"
    )


def _homeless(copy: Copy, local_world_size: int) -> str:
    """Return the message about ranks on several hosts that cannot know where rank 0 is."""
    example = "-x MASTER_ADDR=host0 -x MASTER_PORT=29500"
    if copy.launcher.name == "mpiexec":
        example = "-genv MASTER_ADDR host0 -genv MASTER_PORT 29500"
    return (
        f"{copy.launcher.name} started {copy.size} ranks, {local_world_size} of them on this host, and does not say "
        "where rank 0 is: give all ranks the host of rank 0 in MASTER_ADDR and a free port there in MASTER_PORT, by "
        f"{copy.launcher.name} {example}, or start the run by torchrun"
    )


# -- Several nodes of SLURM.


def tasks_per_node(text: str) -> list[int]:
    """Return the number of tasks on each node, from SLURM's notation: 2(x3),1 is [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={text}: {part!r} is not of the form 2 or 2(x3)")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _first_node(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return MASTER_ADDR and MASTER_PORT of a step over several nodes: task 0 is on the first one.

    None if SLURM does not tell enough.
    """
    nodes = environ.get("SLURM_STEP_NODELIST")
    numbers = [environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    if not nodes or not all(number.isdecimal() for number in numbers):
        return None
    # node[03-07,9] stands for node03, node04, ...
    node = re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).split(",")[0]
    # Steps that share a node have different ports, below those of outgoing connections (32768 and above).
    step = 64 * int(numbers[0]) + int(numbers[1])
    return {
        "MASTER_ADDR": environ.get("MASTER_ADDR") or node,
        "MASTER_PORT": environ.get("MASTER_PORT") or str(15000 + step % 15000),
    }


# -- One host.


def _meeting_file(copy: Copy, environ: Mapping[str, str]) -> Path:
    """Return the file to which rank 0 writes where its store is: the same for all ranks of a job, and of no other.

    The processes of a job have the launcher's process above them. A daemon may be that for several jobs at once, which
    differ in the names of their jobs then.
    """
    names = [environ.get(name, "") for name in ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")]
    job = "\n".join([*names, *map(str, _launching_process(copy))])
    return users_temporary_folder() / f"meeting-{hashlib.sha256(job.encode()).hexdigest()[:32]}"


def _launching_process(copy: Copy) -> tuple[int, str]:
    """Return number and start time of the process that started this rank: not of a script between the two.

    A script has this rank's variables in its environment. Other users' processes show none: those are passed over.
    """
    launcher, number = copy.launcher, os.getppid()
    marks = {f"{launcher.rank}={copy.number}".encode(), f"{launcher.size}={copy.size}".encode()}
    with suppress(OSError):  # there is no /proc
        while True:
            parent, started = _parent_and_start(number)
            with suppress(PermissionError):
                if not marks <= set(Path(f"/proc/{number}/environ").read_bytes().split(b"\0")):
                    return number, started
            if parent == 0:
                return number, started
            number = parent
    return os.getppid(), ""


def _parent_and_start(pid: int) -> tuple[int, str]:
    """Return fields 4 and 22 of /proc/<pid>/stat. Raises OSError."""
    # Field 2 is the name in parentheses, which may contain anything, so split behind the last parenthesis.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), fields[19]


def _cores_of(pid: int) -> int:
    """Return the number of cores that a process may keep busy."""
    with suppress(OSError, AttributeError):  # AttributeError: the system has no affinity
        return at_most(len(os.sched_getaffinity(pid)), cpu_quota())
    return at_most(os.cpu_count() or 1, cpu_quota())
