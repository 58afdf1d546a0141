"""The progress display on the terminal, while a run lasts. The text before and after it is in terminal_text.py.

`ProgressLine` collects the numbers and formats them; the displays at the end of the file show them: `PlainDisplay`
prints a line every few seconds, `RichDisplay` redraws a bar in place, `FrameDisplay` sends frames to the process that
started the run. `make_display` chooses.
"""

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
from ddppo.records.metrics import EXCLUSIVE_PARTS, TASK_PREFIX, IterationReport
from ddppo.records.terminal_text import duration, number

Clock = Callable[[], float]  # seconds, monotonic

MEMORY_INTERVAL_S = 10.0  # between measurements of memory, which take milliseconds for each process
_MAX_TASK_METRICS = 3  # on a line
_SPARKLINE_WIDTH = 24  # characters
_LEVELS = "▁▂▃▄▅▆▇█"
_SHOWN_METRICS = (  # name, label, format
    ("rollout/return_mean", "return", ".2f"),
    ("rollout/success_rate", "success", ".2f"),
    ("eval/return_mean", "eval", ".2f"),
    ("eval/success_rate", "eval success", ".2f"),
    ("train/approx_kl", "KL", ".4f"),
)


class Throttle:
    """A call returns True at most once in `interval_s` seconds, and the first time."""

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
    """Return the memory of the run's processes on this machine in MB; None if it is unknown.

    The ranks of one machine have one parent, so all processes below the parent count. A run on one rank counts its own
    process and those below it.
    """
    return memory_of(os.getpid() if world_size == 1 else os.getppid()).total_mb


