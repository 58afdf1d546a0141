"""The profiler (log.profile_iterations): where the time of an iteration goes, by operator and by Python function.

After warm-up, three stages of equally many iterations follow each other: plain, without a profiler; under torch's
profiler, which sees operators; under cProfile, which sees functions. A profiler slows down what it watches; the plain
stage shows by how much. The results are a trace and a page of tables, in the run folder's profile/.
"""

import cProfile
import pstats
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ddppo.files import stored, write_text

PAGE, TRACE = "where_the_time_goes.md", "trace.json"
_WARMUP = 5  # iterations
_REST = "rest"  # the part of an iteration outside its phases
_MAX_ROWS = 15  # of a table


@dataclass(frozen=True, slots=True)
class Row:
    """An operator or function."""

    name: str
    calls: int
    self_s: float  # seconds in it, without the operators or functions that it called


@dataclass(slots=True)
class Stage:
    """The iterations that one profiler watched, or none."""

    num_iterations: int = 0
    seconds: float = 0.0
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # seconds by phase
    rows: dict[str, list[Row]] = field(default_factory=dict)  # operators or functions by phase


class NullProfiler:
    """The profiler of ranks other than 0, and of runs without log.profile_iterations: it does nothing."""

    def iteration(self) -> AbstractContextManager:
        """Enclose one iteration."""
        return nullcontext()

    def phase(self, name: str) -> AbstractContextManager:
        """Enclose the phase `name` of an iteration."""
        return nullcontext()


def make_profiler(num_iterations: int, folder: Path) -> NullProfiler:
    """Return a profiler of `num_iterations` per stage, which writes into `folder`; 0 for none."""
    return Profiler(num_iterations, folder) if num_iterations else NullProfiler()


class Profiler(NullProfiler):
    """Profiles iterations of this process; writes trace.json, for chrome://tracing or Perfetto, and the page."""

    def __init__(self, num_iterations: int, folder: Path) -> None:
        self._num = num_iterations  # of each stage
        self._folder = folder
        self._done = 0  # iterations so far, warm-up included
        self._stages = {name: Stage() for name in ("plain", "operators", "functions")}
        self._stage: Stage | None = (
            None  # of the iteration that runs; None in warm-up and after the last stage
        )
        self._torch: Any = None
        self._functions: dict[str, cProfile.Profile] = {}  # by phase

    @contextmanager
    def iteration(self) -> Iterator[None]:
        # Which stage, and which of its iterations.
        number, offset = divmod(self._done - _WARMUP, self._num)
        names = tuple(self._stages)
        name = names[number] if 0 <= number < len(names) else None
        self._stage = self._stages[name] if name else None
        if name == "operators" and offset == 0:
            self._torch = torch.profiler.profile()
            self._torch.start()
        start = time.perf_counter()
        with self._watched(_REST):
            yield
        if self._stage is not None:
            self._stage.seconds += time.perf_counter() - start
            self._stage.num_iterations += 1
        self._done += 1
        # The last iteration of a stage stores its results.
        if offset == self._num - 1 and name == "operators":
            self._store_operators()
        elif offset == self._num - 1 and name == "functions":
            self._store_functions()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        # cProfile allows one active profile: pause that of the iteration's rest while a phase runs.
        rest = self._functions.get(_REST)
        if rest is not None:
            rest.disable()
        start = time.perf_counter()
        with self._watched(name):
            yield
        if self._stage is not None:
            self._stage.phases[name] += time.perf_counter() - start
        if rest is not None:
            rest.enable()

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        if self._stage is self._stages["operators"]:
            with torch.profiler.record_function(name):
                yield
        elif self._stage is self._stages["functions"]:
            profile = self._functions.setdefault(name, cProfile.Profile())
            profile.enable()
            yield
            profile.disable()
        else:
            yield

    def _store_operators(self) -> None:
        self._torch.stop()
        with stored(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._torch.export_chrome_trace(str(self._folder / TRACE))
        self._stages["operators"].rows = rows_of_operators(self._torch.events())
        self._torch = None

    def _store_functions(self) -> None:
        self._stages["functions"].rows = {
            name: rows_of_functions(profile) for name, profile in self._functions.items()
        }
        self._functions = {}
        write_text(self._folder / PAGE, page(**self._stages))


def rows_of_operators(events: Sequence[Any]) -> dict[str, list[Row]]:
    """Return the operators of each phase, by self time, from torch's events.

    Phases are events too (record_function), and an event belongs to the phase during which it starts. The self time of
    a phase's own event is its time outside operators: Python code and environments.
    """
    # Phases and operators, both in order of time.
    on_cpu = [e for e in events if e.device_type == torch.autograd.DeviceType.CPU]
    phases = sorted(
        (e for e in on_cpu if e.name in ("rollout", "learn")), key=lambda event: event.time_range.start
    )
    sums: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0.0]))
    # Walk along events and phases together, both in order of time.
    current = 0
    for event in sorted(on_cpu, key=lambda event: event.time_range.start):
        while current < len(phases) and phases[current].time_range.end < event.time_range.start:
            current += 1
        inside = current < len(phases) and phases[current].time_range.start <= event.time_range.start
        phase = phases[current].name if inside else _REST
        is_phase = event.name in ("rollout", "learn", _REST)
        # Calls and seconds, summed by name within the phase.
        entry = sums[phase]["(Python, environments)" if is_phase else event.name]
        entry[0] += 1
        entry[1] += event.self_cpu_time_total / 1e6
    return {phase: _sorted((n, int(c), s) for n, (c, s) in rows.items()) for phase, rows in sums.items()}


