"""The search of `optimise`: walks in several processes, in rounds until time or steps are used up.

`Workers` are the processes, `BestSoFar` is the best circuit of all of them, `search` lets them walk.
"""

import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from ddppo.domains.circuits.env_walk import Walk
from ddppo.domains.circuits.quantum import Circuit
from ddppo.domains.circuits.quantum.costs import Cost, measures
from ddppo.domains.circuits.quantum.rewriting import Rewriter
from ddppo.domains.circuits.task.lineage import replayed
from ddppo.domains.circuits.walk import FastWalk, WalkProgress, rewrites_of
from ddppo.errors import ConfigError, TrainingError
from ddppo.processes.signals import StopRequest, die_with_parent, stop_signals_kill
from ddppo.terminal import warn

# -- Processes that walk in rounds. With a given number of steps, the result depends on the seed alone. --------------


_ANSWER_S = 600.0  # timeout of a round, which takes about a second
# Forked processes inherit the rules, which are read and verified once. Safe on macOS too: no threads run yet.
_FORK = multiprocessing.get_context("fork")


class Workers:
    """One process for each function in `makes`; the function makes the walk there. Use it in a `with`, or close it."""

    def __init__(self, makes: Sequence[Callable[[], Walk | FastWalk]]) -> None:
        self._alive: dict[int, tuple[Any, Connection]] = {}
        self._messages: list[bytes] = []  # of all walks in the last round
        self._are_made = False
        for number, make in enumerate(makes):
            pipe, child_end = _FORK.Pipe()
            process = _FORK.Process(target=_work, args=(make, child_end, pipe, os.getpid()), daemon=True)
            process.start()
            child_end.close()
            self._alive[number] = (process, pipe)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until all processes have made their walks, which takes seconds where torch is loaded. Raises as `go`."""
        if not self._are_made:
            self._are_made = True
            self._answers()

    def go(self, num_steps: int, until: float) -> dict[int, WalkProgress]:
        """Run a round of `num_steps` steps in every process; return the progress of each by its number.

        A process that was killed is reported and left out from then on. Raises ConfigError and TrainingError as a walk
        does, and TrainingError if all processes are lost.
        """
        self.wait()
        # Start the round everywhere, with the messages of the last one.
        for _, pipe in self._alive.values():
            with suppress(OSError):  # a lost process is found below
                pipe.send((self._messages, num_steps, until))
        found = self._answers()
        self._messages = [each for progress in found.values() for each in progress.messages]
        return found

    def _answers(self) -> dict[int, Any]:
        """Return one answer of each process, in their order, so that ties are broken the same way each time."""
        found: dict[int, Any] = {}
        for number, (process, pipe) in list(self._alive.items()):
            try:
                if not pipe.poll(_ANSWER_S):
                    raise TrainingError(
                        f"worker {number} has given no answer for {_ANSWER_S:.0f} s: its cost may hang"
                    )
                answer = pipe.recv()
            except (EOFError, OSError):
                del self._alive[number]
                process.join()
                pipe.close()
                warn(f"worker {number} ended (exit code {process.exitcode}): continuing without it")
                continue
            if isinstance(answer, Exception):
                raise answer
            found[number] = answer
        if not found:
            raise TrainingError("every worker was lost: give fewer of them, workers=1, if memory was short")
        return found

    def close(self) -> None:
        """Kill all processes, even in the middle of a round: they hold nothing that was not sent."""
        for process, pipe in self._alive.values():
            process.kill()
            process.join()
            pipe.close()


def _work(make: Callable[[], Walk | FastWalk], pipe: Connection, parent_end: Connection, parent: int) -> None:
    """Walk in rounds until the parent closes its end of the pipe.

    Ctrl-C reaches all processes of a terminal; only the parent reacts to it.
    """
    # This process must end with its parent, however that ends.
    die_with_parent(parent)
    stop_signals_kill()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent_end.close()
    with suppress(EOFError, BrokenPipeError):
        try:
            walk = make()
            pipe.send(None)  # an answer to `wait`
            while True:
                pipe.send(walk.go(*pipe.recv()))
        except (ConfigError, TrainingError) as e:
            # Some subclasses take several arguments, and cannot be unpickled.
            pipe.send((ConfigError if isinstance(e, ConfigError) else TrainingError)(str(e)))


_ROUND_STEPS = 5000  # of each walk in a round, a fraction of a second in C++; then walks exchange circuits
_REPORT_S = 5.0  # seconds between two lines on the terminal


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a search; inf is no limit."""

    seconds: float
    steps: float  # of every walk