def sparkline(values: Sequence[float], most: int = _SPARKLINE_WIDTH) -> str:
    """Return values as blocks of eight heights, from the lowest value to the highest.

    Of more than `most` values, `most` are shown, evenly spaced, the last value among them. Equal values are a line in
    the middle. A value that is not finite is a blank.
    """
    # Choose evenly spaced values, the last among them.
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
    """Return words, joined by two blanks, in lines of at most `width`. A word may contain blanks and is not broken."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return lines


class ProgressLine:
    """The numbers that all displays show, as formatted words.

    Position and latest metrics are those of the last iteration; pace, time split and slowest rank are those since the
    line was last shown.
    """

    def __init__(
        self, total_steps: int, clock: Clock, memory: Callable[[int], float | None] = memory_of_run
    ) -> None:
        self.total_steps = total_steps
        self.env_steps = 0
        self._clock = clock
        self._wall_s = 0.0
        self._iteration = 0
        self._start: tuple[int, float] | None = None  # env_steps and clock when this process began to train
        self._window_start = (0, 0.0)  # env_steps and wall_s when last shown
        self._latest: dict[str, float] = {}  # the latest value of every global metric
        self._evaluations: list[float] = []  # mean returns, for the sparkline
        self._parts = dict.fromkeys(EXCLUSIVE_PARTS, 0.0)  # seconds since last shown, mean over ranks
        self._busy: list[float] = []  # t_rollout + t_learn of each rank since last shown
        self._task_metrics: list[str] = []
        self._status: list[str] = []  # of the task sampler
        self._memory = memory
        self._memory_is_due = Throttle(MEMORY_INTERVAL_S, clock)
        self._memory_mb: float | None = None

    def add(self, report: IterationReport, status: Sequence[str] = ()) -> None:
        """Take in the report of an iteration, and what the task sampler says of it."""
        self._status = list(status)
        if self._start is None:
            # This process began to train one iteration ago, at zero or at a checkpoint.
            t_iter = report.rank_mean("time/t_iter") or 0.0
            steps = report.env_steps - int(report.global_metrics.get("rollout/steps", 0))
            self._start = (steps, self._clock() - t_iter)
            self._window_start = (steps, report.wall_s - t_iter)
        self.env_steps, self._wall_s, self._iteration = report.env_steps, report.wall_s, report.iteration
        self._latest |= report.global_metrics
        if (score := report.global_metrics.get("eval/return_mean")) is not None:
            self._evaluations.append(score)
        # Show the first metric of the task, and those that share its name up to a slash.
        names = [name for name in report.global_metrics if name.startswith(TASK_PREFIX)]
        self._task_metrics = [name for name in names if name.split("/")[1] == names[0].split("/")[1]]
        for part in EXCLUSIVE_PARTS:
            self._parts[part] += report.rank_mean(f"time/{part}") or 0.0
        # The number of ranks changes when a run goes on with fewer.
        if len(self._busy) != len(report.rank_metrics):
            self._busy = [0.0] * len(report.rank_metrics)
        for rank, metrics in enumerate(report.rank_metrics):
            self._busy[rank] += metrics.get("time/t_rollout", 0.0) + metrics.get("time/t_learn", 0.0)

    def shown(self) -> None:
        """Note that the line was shown: pace, time split and slowest rank count from here."""
        self._window_start = (self.env_steps, self._wall_s)
        self._parts = dict.fromkeys(EXCLUSIVE_PARTS, 0.0)
        self._busy = []

    def steps(self) -> str:
        total = f"{self.total_steps:,}"
        return f"{self.env_steps:>{len(total)},} / {total} steps"

    def percent(self) -> str:
        return f"{min(100 * self.env_steps // self.total_steps, 100):>3} %"

    def eta(self) -> str:
        """Return the time left at the mean pace of this process so far, evaluations included."""
        if self._start is None or self.env_steps <= self._start[0]:
            return "?"
        s_per_step = (self._clock() - self._start[1]) / (self.env_steps - self._start[0])
        return duration(max(self.total_steps - self.env_steps, 0) * s_per_step)

    def learning(self, *, sparklines: bool = False) -> list[str]:
        """Return pace and latest metrics; `sparklines` draws all evaluations so far in front of the latest."""
        steps, wall_s = self.env_steps - self._window_start[0], self._wall_s - self._window_start[1]
        words = [f"iteration {self._iteration:,}", f"FPS {steps / wall_s:,.0f}" if wall_s > 0 else "FPS ?"]
        for name, label, form in _SHOWN_METRICS:
            if name in self._latest:
                if sparklines and name == "eval/return_mean" and len(self._evaluations) > 1:
                    label = f"{label} {sparkline(self._evaluations)}"
                words.append(f"{label} {number(self._latest[name], form)}")
        words += (
            f"{name.removeprefix(TASK_PREFIX)} {self._latest[name]:g}"
            for name in self._task_metrics[:_MAX_TASK_METRICS]
        )
        return words + self._status

    def split(self) -> list[str]:
        """Return the share of each part of an iteration, mean over ranks."""
        total = sum(self._parts.values())
        return [f"{part[2:]} {100 * t / total:.0f}%" for part, t in self._parts.items()] if total else []

    def machine(self) -> list[str]:
        """Return the slowest rank, by its rollout and update time against the mean rank, and the run's memory."""
        words = []
        if len(self._busy) > 1 and sum(self._busy) > 0:
            # How much longer than the mean rank.
            slowest = self._busy.index(max(self._busy))
            above = self._busy[slowest] * len(self._busy) / sum(self._busy) - 1
            words.append(f"slowest rank {slowest} (+{100 * above:.0f}%)")
        if self._memory_is_due():
            self._memory_mb = self._memory(max(1, len(self._busy)))
        if self._memory_mb is not None:
            mb = self._memory_mb
            words.append(f"memory {mb / 1000:.1f} GB" if mb >= 1000 else f"memory {mb:.0f} MB")
        return words


# -- The displays: nothing, a line now and then, a bar kept in place, and frames for another process.


RICH_INTERVAL_S = 0.25
PLAIN_INTERVAL_S = 5.0
FRAMES = "DDPPO_FRAMES"  # environment variable: print frames of this many columns
FRAME_BEGINS = "\x1e"  # first character of a line of standard output that is a frame in JSON
_BAR_WIDTH = 30  # characters


class Display(Protocol):
    """Shows the progress of a run, between `start` and `close`."""

    def start(self) -> None: ...

    def update(self, report: IterationReport, status: Sequence[str] = ()) -> None:
        """Take in an iteration and the task sampler's words about it, and show both if a refresh is due."""

    def say(self, text: str) -> None:
        """Print lines, above the part that is kept in place."""

    def close(self) -> None: ...


