"""What a run shows on the terminal: sizes first, progress while it lasts, a summary at the end."""

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ddppo.config import Config
from ddppo.run.records.metrics import EXCLUSIVE_PARTS, OF_TASK, IterationReport
from ddppo.scaling import BatchShape

Clock = Callable[[], float]  # seconds, monotonic

RICH_INTERVAL_S = 0.25
PLAIN_INTERVAL_S = 5.0
_MOST_OF_TASK = 3  # metrics of the task's own on a line


def header(config: Config, shape: BatchShape, derived: Mapping[str, Any]) -> str:
    """Return the derived sizes of a run; `derived` (num_parameters, device, ...) is shown as it comes."""
    s, total = shape, config.ppo.total_steps
    num_updates = s.num_minibatches * s.num_epochs
    all_step = s.num_stepping in (0, s.world_size)
    steppers = f"W x E = {s.world_size}" if all_step else f"ranks that step x E = {s.num_stepping}"
    dealt = " + ".join(map(str, s.env_shares)) or f"{steppers} x {s.local_num_envs}"
    # Episodes end when they do, within T.
    at_least, at_most = ("at least ", "at most ") if derived.get("whole_episodes") else ("", "")
    batch = f"{config.ppo.rollouts_per_update} x E" if s.batch_envs else "N"
    rows = [
        ("task", f"{config.env.id}, seed {config.seed}"),
        ("length", f"{total:,} steps = {at_least}{-(-total // s.batch_size):,} iterations"),
        ("ranks", f"W = {s.world_size}" + _roles(config, derived.get("roles", ()))),
        ("envs", f"N = {dealt} = {s.num_envs:,}"),
        (
            "batch",
            f"B = {at_most}{batch} x T = {s.batch_envs or s.num_envs:,} x {s.rollout_steps:,} = {s.batch_size:,} "
            f"({config.scaling.rule} scaling)",
        ),
        (
            "updates",
            f"minibatch {s.minibatch_size:,}, M x K = {s.num_minibatches} minibatches x {s.num_epochs} "
            f"epochs = {num_updates} per iteration",
        ),
    ]
    for name, value in derived.items():
        if name in ("roles", "whole_episodes"):  # said above
            continue
        if name == "machines":
            value = ", ".join(f"{each['hostname']} ({each['cores']} cores)" for each in value)
        label = {"num_parameters": "parameters", "run_dir": "run folder"}.get(name, name.replace("_", " "))
        rows.append((label, f"{value:,}" if type(value) is int else str(value)))
    return _columns(rows)


def _roles(config: Config, roles: Sequence[str]) -> str:
    """Return how many ranks do what, where not all do the same."""
    kinds = Counter(roles)
    said = ", ".join(f"{number} x {name}" for name, number in kinds.items())
    return f", {config.dist.topology}: {said}" if len(kinds) > 1 else ""


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


