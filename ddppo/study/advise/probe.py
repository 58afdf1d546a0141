"""How fast are some settings? A probe is a training run that goes on for a few iterations at a time and then pauses.

Probes fork from a process that has imported everything they need. While one of them runs, the others are paused by
SIGSTOP, so that a round over all probes costs no start. Imports no torch.
"""

import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ddppo.errors import ConfigError, TrainingError
from ddppo.files import stored
from ddppo.processes.forking import ForkedProcess, ForkServer
from ddppo.processes.machine import allowed_cores, descendants
from ddppo.processes.signals import runs
from ddppo.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.advise.candidates import Candidate

_POLL_S = 0.003
_WARMUP_S = 0.3
_END_LIMIT_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")  # per second, in /proc
_IMPORTS = (
    "hydra",
    "torch._dynamo",
    "ddppo.loop.rank",
    "ddppo.launch.checks",
    "ddppo.launch.sweep_runs",
    "ddppo.train",
)
# Settings without evaluations, checkpoints, displays and ends, which would disturb a measurement. They come last, so
# that they win.
QUIET = (
    *("eval.every_steps=0", "eval.final_episodes=0", "checkpoint.every_steps=0", "target_return=null"),
    *("log.progress=none", "log.tensorboard=false", "log.profile_iterations=0", "dist.oversubscribe=warn"),
)
_FOREVER = 10**12  # total_steps


class OutOfTimeError(Exception):
    """The time was over before a probe had done its iterations."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The measurement of one probe in one round."""

    fps: float
    parts: Mapping[str, float]  # of EXCLUSIVE_PARTS: fractions of an iteration, means over ranks
    others: float = 0.0  # fraction of all cores' time that other programs used meanwhile
    rollouts: tuple[float, ...] = ()  # mean seconds of a rollout, by rank; () if unknown


class Probes:
    """The process from which probes fork, and the folder for their run folders. Both end with the `with` block."""

    def __init__(self, fixed: Sequence[str]) -> None:
        if not Path("/proc/self/stat").exists():
            raise ConfigError(
                "this system has no /proc, which probes need: use python -m ddppo.bench world_sizes=1,2"
            )
        # Import everything once; probes are forks.
        self._fixed = fixed
        self._folder = temporary_folder()
        self._server = ForkServer.started()
        self._server.have_imported(_IMPORTS)
        self._started: list[Probe] = []

    def __enter__(self) -> "Probes":
        return self

    def __exit__(self, *exc: object) -> None:
        for probe in self._started:
            probe.close()
        self._server.close()
        self._folder.cleanup()

    def start(self, candidate: Candidate, until: float) -> "Probe":
        """Return a probe after its warm-up. Raises ConfigError, TrainingError, OutOfTimeError."""
        folder = Path(self._folder.name) / str(len(self._started))
        folder.mkdir()
        # Start `ddppo.train` in a fork, silent and in a folder of its own.
        overrides = [*self._fixed, *candidate.overrides]
        if candidate.config.model.name != "mlp" and candidate.config.compile == "auto":
            overrides.append("compile=off")  # torch's compiler would take a core for up to a minute
        steps = f"{candidate.config.training.section}.total_steps={_FOREVER}"
        null, stderr = os.open(os.devnull, os.O_RDWR), os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT)
        try:
            process = self._server.start(
                "ddppo.train", [*overrides, *QUIET, steps, f"hydra.run.dir={folder / 'run'}"], os.environ,
                title=f"ddppo.advise {candidate.name}", cwd=str(folder), stdio=(null, null, stderr),
            )  # fmt: skip
        finally:
            os.close(null)
            os.close(stderr)
        self._started.append(Probe(process, folder, candidate, until))
        self._started[-1].warm_up()
        return self._started[-1]