class NullDisplay:
    """Shows nothing."""

    def start(self) -> None:
        pass

    def update(self, report: IterationReport, status: Sequence[str] = ()) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class _ThrottledDisplay:
    """Base class of displays: draws the first and the last iteration, and between them once in `interval_s` seconds."""

    def __init__(self, total_steps: int, interval_s: float, clock: Clock) -> None:
        self._progress = ProgressLine(total_steps, clock)
        self._due = Throttle(interval_s, clock)
        self._pending = False  # whether the last iteration is yet to be drawn

    def start(self) -> None:
        pass

    def update(self, report: IterationReport, status: Sequence[str] = ()) -> None:
        self._progress.add(report, status)
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


class PlainDisplay(_ThrottledDisplay):
    """Prints a line every few seconds."""

    def __init__(self, total_steps: int, console: Console, *, clock: Clock = time.monotonic) -> None:
        super().__init__(total_steps, PLAIN_INTERVAL_S, clock)
        self._console = console

    def say(self, text: str) -> None:
        _print_unwrapped(self._console, text)

    def _draw(self) -> None:
        p = self._progress
        split = " ".join(p.split())
        words = [p.steps(), p.percent(), f"ETA {p.eta()}", *p.learning(), split, *p.machine()]
        _print_unwrapped(self._console, "  ".join(filter(None, words)))


class RichDisplay(_ThrottledDisplay):
    """Keeps a bar and lines of numbers in place; `update` redraws them a few times a second."""

    def __init__(self, total_steps: int, console: Console, *, clock: Clock = time.monotonic) -> None:
        super().__init__(total_steps, RICH_INTERVAL_S, clock)
        # No refresh thread: it would interrupt the training loop at any moment.
        self._live = Live(console=console, auto_refresh=False)

    def start(self) -> None:
        self._live.start()

    def close(self) -> None:
        super().close()
        self._live.stop()

    def say(self, text: str) -> None:
        _print_unwrapped(self._live.console, text)

    def _draw(self) -> None:
        self._live.update(_frame(self._progress, self._live.console), refresh=True)


class FrameDisplay(_ThrottledDisplay):
    """Prints frames, each a line of JSON, for the process that started the run and shows them in place (api.py)."""

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
    """Return a bar and the numbers, in lines no wider than the console."""
    # Sparklines need Unicode.
    width, draws = console.width, console.encoding.lower().startswith("utf")
    done = min(p.env_steps, p.total_steps)
    position = [p.percent(), p.steps(), f"ETA {p.eta()}"]
    fits_beside = _BAR_WIDTH + 4 + len("  ".join(position)) <= width
    bar = ProgressBar(total=p.total_steps, completed=done, width=min(width, _BAR_WIDTH))
    first = Table.grid(padding=(0, 2))
    first.add_row(bar, *([Text("  ".join(position), style="bold")] if fits_beside else []))
    # Each kind of words is wrapped by itself, so that no number is broken.
    shown: list[RenderableType] = [first]
    if not fits_beside:
        shown += [Text(line, style="bold") for line in in_lines(position, width)]
    shown += [Text(line) for line in in_lines(p.learning(sparklines=draws), width)]
    split = " ".join(p.split())
    parts = [split] if 0 < len(split) <= width else p.split()  # on one line if it fits
    shown += [Text(line, style="dim") for line in in_lines([*parts, *p.machine()], width)]
    return Group(*shown)


def make_display(kind: str, total_steps: int, *, console: Console | None = None) -> Display:
    """Return the display for log.progress=`kind`; auto is rich on a terminal and plain elsewhere."""
    # A notebook started this process and shows frames itself.
    if kind in ("auto", "rich") and console is None and FRAMES in os.environ:
        return FrameDisplay(total_steps, int(os.environ[FRAMES]))
    console = console or Console()
    if kind == "auto":
        kind = "rich" if console.is_terminal and not console.is_dumb_terminal else "plain"
    if kind == "none":
        return NullDisplay()
    return RichDisplay(total_steps, console) if kind == "rich" else PlainDisplay(total_steps, console)


def _print_unwrapped(console: Console, text: str) -> None:
    """Print lines unwrapped: rich takes a pipe to have 80 columns, but in a log file one line is one record."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
