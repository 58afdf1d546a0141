"""summary.json: the settings, machine and results of a run, in one file.

`SummaryBuilder` adds up the reports while the run lasts and returns the summary at its end. Its first iterations after
each start are warm-up (allocation, compilation, caches) and are left out of means and of fps. docs/metrics.md
describes the keys.
"""

import math
import os
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import numpy as np

from ddppo.config.settings import Config
from ddppo.config.stored import in_effect
from ddppo.records.metrics import TIME_NAMES, WAIT_NAMES, IterationReport
from ddppo.records.provenance import git_state, machine, versions
from ddppo.records.run_folder import SCHEMA_VERSION
from ddppo.scaling import BatchShape
from ddppo.statistics import iqm, spread


def evaluation_metrics(returns: Sequence[float], lengths: Sequence[int], t_eval: float) -> dict[str, float]:
    """Return the eval/* metrics of an evaluation of at least one episode, which took `t_eval` seconds."""
    scores = np.asarray(returns, dtype=np.float64)
    return {
        "eval/return_mean": float(scores.mean()),
        "eval/return_median": float(np.median(scores)),
        "eval/return_iqm": iqm(returns),
        "eval/return_std": float(scores.std()),
        "eval/return_min": float(scores.min()),
        "eval/return_max": float(scores.max()),
        "eval/length_mean": float(np.mean(lengths)),
        "eval/episodes": float(len(scores)),
        "eval/t_eval": t_eval,
    }


