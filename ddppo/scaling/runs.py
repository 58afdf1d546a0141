"""The runs of a scaling study, as read from their folders. Imports no trainer.

What a run was stands in its summary.json and metrics.jsonl; folder names mean nothing. A folder that cannot be used
becomes a `LeftOut` with the reason and the remedy, and the others are still read.
"""

import json
import math
import os
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("t_rollout", "t_learn", "t_sync", "t_comm", "t_other")
SCHEMA_VERSION = 1  # of summary.json; the one that ddppo.run.summary writes
REPORT_FILE, REPORT_KIND = "summary.json", "scaling report"  # the file of a report, and its key `kind`
_MOST_RETURNS = 2000


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One deterministic evaluation during a run: environment steps of all ranks, training seconds, mean return."""

    env_steps: int
    wall_s: float
    return_mean: float


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run. Arrays leave warm-up iterations out.

    times: "t_iter" and each of PARTS, seconds, `[iterations, W]`. steps: environment steps of all ranks per iteration
    `[iterations]`. stability: train/* metrics (approx_kl, clip_fraction, entropy, value_loss, ...) `[iterations]`.
    config is the resolved configuration as nested dicts, summary the whole summary.json. What a foreign table does
    not tell is empty or NaN.
    """

    path: str
    env_id: str
    world_size: int
    seed: int
    rule: str
    num_envs: int
    rollout_steps: int
    num_epochs: int
    num_minibatches: int
    num_parameters: int
    cores: int
    env_steps: int
    wall_s: float
    fps: float
    final_return: float
    target_return: float
    times: dict[str, np.ndarray]
    steps: np.ndarray
    evaluations: tuple[Evaluation, ...]
    returns: tuple[Evaluation, ...] = ()
    stability: dict[str, np.ndarray] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run folder (or row of a table) that the report does without, why, and what to do about it."""

    path: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found: usable runs, what is left out, and remarks that concern the study as a whole."""

    runs: list[Run]
    left_out: list[LeftOut]
    remarks: list[str] = field(default_factory=list)


class _Unusable(Exception):
    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


# -- finding and reading ---------------------------------------------------------------------------------------------


def read_runs(folder: Path, progress: Callable[[str], None] = lambda path: None) -> Reading:
    """Read every run below `folder`; `progress` is told each path before it is read."""
    runs, left_out = [], []
    for path, problem in _run_folders(folder):
        try:
            if problem is not None:
                raise problem
            progress(str(path))
            runs.append(read_run(path))
        except _Unusable as e:
            left_out.append(LeftOut(str(path), e.reason, e.remedy))
    return Reading(runs, left_out)


def _run_folders(folder: Path) -> Iterable[tuple[Path, _Unusable | None]]:
    """Yield the folders that are, or were to become, runs; those without summary.json with the reason.

    What hidden folders hold (runs that were moved aside, logs of a launcher) and reports are none of them.
    """
    for here, subfolders, files in os.walk(folder):
        nothing = not files and not subfolders
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        path = Path(here)
        if "summary.json" in files:
            subfolders.clear()
            if not is_report(path):
                yield path, None
        elif "config.yaml" in files or "metrics.jsonl" in files:
            subfolders.clear()
            remedy = f"go on with it (resume={path}) or run that job again"
            yield path, _Unusable("has no summary.json, so the run did not end", remedy)
        elif nothing:
            yield path, _Unusable("is empty, so the job never started", "run that job again, or remove it")


def is_report(folder: Path) -> bool:
    """Return whether the folder is one that `ddppo.report` wrote."""
    try:
        found = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("kind") == REPORT_KIND


def read_run(path: Path) -> Run:
    """Read one run folder; a file that is not what the trainer writes makes it unusable."""
    again = "run that job again, or remove the folder"
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise _Unusable(f"summary.json cannot be read ({_line(e)})", again) from e
    if not isinstance(summary, dict) or "schema_version" not in summary:
        raise _Unusable("summary.json is not a run's", "remove it, or point the report elsewhere")
    if summary["schema_version"] != SCHEMA_VERSION:
        raise _Unusable(
            f"summary.json has schema_version {summary['schema_version']}, this ddppo reads {SCHEMA_VERSION}",
            "report it with the ddppo that wrote it, or run that job again",
        )
    if summary.get("status") != "completed":
        remedy = f"go on with it (resume={path}) or run that job again"
        raise _Unusable(f"the run did not complete (status {summary.get('status')})", remedy)
    try:
        return _run(path, summary)
    except FileNotFoundError as e:
        raise _Unusable("has no metrics.jsonl", again) from e
    except (KeyError, TypeError, AttributeError) as e:
        raise _Unusable(f"summary.json is incomplete ({type(e).__name__}: {_line(e)})", again) from e


