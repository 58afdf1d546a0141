"""One run as a SLURM job: what the job's batch script does, on the job's first node.

submitit pickles a `Driver` and calls it in the job. The driver starts the ranks by srun and waits for them. When SLURM
announces that the job's time is over or its nodes are wanted, it has the ranks write a checkpoint and stop, and the job
queues again; the next call goes on from there.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from submitit.helpers import DelayedSubmission

from ddppo.cluster import slurm
from ddppo.cluster.resources import RankLayout
from ddppo.cluster.slurm import command
from ddppo.errors import LOST_PEERS, MAY_PASS, ClusterError, RankLost, TrainingError
from ddppo.processes.signals import note_beginning
from ddppo.records.run_folder import RunFolder, held, with_restarts
from ddppo.terminal import warn

_FORWARD_EVERY_S = 2.0
_PATIENCE_S = 10.0  # what this job was before it was queued again may still be ending
# Between the exec of a rank and its first line a signal would kill it; what a shell ignores its exec ignores.
_DEAF = ("sh", "-c", 'trap "" USR1 USR2 TERM; exec "$@"', "sh")
_ENDED_TASK = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(\w[\w ]*))")
_SIGNALLED = 128


@dataclass(frozen=True, slots=True)
class Driver:
    """Train the run that `run_dir`/config.yaml describes; call it in a job that was submitted with layout.sbatch.

    Submit with use_srun=False and python="exec <python>", so that SLURM's signals reach Python.
    """

    run_dir: Path
    layout: RankLayout

    def __call__(self) -> None:
        """Run the ranks to their end, with the run folder held; inside the job again where dist.on_lost=restart.

        Raises TrainingError if a rank failed, RunFolderError if another process trains into the folder. Told to stop by
        SIGUSR2, it does not return but queues the job again.
        """
        note_beginning()  # of the job's time, each time that it is queued
        with held(self.run_dir, patience_s=_PATIENCE_S):
            if not RunFolder(self.run_dir).is_complete:
                self._train()

    def _train(self) -> None:
        folder = RunFolder(self.run_dir)
        config = folder.begin(folder.config())
        with _Signals() as signals:
            try:
                with_restarts(folder, config, lambda _: self._run(signals))
            except TrainingError:
                if not folder.failed_after_training:
                    raise
        if failed := folder.failed_after_training:  # the sweep goes on: the job has done what it was for
            warn(f"the run in {self.run_dir} is complete, but {failed}")
        if not RunFolder(self.run_dir).is_complete:
            if not still_runs():  # cancelled, and the ranks knew first: to queue again would revive the job
                sys.exit(_SIGNALLED + signal.SIGTERM)
            signals.hand_over()
            raise TrainingError(
                f"the run in {self.run_dir} was stopped before its end and nothing queues it again: the same sweep "
                "command goes on with it"
            )

    def _run(self, signals: "_Signals") -> None:
        failures = _run_ranks(self.run_dir, self.layout, signals)
        if signals.terminated:
            sys.exit(_SIGNALLED + signal.SIGTERM)  # no result: SLURM knows what became of the job
        if failures is None:
            return
        cause, is_lost = self._blame(failures)
        remedy = (
            f"The message is in the job's log. The same sweep command goes on with the run in {self.run_dir}, from its "
            "last checkpoint if there is one"
        )
        if is_lost and not signals.stop_requested and still_runs():
            raise RankLost(cause, remedy)
        raise TrainingError(f"{cause}. {remedy}")

    def checkpoint(self) -> DelayedSubmission:
        """Return what the queued job is to do when it runs again: the same. submitit calls this."""
        return DelayedSubmission(self)

    def _blame(self, failures: "list[Failure]") -> tuple[str, bool]:
        """Say which rank failed, and whether a signal ended it. It is not one that only lost the others."""
        # Such a one may end before srun speaks of the one that was lost: the first is seldom the cause.
        cause = min(failures, key=lambda failure: failure.exit_code == LOST_PEERS, default=None)
        if cause is None:
            return "srun could not start the ranks", False
        num_ranks = sum(component.world_size for component in self.layout.components)
        ranks = cause.ranks
        if self.layout.learner is not None and cause.node != os.environ["SLURM_JOB_NODELIST"]:
            # srun counts the tasks of each component; that of the script is rank 0 alone.
            ranks = re.sub(r"\d+", lambda task: str(int(task[0]) + 1), ranks)
        said = f"rank {ranks} on {cause.node} {cause.what} and all {num_ranks} ranks were stopped"
        return said, cause.exit_code in (None, MAY_PASS)


@dataclass(frozen=True, slots=True)
class Failure:
    """How srun says that ranks of one node ended; exit_code is None after a signal."""

    ranks: str
    node: str
    what: str
    exit_code: int | None


# -- the ranks ----------------------------------------------------------------------------------------------------


class _Signals:
    """What SLURM tells the batch script: SIGUSR1, 2 to save and stop, SIGTERM to end now. In force inside `with`."""

    def __init__(self) -> None:
        self.stop_requested = False
        self.terminated = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if number == signal.SIGTERM:
            self.terminated = True
        else:
            self.stop_requested = True

    def hand_over(self) -> None:
        """Do what submitit does at SIGUSR2: pickle `checkpoint()`, have SLURM queue the job again, exit."""
        handler = self._previous[signal.SIGUSR2]
        if callable(handler):
            handler(signal.SIGUSR2, None)


def _run_ranks(run_dir: Path, layout: RankLayout, signals: _Signals) -> list[Failure] | None:
    """Start the ranks and wait until all have ended; return None if all ended well, else what srun said of them."""
    job_id = os.environ["SLURM_JOB_ID"]
    program = [sys.executable, "-m", "ddppo.cluster.rank", str(run_dir)]
    srun = subprocess.Popen(
        layout.srun([*_DEAF, *program]),
        env=os.environ | _rank_variables(layout, job_id),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        bufsize=1,
    )
    assert srun.stderr is not None
    failures: list[Failure] = []
    reader = threading.Thread(target=_pass_on, args=(srun.stderr, failures), daemon=True)
    reader.start()
    next_forward = 0.0
    while srun.poll() is None:
        if signals.terminated:
            _end(srun)
        elif signals.stop_requested and time.monotonic() >= next_forward:
            # Again and again: a rank that still starts ignores it, and a step that still starts is not found.
            _forward()
            next_forward = time.monotonic() + _FORWARD_EVERY_S
        with suppress(subprocess.TimeoutExpired):
            srun.wait(timeout=0.2)
    reader.join(timeout=10)
    return None if srun.returncode == 0 else failures


def _forward() -> None:
    """Send SIGUSR2 to the ranks, if they have started."""
    me = _job_id()
    with suppress(ClusterError):  # the next time may go better
        fields = ("--all", "--noheader", "--steps", f"--jobs={me}", "--format=%i")
        steps = command("squeue", *fields, timeout_s=10).split()
        if ours := [step for step in steps if re.fullmatch(rf"{me}\.\d+", step)]:  # not .batch, .extern
            command("scancel", "--quiet", "--signal=USR2", *ours, timeout_s=10)


def still_runs() -> bool:
    """Return whether SLURM counts this job as running: it may have been cancelled or queued again a moment ago."""
    with suppress(ClusterError):
        info = slurm.query([_job_id()]).get(_job_id())
        return info is None or not (info.has_ended or info.state in ("COMPLETING", "PENDING"))
    return True


def _job_id() -> str:
    """Return the id that means this job alone: an array's last element has the id of the whole array for its own."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def _rank_variables(layout: RankLayout, job_id: str) -> dict[str, str]:
    """Return what ranks need to meet: an address and a port of this node, where rank 0 will be."""
    first_node = command("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()[0]
    # Jobs that share a node begin at different ports; below 32768, where outgoing connections take theirs.
    begin = 15000 + int(job_id) % 15000
    port = next((port for port in range(begin, 32768) if is_free(port)), None)
    if port is None:
        raise ClusterError(f"no port of {first_node} is free from {begin} to 32767")
    variables = {"MASTER_ADDR": first_node, "MASTER_PORT": str(port)}
    if layout.interface is not None:
        variables |= {"GLOO_SOCKET_IFNAME": layout.interface, "NCCL_SOCKET_IFNAME": layout.interface}
    as_the_door = {"GOMP_SPINCOUNT": "1000", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {name: os.environ.get(name, value) for name, value in as_the_door.items()} | variables


def is_free(port: int) -> bool:
    """Return whether this machine's `port` can be listened on."""
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            end.bind(("", port))
        except OSError:
            return False
    return True


def _pass_on(stderr: IO[str], failures: list[Failure]) -> None:
    """Copy what srun and the ranks write to the job's log, and note what srun says of ranks that failed."""
    for line in stderr:
        sys.stderr.write(line)
        sys.stderr.flush()
        if found := _ENDED_TASK.match(line):
            node, ranks, code, how = found.groups()
            what = f"ended with exit code {code}" if code else f"was ended by a signal ({how})"
            failures.append(Failure(ranks, node, what, None if code is None else int(code)))


def _end(srun: subprocess.Popen) -> None:
    srun.terminate()
    try:
        srun.wait(timeout=3)
    except subprocess.TimeoutExpired:
        srun.kill()
        srun.wait()
