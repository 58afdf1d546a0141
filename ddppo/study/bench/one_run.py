"""One measured run: started through the train door, watched from outside, stopped by the clock. Imports no torch.

The watching costs the run next to nothing: a look at the size of one file every few milliseconds, while it sleeps.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddppo.errors import ConfigError, TrainingError
from ddppo.processes.machine import memory_of
from ddppo.processes.signals import die_with_parent
from ddppo.run.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.bench.code import Code

_POLL_S = 0.005
_STARTED_WITHIN_S = 300.0
_STOPPED_WITHIN_S = 60.0
_FEWEST_ITERATIONS = 3  # measured, however long they take
_SHOWN = 12  # lines of what a failed run said


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds of training that warm a run up, and that are measured then."""

    warmup_s: float
    measure_s: float


def measure(code: Code, overrides: Sequence[str], clock: Clock) -> dict[str, Any]:
    """Run `overrides` at the train door of `code` and return what `summed_up` makes of it, and

    start_up_s: from the start of the process to the first line of metrics.jsonl;
    memory_per_rank_mb: proportional set sizes of all its processes / W, where the kernel tells them;
    peak_rss_mb: the largest resident set that one of them had.
    Raises ConfigError or TrainingError with what a run said that ended by itself.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ddppo-bench-") as folder,
        started(code, overrides, folder) as run,
    ):
        metrics = run.run_dir / "metrics.jsonl"
        run.wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, _STARTED_WITHIN_S)
        start_up_s = time.monotonic() - run.started_at
        first_s = time.monotonic()
        time.sleep(clock.warmup_s)
        run.wait_until(lambda: time.monotonic() - first_s > clock.warmup_s + clock.measure_s)
        run.wait_until(lambda: _num_measured(metrics, clock.warmup_s) >= _FEWEST_ITERATIONS, pause_s=0.1)
        lines, memory = _whole_lines(metrics), memory_of(run.process.pid)
        run.stop()
        summary = json.loads((run.run_dir / "summary.json").read_text())
    measured = summed_up(lines, summary["derived"], clock.warmup_s)
    world_size = summary["derived"]["W"]
    memory_per_rank = memory.total_mb / world_size if memory.total_mb else None
    return {
        **measured,
        "start_up_s": start_up_s,
        "memory_per_rank_mb": memory_per_rank,
        "peak_rss_mb": memory.peak_mb,
    }


def summed_up(
    lines: Sequence[Mapping[str, Any]], sizes: Mapping[str, Any], warmup_s: float
) -> dict[str, Any]:
    """Return rates and times after warm-up from the lines of metrics.jsonl and `derived` of summary.json.

    fps: steps of all ranks per second of training. t_*: seconds of an iteration, mean over iterations and ranks.
    wait_us: t_comm + t_sync of one update, in microseconds. learn_gflops: floating-point operations of all ranks'
    forward and backward passes, 6 per product of a weight and sample (2 forward, 4 backward), per second of t_learn.
    """
    global_lines = [line for line in lines if line["rank"] == 0]
    first = _last_of_warmup([line["wall_s"] for line in global_lines], warmup_s)
    before, last = global_lines[first], global_lines[-1]
    measured = [line for line in lines if line["iteration"] > before["iteration"]]
    times = {
        name: sum(line[f"time/{name}"] for line in measured) / len(measured)
        for name in ("t_iter", *EXCLUSIVE_PARTS)
    }
    num_updates = sizes["K"] * sizes["M"]
    num_products = sizes.get("num_products", sizes["num_parameters"])  # earlier commits knew no convolutions
    flop = 6.0 * num_products * sizes["B"] * sizes["K"]
    return {
        "fps": (last["env_steps"] - before["env_steps"]) / (last["wall_s"] - before["wall_s"]),
        "iterations": len(global_lines) - first - 1,
        **times,
        "wait_us": 1e6 * (times["t_comm"] + times["t_sync"]) / num_updates,
        "learn_gflops": flop / times["t_learn"] / 1e9,
        "num_parameters": sizes["num_parameters"],
        "threads_per_rank": sizes["threads_per_rank"],
    }


def _last_of_warmup(wall_s: Sequence[float], warmup_s: float) -> int:
    """Return the index of the last iteration that is not measured: the first two never are."""
    for index in range(1, len(wall_s)):
        if wall_s[index] - wall_s[0] >= warmup_s:
            return index
    return len(wall_s) - 1


def _num_measured(metrics: Path, warmup_s: float) -> int:
    wall_s = [line["wall_s"] for line in _whole_lines(metrics) if line["rank"] == 0]
    return len(wall_s) - 1 - _last_of_warmup(wall_s, warmup_s)


def _whole_lines(metrics: Path) -> list[dict[str, Any]]:
    """Return the lines of a file that somebody writes, without one that is half written."""
    return [
        json.loads(line) for line in metrics.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")
    ]


class StartedRun:
    """A process of the train door, its run folder, and what it says on stderr."""

    def __init__(self, process: subprocess.Popen, run_dir: Path, said: Path) -> None:
        self.process = process
        self.run_dir = run_dir
        self.started_at = time.monotonic()
        self._said = said

    def wait_until(self, condition: Any, limit_s: float = float("inf"), pause_s: float = _POLL_S) -> None:
        """Wait while the run goes on. Raises TrainingError if it ends, or after limit_s."""
        give_up = time.monotonic() + limit_s
        while not condition():
            if self.process.poll() is not None:
                raise self._failure(f"ended by itself with exit code {self.process.returncode}")
            if time.monotonic() > give_up:
                raise self._failure(f"was at no first iteration within {limit_s:g} s")
            time.sleep(pause_s)

    def stop(self) -> None:
        """Have the run save and end. Raises TrainingError if it does not, or not well."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(_STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not stop within {_STOPPED_WITHIN_S:g} s of SIGTERM") from None
        # The second where there is a checkpoint to go on from.
        if code not in (128 + signal.SIGTERM, os.EX_TEMPFAIL):
            raise self._failure(f"was told to stop and ended with exit code {code}")

    def _failure(self, what: str) -> ConfigError | TrainingError:
        lines = self._said.read_text(errors="replace").strip().splitlines()
        if self.process.poll() == 2 and lines:
            return ConfigError(lines[-1].removeprefix("error: "))
        said = "\n".join(lines[-_SHOWN:]) or "it said nothing"
        return TrainingError(f"{' '.join(map(str, self.process.args))} {what}: {said}")  # type: ignore[arg-type]


@contextmanager
def started(code: Code, overrides: Sequence[str], folder: str) -> Iterator[StartedRun]:
    """Start the train door of `code` with its run folder in `folder`; it has ended after the block."""
    run_dir, said = Path(folder) / "run", Path(folder) / "stderr"
    command = [sys.executable, "-m", "ddppo.train", *overrides, f"hydra.run.dir={run_dir}"]
    parent = os.getpid()
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,  # tasks may write where they are, and a checkout is to stay clean
            env=code.environ(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C is for the bench
            # A measured run has no end of its own. Only Linux keeps this over the start of a program.
            preexec_fn=(lambda: die_with_parent(parent)) if sys.platform == "linux" else None,
        )
    try:
        yield StartedRun(process, run_dir, said)
    finally:
        if process.poll() is None:
            process.kill()  # its ranks end with it
            process.wait()