def rows_of_functions(profile: cProfile.Profile) -> list[Row]:
    """Return the functions in a profile, by self time."""
    stats: Any = pstats.Stats(profile)
    return _sorted((_function(*key), calls, own) for key, (_, calls, own, _, _) in stats.stats.items())


def _function(path: str, line: int, name: str) -> str:
    if line == 0:  # a built-in function
        return name
    return f"{'/'.join(Path(path).parts[-2:])}:{line} {name}"


def _sorted(rows: Any) -> list[Row]:
    return sorted((Row(*row) for row in rows), key=lambda row: -row.self_s)


def page(plain: Stage, operators: Stage, functions: Stage) -> str:
    """Return the page: the split of a plain iteration, then tables of operators and functions for each phase."""
    lines = [
        "# Where the time goes",
        "",
        f"Rank 0. Milliseconds of an iteration, mean over {plain.num_iterations} iterations without a profiler; "
        "`traced` and `profiled` show how much slower iterations were under torch's profiler and under cProfile. A "
        "profiler adds time to every call, so that an operator or function with many calls looks slower than it is.",
        "",
        "| phase | ms | share | traced | profiled |",
        "|---|---|---|---|---|",
    ]
    # First the split of a plain iteration, with the slowdown under either profiler.
    seconds_by_phase = [_phases(stage) for stage in (plain, operators, functions)]
    whole = plain.seconds / plain.num_iterations
    for name, seconds in seconds_by_phase[0].items():
        slower = [f"x {stage[name] / seconds:.2f}" if seconds else "" for stage in seconds_by_phase[1:]]
        lines.append(
            f"| {name} | {1e3 * seconds:.2f} | {100 * seconds / whole:.0f} % | {' | '.join(slower)} |"
        )
    lines.append(f"| all | {1e3 * whole:.2f} | 100 % | | |")
    lines += [
        "",
        f"Collectives count in the phase that runs them. {TRACE} opens in chrome://tracing or Perfetto.",
    ]
    # Then two tables for each phase.
    for name in seconds_by_phase[0]:
        lines += ["", f"## {name}"]
        for heading, stage in (("operator", operators), ("function", functions)):
            lines += ["", *_table(heading, stage.rows.get(name, []), stage.num_iterations)]
    return "\n".join(lines) + "\n"


def _phases(stage: Stage) -> dict[str, float]:
    """Return the seconds of an iteration, by phase; the rest of the iteration comes last."""
    found = {name: seconds / stage.num_iterations for name, seconds in stage.phases.items()}
    return found | {_REST: max(0.0, stage.seconds / stage.num_iterations - sum(found.values()))}


def _table(heading: str, rows: Sequence[Row], num_iterations: int) -> list[str]:
    total = sum(row.self_s for row in rows) or 1.0
    lines = [f"| {heading} | calls per iteration | self ms | share of the phase |", "|---|---|---|---|"]
    # An unescaped pipe in a name would end the cell.
    for row in rows[:_MAX_ROWS]:
        name = row.name.replace("|", "\\|")
        calls, own = row.calls / num_iterations, 1e3 * row.self_s / num_iterations
        lines.append(f"| `{name}` | {calls:,.0f} | {own:.2f} | {100 * row.self_s / total:.1f} % |")
    return lines
