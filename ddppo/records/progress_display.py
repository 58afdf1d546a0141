"""What a run shows on the terminal: sizes first, progress while it lasts, a summary at the end (words.py)."""

import io
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddppo.processes.machine import memory_of
from ddppo.records.metrics import EXCLUSIVE_PARTS, TASK_PREFIX, IterationReport, plugin_metrics
from ddppo.records.terminal_text import duration, number

Clock = Callable[[], float]  # seconds, monotonic

MEMORY_INTERVAL_S = 10.0  # it takes milliseconds for each process
_MOST_OF_TASK = 3  # metrics of the task's own on a line
_MOST_EVALUATIONS = 24  # that a sparkline tells apart
_LEVELS = "▁▂▃▄▅▆▇█"
_NAMED = (
    ("rollout/return_mean", "return", ".2f"),
    ("rollout/success_rate", "success", ".2f"),
    ("eval/return_mean", "eval", ".2f"),
    ("eval/success_rate", "eval success", ".2f"),
    ("train/approx_kl", "KL", ".4f"),
)


class Throttle:
    """True when called for the first time, and then whenever `interval_s` have passed since it last was."""

    def __init__(self, interval_s: float, clock: Clock = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._last = -math.inf

    def __call__(self) -> bool:
        now = self._clock()
        if now - self._last < self._interval_s:
            return False
        self._last = now
        return True


def memory_of_run(world_size: int) -> float | None:
    """Return the MB of this rank's process and those below it; of several ranks, of all that its parent started.

    Ranks of one machine have one parent; those of others are not counted.
    """
    return memory_of(os.getpid() if world_size == 1 else os.getppid()).total_mb


def sparkline(values: Sequence[float], most: int = _MOST_EVALUATIONS) -> str:
    """Return values as a line of blocks from the lowest to the highest, of many as many as `most`, the last among them.

    All equal is a line in the middle, and what is not finite a gap.
    """
    if len(values) > most:
        values = [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    steps = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    middle = _LEVELS[len(_LEVELS) // 2 - 1]
    return "".join(
        " " if not math.isfinite(value) else _LEVELS[round((value - low) * steps)] if steps else middle
        for value in values
    )


def in_lines(words: Sequence[str], width: int) -> list[str]:
    """Return words, each of which may have blanks, two blanks apart in lines of at most `width`, none broken."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines


class ProgressLine:
    """What all displays say: position, pace and time split since last shown, latest learning."""

    def __init__(
        self, total_steps: int, clock: Clock, memory: Callable[[int], float | None] = memory_of_run
    ) -> None:
        self.total_steps = total_steps
        self.env_steps = 0
        self._clock = clock
        self._wall_s = 0.0
        self._iteration = 0
        self._first: tuple[int, float] | None = None
        self._window_start = (0, 0.0)
        self._latest: dict[str, float] = {}
        self._evaluations: list[float] = []
        self._parts = dict.fromkeys(EXCLUSIVE_PARTS, 0.0)
        self._busy: list[float] = []  # seconds of each rank
        self._of_task: list[str] = []
        self._memory = memory
        self._memory_is_due = Throttle(MEMORY_INTERVAL_S, clock)
        self._memory_mb: float | None = None

    def add(self, report: IterationReport) -> None:
        if self._first is None:
            # Where this process took over one iteration ago: at zero, or at a checkpoint.
            t_iter = report.rank_mean("time/t_iter") or 0.0
            steps = report.env_steps - int(report.global_metrics.get("rollout/steps", 0))
            self._first = (steps, self._clock() - t_iter)
            self._window_start = (steps, report.wall_s - t_iter)
        self.env_steps, self._wall_s, self._iteration = report.env_steps, report.wall_s, report.iteration
        self._latest |= report.global_metrics
        if (score := report.global_metrics.get("eval/return_mean")) is not None:
            self._evaluations.append(score)
        of_task = [name for name in report.global_metrics if name.startswith(TASK_PREFIX)]
        self._of_task = [name for name in of_task if name.split("/")[1] == of_task[0].split("/")[1]]
        for part in EXCLUSIVE_PARTS:
            self._parts[part] += report.rank_mean(f"time/{part}") or 0.0
        if len(self._busy) != len(report.rank_metrics):
            self._busy = [0.0] * len(report.rank_metrics)
        for rank, metrics in enumerate(report.rank_metrics):
            self._busy[rank] += metrics.get("time/t_rollout", 0.0) + metrics.get("time/t_learn", 0.0)

    def shown(self) -> None:
        """Begin a new window for pace and time split."""
        self._window_start = (self.env_steps, self._wall_s)
        self._parts = dict.fromkeys(EXCLUSIVE_PARTS, 0.0)
        self._busy = []

    def steps(self) -> str:
        total = f"{self.total_steps:,}"
        return f"{self.env_steps:>{len(total)},} / {total} steps"

    def percent(self) -> str:
        return f"{min(100 * self.env_steps // self.total_steps, 100):>3} %"

    def eta(self) -> str:
        """Return the time left, judged by this process so far, evaluations and all."""
        if self._first is None or self.env_steps <= self._first[0]:
            return "?"
        s_per_step = (self._clock() - self._first[1]) / (self.env_steps - self._first[0])
        return duration(max(self.total_steps - self.env_steps, 0) * s_per_step)

    def learning(self, *, sparklines: bool = False) -> list[str]:
        """Return pace and what was learned; `sparklines` draws the evaluations so far in front of the last."""
        steps, wall_s = self.env_steps - self._window_start[0], self._wall_s - self._window_start[1]
        words = [f"iteration {self._iteration:,}", f"FPS {steps / wall_s:,.0f}" if wall_s > 0 else "FPS ?"]
        plugin_rows = ((row.name, row.on_line, ".0f") for row in plugin_metrics() if row.on_line)
        for name, label, form in (*_NAMED, *plugin_rows):
            if name in self._latest:
                if sparklines and name == "eval/return_mean" and len(self._evaluations) > 1:
                    label = f"{label} {sparkline(self._evaluations)}"
                words.append(f"{label} {number(self._latest[name], form)}")
        words += (
            f"{name.removeprefix(TASK_PREFIX)} {self._latest[name]:g}"
            for name in self._of_task[:_MOST_OF_TASK]
        )
        return words

    def split(self) -> list[str]:
        total = sum(self._parts.values())
        return [f"{part[2:]} {100 * t / total:.0f}%" for part, t in self._parts.items()] if total else []

    def machine(self) -> list[str]:
        """Return which rank is slowest, by the time it acts and learns, and how much memory the run takes."""
        words = []
        if len(self._busy) > 1 and sum(self._busy) > 0:
            slowest = self._busy.index(max(self._busy))
            above = self._busy[slowest] * len(self._busy) / sum(self._busy) - 1
            words.append(f"slowest rank {slowest} (+{100 * above:.0f}%)")
        if self._memory_is_due():
            self._memory_mb = self._memory(max(1, len(self._busy)))
        if self._memory_mb is not None:
            mb = self._memory_mb
            words.append(f"memory {mb / 1000:.1f} GB" if mb >= 1000 else f"memory {mb:.0f} MB")
        return words


# -- Displays: none, a line now and then, one kept in place, and frames for whoever started the run to show.


RICH_INTERVAL_S = 0.25
PLAIN_INTERVAL_S = 5.0
FRAMES = "DDPPO_FRAMES"  # in the environment: show frames, of so many columns
FRAME_BEGINS = "\x1e"  # a line of standard output that is a frame, as JSON
_BAR = 30


class Display(Protocol):
    """Shows progress from `start` to `close`."""

    def start(self) -> None: ...

    def update(self, report: IterationReport) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class NullDisplay:
    """Shows nothing."""

    def start(self) -> None:
        pass

    def update(self, report: IterationReport) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class _Drawn:
    """What draws, at most every so often, and for the first and the last iteration."""

    def __init__(self, total_steps: int, interval_s: float, clock: Clock) -> None:
        self._progress = ProgressLine(total_steps, clock)
        self._due = Throttle(interval_s, clock)
        self._pending = False

    def start(self) -> None:
        pass

    def update(self, report: IterationReport) -> None:
        self._progress.add(report)
        self._pending = True
        if self._due():
            self._show()

    def close(self) -> None:
        if self._pending:
            self._show()

    def _show(self) -> None:
        self._draw()
        self._progress.shown()
        self._pending = False

    def _draw(self) -> None:
        raise NotImplementedError


class PlainDisplay(_Drawn):
    """Prints a line every few seconds."""

    def __init__(self, total_steps: int, console: Console, *, clock: Clock = time.monotonic) -> None:
        super().__init__(total_steps, PLAIN_INTERVAL_S, clock)
        self._console = console

    def say(self, text: str) -> None:
        _print_as_it_is(self._console, text)

    def _draw(self) -> None:
        p = self._progress
        split = " ".join(p.split())
        words = [p.steps(), p.percent(), f"ETA {p.eta()}", *p.learning(), split, *p.machine()]
        _print_as_it_is(self._console, "  ".join(filter(None, words)))


class RichDisplay(_Drawn):
    """Keeps a bar and lines of numbers in place, redrawn by `update` a few times a second, in the terminal's width."""

    def __init__(self, total_steps: int, console: Console, *, clock: Clock = time.monotonic) -> None:
        super().__init__(total_steps, RICH_INTERVAL_S, clock)
        # No refresh thread: it would take turns with the training loop at times of its own choosing.
        self._live = Live(console=console, auto_refresh=False)

    def start(self) -> None:
        self._live.start()

    def close(self) -> None:
        super().close()
        self._live.stop()

    def say(self, text: str) -> None:
        _print_as_it_is(self._live.console, text)  # above what is kept in place

    def _draw(self) -> None:
        self._live.update(_frame(self._progress, self._live.console), refresh=True)


class FrameDisplay(_Drawn):
    """Prints frames, each a line of JSON, for a process that shows them in place: see ddppo/api."""

    def __init__(self, total_steps: int, columns: int, *, clock: Clock = time.monotonic) -> None:
        super().__init__(total_steps, RICH_INTERVAL_S, clock)
        self._columns = columns

    def say(self, text: str) -> None:
        print(text, flush=True)

    def _draw(self) -> None:
        page = io.StringIO()
        console = Console(file=page, width=self._columns, color_system=None, force_jupyter=False)
        console.print(_frame(self._progress, console))
        lines = [line.rstrip() for line in page.getvalue().rstrip().splitlines()]
        print(f"{FRAME_BEGINS}{json.dumps(lines)}", flush=True)


def _frame(p: ProgressLine, console: Console) -> Group:
    """Return a bar and the numbers, in lines that are no wider than the console."""
    width, draws = console.width, console.encoding.lower().startswith("utf")
    done = min(p.env_steps, p.total_steps)
    position = [p.percent(), p.steps(), f"ETA {p.eta()}"]
    beside = _BAR + 4 + len("  ".join(position)) <= width
    bar = ProgressBar(total=p.total_steps, completed=done, width=min(width, _BAR))
    first = Table.grid(padding=(0, 2))
    first.add_row(bar, *([Text("  ".join(position), style="bold")] if beside else []))
    shown: list[RenderableType] = [first]
    if not beside:
        shown += [Text(line, style="bold") for line in in_lines(position, width)]
    shown += [Text(line) for line in in_lines(p.learning(sparklines=draws), width)]
    split = " ".join(p.split())
    parts = [split] if 0 < len(split) <= width else p.split()  # together where there is room
    shown += [Text(line, style="dim") for line in in_lines([*parts, *p.machine()], width)]
    return Group(*shown)


def make_display(kind: str, total_steps: int, *, console: Console | None = None) -> Display:
    """Return the display for log.progress=`kind`; auto is rich on a terminal and plain elsewhere."""
    if kind in ("auto", "rich") and console is None and FRAMES in os.environ:
        return FrameDisplay(total_steps, int(os.environ[FRAMES]))
    console = console or Console()
    if kind == "auto":
        kind = "rich" if console.is_terminal and not console.is_dumb_terminal else "plain"
    if kind == "none":
        return NullDisplay()
    return RichDisplay(total_steps, console) if kind == "rich" else PlainDisplay(total_steps, console)


def _print_as_it_is(console: Console, text: str) -> None:
    """Print lines that are not wrapped to the 80 columns that a pipe is taken to have: one line is one record."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
