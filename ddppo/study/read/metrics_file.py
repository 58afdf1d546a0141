"""What does metrics.jsonl say about each iteration? Its lines, one per iteration and rank, become columns of numbers.

Every line is checked as it is read. The file of a long run has millions of lines, so `_MetricsReader` keeps 8 bytes for
a number and no text.
"""

import math
from array import array
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ddppo.study.read import fields
from ddppo.study.read.fields import FieldError, Fields
from ddppo.study.read.record import PARTS, Evaluation

_MAX_RETURNS = 2000  # training returns that are kept, about; they are thinned to that
_LONGEST_LINE = 1 << 20  # characters; lines of ddppo have a few thousand
_TIMES = tuple((name, f"time/{name}") for name in ("t_iter", *PARTS))


class DamagedError(ValueError):
    """A metrics.jsonl that the trainer did not write, or that was damaged. The message is one line."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The content of a metrics.jsonl. A resumed run may have iterations of several world sizes."""

    num_lines: int
    num_ranks: np.ndarray  # [iterations]
    env_steps: np.ndarray  # [iterations]
    wall_s: np.ndarray  # [iterations]
    times: dict[str, np.ndarray]  # "t_iter" and each of PARTS: [iterations with world_size ranks, world_size]
    # train/* metrics without the prefix: [iterations], NaN where a line lacks one.
    stability: dict[str, np.ndarray]
    evaluations: tuple[Evaluation, ...]
    returns: tuple[Evaluation, ...]
    eval_s: float  # seconds of all evaluations
    irregular: str | None  # the first iteration with another number of ranks than world_size, as a text


def read_metrics(path: Path, *, world_size: int, num_iterations: int, num_epochs: int) -> Metrics:
    """Read the file. Raises DamagedError for the first line that the trainer did not write or that is out of order."""
    reader = _MetricsReader(world_size, num_iterations, num_epochs)
    number = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(iter(partial(file.readline, _LONGEST_LINE), ""), start=1):
            try:
                reader.add(number, text)
            except FieldError as e:
                raise DamagedError(f"metrics.jsonl, line {number}, is not one of ddppo's ({e})") from None
    return reader.result(number)


