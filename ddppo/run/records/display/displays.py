"""Displays: none, a line now and then, one kept in place, and frames for whoever started the run to show."""

import io
import json
import os
import time
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddppo.run.records.display.progress import Clock, Progress, Throttle, in_lines
from ddppo.run.records.metrics import IterationReport

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
        self._progress = Progress(total_steps, clock)
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


def _frame(p: Progress, console: Console) -> Group:
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