def _run(path: Path, summary: dict[str, Any]) -> Run:
    derived, config, warmup = summary["derived"], summary["config"], summary["warmup"]
    skip = 0 if warmup["too_few_iterations"] else warmup["iterations"]
    metrics = _Metrics(summary["world_size"], summary["iterations"])
    metrics.read(path / "metrics.jsonl")
    resumed = not warmup["too_few_iterations"] and warmup["left_out"] != warmup["iterations"]
    fps = metrics.fps(skip)
    if resumed:
        # Where the later starts' warm-up lies is not recorded, but summary.json's fps leaves it out.
        fps = summary["fps"]
    elif not math.isclose(fps, summary["fps"], rel_tol=1e-6):
        raise _Unusable(
            f"metrics.jsonl gives {fps:.6g} steps/s, summary.json {summary['fps']:.6g}: not of the same run",
            "run that job again",
        )
    final = summary["eval"]["final"]
    returns = metrics.returns
    target = config["target_return"]
    return Run(
        path=str(path),
        env_id=config["env"]["id"],
        world_size=summary["world_size"],
        seed=config["seed"],
        rule=config["scaling"]["rule"],
        num_envs=derived["N"],
        rollout_steps=derived["T"],
        num_epochs=derived["K"],
        num_minibatches=derived["M"],
        num_parameters=derived["num_parameters"],
        cores=summary["machine"]["cores"] * (derived.get("num_hosts") or derived.get("num_nodes", 1)),
        env_steps=summary["env_steps"],
        wall_s=summary["wall_s"],
        fps=fps,
        final_return=final["return_mean"] if final else returns[-1].return_mean if returns else math.nan,
        target_return=math.nan if target is None else target,
        times=metrics.times(skip),
        steps=metrics.steps()[skip:],
        evaluations=tuple(metrics.evaluations),
        returns=tuple(returns),
        stability={name: np.frombuffer(values)[skip:] for name, values in sorted(metrics.stability.items())},
        config=config,
        summary=summary,
    )


class _Metrics:
    """Columns of a metrics.jsonl, read line by line: 8 bytes per number, whatever the length of the file."""

    def __init__(self, world_size: int, num_iterations: int) -> None:
        self.world_size = world_size
        self.num_iterations = num_iterations
        self.evaluations: list[Evaluation] = []
        self.returns: list[Evaluation] = []
        self.stability: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self._times = {name: array("d") for name in ("t_iter", *PARTS)}
        self._env_steps, self._wall_s = array("q"), array("d")
        self._highest = -math.inf

    def read(self, path: Path) -> None:
        """Read the file. A line out of order or missing makes the run unusable."""
        remedy = "run that job again"
        columns = [(values, f"time/{name}") for name, values in self._times.items()]
        count = 0
        with path.open(encoding="utf-8", errors="replace") as file:
            for count, text in enumerate(file, start=1):
                iteration, rank = divmod(count - 1, self.world_size)
                try:
                    line = json.loads(text)
                    position = (line["iteration"], line["rank"])
                    if position == (iteration + 1, rank):
                        for values, name in columns:
                            values.append(_number(line[name]))
                        if rank == 0:
                            self._add_global(line)
                except (ValueError, KeyError, TypeError) as e:
                    reason = f"metrics.jsonl, line {count}, is not one of ddppo's ({_line(e)})"
                    raise _Unusable(reason, remedy) from e
                if position != (iteration + 1, rank):
                    raise _Unusable(
                        f"metrics.jsonl, line {count}, is rank {position[1]} of iteration {position[0]} where rank "
                        f"{rank} of {iteration + 1} belongs: damaged, or resumed with another world_size",
                        remedy,
                    )
        if count != self.world_size * self.num_iterations:
            raise _Unusable(
                f"metrics.jsonl has {count} lines, not {self.world_size} ranks * {self.num_iterations} iterations",
                remedy,
            )

    def _add_global(self, line: dict[str, Any]) -> None:
        steps, wall_s = line["env_steps"], line["wall_s"]
        self._env_steps.append(steps)
        self._wall_s.append(wall_s)
        for name, value in line.items():
            if name.startswith("train/"):
                self.stability[name.removeprefix("train/")].append(_number(value))
        score = line.get("eval/return_mean")
        if score is not None:
            self.evaluations.append(Evaluation(steps, wall_s, score))
        trained = line.get("rollout/return_mean")
        if trained is not None:
            # The first value at or above any target is a new highest, so thinning loses no time to target.
            stride = max(1, self.num_iterations // _MOST_RETURNS)
            if (
                trained > self._highest
                or len(self._wall_s) % stride == 0
                or len(self._wall_s) == self.num_iterations
            ):
                self.returns.append(Evaluation(steps, wall_s, trained))
            self._highest = max(self._highest, trained)

    def times(self, skip: int) -> dict[str, np.ndarray]:
        """Return `[iterations, W]` seconds of t_iter and each part, without the first `skip` iterations."""
        return {
            name: np.frombuffer(values).reshape(-1, self.world_size)[skip:]
            for name, values in self._times.items()
        }

    def steps(self) -> np.ndarray:
        return np.diff(np.frombuffer(self._env_steps, dtype=np.int64), prepend=0)

    def fps(self, skip: int) -> float:
        """Return environment steps of all ranks / seconds of training, after `skip` iterations."""
        first_steps, first_s = (self._env_steps[skip - 1], self._wall_s[skip - 1]) if skip else (0, 0.0)
        seconds = self._wall_s[-1] - first_s
        return (self._env_steps[-1] - first_steps) / seconds if seconds > 0 else math.nan


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120]
