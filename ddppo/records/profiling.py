"""Where an iteration's time goes, by operator and by function: a trace, and a page that a person reads.

After warm-up the same number of iterations runs plainly, then under torch's profiler, which sees operators, then under
Python's, which sees functions; both slow down what they watch, and the plain ones say by how much.
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
_REST = "rest"  # of an iteration: what is in no phase
_SHOWN = 15  # rows of a table


@dataclass(frozen=True, slots=True)
class Row:
    """An operator or function: how often it ran, and the seconds in it that are in nothing it called."""

    name: str
    calls: int
    self_s: float


@dataclass(slots=True)
class Stage:
    """Iterations watched in one way: their seconds, by phase too, and rows by phase."""

    num_iterations: int = 0
    seconds: float = 0.0
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    rows: dict[str, list[Row]] = field(default_factory=dict)


class NullProfiler:
    """What watches nothing: ranks other than 0, and runs that ask for no profile."""

    def iteration(self) -> AbstractContextManager:
        """Enclose one iteration."""
        return nullcontext()

    def phase(self, name: str) -> AbstractContextManager:
        """Enclose the phase `name` of an iteration."""
        return nullcontext()


def make_profiler(num_iterations: int, folder: Path) -> NullProfiler:
    """Return what watches num_iterations in each way and writes into `folder`; for 0, what watches nothing."""
    return Profiler(num_iterations, folder) if num_iterations else NullProfiler()


class Profiler(NullProfiler):
    """Watches iterations of this process and leaves trace.json, for chrome://tracing or Perfetto, and the page."""

    def __init__(self, num_iterations: int, folder: Path) -> None:
        self._num = num_iterations
        self._folder = folder
        self._done = 0
        self._stages = {name: Stage() for name in ("plain", "operators", "functions")}
        self._stage: Stage | None = None
        self._torch: Any = None
        self._functions: dict[str, cProfile.Profile] = {}

    @contextmanager
    def iteration(self) -> Iterator[None]:
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
        if offset == self._num - 1 and name == "operators":
            self._end_of_trace()
        elif offset == self._num - 1 and name == "functions":
            self._end()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
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

    def _end_of_trace(self) -> None:
        self._torch.stop()
        with stored(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._torch.export_chrome_trace(str(self._folder / TRACE))
        self._stages["operators"].rows = rows_of_operators(self._torch.events())
        self._torch = None

    def _end(self) -> None:
        self._stages["functions"].rows = {
            name: rows_of_functions(profile) for name, profile in self._functions.items()
        }
        self._functions = {}
        write_text(self._folder / PAGE, page(**self._stages))


def rows_of_operators(events: Sequence[Any]) -> dict[str, list[Row]]:
    """Return the operators of each phase by self time, from torch's events; a phase itself stands for its Python.

    An event belongs to the innermost of the phases' own events that holds its start.
    """
    on_cpu = [e for e in events if e.device_type == torch.autograd.DeviceType.CPU]
    phases = sorted(
        (e for e in on_cpu if e.name in ("rollout", "learn")), key=lambda event: event.time_range.start
    )
    sums: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0.0]))
    current = 0
    for event in sorted(on_cpu, key=lambda event: event.time_range.start):
        while current < len(phases) and phases[current].time_range.end < event.time_range.start:
            current += 1
        inside = current < len(phases) and phases[current].time_range.start <= event.time_range.start
        phase = phases[current].name if inside else _REST
        is_phase = event.name in ("rollout", "learn", _REST)
        entry = sums[phase]["(Python, environments)" if is_phase else event.name]
        entry[0] += 1
        entry[1] += event.self_cpu_time_total / 1e6
    return {phase: _sorted((n, int(c), s) for n, (c, s) in rows.items()) for phase, rows in sums.items()}


def rows_of_functions(profile: cProfile.Profile) -> list[Row]:
    """Return the functions that Python's profiler saw by self time."""
    stats: Any = pstats.Stats(profile)
    return _sorted((_function(*key), calls, own) for key, (_, calls, own, _, _) in stats.stats.items())


def _function(path: str, line: int, name: str) -> str:
    if line == 0:  # built in
        return name
    return f"{'/'.join(Path(path).parts[-2:])}:{line} {name}"


def _sorted(rows: Any) -> list[Row]:
    return sorted((Row(*row) for row in rows), key=lambda row: -row.self_s)


def page(plain: Stage, operators: Stage, functions: Stage) -> str:
    """Return the page: the split of a plain iteration, then what is in each phase by either profiler."""
    lines = [
        "# Where the time goes",
        "",
        f"Rank 0. Milliseconds of an iteration, of {plain.num_iterations} that nothing watched, and how much slower "
        "the same were under either profiler: they charge by the call, so that what is called often looks larger than "
        "it is.",
        "",
        "| phase | ms | share | traced | profiled |",
        "|---|---|---|---|---|",
    ]
    of_phases = [_phases(stage) for stage in (plain, operators, functions)]
    whole = plain.seconds / plain.num_iterations
    for name, seconds in of_phases[0].items():
        slower = [f"x {of[name] / seconds:.2f}" if seconds else "" for of in of_phases[1:]]
        lines.append(
            f"| {name} | {1e3 * seconds:.2f} | {100 * seconds / whole:.0f} % | {' | '.join(slower)} |"
        )
    lines.append(f"| all | {1e3 * whole:.2f} | 100 % | | |")
    lines += [
        "",
        f"Collectives are in the phases they happen in. {TRACE} opens in chrome://tracing or Perfetto.",
    ]
    for name in of_phases[0]:
        lines += ["", f"## {name}"]
        for what, stage in (("operator", operators), ("function", functions)):
            lines += ["", *_table(what, stage.rows.get(name, []), stage.num_iterations)]
    return "\n".join(lines) + "\n"


def _phases(stage: Stage) -> dict[str, float]:
    """Return the seconds of an iteration by phase."""
    found = {name: seconds / stage.num_iterations for name, seconds in stage.phases.items()}
    return found | {_REST: max(0.0, stage.seconds / stage.num_iterations - sum(found.values()))}


def _table(what: str, rows: Sequence[Row], num_iterations: int) -> list[str]:
    total = sum(row.self_s for row in rows) or 1.0
    lines = [f"| {what} | calls an iteration | self ms | of the phase |", "|---|---|---|---|"]
    for row in rows[:_SHOWN]:
        name = row.name.replace("|", "\\|")
        calls, own = row.calls / num_iterations, 1e3 * row.self_s / num_iterations
        lines.append(f"| `{name}` | {calls:,.0f} | {own:.2f} | {100 * row.self_s / total:.1f} % |")
    return lines
