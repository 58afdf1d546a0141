"""The batch script of a SLURM job: it runs one training run, on the first node of the job.

submitit pickles a `Driver` and calls it in the job. The driver starts the ranks by srun and waits for them. When SLURM
announces the end of the job's time or the loss of its nodes, the driver lets the ranks write a checkpoint and stop, and
requeues the job; the next call continues from the checkpoint.
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

_FORWARD_EVERY_S = 2.0  # interval at which the signal to stop is repeated
_PATIENCE_S = 10.0  # for the run folder, which this job's previous start may still hold
# A shell that ignores signals, and executes a rank, which inherits that: until Python runs, a signal would kill the
# rank.
_IGNORING_SIGNALS = ("sh", "-c", 'trap "" USR1 USR2 TERM; exec "$@"', "sh")
# A line of srun about tasks that failed: node, tasks, and an exit code or a signal.
_ENDED_TASK = re.compile(r"srun: error: (\S+): tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(\w[\w ]*))")
_SIGNALLED = 128


@dataclass(frozen=True, slots=True)
class Driver:
    """Trains the run of `run_dir`/config.yaml. Called in a job that was submitted with layout.sbatch().

    Submit it with use_srun=False and python="exec <python>", so that SLURM's signals reach Python.
    """

    run_dir: Path
    layout: RankLayout

    def __call__(self) -> None:
        """Run the ranks to their end, while holding the run folder. With dist.on_lost=restart, restart lost ranks.

        Raises TrainingError if a rank failed, RunFolderError if another process trains in the folder. After SIGUSR2 it
        does not return, but requeues the job.
        """
        note_beginning()  # the clock of the job's time limit starts each time that the job starts
        with held(self.run_dir, patience_s=_PATIENCE_S):
            if not RunFolder(self.run_dir).is_complete:
                self._train()

    def _train(self) -> None:
        folder = RunFolder(self.run_dir)
        config = folder.begin(folder.config())
        # 1. Train, and restart lost ranks as dist.on_lost says.
        with _Signals() as signals:
            try:
                with_restarts(folder, config, lambda _: self._run(signals))
            except TrainingError:
                if not folder.failed_after_training:
                    raise
        # 2. The run is complete. A failure after training, as in its report, does not fail the job.
        if failed := folder.failed_after_training:
            warn(f"the run in {self.run_dir} is complete, but {failed}")
        # 3. The ranks have stopped before the end of the run: requeue, unless the job was cancelled.
        if not RunFolder(self.run_dir).is_complete:
            if not still_runs():
                sys.exit(_SIGNALLED + signal.SIGTERM)
            signals.hand_over()
            raise TrainingError(
                f"the run in {self.run_dir} was stopped before its end, and its job could not be requeued: give the "
                "same sweep command again to continue it"
            )

    def _run(self, signals: "_Signals") -> None:
        failures = _run_ranks(self.run_dir, self.layout, signals)
        if signals.terminated:
            # No result for submitit: SLURM knows that the job was ended.
            sys.exit(_SIGNALLED + signal.SIGTERM)
        if failures is None:
            return
        cause, is_lost = self._blame(failures)
        remedy = (
            f"The message is in the job's log. The same sweep command continues the run in {self.run_dir}, from its "
            "last checkpoint if there is one"
        )
        if is_lost and not signals.stop_requested and still_runs():
            raise RankLost(cause, remedy)
        raise TrainingError(f"{cause}. {remedy}")

    def checkpoint(self) -> DelayedSubmission:
        """Return the work of the requeued job, which is the same. submitit calls this."""
        return DelayedSubmission(self)

    def _blame(self, failures: "list[Failure]") -> tuple[str, bool]:
        """Return a phrase about the rank that caused the failure, and whether it was lost rather than failed."""
        # Ranks that lost their peers exit with LOST_PEERS, often before srun reports the lost rank: they are not the
        # cause.
        cause = min(failures, key=lambda failure: failure.exit_code == LOST_PEERS, default=None)
        if cause is None:
            return "srun could not start the ranks", False
        num_ranks = sum(component.world_size for component in self.layout.components)
        ranks = cause.ranks
        if self.layout.learner is not None and cause.node != os.environ["SLURM_JOB_NODELIST"]:
            # srun counts the tasks of each component from 0. The first component is rank 0 alone.
            ranks = re.sub(r"\d+", lambda task: str(int(task[0]) + 1), ranks)
        what = f"rank {ranks} on {cause.node} {cause.what} and all {num_ranks} ranks were stopped"
        return what, cause.exit_code in (None, MAY_PASS)


@dataclass(frozen=True, slots=True)
class Failure:
    """A report of srun on failed ranks of one node."""

    ranks: str  # numbers as srun writes them: 0,2-3
    node: str
    what: str  # in words
    exit_code: int | None  # None after a signal


# -- the ranks ----------------------------------------------------------------------------------------------------


class _Signals:
    """Records signals of SLURM inside `with`: SIGUSR1 and SIGUSR2 to save and stop, SIGTERM to end now."""

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
        """Call submitit's handler of SIGUSR2: it pickles `checkpoint()`, requeues the job and exits."""
        handler = self._previous[signal.SIGUSR2]
        if callable(handler):
            handler(signal.SIGUSR2, None)


