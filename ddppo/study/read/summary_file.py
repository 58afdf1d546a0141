"""What does summary.json say about a run? The parts that a study uses, each value checked.

Every function raises FieldError. Summaries of older versions of ddppo lack some values; these are then unknown.
"""

import math
from dataclasses import dataclass
from typing import Any

from ddppo.config.stored import without_others
from ddppo.config.variants import RENAMED_BACKENDS
from ddppo.records.metrics import TOPOLOGY_METRICS, WAIT_NAMES
from ddppo.study.read import fields
from ddppo.study.read.fields import FieldError, Fields
from ddppo.study.read.record import SLEEPING_TASK, Machine, Origin

# Per-rank means that a comparison of topologies uses.
_COMPARED = {*WAIT_NAMES, "dist/messages", "dist/bytes", *(m.name for m in TOPOLOGY_METRICS)}
_LONGEST_COMMAND = 2000  # characters


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The numbers of iterations of a run, by its summary.json."""

    world_size: int  # the last one
    iterations: int  # of all world sizes
    warmup: int  # iterations of warm-up after every start
    left_out: int  # with the last world_size, as warm-up
    measured: int  # with the last world_size, after warm-up
    too_few: bool  # whether all iterations were warm-up, so that they were measured after all
    ranges: list[tuple[int, int]] | None = (
        None  # first and last iteration of each warm-up; None in older summaries
    )

    @classmethod
    def of(cls, summary: Fields) -> "RunCounts":
        warmup = summary.section("warmup")
        ranges = warmup.values.get("ranges")
        return cls(
            world_size=summary.whole("world_size", low=1, high=fields.MOST_WORKERS),
            iterations=summary.whole("iterations", low=1),
            warmup=warmup.whole("iterations"),
            left_out=warmup.whole("left_out"),
            measured=warmup.whole("measured"),
            too_few=warmup.flag("too_few_iterations"),
            ranges=None
            if ranges is None
            else [_range(each) for each in fields.as_list("warmup.ranges", ranges)],
        )

    @property
    def with_world_size(self) -> int:
        """Iterations with the last world_size."""
        return self.left_out + self.measured


def _range(value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise FieldError(
            f"warmup.ranges has {fields.quoted(value)}, which is not a first and a last iteration"
        )
    first = fields.as_whole("warmup.ranges", value[0], low=1)
    return first, fields.as_whole("warmup.ranges", value[1], low=first)


def sizes(derived: Fields) -> dict[str, int]:
    """Return the sizes of an iteration under the names of `Run`."""
    found = {
        "num_envs": derived.whole("N", low=1, high=1e9),
        "rollout_steps": derived.whole("T", low=1, high=1e9),
        "num_epochs": derived.whole("K", low=1, high=1e4),
        "num_minibatches": derived.whole("M", low=1, high=1e9),
        "num_parameters": derived.whole("num_parameters", low=1, high=fields.MOST_PARAMETERS),
    }
    # A minibatch has at least one sample.
    batch = found["num_envs"] * found["rollout_steps"]
    if found["num_minibatches"] > batch:
        more = f"derived.M={found['num_minibatches']} minibatches are more than"
        raise FieldError(f"{more} derived.N * derived.T={batch} samples")
    return found


def ranks(summary: Fields) -> tuple[tuple[str, ...], tuple[dict[str, float], ...]]:
    """Return the role of each rank, and its means of the metrics that compare topologies; empty if unknown."""
    listed = summary.values.get("per_rank")
    entries = [] if listed is None else [_entry(each) for each in fields.as_list("per_rank", listed)]
    # An older summary has no per_rank, or no roles in it.
    if len(entries) != summary.values.get("world_size") or any("role" not in e.values for e in entries):
        return (), ()
    # Keep the per-rank means that compare topologies.
    means = []
    for entry in entries:
        of_rank: dict[str, float] = {}
        for group in ("time", "dist", "rollout"):
            section = entry.section(group, default={})
            names = _COMPARED & {f"{group}/{name}" for name in section.values}
            of_rank |= {
                name: section.number(name.removeprefix(f"{group}/"), default=math.nan) for name in names
            }
        means.append(of_rank)
    return tuple(entry.text("role") for entry in entries), tuple(means)


def settings(config: Fields) -> dict[str, Any]:
    """Return the settings as nested dicts; the sections that a study reads are checked."""
    found = config.tree()
    # Other code reads these sections as dicts: check that they are.
    for name in ("ppo", "algorithm", "dist"):
        config.section(name, default={})
    kwargs = config.section("env").section("kwargs", default={})
    # The model of an iteration reads these settings of the sleeping task.
    if config.section("env").values.get("id") == SLEEPING_TASK:
        kwargs.number("step_time_s", low=0, high=fields.LARGEST_SECONDS, default=0.0)
        kwargs.flag("busy", default=False)
    return without_others(found, imports=False)


def origin(summary: Fields) -> Origin:
    """Return where, when and how the run was made."""
    derived, versions = summary.section("derived"), summary.section("versions", default={})
    machines, hosts = _machines(summary)
    backend = derived.text("env_backend", default="")
    return Origin(
        started_at=summary.text("started_at", default=""),
        finished_at=summary.text("finished_at", default=""),
        command=fields.one_line(summary.values.get("command") or "", _LONGEST_COMMAND),
        git_commit=summary.text("git_commit", default=""),
        git_dirty=summary.flag("git_dirty", default=False),
        python=versions.text("python", default=""),
        torch=versions.text("torch", default=""),
        hostname=machines[0].hostname,
        hosts=hosts,
        machines=machines,
        device=derived.text("device", default="cpu"),
        env_backend=RENAMED_BACKENDS.get(backend, backend),
        collective=derived.text("collective", default=""),
        grad_sync=derived.text("grad_sync", default=""),
        step=derived.text("step", default=""),
        threads_per_rank=derived.whole("threads_per_rank", low=1, high=1e6, default=1),
        num_nodes=derived.whole("num_nodes", low=1, high=1e6, default=1),
        num_hosts=derived.whole("num_hosts", high=1e6, default=0),
    )


def _machines(summary: Fields) -> tuple[tuple[Machine, ...], tuple[str, ...]]:
    """Return the machines that ran the ranks, and the hostname of each rank."""
    world_size = summary.whole("world_size", low=1, high=fields.MOST_WORKERS)
    section = summary.values.get("machines")
    listed = [] if section is None else [_entry(each) for each in fields.as_list("machines", section)]
    # An older summary has rank 0's machine only. All ranks were on it if the run used one host.
    if not listed:
        one = _machine(summary.section("machine"))
        alone = world_size == 1 or summary.section("derived").whole("num_hosts", high=1e6, default=0) == 1
        return (one,), (one.hostname,) * world_size if alone and one.hostname else ()
    # Every rank must be on exactly one of the machines.
    hosts: dict[int, str] = {}
    for each in listed:
        for rank in fields.as_list("machines.ranks", each.values.get("ranks")):
            hosts[fields.as_whole("machines.ranks", rank, high=world_size - 1)] = each.text("hostname")
    if len(hosts) != world_size:
        raise FieldError(f"machines have {len(hosts)} of {world_size} ranks")
    return tuple(map(_machine, listed)), tuple(hosts[rank] for rank in range(world_size))


def _entry(value: Any) -> Fields:
    return Fields({"": value}).section("")


def _machine(machine: Fields) -> Machine:
    return Machine(
        hostname=machine.text("hostname", default=""),
        cpu=machine.text("cpu", default=""),
        gpu=machine.text("gpu", default=""),
        cores=machine.whole("cores", high=1e6, default=0),
    )


def cores(derived: Fields, machines: tuple[Machine, ...]) -> int:
    """Return the cores of all machines of the run, 0 if unknown.

    An older summary has one machine only: all others are taken to be like it.
    """
    hosts = derived.whole("num_hosts", high=1e6, default=0)
    if len(machines) == hosts:
        return sum(machine.cores for machine in machines) if all(m.cores for m in machines) else 0
    return machines[0].cores * (hosts or derived.whole("num_nodes", low=1, high=1e6, default=1))