class PlainDisplay:
    """Prints a line every few seconds, and for the first and the last iteration."""

    def __init__(self, total_steps: int, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._progress = _Progress(total_steps, clock)
        self._due = Throttle(PLAIN_INTERVAL_S, clock)
        self._pending = False

    def start(self) -> None:
        pass

    def update(self, report: IterationReport) -> None:
        self._progress.add(report)
        self._pending = True
        if self._due():
            self._print()

    def close(self) -> None:
        if self._pending:
            self._print()

    def say(self, text: str) -> None:
        _print_as_it_is(self._console, text)

    def _print(self) -> None:
        p = self._progress
        line = f"{p.steps()}  {p.percent()}  ETA {p.eta()}  {p.learning()}  {p.split()}"
        _print_as_it_is(self._console, line)
        p.shown()
        self._pending = False


class RichDisplay:
    """Keeps a bar and two lines of numbers in place, redrawn by `update` a few times a second."""

    def __init__(self, total_steps: int, console: Console, *, clock: Clock = time.monotonic) -> None:
        self._progress = _Progress(total_steps, clock)
        self._due = Throttle(RICH_INTERVAL_S, clock)
        self._pending = False
        self._bar = ProgressBar(total=total_steps, completed=0, width=30)
        # No refresh thread: it would take turns with the training loop at times of its own choosing.
        self._live = Live(console=console, auto_refresh=False)

    def start(self) -> None:
        self._live.start()

    def update(self, report: IterationReport) -> None:
        self._progress.add(report)
        self._pending = True
        if self._due():
            self._draw()

    def close(self) -> None:
        if self._pending:
            self._draw()
        self._live.stop()

    def say(self, text: str) -> None:
        _print_as_it_is(self._live.console, text)  # above what is kept in place

    def _draw(self) -> None:
        p = self._progress
        self._bar.update(completed=min(p.env_steps, p.total_steps))
        first = Table.grid(padding=(0, 2))
        first.add_row(self._bar, Text(f"{p.percent()}  {p.steps()}  ETA {p.eta()}", style="bold"))
        self._live.update(Group(first, Text(p.learning()), Text(p.split(), style="dim")), refresh=True)
        p.shown()
        self._pending = False


def make_display(kind: str, total_steps: int, *, console: Console | None = None) -> Display:
    """Return the display for log.progress=`kind`; auto is rich on a terminal and plain elsewhere."""
    console = console or Console()
    if kind == "auto":
        kind = "rich" if console.is_terminal and not console.is_dumb_terminal else "plain"
    if kind == "none":
        return NullDisplay()
    return RichDisplay(total_steps, console) if kind == "rich" else PlainDisplay(total_steps, console)


def _print_as_it_is(console: Console, text: str) -> None:
    """Print lines that are not wrapped to the 80 columns that a pipe is taken to have: one line is one record."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


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


class _Progress:
    """What both displays say: position, pace and time split since last shown, latest learning."""

    def __init__(self, total_steps: int, clock: Clock) -> None:
        self.total_steps = total_steps
        self.env_steps = 0
        self._clock = clock
        self._wall_s = 0.0
        self._iteration = 0
        self._first: tuple[int, float] | None = None
        self._window_start = (0, 0.0)
        self._latest: dict[str, float] = {}
        self._parts = dict.fromkeys(EXCLUSIVE_PARTS, 0.0)
        self._of_task: list[str] = []

    def add(self, report: IterationReport) -> None:
        if self._first is None:
            # Where this process took over one iteration ago: at zero, or at a checkpoint.
            t_iter = report.rank_mean("time/t_iter") or 0.0
            steps = report.env_steps - int(report.global_metrics.get("rollout/steps", 0))
            self._first = (steps, self._clock() - t_iter)
            self._window_start = (steps, report.wall_s - t_iter)
        self.env_steps, self._wall_s, self._iteration = report.env_steps, report.wall_s, report.iteration
        self._latest |= report.global_metrics
        of_task = [name for name in report.global_metrics if name.startswith(OF_TASK)]
        self._of_task = [name for name in of_task if name.split("/")[1] == of_task[0].split("/")[1]]
        for part in EXCLUSIVE_PARTS:
            self._parts[part] += report.rank_mean(f"time/{part}") or 0.0

    def shown(self) -> None:
        """Begin a new window for pace and time split."""
        self._window_start = (self.env_steps, self._wall_s)
        self._parts = dict.fromkeys(EXCLUSIVE_PARTS, 0.0)

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
        return _duration(max(self.total_steps - self.env_steps, 0) * s_per_step)

    def learning(self) -> str:
        steps, wall_s = self.env_steps - self._window_start[0], self._wall_s - self._window_start[1]
        words = [f"iteration {self._iteration:,}", f"FPS {steps / wall_s:,.0f}" if wall_s > 0 else "FPS ?"]
        for name, label, form in (
            ("rollout/return_mean", "return", ".2f"),
            ("rollout/success_rate", "success", ".2f"),
            ("eval/return_mean", "eval", ".2f"),
            ("eval/success_rate", "eval success", ".2f"),
            ("search/trial", "trial", ".0f"),
            ("train/approx_kl", "KL", ".4f"),
        ):
            if name in self._latest:
                words.append(f"{label} {_number(self._latest[name], form)}")
        words += (
            f"{name.removeprefix(OF_TASK)} {self._latest[name]:g}" for name in self._of_task[:_MOST_OF_TASK]
        )
        return "  ".join(words)

    def split(self) -> str:
        total = sum(self._parts.values())
        if not total:
            return ""
        return " ".join(f"{part[2:]} {100 * t / total:.0f}%" for part, t in self._parts.items())


def closing(summary: Mapping[str, Any], run_dir: Path) -> str:
    """Return what came of a run, and the commands to look further."""
    rows = [
        ("status", str(summary["status"])),
        (
            "training",
            f"{summary['env_steps']:,} steps in {_duration(summary['wall_s'])}, "
            f"{_number(summary['fps'], ',.0f')} steps/s after warm-up",
        ),
    ]
    means = {part: summary["time"][part]["mean"] for part in ("t_iter", *EXCLUSIVE_PARTS)}
    if all(mean is not None and math.isfinite(mean) for mean in means.values()):
        t_iter = means.pop("t_iter")
        shares = (f"{part[2:]} {100 * mean / t_iter:.0f}%" for part, mean in means.items())
        rows.append(("time", f"{1000 * t_iter:.1f} ms an iteration: {' '.join(shares)}"))
    rows += _by_role(summary["per_rank"])
    final, best, target = summary["eval"]["final"], summary["eval"]["best"], summary["target"]
    if final:
        rows.append(("evaluation", _scores(final)))
    if best:
        rows.append(("best", f"{_scores(best)}, at {_number(best.get('env_steps'), ',')} steps"))
    if target and target.get("return") is not None:
        reached = (
            f"reached after {_duration(target['time_to_target_s'])}, {target['steps_to_target']:,} steps"
            if target["reached"]
            else "not reached"
        )
        rows.append((f"return {target['return']:g}", reached))
    for told in ("search", "task"):
        rows += list((summary.get(told) or {}).get("said", {}).items())
    folder = shlex.quote(str(run_dir))
    more = f" ppo.total_steps={2 * summary['env_steps']}" if summary["status"] == "completed" else ""
    if more and "search" in summary:
        more = f" search.budget_episodes={2 * summary['config']['search']['budget_episodes']}{more}"
    commands = [
        ("curves", f"tensorboard --logdir {folder}"),
        ("evaluate", f"python -m ddppo.evaluate run={folder}"),
        ("go on", f"python -m ddppo.train resume={folder}{more}"),
    ]
    return _columns([*rows, ("all numbers", str(run_dir / "summary.json")), *commands])


def _by_role(ranks: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return where the time of each role's ranks went, if there are several roles, and how old the rollouts were."""
    roles: dict[str, list[Mapping[str, float]]] = {}
    for rank in ranks:
        roles.setdefault(rank.get("role", ""), []).append(rank.get("time", {}))
    rows = []
    for role, times in roles.items() if len(roles) > 1 else ():
        total = sum(each["t_iter"] for each in times) or math.nan
        shares = {part: sum(each[part] for each in times) / total for part in EXCLUSIVE_PARTS}
        said = " ".join(f"{part[2:]} {_number(100 * share, '.0f')}%" for part, share in shares.items())
        rows.append(("", f"{len(times)} x {role}: {said}"))
    lags = [rank["dist"]["lag_mean"] for rank in ranks if "lag_mean" in rank.get("dist", {})]
    return [*rows, *(("lag", f"{lag:.2f} updates, mean over rollouts") for lag in lags)]


def _scores(scores: Mapping[str, Any]) -> str:
    names = (
        ("return_mean", "mean"),
        ("return_median", "median"),
        ("return_iqm", "IQM"),
        ("return_std", "std"),
        ("success_rate", "success"),
    )
    values = ", ".join(f"{label} {_number(scores[name], '.2f')}" for name, label in names if name in scores)
    return f"{values} over {_number(scores.get('episodes'), '.0f')} episodes"


def _number(value: Any, form: str = "") -> str:
    return "?" if value is None or math.isnan(value) else format(value, form)


def _duration(seconds: float) -> str:
    """Return seconds as 9.3 s, 2:05 or 1:02:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _columns(rows: list[tuple[str, str]]) -> str:
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)