def _run_ranks(run_dir: Path, layout: RankLayout, signals: _Signals) -> list[Failure] | None:
    """Start the ranks and wait for their end; return None if all succeeded, else srun's reports of failures."""
    # 1. One step of srun for all ranks. Its errors go through this process, which reads them.
    job_id = os.environ["SLURM_JOB_ID"]
    program = [sys.executable, "-m", "ddppo.cluster.rank", str(run_dir)]
    srun = subprocess.Popen(
        layout.srun([*_IGNORING_SIGNALS, *program]),
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
    # 2. Wait, and forward the signal to stop. It is repeated, because ranks ignore it while they start.
    next_forward = 0.0
    while srun.poll() is None:
        if signals.terminated:
            _end(srun)
        elif signals.stop_requested and time.monotonic() >= next_forward:
            _forward()
            next_forward = time.monotonic() + _FORWARD_EVERY_S
        with suppress(subprocess.TimeoutExpired):
            srun.wait(timeout=0.2)
    reader.join(timeout=10)
    return None if srun.returncode == 0 else failures


def _forward() -> None:
    """Send SIGUSR2 to the ranks, if they have started."""
    me = _job_id()
    with suppress(ClusterError):  # it is repeated
        fields = ("--all", "--noheader", "--steps", f"--jobs={me}", "--format=%i")
        steps = command("squeue", *fields, timeout_s=10).split()
        # The steps of srun have numbers; .batch is this script, .extern is SLURM's own.
        if ours := [step for step in steps if re.fullmatch(rf"{me}\.\d+", step)]:
            command("scancel", "--quiet", "--signal=USR2", *ours, timeout_s=10)


def still_runs() -> bool:
    """Return whether SLURM counts this job as running. It may have been cancelled or requeued a moment ago."""
    with suppress(ClusterError):
        info = slurm.query([_job_id()]).get(_job_id())
        return info is None or not (info.has_ended or info.state in ("COMPLETING", "PENDING"))
    return True


def _job_id() -> str:
    """Return the id of this job alone. (SLURM_JOB_ID of an array's last element is the id of the whole array.)"""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def _rank_variables(layout: RankLayout, job_id: str) -> dict[str, str]:
    """Return the environment variables by which ranks find one another: an address and a port of this node."""
    # Rank 0 runs on the first node.
    first_node = command("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()[0]
    # Jobs that share a node start the search at different ports, below those of outgoing connections (32768 and above).
    begin = 15000 + int(job_id) % 15000
    port = next((port for port in range(begin, 32768) if is_free(port)), None)
    if port is None:
        raise ClusterError(f"no port of {first_node} is free from {begin} to 32767")
    variables = {"MASTER_ADDR": first_node, "MASTER_PORT": str(port)}
    if layout.interface is not None:
        variables |= {"GLOO_SOCKET_IFNAME": layout.interface, "NCCL_SOCKET_IFNAME": layout.interface}
    # The same defaults as those of `python -m ddppo.train`.
    defaults = {"GOMP_SPINCOUNT": "1000", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | variables


def is_free(port: int) -> bool:
    """Return whether a port of this machine is free."""
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            end.bind(("", port))
        except OSError:
            return False
    return True


def _pass_on(stderr: IO[str], failures: list[Failure]) -> None:
    """Copy the errors of srun and the ranks to the job's log, and record srun's reports of failed ranks."""
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
