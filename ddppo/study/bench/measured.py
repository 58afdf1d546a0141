"""How is a run measured? It is started in a process of its own, watched from outside, and stopped when time is over.

The file has the code to measure, one measured run, rounds of runs, and profiles, in this order. Watching costs a run
almost nothing: a look at the size of one file every few milliseconds. In each round every configuration of every code
runs once, so that a pair to compare meets the same state of a shared machine. Imports no torch.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ddppo
from ddppo.config.stored import to_yaml
from ddppo.errors import ConfigError, TrainingError
from ddppo.files import stored
from ddppo.launch.arguments import composed
from ddppo.processes.machine import memory_of
from ddppo.processes.signals import die_with_parent
from ddppo.records.metrics import EXCLUSIVE_PARTS
from ddppo.study.bench.results import Measurement
from ddppo.study.bench.workloads import Configuration

HERE = "this"
_POLL_S = 0.005
_START_LIMIT_S = 300.0  # until the first iteration
_STOP_LIMIT_S = 60.0
_FEWEST_ITERATIONS = 3  # are measured, however long they take
_MAX_LINES = 12  # of a failed run's stderr in a message
Say = Callable[[str], None]
PAGE = "where_the_time_goes.md"  # the name in ddppo.records.profiling
_PROFILED_ITERATIONS = 3
_PROFILE_LIMIT_S = 600.0


# -- The code to measure.


@dataclass(frozen=True, slots=True)
class Code:
    """A version of the package `ddppo`."""

    name: str  # in results
    root: Path  # the folder that holds the package
    commit: str | None = None
    dirty: bool | None = None  # whether files are not committed

    def environ(self) -> dict[str, str]:
        """Return environment variables with which `python -m ddppo.train` runs this code, from any folder."""
        # The current folder too: a user's tasks may be there.
        paths = [str(self.root), os.getcwd(), os.environ.get("PYTHONPATH", "")]
        return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def this_code() -> Code:
    """Return the code of this process."""
    return _code(HERE, Path(ddppo.__file__).resolve().parents[1])


@contextmanager
def other_code(against: str) -> Iterator[Code]:
    """Yield the code of a folder, or of a commit of this checkout in a temporary git worktree.

    Raises ConfigError if there is no such code.
    """
    # A folder with another checkout, or a commit of this one.
    folder = Path(against)
    if folder.is_dir():
        if not (folder / "ddppo" / "train.py").is_file():
            raise ConfigError(
                f"against={against} is a folder without ddppo/train.py: give a checkout or a commit"
            )
        yield _code(against, folder.resolve())
        return
    root = this_code().root
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{against}^{{commit}}")
    if commit is None:
        raise ConfigError(f"against={against} is neither a folder nor a commit of {root}")
    # A worktree shares the repository of this checkout, and is removed with its folder.
    with tempfile.TemporaryDirectory(prefix="ddppo-against-") as parent:
        worktree = Path(parent) / "worktree"
        if _git(root, "worktree", "add", "--detach", "--quiet", str(worktree), commit) is None:
            raise ConfigError(f"against={against}: git cannot check it out into {worktree}")
        try:
            yield _code(against, worktree)
        finally:
            _git(root, "worktree", "remove", "--force", str(worktree))


def _code(name: str, root: Path) -> Code:
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    dirty = bool(_git(root, "status", "--porcelain")) if commit else None
    return Code(name, root, commit, dirty)


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of git, None if it fails or is not installed."""
    try:
        found = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


# -- One measured run.


@dataclass(frozen=True, slots=True)
class Clock:
    """The seconds of training of a measured run."""

    warmup_s: float  # not measured
    measure_s: float