class _MetricsReader:
    """Takes in lines in order. The lines of one iteration, rank 0 to W - 1, are a block."""

    def __init__(self, world_size: int, num_iterations: int, num_epochs: int) -> None:
        self.world_size, self.num_iterations, self.num_epochs = world_size, num_iterations, num_epochs
        self.evaluations: list[Evaluation] = []
        self.returns: list[Evaluation] = []
        self.irregular: str | None = None
        self.eval_s = 0.0
        # Columns. All ranks of an iteration follow each other in a column of times.
        self._times = {name: array("d") for name, _ in _TIMES}
        self._columns = [(name, self._times[short]) for short, name in _TIMES]
        self._stability: dict[str, array[float]] = {}
        self._num_ranks, self._env_steps, self._wall_s = array("q"), array("q"), array("d")
        # The block that is being read.
        self._rank = 0  # its lines so far
        self._local_steps = 0.0  # steps of its ranks so far; NaN if a line lacks them
        self._highest = -math.inf  # training return so far

    def add(self, number: int, text: str) -> None:
        """Take in line `number`. Raises FieldError for a wrong value, DamagedError for a wrong order."""
        if len(text) == _LONGEST_LINE:
            raise FieldError("it is too long")
        line = fields.parsed(text)
        # The fast path: both are ints. Otherwise as_whole accepts 2.0 and raises for the rest.
        position = (line.values.get("iteration"), line.values.get("rank"))
        if type(position[0]) is not int or type(position[1]) is not int:
            position = (fields.as_whole("iteration", position[0]), fields.as_whole("rank", position[1]))
        # Either the next iteration begins, or the next rank of this one follows.
        iteration = len(self._env_steps)
        if position == (iteration + 1, 0):
            self._end_block(f"metrics.jsonl, line {number}, is rank 0 of iteration {iteration + 1}")
            self._add_global(line)
        elif not self._rank or position != (iteration, self._rank):
            # Neither: the file is out of order.
            after_last = self._rank >= self.world_size or not self._rank
            expected = (iteration + 1, 0) if after_last else (iteration, self._rank)
            at, rank = map(fields.quoted, position)
            raise DamagedError(
                f"metrics.jsonl, line {number}, is rank {rank} of iteration {at} where rank {expected[1]} of "
                f"{expected[0]} belongs: the file is damaged"
            )
        elif self._rank == self.world_size:
            # One more rank than world_size: perhaps an iteration of another world size.
            line_is = f"metrics.jsonl, line {number}, is rank {self._rank} of iteration {iteration}"
            self._note_irregular(line_is, iteration + 1, 0)
        self._add_times(line)
        local_steps = line.values.get("rollout/local_steps", math.nan)
        self._local_steps += local_steps if type(local_steps) is float else math.nan
        self._rank += 1

    def result(self, num_lines: int) -> Metrics:
        """Return the columns after the last line."""
        self._end_block(f"metrics.jsonl ends after line {num_lines}")
        times = {name: np.frombuffer(t).reshape(-1, self.world_size) for name, t in self._times.items()}
        # Metrics that ended early get NaN up to the last iteration.
        for values in self._stability.values():
            values.extend([math.nan] * (len(self._env_steps) - len(values)))
        return Metrics(
            num_lines=num_lines,
            num_ranks=np.frombuffer(self._num_ranks, dtype=np.int64),
            env_steps=np.frombuffer(self._env_steps, dtype=np.int64),
            wall_s=np.frombuffer(self._wall_s),
            times=times,
            stability={
                n.removeprefix("train/"): np.frombuffer(x) for n, x in sorted(self._stability.items())
            },
            evaluations=tuple(self.evaluations),
            returns=tuple(self.returns),
            eval_s=self.eval_s,
            irregular=self.irregular,
        )

    def _end_block(self, where: str) -> None:
        """End a block. Its times are kept if it has world_size ranks."""
        if not self._rank:
            return
        self._num_ranks.append(self._rank)
        local_steps, self._local_steps = self._local_steps, 0.0
        # Times of another world size do not fit the columns: drop them, once the block is known to be complete.
        if self._rank != self.world_size:
            self._check_complete(local_steps)
            if self._rank < self.world_size:
                self._note_irregular(where, len(self._env_steps), self._rank)
            for values in self._times.values():
                del values[-self._rank :]
        self._rank = 0

    def _check_complete(self, local_steps: float) -> None:
        """Raise DamagedError if the block lacks a line, rather than being of another world_size.

        The steps of its ranks tell: without a line they do not add up to the iteration's steps.
        """
        iteration = len(self._env_steps)
        steps = self._env_steps[-1] - (self._env_steps[-2] if iteration > 1 else 0)
        if not math.isnan(local_steps) and local_steps != steps:
            raise DamagedError(
                f"metrics.jsonl has {self._rank} ranks of iteration {iteration}, which made {local_steps:g} of its "
                f"{steps} steps: the file is damaged"
            )

    def _note_irregular(self, where: str, iteration: int, rank: int) -> None:
        self.irregular = self.irregular or f"{where} where rank {rank} of {iteration} belongs"

    def _add_times(self, line: Fields) -> None:
        values = line.values
        total = 0.0
        for name, column in self._columns:
            seconds = values.get(name)
            # This runs for every number of the file, so no call: NaN, infinity and other types fail the comparison.
            if type(seconds) is not float or not -fields.LARGEST_SECONDS < seconds < fields.LARGEST_SECONDS:
                seconds = fields.as_number(name, seconds, high=fields.LARGEST_SECONDS)
            column.append(seconds)
            total += seconds
        t_iter = values["time/t_iter"]
        # An actor at its own pace has t_iter 0 in an iteration that used no rollout of it.
        if t_iter < fields.SMALLEST and not (t_iter == 0 and self._rank):
            fields.as_number("time/t_iter", t_iter, above=0)
        # The parts are exclusive and t_other is the rest, so a single wrong number shows in the sum.
        if abs(total - 2 * t_iter) > 1e-6 * (1 + t_iter):
            raise FieldError(f"its parts add up to {total - t_iter:.6g} s, not to time/t_iter={t_iter:.6g}")
        for part in PARTS[:-1]:
            if values[f"time/{part}"] < 0:
                fields.as_number(f"time/{part}", values[f"time/{part}"], low=-1e-6)

    def _add_global(self, line: Fields) -> None:
        # Steps and time must grow from one iteration to the next.
        steps, wall_s = (
            line.whole("env_steps", low=1),
            line.number("wall_s", above=0, high=fields.LARGEST_SECONDS),
        )
        if self._env_steps and (steps <= self._env_steps[-1] or wall_s < self._wall_s[-1]):
            before = f"env_steps={self._env_steps[-1]} wall_s={self._wall_s[-1]:g}"
            raise FieldError(f"env_steps={steps} wall_s={wall_s:g} are not after {before} of the line before")
        self._env_steps.append(steps)
        self._wall_s.append(wall_s)
        self._add_stability(line)
        # Returns: all evaluations, and some training returns.
        score = line.number("eval/return_mean", default=math.nan)
        if not math.isnan(score):
            self.evaluations.append(Evaluation(steps, wall_s, score))
            self.eval_s += line.number("eval/t_eval", low=0, high=fields.LARGEST_SECONDS, default=0.0)
        # Keep a training return if it is a new highest, or one of every `stride`.
        trained = line.number("rollout/return_mean", default=math.nan)
        if not math.isnan(trained):
            # The first value at or above any target is a new highest, so that thinning loses no time to target.
            stride = max(1, self.num_iterations // _MAX_RETURNS)
            count = len(self._wall_s)
            if trained > self._highest or count % stride == 0 or count == self.num_iterations:
                self.returns.append(Evaluation(steps, wall_s, trained))
            self._highest = max(self._highest, trained)

    def _add_stability(self, line: Fields) -> None:
        before = len(self._env_steps) - 1
        for name, value in line.values.items():
            if not name.startswith("train/"):
                continue
            if value is None:
                value = math.nan
            elif type(value) is not float or not -fields.LARGEST < value < fields.LARGEST:
                value = fields.as_number(name, value)
            if name == "train/epochs" and (value < 0 or value > self.num_epochs):
                fields.as_number(name, value, low=0, high=self.num_epochs)
            # A metric may begin late (explained_variance, say) or lack a line: NaN fills the gap.
            column = self._stability.get(name)
            if column is None:
                if not (name.removeprefix("train/").isidentifier() and len(name) < 60):
                    raise FieldError(f"{fields.one_line(name, 60)} is no metric")
                column = self._stability[name] = array("d")
            if len(column) < before:
                column.extend([math.nan] * (before - len(column)))
            column.append(value)