def temporary_folder(below: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Return a hidden temporary folder, in `below` or the machine's place for such. Raises StorageError."""
    with stored(below or Path(os.environ.get("TMPDIR", "/tmp"))):
        return tempfile.TemporaryDirectory(prefix=".ddppo-advice-", dir=below, ignore_cleanup_errors=True)


class Probe:
    """A run that is paused except during `run`; no wait lasts beyond the time `until`."""

    def __init__(self, process: ForkedProcess, folder: Path, candidate: Candidate, until: float) -> None:
        self.start_up_s = self.iteration_s = (
            0.0  # seconds until the first iteration, and of an iteration lately
        )
        self._process, self._folder, self._candidate, self._until = process, folder, candidate, until
        # Bytes of metrics.jsonl read so far, and their lines.
        self._num_read, self._lines = (
            0,
            list[dict[str, Any]](),
        )

    def warm_up(self) -> None:
        """Wait for two iterations and some time, which are not measured, and pause the run."""
        began = time.monotonic()
        self._wait_for(1)
        # Measure the start-up, then an iteration.
        self.start_up_s, first = time.monotonic() - began, self._num_iterations()
        time.sleep(_WARMUP_S)
        self._wait_for(first + 1)
        self.iteration_s = (time.monotonic() - began - self.start_up_s) / (self._num_iterations() - first)
        self._signal(signal.SIGSTOP)

    def run(self, num_iterations: int) -> Slice:
        """Continue for a number of iterations, and pause again. Raises TrainingError, OutOfTimeError."""
        # The processor time of other programs is that of all cores less that of the probe.
        before, last = self._num_iterations(), self._lines[-1]
        used = busy_s() - used_s(self._signal(signal.SIGCONT))
        began = time.monotonic()
        self._wait_for(before + num_iterations)
        seconds = time.monotonic() - began
        used = busy_s() - used_s(self._signal(signal.SIGSTOP)) - used
        done = self._lines[before * self._candidate.world_size :]
        self.iteration_s = seconds / (done[-1]["iteration"] - last["iteration"])
        # The first iteration includes the pause, so its times do not count.
        whole = [line for line in done if line["iteration"] > done[0]["iteration"]]
        t_iter = sum(line["time/t_iter"] for line in whole)
        parts = {part: sum(line[f"time/{part}"] for line in whole) / t_iter for part in EXCLUSIVE_PARTS}
        # The share of other programs, and what the lines of the round say.
        others = max(0.0, used) / seconds / len(allowed_cores())
        rollouts = tuple(
            fmean(line["time/t_rollout"] for line in whole if line["rank"] == rank)
            for rank in range(self._candidate.world_size)
        )
        return Slice((done[-1]["env_steps"] - last["env_steps"]) / seconds, parts, others, rollouts)

    def close(self) -> None:
        """Kill the run with all its processes."""
        if self._process.returncode is None:
            self._signal(signal.SIGSTOP)  # so that none of them starts another one meanwhile
            # Killed processes may take a moment to end.
            pids, give_up = self._signal(signal.SIGKILL), time.monotonic() + _END_LIMIT_S
            while any(map(runs, pids)) and time.monotonic() < give_up:
                time.sleep(_POLL_S)
            self._process.poll()

    def _signal(self, number: int) -> list[int]:
        """Send a signal to all processes of the run; return their IDs."""
        pids = [self._process.pid, *descendants(self._process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def _wait_for(self, num_iterations: int) -> None:
        while self._num_iterations() < num_iterations:
            # The probe ended by itself: its last line is the reason.
            if (code := self._process.poll()) is not None:
                stderr = (self._folder / "stderr").read_text(errors="replace").strip() or "it said nothing"
                message = stderr.splitlines()[-1].removeprefix("error: ")
                raise ConfigError(message) if code == 2 else TrainingError(f"exit code {code}: {message}")
            if time.monotonic() > self._until:
                raise OutOfTimeError
            time.sleep(_POLL_S)

    def _num_iterations(self) -> int:
        """Read the new lines of metrics.jsonl; return the number of iterations that have the lines of all ranks."""
        with suppress(FileNotFoundError), (self._folder / "run" / "metrics.jsonl").open("rb") as file:
            file.seek(self._num_read)
            new = file.read()
            # Only whole lines; the rest is read next time.
            whole = new[: new.rfind(b"\n") + 1]
            self._num_read += len(whole)
            self._lines += map(json.loads, whole.splitlines())
        return len(self._lines) // self._candidate.world_size


def busy_s() -> float:
    """Return the seconds that the cores of this process have worked since the machine started, for any program."""
    allowed = {f"cpu{number}" for number in allowed_cores()}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    # user, nice, system, irq, softirq: https://docs.kernel.org/filesystems/proc.html#miscellaneous-kernel-statistics
    return sum(int(line[i]) for line in lines if line[0] in allowed for i in (1, 2, 3, 6, 7)) / _TICKS


def used_s(pids: Sequence[int]) -> float:
    """Return the seconds of processor time that these processes have used."""
    total = 0
    for pid in pids:
        with suppress(OSError):  # the process ended meanwhile
            total += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return total / _TICKS
