"""Metrics of a user's own: what functions say of each rank's rollouts, reduced over ranks by count.

def pushed_left(seen):                                     # log.metrics=[my_pkg.metrics:pushed_left]
    valid = seen.rollout.valid
    return {"pushed_left": ((seen.rollout.actions[valid] == 0).sum(), valid.sum())}
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ddppo.collectives.group import Group, gather_bytes
from ddppo.collectives.meeting import machine_number
from ddppo.collectives.peers import OwnPace
from ddppo.distributed.topologies.program import Collected
from ddppo.errors import ConfigError, TrainingError
from ddppo.plugins import imported
from ddppo.ppo.rollout import FinishedEpisode, Rollout
from ddppo.processes.machine import allowed_cores, at_most, cpu_quota
from ddppo.records.summary import machine
from ddppo.tracebacks import in_one_line

_NAME = re.compile(r"[\w.\-]+(/[\w.\-]+)*")
_WANTED = "a dict of names and pairs (sum, count), or of numbers that are summed"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a metric is told of an iteration of its rank: the rollout, and episodes that ended in it.

    Rows where rollout.valid is False are no transitions. The rollout is overwritten when the next is collected.
    """

    iteration: int
    rollout: Rollout
    episodes: Sequence[FinishedEpisode]


Sums = dict[str, float | tuple[float, float]]  # a number, or a sum and a count
Function = Callable[[Seen], Mapping[str, Any]]


def functions_of(paths: Iterable[str]) -> dict[str, Function]:
    """Return the functions that log.metrics names, by their paths; of a class, an instance. Raises ConfigError."""
    found: dict[str, Function] = {}
    for path in paths:
        said = f"log.metrics=[{path}]"
        try:
            function = imported(path)
        except (Exception, SystemExit) as e:  # a user's module may raise anything
            raise ConfigError(f"{said}: cannot be imported: {in_one_line(e)}") from e
        if isinstance(function, type):
            try:
                function = function()
            except Exception as e:  # a user's class may raise anything
                raise ConfigError(f"{said}: {path} cannot be made without arguments: {in_one_line(e)}") from e
        if not callable(function):
            raise ConfigError(
                f"{said}: is of type {type(function).__name__}: it must be a function, or a class of such"
            )
        found[path] = function
    return found


class OwnMetrics:
    """The functions of log.metrics on one rank. All ranks reduce together, once in an iteration."""

    def __init__(self, paths: Iterable[str], group: Group) -> None:
        self._functions = functions_of(paths)
        self._group = group

    def reduced(self, iteration: int, collected: Collected) -> dict[str, float]:
        """Return every metric over all ranks, by name: sums over counts, or sums; none whose count is 0.

        A rank without a rollout is not asked. Raises TrainingError where a function fails.
        """
        if not self._functions:
            return {}
        rollout, mine = collected.rollout, {}
        if rollout is not None:
            mine = self._told(Seen(iteration, rollout, collected.episodes))
        of_ranks, _ = gather_bytes(self._group, json.dumps(mine).encode() if mine else b"")
        return merged([json.loads(content) if content else {} for content in of_ranks])

    def _told(self, seen: Seen) -> Sums:
        found: Sums = {}
        for path, function in self._functions.items():
            said = f"log.metrics=[{path}] on rank {self._group.rank}, iteration {seen.iteration}"
            try:
                told = function(seen)
            except Exception as e:  # a user's function may raise anything
                raise TrainingError(f"{said}: raised {in_one_line(e)}") from e
            if not isinstance(told, Mapping):
                raise TrainingError(f"{said}: returned a {type(told).__name__}: it must be {_WANTED}")
            for name, value in told.items():
                if not isinstance(name, str) or _NAME.fullmatch(name) is None or name in found:
                    why = (
                        "is the name of two metrics"
                        if name in found
                        else "is no name: letters, digits, _ . - and /"
                    )
                    raise TrainingError(f"{said}: {name!r} {why}")
                found[name] = _numbers(value, f"{said}: {name}={value!r}")
        return found


def _numbers(value: Any, said: str) -> float | tuple[float, float]:
    """Return a number, or a sum and a count, in Python's own. Raises TrainingError."""
    try:
        if not isinstance(value, (tuple, list)):
            return float(value)
        of_sum, count = (float(x) for x in value)
    except (TypeError, ValueError) as e:
        raise TrainingError(f"{said}: must be (sum, count), or a number") from e
    if not 0 <= count < math.inf:
        raise TrainingError(f"{said}: a count is at least 0")
    return of_sum, count


def merged(of_ranks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what the sums of all ranks make, as names first come. Raises TrainingError where ranks part."""
    names = dict.fromkeys(name for of_rank in of_ranks for name in of_rank)
    found: dict[str, float] = {}
    for name in names:
        values = [of_rank[name] for of_rank in of_ranks if name in of_rank]
        pairs = [x for x in values if isinstance(x, list)]
        if not pairs:
            found[name] = sum(values)
        elif len(pairs) < len(values):
            raise TrainingError(f"log.metrics: {name} is (sum, count) on some ranks, a number on others")
        elif count := sum(n for _, n in pairs):
            found[name] = sum(x for x, _ in pairs) / count
    return found


# -- The machines that a run's ranks are on, as rank 0 writes them down.


_LONGEST = 1 << 12  # bytes of what a rank says, which may have thousands of cores


def gather_machines(group: Group, *, with_gpu: bool) -> list[dict[str, Any]]:
    """Return hostname, cpu, gpu, cores and ranks of every machine of the run, in the order of their first ranks.

    Every rank calls it. cores: those that all ranks there together may keep busy, which a scheduler may have bound to
    different ones. Two machines may have one name, and two nodes of a cluster be one machine.
    """
    about = machine(with_gpu=with_gpu)
    quota = cpu_quota()
    word = {
        "number": machine_number(),
        **{key: about[key] for key in ("hostname", "cpu", "gpu")},
        "cores": hex(sum(1 << core for core in allowed_cores())),
        "quota": None if math.isinf(quota) else quota,
    }
    text = json.dumps(word)
    if isinstance(group, OwnPace):
        return merged_machines([json.loads(said) for said in group.words("machine", text)])
    row = text.encode().ljust(_LONGEST)
    assert len(row) == _LONGEST, text
    rows = group.gather(torch.frombuffer(bytearray(row), dtype=torch.uint8))
    return merged_machines([json.loads(bytes(row.tolist())) for row in rows])


def merged_machines(words: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the machines of what ranks say of theirs, one word for each rank."""
    ranks_of: dict[int, list[int]] = {}
    for rank, word in enumerate(words):
        ranks_of.setdefault(word["number"], []).append(rank)
    found = []
    for ranks in ranks_of.values():
        cores, quota, first = 0, 0.0, words[ranks[0]]
        for word in (words[rank] for rank in ranks):
            cores |= int(word["cores"], 16)
            quota = max(quota, word["quota"] or math.inf)
        about = {key: first[key] for key in ("hostname", "cpu", "gpu")}
        found.append({**about, "cores": at_most(cores.bit_count(), quota), "ranks": ranks})
    return found