def measure(code: Code, overrides: Sequence[str], clock: Clock) -> dict[str, Any]:
    """Run `python -m ddppo.train` of `code` with `overrides` and return the numbers of `summed_up`, and

    start_up_s          seconds from the start of the process to the first line of metrics.jsonl
    memory_per_rank_mb  proportional set sizes of all its processes / W; None if the kernel does not report them
    peak_rss_mb         the largest resident set of one of its processes

    Raises ConfigError or TrainingError, with the run's own message, if the run ends too early.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ddppo-bench-") as folder,
        started(code, overrides, folder) as run,
    ):
        # 1. Wait for the first iteration.
        metrics = run.run_dir / "metrics.jsonl"
        run.wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, _START_LIMIT_S)
        start_up_s = time.monotonic() - run.started_at
        # 2. Let it train for the given time, and for a few iterations at least.
        first_s = time.monotonic()
        time.sleep(clock.warmup_s)
        run.wait_until(lambda: time.monotonic() - first_s > clock.warmup_s + clock.measure_s)
        run.wait_until(lambda: _num_measured(metrics, clock.warmup_s) >= _FEWEST_ITERATIONS, pause_s=0.1)
        # 3. Read, and stop it.
        lines, memory = _whole_lines(metrics), memory_of(run.process.pid)
        run.stop()
        summary = json.loads((run.run_dir / "summary.json").read_text())
    # 4. Sum up.
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
    """Return rates and times after warm-up, from the lines of metrics.jsonl and `derived` of summary.json.

    fps           environment steps of all ranks per second of training
    iterations    measured
    t_*           seconds of an iteration, means over iterations and ranks
    wait_us       microseconds of t_comm + t_sync for one optimizer step
    learn_gflops  floating-point operations of all ranks' forward and backward passes per second of t_learn: 6 for each
                  product of a weight and a sample (2 forward, 4 backward)
    """
    global_lines = [line for line in lines if line["rank"] == 0]
    # Iterations after warm-up.
    first = _last_of_warmup([line["wall_s"] for line in global_lines], warmup_s)
    before, last = global_lines[first], global_lines[-1]
    measured = [line for line in lines if line["iteration"] > before["iteration"]]
    times = {
        name: sum(line[f"time/{name}"] for line in measured) / len(measured)
        for name in ("t_iter", *EXCLUSIVE_PARTS)
    }
    # Optimizer steps, and operations of an iteration.
    num_updates = sizes["K"] * sizes["M"]
    # Older commits have no num_products; without convolutions it equals the number of parameters.
    num_products = sizes.get("num_products", sizes["num_parameters"])
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
    """Return the index of the last iteration of warm-up. The first two iterations are never measured."""
    for index in range(1, len(wall_s)):
        if wall_s[index] - wall_s[0] >= warmup_s:
            return index
    return len(wall_s) - 1


def _num_measured(metrics: Path, warmup_s: float) -> int:
    wall_s = [line["wall_s"] for line in _whole_lines(metrics) if line["rank"] == 0]
    return len(wall_s) - 1 - _last_of_warmup(wall_s, warmup_s)


def _whole_lines(metrics: Path) -> list[dict[str, Any]]:
    """Return the lines of a file that is being written, without a half-written one at its end."""
    return [
        json.loads(line) for line in metrics.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")
    ]


class StartedRun:
    """A process of `python -m ddppo.train`."""

    def __init__(self, process: subprocess.Popen, run_dir: Path, stderr: Path) -> None:
        self.process = process
        self.run_dir = run_dir
        self.started_at = time.monotonic()
        self._stderr = stderr  # the file with its stderr

    def wait_until(self, condition: Any, limit_s: float = float("inf"), pause_s: float = _POLL_S) -> None:
        """Wait until `condition()` holds. Raises TrainingError if the run ends before, or after limit_s."""
        give_up = time.monotonic() + limit_s
        while not condition():
            if self.process.poll() is not None:
                raise self._failure(f"ended by itself with exit code {self.process.returncode}")
            if time.monotonic() > give_up:
                raise self._failure(f"did not reach its first iteration within {limit_s:g} s")
            time.sleep(pause_s)

    def stop(self) -> None:
        """Ask the run to save and end. Raises TrainingError if it does not end, or fails."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not stop within {_STOP_LIMIT_S:g} s of SIGTERM") from None
        # EX_TEMPFAIL: it stopped with a checkpoint to resume from.
        if code not in (128 + signal.SIGTERM, os.EX_TEMPFAIL):
            raise self._failure(f"was told to stop and ended with exit code {code}")

    def _failure(self, what: str) -> ConfigError | TrainingError:
        """Return the error for a run that did `what`, with its message."""
        lines = self._stderr.read_text(errors="replace").strip().splitlines()
        # Exit code 2 is a mistake of the user: the last line is its message.
        if self.process.poll() == 2 and lines:
            return ConfigError(lines[-1].removeprefix("error: "))
        message = "\n".join(lines[-_MAX_LINES:]) or "it said nothing"
        return TrainingError(f"{' '.join(map(str, self.process.args))} {what}: {message}")  # type: ignore[arg-type]


