"""What we ask SLURM, by its own commands, each with a time limit."""

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddppo.errors import ClusterError

LOCAL = Path(
    "~/.cache/ddppo/slurm"
)  # of the cluster that `make slurm-up` starts (tests/slurm/local_cluster.py)
TIMEOUT_S = 60.0  # squeue itself waits half a minute for a slurmctld that is gone
# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES. A job in any other state may still run, or run again.
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
# What a user may have set for the terminal: filters and another cluster, which would hide jobs from us.
_USERS_OWN = ("SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_CLUSTERS")


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What SLURM says of a job, or of one element of an array (job_id 12_3).

    `nodes` is SLURM's list, e.g. node[1-4], empty while the job waits.
    """

    job_id: str
    state: str
    reason: str
    nodes: str

    @property
    def has_ended(self) -> bool:
        """Whether it is over for good: a job that waits to run again has not ended."""
        return self.state in ENDED


def query(job_ids: Iterable[str]) -> dict[str, JobInfo]:
    """Return what SLURM knows of this user's jobs `job_ids` (12, or 12_3 for an element of an array).

    squeue knows a job until some minutes after its end (MinJobAge), sacct for good where the cluster keeps accounts; a
    job that neither knows is absent. Raises ClusterError if slurmctld does not answer.
    """
    wanted = set(job_ids)
    if not wanted:
        return {}
    # Not --jobs: one id that squeue has forgotten would make an error of the whole question.
    fields = ",".join(f"{name}:|" for name in _SQUEUE_FIELDS)
    output = command("squeue", "--me", "--all", "--array", "--states=all", "--noheader", f"--Format={fields}")
    found = {info.job_id: info for info in map(_info, output.splitlines()) if info.job_id in wanted}
    if missing := wanted - set(found):
        found |= {info.job_id: info for info in _accounts(missing) if info.job_id in missing}
    return found


def cancel(job_ids: Iterable[str]) -> None:
    """End jobs, waiting or running; those that have ended already are left alone. Raises ClusterError if refused."""
    if ids := sorted(set(job_ids)):
        command("scancel", "--quiet", *ids)


def local_conf() -> Path:
    """Return slurm.conf of the local cluster that SLURM_CONF names, else of the default one. Raises ClusterError."""
    named = os.environ.get("SLURM_CONF")
    for conf in (*([Path(named)] if named else []), LOCAL / "slurm.conf"):
        with suppress(RuntimeError):  # a user without a home folder
            if is_up(found := conf.expanduser().absolute()):
                return found
    raise ClusterError("no local SLURM cluster is up: start one with make slurm-up")


def is_up(conf: Path) -> bool:
    """Return whether the slurmctld of a local cluster runs: its process id is in a file beside slurm.conf."""
    try:
        process = Path("/proc", str(int((conf.parent / "run" / "slurmctld.pid").read_text())))
        environ = (process / "environ").read_bytes().split(b"\0")
        name, state = (
            (process / "comm").read_text().strip(),
            (process / "stat").read_text().rpartition(")")[2],
        )
    except (OSError, ValueError):  # there is none, or another user's process has its number by now
        return False
    return name == "slurmctld" and state.split()[0] != "Z" and f"SLURM_CONF={conf}".encode() in environ


def max_array_size() -> int:
    """Return how many elements one job array may have on this cluster."""
    output = command("scontrol", "show", "config")
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", output, re.MULTILINE)
    if found is None:
        raise ClusterError("scontrol show config does not tell MaxArraySize")
    return int(found[1])


def command(name: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> str:
    """Return what a command of SLURM prints. Raises ClusterError if it is not there, fails, or takes too long."""
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
    """Return what sacct knows of jobs; nothing where the cluster keeps no accounts."""
    arguments = ("--allocations", "--noheader", "--parsable2", f"--format={','.join(_SACCT_FIELDS)}")
    try:
        output = command("sacct", *arguments, f"--jobs={','.join(sorted(job_ids))}")
    except ClusterError:
        return []
    return [_info(line) for line in output.splitlines()]


def _info(line: str) -> JobInfo:
    """Read a line of squeue or sacct: they have the same fields."""
    try:
        job_id, state, *more = line.split("|")
        reason, nodes = ("" if field in _NOTHING else field for field in more[:2])
    except ValueError as e:
        raise ClusterError(f"SLURM says {line!r} of a job, which we cannot read") from e
    # 12+0 is the first component of the heterogeneous job 12; its script runs there.
    return JobInfo(job_id.removesuffix("+0"), state.partition(" ")[0], reason, nodes)  # CANCELLED by 1000
