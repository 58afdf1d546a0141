"""A person plays an environment of text on the terminal (`python -m ddppo.play`)."""

import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from ddppo.config.fields import setting
from ddppo.config.settings import EnvConfig
from ddppo.domains.text.rollout_views import said_of, visible
from ddppo.domains.text.rollouts import TurnRecord, numbers
from ddppo.domains.text.turns import Turn, Turns, make_turns
from ddppo.errors import ConfigError, near

HELP = """:state       what the environment says about the episode
:solution    give up, and show a solution
:again       the same task and seed from the beginning
:next        another episode; :next <task> names its task
:tasks       the tasks, by tier
:help        this list
:quit        leave, as Ctrl-D does
Any other line is an action. A line that begins with :: is an action that begins with one colon."""
OVER = "The episode is over. Type :again, :next, :solution, or Ctrl-D to leave."
_HIDDEN = (
    "system",
    "shots",
    "solution",
    "reward_parts",
    "tool_failed",
)  # entries of an info that are no state
_MOST_FAILURES = 1000  # episodes that an environment may lose


@dataclass(slots=True)
class PlayOptions:
    task: str | None = setting(None, "the task to begin with, by its name; null draws one by the seed")
    seed: int | None = setting(None, "of the first episode; null is a random one, which is shown", low=0)
    chaos: float | None = setting(
        None, "probability of a fault, for env=cloud; null is that of the task's tier", low=0.0, high=1.0
    )


def play(options: PlayOptions, env: EnvConfig, timeout_s: float) -> None:
    """Play episodes until the person leaves. Raises ConfigError for a task that is not of text, or unknown."""
    with closing(make_turns(env, range(1), 0, timeout_s, _MOST_FAILURES)) as turns:
        if not turns.spec.is_text:
            raise ConfigError(
                f"env.id={env.id} is no task of text, so a person cannot type its actions: python -m ddppo.enjoy shows "
                "a trained policy in it"
            )
        with suppress(ImportError):
            import readline  # noqa: F401 (input() then edits lines, and recalls earlier ones)

        Player(turns, options).run()


class Player:
    """Episodes of one environment, one after another.

    Args:
        read: returns the next line after a prompt; raises EOFError if there are no more.
        write: prints a text.
    """

    def __init__(
        self, turns: Turns, options: PlayOptions, read: Callable[[str], str] | None = None,
        write: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        self._turns, self._options = turns, options
        self._read, self._write = read or _typed, write
        self._tasks = turns.spec.tasks or {}
        self._seed = secrets.randbelow(2**31) if options.seed is None else options.seed
        self._task = self._known(options.task)
        self._info: Mapping[str, Any] = {}
        self._num_turns, self._return, self._is_over = 0, 0.0, True

    def run(self) -> None:
        self._begin()
        while True:
            try:
                line = self._read(f"{self._num_turns + 1} > " if not self._is_over else "> ")
            except EOFError:
                self._write("")  # behind the prompt
                return
            word, _, rest = line.strip().partition(" ")
            if word == ":quit":
                return
            try:
                if word.startswith(":") and not word.startswith("::"):
                    self._command(word, rest.strip())
                elif self._is_over:
                    self._write(OVER)
                else:
                    self._act(line[1:] if line.startswith("::") else line)
            except ConfigError as e:
                self._write(str(e))

    def _command(self, word: str, rest: str) -> None:
        match word:
            case ":help":
                self._write(HELP)
            case ":state":
                self._write(_lines({**_state(self._info), "turns": self._num_turns, "return": self._return}))
            case ":tasks":
                tiers = dict.fromkeys(self._tasks.values())
                of = {tier: ", ".join(t for t, its in self._tasks.items() if its == tier) for tier in tiers}
                self._write(_lines(of) if of else "the environment names no tasks")
            case ":again":
                self._begin()
            case ":next":
                self._task = self._known(rest or None)
                self._seed += 1
                self._begin()
            case ":solution":
                self._show_solution()
            case _:
                known = [line.split()[0] for line in HELP.splitlines() if line.startswith(":")]
                self._write(f"there is no {word}{near(word, known)}: :help lists all")

    def _known(self, task: str | None) -> str | None:
        if task is not None and self._tasks and task not in self._tasks:
            raise ConfigError(
                f"task={task}: the environment has no such task{near(task, list(self._tasks))}; leave it out, and "
                ":tasks lists all"
            )
        return task

    # -- An episode.

    def _begin(self) -> None:
        turn = self._started({})
        if turn is None:
            return
        task = turn.info.get("task") or self._task
        name = (
            ""
            if task is None
            else f"{task} ({turn.info.get('tier') or self._tasks.get(task) or 'no tier'}), "
        )
        self._write(f"\n{name}seed {self._seed}; :help lists what you can type beside actions\n")
        self._write(visible(str(turn.obs)))
        self._info, self._is_over = turn.info, False

    def _started(self, more: dict[str, Any]) -> Turn | None:
        """Begin the episode of task and seed, with further options; return its first answer."""
        options = more | ({} if self._task is None else {"task": self._task})
        if self._options.chaos is not None:
            options["chaos"] = self._options.chaos
        self._turns.begin(0, self._seed, options)
        self._info, self._is_over = {}, True
        self._num_turns, self._return = 0, 0.0
        return self._answer()

    def _act(self, line: str) -> None:
        self._turns.act(0, line)
        turn = self._answer()
        if turn is None:
            return
        # 1. The answer, the reward and its parts, and what has changed in the state.
        self._num_turns += 1
        self._return += turn.reward
        record = TurnRecord(
            None, line, str(turn.obs), turn.reward, None,
            turn.info.get("tool_failed"), numbers(turn.info.get("reward_parts")),
        )  # fmt: skip
        before, self._info = _state(self._info), turn.info
        changed = {key: x for key, x in _state(turn.info).items() if before.get(key) != x}
        if turn.obs:
            self._write(visible(str(turn.obs)))
        said = "; ".join([said_of(record), *(f"{key} {_shown(x)}" for key, x in changed.items())])
        self._write(visible(f"[{said}]"))
        # 2. The end.
        if turn.is_over:
            self._is_over = True
            is_success = turn.info.get("is_success")
            achieved = "" if is_success is None else ", achieved" if is_success else ", not achieved"
            turns = f"{self._num_turns} turn{'s' * (self._num_turns != 1)}"
            self._write(f"\nReturn {_shown(self._return)} in {turns}{achieved}. {OVER}")

    def _show_solution(self) -> None:
        """Begin the episode again, with the solution in its info, and leave it there."""
        turn = self._started({"solution": True})
        solution = None if turn is None else turn.info.get("solution")
        self._write(visible(str(solution)) if solution else "the environment tells no solution")
        self._write(OVER)

    def _answer(self) -> Turn | None:
        """Return the answer to the last call; None if the environment failed, which a warning has explained."""
        (turn,) = self._turns.ready(None)
        if not turn.failed:
            return turn
        self._is_over = True
        self._write(f"The environment failed. {OVER}")
        return None


def _typed(prompt: str) -> str:
    line = input(prompt)
    if not sys.stdin.isatty():  # a terminal shows what is typed, a pipe does not
        print(line)
    return line


def _state(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: x for key, x in info.items() if key not in _HIDDEN}


def _lines(values: Mapping[str, Any]) -> str:
    wide = max(map(len, values))
    return visible("\n".join(f"{key:<{wide}}  {_shown(x)}" for key, x in values.items()))


def _shown(x: Any) -> str:
    if isinstance(x, bool):
        return str(x).lower()
    return f"{x:.4g}" if isinstance(x, float) else str(x)