@contextmanager
def started(code: Code, overrides: Sequence[str], folder: str) -> Iterator[StartedRun]:
    """Start `python -m ddppo.train` of `code` with its run folder in `folder`; it is killed at the end of the block."""
    run_dir, stderr_file = Path(folder) / "run", Path(folder) / "stderr"
    command = [sys.executable, "-m", "ddppo.train", *overrides, f"hydra.run.dir={run_dir}"]
    parent = os.getpid()
    with stderr_file.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,  # a task may write into the current folder, and the checkout should stay clean
            env=code.environ(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C should reach the bench only
            # A measured run never ends by itself, so it must die with the bench. Other systems than Linux lose this
            # setting when a program starts.
            preexec_fn=(lambda: die_with_parent(parent)) if sys.platform == "linux" else None,
        )
    try:
        yield StartedRun(process, run_dir, stderr_file)
    finally:
        if process.poll() is None:
            process.kill()  # its ranks end with it
            process.wait()


# -- Rounds: every configuration of every code in turn.


def run_rounds(
    todo: Sequence[Configuration], codes: Sequence[Code], num_rounds: int, clock: Clock, say: Say
) -> list[Measurement]:
    """Measure each configuration with each code, `num_rounds` times, in the order A B A B.

    Before the first round each runs for a moment, so that no measurement includes cold caches. Raises ConfigError,
    TrainingError.
    """
    for configured in todo:
        for code in codes:
            say(f"warming up {configured.name}{_of(code, codes)}")
            measure(code, configured.overrides, Clock(0.0, 0.0))
    measurements = []
    # Every round begins with the limits of the machine at that time.
    for number in range(1, num_rounds + 1):
        limits = _limits(todo)
        for configured in todo:
            for code in codes:
                run = measure(code, configured.overrides, clock)
                say(
                    f"round {number} of {num_rounds}  {configured.name}{_of(code, codes)}: {run['fps']:,.0f} steps/s"
                )
                measurements.append(
                    Measurement(
                        round=number,
                        code=code.name,
                        workload=configured.workload.name,
                        world_size=configured.world_size,
                        rule=configured.rule,
                        overrides=configured.overrides,
                        run=run,
                        limits=limits[configured.name],
                    )
                )
    return measurements


def _of(code: Code, codes: Sequence[Code]) -> str:
    return f" ({code.name})" if len(codes) > 1 else ""


def _limits(todo: Sequence[Configuration]) -> dict[str, Mapping[str, Any]]:
    """Return the machine's limits at this moment, by configuration (ddppo.study.bench.limits)."""
    with tempfile.TemporaryDirectory(prefix="ddppo-bench-") as folder:
        paths = []
        for number, configured in enumerate(todo):
            path = Path(folder) / f"{number}.yaml"
            path.write_text(to_yaml(composed(configured.overrides)), encoding="utf-8")
            paths.append(str(path))
        found = subprocess.run(
            [sys.executable, "-m", "ddppo.study.bench.limits", *paths],
            cwd=folder,
            env=this_code().environ(),
            capture_output=True,
            text=True,
        )
        if found.returncode:
            # The last line of a traceback is "<class>: <message>".
            last = found.stderr.strip().splitlines()[-1:] or ["it said nothing"]
            kind, _, message = last[0].partition(": ")
            if kind == "ddppo.errors.ConfigError":
                raise ConfigError(message)
            raise TrainingError(f"the machine's limits could not be measured: {last[0]}")
    whole = json.loads(found.stdout.splitlines()[-1])
    latency = {"collective_us": whole["collective_us"]}
    return {configured.name: rates | latency for configured, rates in zip(todo, whole["limits"], strict=True)}


# -- Profiles.


def write_profiles(todo: Sequence[Configuration], out: Path, say: Callable[[str], None]) -> list[Path]:
    """Run each configuration with log.profile_iterations; return the pages, each in a folder of its own in `out`.

    Raises ConfigError, before anything runs, if such a folder exists.
    """
    folders = {each: out / each.name.replace(" ", "_") for each in todo}
    for folder in folders.values():
        if folder.exists():
            raise ConfigError(f"{folder} is there already: give another folder by out=, or remove it")
    pages = []
    for configured, folder in folders.items():
        say(f"profiling {configured.name}")
        # The run never ends by itself: wait for its page, then stop it.
        with tempfile.TemporaryDirectory(prefix="ddppo-bench-") as temporary:
            overrides = (*configured.overrides, f"log.profile_iterations={_PROFILED_ITERATIONS}")
            with started(this_code(), overrides, temporary) as run:
                written = run.run_dir / "profile"
                run.wait_until((written / PAGE).exists, _PROFILE_LIMIT_S)
                run.stop()
            with stored(folder):
                shutil.copytree(written, folder)
        pages.append(folder / PAGE)
    return pages
