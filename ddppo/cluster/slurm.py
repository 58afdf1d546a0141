"""Queries and commands to SLURM, by its own programs, each with a timeout."""

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddppo.errors import ClusterError

# Folder of the cluster that `make slurm-up` starts (tests/slurm/local_cluster.py).
LOCAL = Path("~/.cache/ddppo/slurm")
TIMEOUT_S = 60.0  # squeue itself waits half a minute for a slurmctld that does not answer
# Final states. A job in any other state may still run, or run again.
# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
_SQUEUE_FIELDS = ("JobArrayID", "State", "Reason", "NodeList")
_SACCT_FIELDS = ("JobID", "State", "Reason", "NodeList")
_NOTHING = ("None", "None assigned")
# Prefixes of variables that a user may have set for the terminal: filters and another cluster would hide jobs.
_USERS_OWN = ("SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_CLUSTERS")


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The state of a job, or of one element of an array, in SLURM's words."""

    job_id: str  # 12, or 12_3 for an element of an array
    state: str
    reason: str  # why it waits
    nodes: str  # SLURM's list, such as node[1-4]; empty while the job waits

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended for good. A requeued job has not."""
        return self.state in ENDED


def query(job_ids: Iterable[str]) -> dict[str, JobInfo]:
    """Return the state of this user's jobs, by their ids (12, or 12_3 for an element of an array).

    squeue lists a job until some minutes after its end (MinJobAge); sacct lists it for good, if the cluster keeps
    accounts. A job that neither lists is absent. Raises ClusterError if slurmctld does not answer.
    """
    wanted = set(job_ids)
    if not wanted:
        return {}
    # Without --jobs: squeue fails for all ids if it has forgotten one.
    fields = ",".join(f"{name}:|" for name in _SQUEUE_FIELDS)
    output = command("squeue", "--me", "--all", "--array", "--states=all", "--noheader", f"--Format={fields}")
    found = {info.job_id: info for info in map(_info, output.splitlines()) if info.job_id in wanted}
    if missing := wanted - set(found):
        found |= {info.job_id: info for info in _accounts(missing) if info.job_id in missing}
    return found


def cancel(job_ids: Iterable[str]) -> None:
    """Cancel waiting and running jobs. Jobs that have ended are ignored. Raises ClusterError if SLURM refuses."""
    if ids := sorted(set(job_ids)):
        command("scancel", "--quiet", *ids)


def local_conf() -> Path:
    """Return slurm.conf of the running local cluster: SLURM_CONF, else the default path. Raises ClusterError."""
    named = os.environ.get("SLURM_CONF")
    for conf in (*([Path(named)] if named else []), LOCAL / "slurm.conf"):
        with suppress(RuntimeError):  # expanduser: the user has no home folder
            if is_up(found := conf.expanduser().absolute()):
                return found
    raise ClusterError("no local SLURM cluster is up: start one with make slurm-up")


def is_up(conf: Path) -> bool:
    """Return whether the slurmctld of a local cluster runs, by the process id in a file beside slurm.conf."""
    # The number may belong to another process by now: check its name, its state and its SLURM_CONF.
    try:
        process = Path("/proc", str(int((conf.parent / "run" / "slurmctld.pid").read_text())))
        environ = (process / "environ").read_bytes().split(b"\0")
        name, state = (
            (process / "comm").read_text().strip(),
            (process / "stat").read_text().rpartition(")")[2],
        )
    except (OSError, ValueError):  # no such file or process, or the process of another user
        return False
    return name == "slurmctld" and state.split()[0] != "Z" and f"SLURM_CONF={conf}".encode() in environ


def max_array_size() -> int:
    """Return the largest number of elements of a job array on this cluster."""
    output = command("scontrol", "show", "config")
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", output, re.MULTILINE)
    if found is None:
        raise ClusterError("scontrol show config does not tell MaxArraySize")
    return int(found[1])


def command(name: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> str:
    """Run a command of SLURM; return its output. Raises ClusterError if it is missing, fails, or takes too long."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(_USERS_OWN)}
    try:
        done = subprocess.run(
            [name, *arguments], env=environ, capture_output=True, text=True, timeout=timeout_s
        )
    except FileNotFoundError as e:
        raise ClusterError(f"there is no {name} here: SLURM's commands must be on the PATH") from e
    except subprocess.TimeoutExpired as e:
        raise ClusterError(f"{name} did not answer within {timeout_s:g} s") from e
    if done.returncode != 0:
        raise ClusterError(f"{name} ended with exit code {done.returncode}: {' '.join(done.stderr.split())}")
    return done.stdout


def _accounts(job_ids: Iterable[str]) -> list[JobInfo]:
    """Return the jobs that sacct lists; [] if the cluster keeps no accounts."""
    arguments = ("--allocations", "--noheader", "--parsable2", f"--format={','.join(_SACCT_FIELDS)}")
    try:
        output = command("sacct", *arguments, f"--jobs={','.join(sorted(job_ids))}")
    except ClusterError:
        return []
    return [_info(line) for line in output.splitlines()]


def _info(line: str) -> JobInfo:
    """Parse a line of squeue or sacct, which we ask for the same fields."""
    try:
        job_id, state, *more = line.split("|")
        reason, nodes = ("" if field in _NOTHING else field for field in more[:2])
    except ValueError as e:
        raise ClusterError(f"SLURM describes a job as {line!r}, which cannot be parsed") from e
    # 12+0 is the first component of the heterogeneous job 12, in which the batch script runs. A state may have more
    # words, such as CANCELLED by 1000.
    return JobInfo(job_id.removesuffix("+0"), state.partition(" ")[0], reason, nodes)
