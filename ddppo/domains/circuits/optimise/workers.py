"""Processes that walk side by side, in rounds: what they find after so many steps follows from the seed."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from ddppo.domains.circuits.optimise.walk import Progress, Walk
from ddppo.errors import ConfigError, TrainingError
from ddppo.processes.signals import die_with_parent, stop_signals_kill
from ddppo.terminal import warn

_ANSWER_S = 600.0  # of a round of a second or so
# The rules, read and verified, are there already. On macOS too: no library has started threads by then.
_FORK = multiprocessing.get_context("fork")


class Workers:
    """One process for each of `makes`, which make its walk there. Close it, or use it in a `with`."""

    def __init__(self, makes: Sequence[Callable[[], Walk]]) -> None:
        self._alive: dict[int, tuple[Any, Connection]] = {}
        self._news: list[bytes] = []  # of the last round
        for number, make in enumerate(makes):
            line, theirs = _FORK.Pipe()
            process = _FORK.Process(target=_work, args=(make, theirs, line, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            self._alive[number] = (process, line)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def go(self, num_steps: int, until: float) -> dict[int, Progress]:
        """Have every process take so many steps, or what there is time for, and return what each says, by its number.

        One that was killed is told of and left out from then on. Raises ConfigError and TrainingError as a walk does,
        and TrainingError where all were lost.
        """
        for _, line in self._alive.values():
            with suppress(OSError):  # it is lost, and will not answer
                line.send((self._news, num_steps, until))
        told: dict[int, Progress] = {}
        for number, (process, line) in list(self._alive.items()):
            try:
                if not line.poll(_ANSWER_S):
                    raise TrainingError(
                        f"worker {number} has given no answer for {_ANSWER_S:.0f} s: its cost may hang"
                    )
                answer = line.recv()
            except (EOFError, OSError):
                del self._alive[number]
                process.join()
                line.close()
                warn(f"worker {number} ended (exit code {process.exitcode}): going on without it")
                continue
            if isinstance(answer, Exception):
                raise answer
            told[number] = answer
        if not told:
            raise TrainingError("every worker was lost: give fewer of them, workers=1, if memory was short")
        self._news = [each for progress in told.values() for each in progress.news]
        return told

    def close(self) -> None:
        """End all, in the middle of a round too: they hold nothing that is not told."""
        for process, line in self._alive.values():
            process.kill()
            process.join()
            line.close()


def _work(make: Callable[[], Walk], line: Connection, of_parent: Connection, parent: int) -> None:
    """Walk as far as the parent says, until it hangs up. Ctrl-C reaches all of a terminal: the parent decides."""
    die_with_parent(parent)
    stop_signals_kill()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    of_parent.close()
    with suppress(EOFError, BrokenPipeError):
        asked = line.recv()
        try:
            walk = make()
            while True:
                line.send(walk.go(*asked))
                asked = line.recv()
        except (ConfigError, TrainingError) as e:  # not as they are: some take more than one argument
            line.send((ConfigError if isinstance(e, ConfigError) else TrainingError)(str(e)))