@dataclass(slots=True)
class BestSoFar:
    """The best circuit so far."""

    start: Circuit
    circuit: Circuit
    cost: float
    rewrites: tuple[tuple[int, int], ...] = ()  # from `start` to `circuit`
    places: NDArray[np.int32] | None = None  # the same as a walk in C++ has them, until `settle`
    # For each best: its cost, gates, cx, depth and rewrites, the steps of all walks, and the seconds until then, of the
    # clock and of CPU time.
    improvements: list[dict[str, float]] = field(default_factory=list)

    def update(
        self, found: Mapping[int, WalkProgress], rewriter: Rewriter, cost: Cost, seconds: float
    ) -> None:
        """Take the cheapest circuit of all walks, from the first of them if several are equal. Raises ConfigError."""
        for progress in found.values():
            is_new = progress.rewrites is not None or progress.circuit is not None
            if not is_new or progress.cost >= self.cost:
                continue
            # Compute the cost again, and repeat the rewrites, here or at the end (`settle`): a worker's result is not
            # taken on trust.
            if progress.circuit is not None:
                self.circuit, self.places = progress.circuit, progress.places
            else:
                assert progress.rewrites is not None
                self.circuit = replayed(rewriter, self.start, progress.rewrites)
                self.rewrites, self.places = progress.rewrites, None
            self.cost = float(cost(self.circuit))
            if not math.isclose(self.cost, progress.cost, abs_tol=1e-9):
                raise ConfigError(
                    f"the cost of one circuit was {progress.cost:g} in a worker and {self.cost:g} here: it has to "
                    "follow from the circuit alone"
                )
            steps = sum(each.num_steps for each in found.values())
            cpu_s = round(sum(each.cpu_s for each in found.values()), 3)
            numbers = {"cost": self.cost, **measures(self.circuit), "num_rewrites": self.num_rewrites}
            self.improvements.append(
                {**numbers, "env_steps": steps, "wall_s": round(seconds, 3), "cpu_s": cpu_s}
            )

    @property
    def num_rewrites(self) -> int:
        return len(self.rewrites if self.places is None else self.places)

    def settle(self, rewriter: Rewriter) -> None:
        """Repeat the rewrites of the best circuit. Raises TrainingError if they do not lead there."""
        if self.places is None:
            return
        again, self.rewrites = rewrites_of(rewriter, self.start, self.places)
        if again != self.circuit:
            raise TrainingError(
                f"{len(self.rewrites)} rewrites lead to a circuit of {len(again)} gates, not to the one of "
                f"{len(self.circuit)} that was found: the rewriting is wrong, and nothing was written"
            )
        self.circuit, self.places = again, None


def search(
    workers: Workers, best: BestSoFar, rewriter: Rewriter, cost: Cost, budget: Budget, stop: StopRequest
) -> int:
    """Walk in rounds until the budget is used up or a signal stops the search; return the number of rewrites tried."""
    # Each round has at most _ROUND_STEPS steps; the last one has the steps that are left.
    workers.wait()
    began = time.monotonic()
    until, left = began + budget.seconds, budget.steps
    found: dict[int, WalkProgress] = {}  # the last progress of each worker, lost ones included
    with SearchDisplay(budget) as display:
        while left > 0 and time.monotonic() < until and not stop.requested:
            try:
                found |= workers.go(int(min(_ROUND_STEPS, left)), until)
            except TrainingError as e:
                if not best.num_rewrites:
                    raise
                warn(f"{e}; the search ends with what was found")
                break
            # Take the best circuit, and show how far the search is.
            left -= _ROUND_STEPS
            seconds = time.monotonic() - began
            best.update(found, rewriter, cost, seconds)
            num_rewrites = sum(progress.num_rewrites for progress in found.values())
            display.show(best, num_rewrites, seconds, budget.steps - left)
    best.settle(rewriter)
    return sum(progress.num_rewrites for progress in found.values())


class SearchDisplay:
    """Shows how far a search is, on standard error: a bar on a terminal, elsewhere a line every few seconds."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._reported = 0.0  # seconds at the last line
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            columns = (BarColumn(30), TaskProgressColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> "SearchDisplay":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, best: BestSoFar, num_rewrites: int, seconds: float, num_steps: float) -> None:
        """Show the state after a round. num_steps: of each walk so far."""
        # 1. In words.
        counts = ", ".join(f"{what} {number}" for what, number in measures(best.circuit).items())
        is_timed = math.isfinite(self._budget.seconds)
        ends = f", {max(0.0, self._budget.seconds - seconds):.0f} s left" if is_timed else ""
        line = (
            f"{seconds:5.0f} s: best cost {best.cost:g} ({counts}), {num_rewrites:,} rewrites tried, "
            f"{num_rewrites / max(seconds, 1e-9):,.0f}/s{ends}"
        )
        # 2. On the bar, or as a line from time to time.
        if self._bar is not None:
            done = seconds / self._budget.seconds if is_timed else num_steps / self._budget.steps
            self._bar.update(self._task, completed=min(done, 1.0), description=line.strip())
        elif seconds - self._reported >= _REPORT_S:
            self._reported = seconds
            print(line, file=sys.stderr, flush=True)
