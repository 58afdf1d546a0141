"""Metrics of the user (log.metrics): functions of each rank's rollout, reduced over ranks by count.

def pushed_left(seen):                                     # log.metrics=[my_pkg.metrics:pushed_left]
    valid = seen.rollout.valid
    return {"pushed_left": ((seen.rollout.actions[valid] == 0).sum(), valid.sum())}

`import_functions` runs before any process starts, to find mistakes early, and again on every rank. After each rollout
`UserMetrics.reduce` calls the functions on each rank, gathers the sums and counts of all ranks, and divides.
docs/guide/metric.md is the user's guide.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddppo.collectives.group import Group, gather_bytes
from ddppo.distributed.topologies.base import Collected
from ddppo.errors import ConfigError, TrainingError, in_one_line
from ddppo.plugins import imported
from ddppo.ppo.rollout import FinishedEpisode, Transitions

_NAME = re.compile(r"[\w.\-]+(/[\w.\-]+)*")
_RETURN_RULE = "it must be a dict of names and pairs (sum, count), or of numbers that are summed"


@dataclass(frozen=True, slots=True)
class MetricInput:
    """The argument of a user's metric: one iteration of this rank."""

    iteration: int  # counted from 1
    # [T, E, ...]; skip rows where rollout.valid is False. Overwritten by the next rollout. PPO's is a Rollout.
    rollout: Transitions
    episodes: Sequence[FinishedEpisode]  # ended in this iteration


MetricFunction = Callable[[MetricInput], Mapping[str, Any]]
LocalSums = dict[str, float | tuple[float, float]]  # a number, which ranks add up, or (sum, count)


# -- Import the functions.


def import_functions(paths: Iterable[str]) -> dict[str, MetricFunction]:
    """Return the functions that log.metrics names, by their import paths; a class is called once for an instance.

    Raises ConfigError.
    """
    functions: dict[str, MetricFunction] = {}
    for path in paths:
        prefix = f"log.metrics=[{path}]"
        try:
            function = imported(path)
        except (Exception, SystemExit) as e:  # a user's module may raise anything
            raise ConfigError(f"{prefix}: cannot be imported: {in_one_line(e)}") from e
        if isinstance(function, type):
            try:
                function = function()
            except Exception as e:  # a user's class may raise anything
                raise ConfigError(
                    f"{prefix}: {path} cannot be made without arguments: {in_one_line(e)}"
                ) from e
        if not callable(function):
            kind = type(function).__name__
            raise ConfigError(f"{prefix}: is of type {kind}: it must be a function, or a class with __call__")
        functions[path] = function
    return functions


# -- Call them on every rank, and reduce.


class UserMetrics:
    """The functions of log.metrics on one rank."""

    def __init__(self, paths: Iterable[str], group: Group, *, envs_log: bool = False) -> None:
        self._functions = import_functions(paths)
        self._envs_log = envs_log  # whether environments log metrics too: simulators on a device do
        self._group = group

    def reduce(self, iteration: int, collected: Collected) -> dict[str, float]:
        """Return every metric over all ranks, by name. All ranks call it, once in an iteration.

        A rank without a rollout does not call the functions, but takes part in the gather. Raises TrainingError if a
        function fails.
        """
        if not self._functions and not self._envs_log:
            return {}
        local: LocalSums = dict(collected.env_metrics)
        if collected.rollout is not None:
            local |= self._call_functions(MetricInput(iteration, collected.rollout, collected.episodes))
        # JSON, because names and their number may differ between ranks. Nothing is unpickled.
        content = json.dumps(local).encode() if local else b""
        contents, _ = gather_bytes(self._group, content)
        return reduce_sums([json.loads(content) if content else {} for content in contents])

    def _call_functions(self, seen: MetricInput) -> LocalSums:
        local: LocalSums = {}
        for path, function in self._functions.items():
            prefix = f"log.metrics=[{path}] on rank {self._group.rank}, iteration {seen.iteration}"
            try:
                returned = function(seen)
            except Exception as e:  # a user's function may raise anything
                raise TrainingError(f"{prefix}: raised {in_one_line(e)}") from e
            # The answer is the user's own: check every name and value, and say which function returned it.
            if not isinstance(returned, Mapping):
                raise TrainingError(f"{prefix}: returned a {type(returned).__name__}: {_RETURN_RULE}")
            for name, value in returned.items():
                if name in local:
                    raise TrainingError(f"{prefix}: {name!r} is the name of two metrics")
                if not isinstance(name, str) or _NAME.fullmatch(name) is None:
                    raise TrainingError(f"{prefix}: {name!r} is no name: use letters, digits, _ . - and /")
                local[name] = _to_numbers(value, f"{prefix}: {name}={value!r}")
        return local


def _to_numbers(value: Any, prefix: str) -> float | tuple[float, float]:
    """Return a number, or (sum, count), as Python floats. Raises TrainingError."""
    try:
        if not isinstance(value, (tuple, list)):
            return float(value)
        total, count = (float(x) for x in value)
    except (TypeError, ValueError) as e:
        raise TrainingError(f"{prefix}: must be (sum, count), or a number") from e
    if not 0 <= count < math.inf:
        raise TrainingError(f"{prefix}: a count is at least 0")
    return total, count


def reduce_sums(ranks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return sum over ranks / count over ranks, or the sum over ranks of plain numbers, by name.

    A metric with a count of 0 over all ranks is absent. `ranks` has been through JSON, so a pair is a list. Raises
    TrainingError if a name is a pair on one rank and a number on another.
    """
    names = dict.fromkeys(name for rank in ranks for name in rank)  # in the order of first appearance
    reduced: dict[str, float] = {}
    for name in names:
        # Only ranks that returned the metric count.
        values = [rank[name] for rank in ranks if name in rank]
        pairs = [value for value in values if isinstance(value, list)]
        if not pairs:
            reduced[name] = sum(values)
        elif len(pairs) < len(values):
            raise TrainingError(f"log.metrics: {name} is (sum, count) on some ranks, a number on others")
        elif count := sum(n for _, n in pairs):
            reduced[name] = sum(x for x, _ in pairs) / count
    return reduced