class SummaryBuilder:
    """Adds up the reports of a run and builds its summary."""

    task: Mapping[str, Any] | None = None  # the summary of the task's journal, if the task has one
    sampler_parts: Mapping[str, Any] = MappingProxyType({})  # sections of the task sampler, by name

    def __init__(
        self,
        config: Config,
        shape: BatchShape,
        derived: Mapping[
            str, Any
        ],  # facts that only the process knows: num_parameters, device, machines, roles, ...
        warmup_iterations: int,  # left out after every start of the run
    ) -> None:
        self._config = config
        self._shape = shape
        # In the summary, machines are a section of their own, and roles stand beside the ranks.
        self._derived = {name: value for name, value in derived.items() if name not in ("machines", "roles")}
        self._machines, self._roles = derived.get("machines", []), derived.get("roles", [])
        self._num_warmup = warmup_iterations
        self._warmup_left = warmup_iterations
        self._warmup, self._measured = _Measurements(), _Measurements()
        self._ranges: list[list[int]] = []  # first and last iteration of each stretch of warm-up
        self._last: IterationReport | None = None
        # Read now and not at the end: the checkout may change while the run lasts.
        self._started_at = _now()
        self._commit = git_state()

    @property
    def world_size(self) -> int:
        return self._shape.world_size

    def restore(self, reports: Iterable[IterationReport]) -> None:
        """Add the reports of earlier starts of a resumed run.

        Warm-up begins anew with each start. Iterations on another number of ranks are in no mean, because the means
        describe the present world size.
        """
        for report in reports:
            # A resumed run warms up again.
            if report.resumed:
                self._warmup_left = self._num_warmup
            if len(report.rank_metrics) == self._shape.world_size:
                self.add(report)
            else:
                self._last = report
        self._warmup_left = self._num_warmup

    def add(self, report: IterationReport) -> None:
        """Add an iteration to the means, or to the warm-up if that is not over."""
        if self._warmup_left > 0:
            self._warmup_left -= 1
            # Extend the current stretch of warm-up, or begin a new one.
            if self._ranges and self._ranges[-1][1] == report.iteration - 1:
                self._ranges[-1][1] = report.iteration
            else:
                self._ranges.append([report.iteration, report.iteration])
            self._warmup.add(report, self._last)
        else:
            self._measured.add(report, self._last)
        self._last = report

    def build(
        self,
        *,
        status: str,
        params_hash: str | None = None,
        compiled_from: int | None = None,
        restarts: int = 0,
        final_eval: Mapping[str, Any] | None = None,
        best_eval: Mapping[str, Any] | None = None,
        target: Mapping[str, Any] | None = None,
        failed: Sequence[Mapping[str, str]] = (),
        ending: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Return the summary as nested dicts.

        Args:
            status: completed, stopped or failed.
            params_hash: of the parameters at the end.
            compiled_from: the first iteration with a compiled step, if there is one.
            restarts: how often lost ranks were started again.
            final_eval: scores of the final evaluation; names may begin with eval/ or not.
            best_eval: scores of the best evaluation, likewise.
            target: `return`, `reached`, `time_to_target_s` and `steps_to_target`, if target_return is set.
            failed: steps after training that failed: `step`, `why`, and the `command` that repeats it.
            ending: `by` and `why`, if the run ended before total_steps by a rule of its own (records/run_folder.py).
        """
        # A run shorter than its warm-up reports the warm-up, and says so, rather than nothing.
        all_warm = self._measured.count == 0
        measured = self._warmup if all_warm else self._measured
        last, shape, device = self._last, self._shape, self._derived.get("device", "cpu")
        # Times with a distribution over iterations; the others are means.
        waits = [name for name in WAIT_NAMES if name in measured.rank_means]
        time = {_leaf(name): spread(measured.rank_means[name]) for name in (*TIME_NAMES, *waits)}
        t_iter = time["t_iter"]["mean"]
        return {
            "schema_version": SCHEMA_VERSION,
            "status": status,
            "world_size": shape.world_size,
            "env_steps": last.env_steps if last else 0,
            "iterations": last.iteration if last else 0,
            "wall_s": last.wall_s if last else 0.0,
            "fps": measured.fps,
            "params_hash": params_hash,
            "compiled_from": compiled_from,
            "restarts": restarts,
            "warmup": {
                "iterations": self._num_warmup,
                "left_out": 0 if all_warm else self._warmup.count,
                "ranges": [] if all_warm else self._ranges,
                "measured": measured.count,
                "too_few_iterations": all_warm,
            },
            "time": time,
            "dist": {
                "rho_comm": time["t_comm"]["mean"] / t_iter,
                "rho_sync": time["t_sync"]["mean"] / t_iter,
            },
            "per_rank": measured.per_rank(self._roles),
            "eval": {"final": _without_prefix(final_eval), "best": _without_prefix(best_eval)},
            "target": target,
            "ended": dict(ending) or None,
            "failed_after_training": list(failed),
            "task": self.task,
            **self.sampler_parts,
            "derived": sizes(shape) | self._derived,
            "config": in_effect(self._config),
            "versions": versions(),
            **self._commit,
            "machine": machine(gpu=device if device != "cpu" else None),
            "machines": self._machines,
            "command": os.environ.get("DDPPO_COMMAND"),
            "started_at": self._started_at,
            "finished_at": _now(),
        }


class _Measurements:
    """Sums over iterations: 8 bytes for each time of an iteration, so that millions of iterations fit in memory."""

    def __init__(self) -> None:
        self.count = 0  # iterations
        # For each time the mean over ranks in each iteration: percentiles need them all.
        self.rank_means: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        # For each rank and metric the sum and the number of its values.
        self._rank_sums: list[defaultdict[str, float]] = []
        self._rank_counts: list[defaultdict[str, int]] = []
        # Growth of env_steps and wall_s, for fps.
        self._steps = 0
        self._seconds = 0.0

    def add(self, report: IterationReport, previous: IterationReport | None) -> None:
        self.count += 1
        # Times: one number for each iteration.
        for name in (*TIME_NAMES, *WAIT_NAMES):
            mean = report.rank_mean(name)
            if mean is not None:
                self.rank_means[name].append(mean)
        # Everything else: a sum for each rank.
        for rank, metrics in enumerate(report.rank_metrics):
            if rank == len(self._rank_sums):
                self._rank_sums.append(defaultdict(float))
                self._rank_counts.append(defaultdict(int))
            for name, value in metrics.items():
                self._rank_sums[rank][name] += value
                self._rank_counts[rank][name] += 1
        if previous is not None:
            self._steps += report.env_steps - previous.env_steps
            self._seconds += report.wall_s - previous.wall_s
        elif report.iteration == 1:  # the growth of a later first report is unknown
            self._steps += report.env_steps
            self._seconds += report.wall_s

    @property
    def fps(self) -> float:
        """Environment steps of all ranks per second of training."""
        return self._steps / self._seconds if self._seconds > 0 else math.nan

    def per_rank(self, roles: Sequence[str]) -> list[dict[str, Any]]:
        """Return the mean of every per-rank metric, one dict per rank: {"rank": 0, "role": ..., "time": {...}, ...}."""
        ranks = []
        for rank, (sums, counts) in enumerate(zip(self._rank_sums, self._rank_counts, strict=True)):
            groups: dict[str, Any] = {"rank": rank} | ({"role": roles[rank]} if roles else {})
            for name, total in sums.items():
                groups.setdefault(name.split("/")[0], {})[_leaf(name)] = total / counts[name]
            ranks.append(groups)
        return ranks


def sizes(shape: BatchShape) -> dict[str, int]:
    """Return the sizes of an iteration under the letters of the docs."""
    return {
        "W": shape.world_size,
        "num_stepping": shape.num_stepping or shape.world_size,  # ranks that step environments
        "E": shape.local_num_envs,
        "N": shape.num_envs,
        "T": shape.rollout_steps,
        "B": shape.batch_size,
        "minibatch": shape.minibatch_size,  # samples of all ranks
        "M": shape.num_minibatches,
        "K": shape.num_epochs,
    }


def _without_prefix(metrics: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if metrics is None else {name.removeprefix("eval/"): value for name, value in metrics.items()}


def _leaf(name: str) -> str:
    return name.split("/", 1)[1]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
