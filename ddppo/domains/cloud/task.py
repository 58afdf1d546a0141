"""A task is one YAML file (docs/cloud_tasks.md); what is wrong with it is said before it is played."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddppo.domains.cloud.chaos import TIERS, Commands
from ddppo.domains.cloud.cli import Call, CommandError, Objects, parse
from ddppo.domains.cloud.grading import MISSING, CallGoal, Goal, StateGoal
from ddppo.errors import ConfigError, near

OWN = Path(__file__).parent / "tasks"
KEYS = (
    "prompt",
    "tier",
    "setup",
    "drift",
    "goals",
    "keep",
    "ordered",
    "hints",
    "chaos",
    "reads_only",
    "max_steps",
    "solution",
)
NUM_HINTS = 3
MOST_STEPS = 15


@dataclass(frozen=True)
class Task:
    """One task. `solution` is for tests: commands that solve it whatever has drifted; it is never shown."""

    name: str
    tier: str
    prompt: str
    goals: tuple[Goal, ...]
    hints: Commands
    solution: Commands
    setup: Commands = ()
    keep: tuple[StateGoal, ...] = ()
    drifts: tuple[Commands, ...] = ()
    num_drifts: int = 0
    chaos: tuple[Commands, ...] = ()
    ordered: bool = False
    reads_only: bool = False
    max_steps: int = MOST_STEPS


def own_tasks() -> dict[str, Task]:
    """Return the tasks that come with ddppo, by name, easiest tier first."""
    return dict(_own_tasks())


@functools.cache
def _own_tasks() -> dict[str, Task]:
    found = [load(path) for path in sorted(OWN.glob("*.yaml"))]
    return {task.name: task for task in sorted(found, key=lambda task: (TIERS.index(task.tier), task.name))}


def chosen_tasks(given: Sequence[str] | None) -> dict[str, Task]:
    """Return the tasks of names, tiers and paths of YAML files; all that come with ddppo for None."""
    own = own_tasks()
    if given is None:
        return own
    found: dict[str, Task] = {}
    for word in given:
        of_tier = {name: task for name, task in own.items() if task.tier == word}
        if word.endswith((".yaml", ".yml")):
            task = load(Path(word))
            found[task.name] = task
        elif word in own or of_tier:
            found |= of_tier or {word: own[word]}
        else:
            raise ConfigError(
                f"tasks: {word!r} is no task, tier or .yaml file{near(word, list(own))}: tasks are {', '.join(own)}"
            )
    if not found:
        raise ConfigError("tasks=[] leaves nothing to play: name tasks, tiers or files, or leave it out")
    return found


def load(path: Path) -> Task:
    """Read one task; its name is the file's. Raises ConfigError, naming the file and the key."""
    try:
        given = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"task {path}: cannot be read: {error}") from error
    return task_of(path.stem, given)


def task_of(name: str, given: Any) -> Task:
    """Return a task from the mapping of its file. Raises ConfigError, naming the task and the key."""
    try:
        return _task(name, given)
    except CommandError as error:
        raise ConfigError(f"task {name}: {error.said}") from error
    except _WrongTask as error:
        raise ConfigError(f"task {name}: {error}") from error


class _WrongTask(ValueError):
    pass


def _task(name: str, given: Any) -> Task:
    if not isinstance(given, Mapping):
        raise _WrongTask(f"a task is a mapping of {', '.join(KEYS)}")
    for key in given:
        if key not in KEYS:
            raise _WrongTask(f"unknown key {key!r}{near(str(key), KEYS)}")
    tier, prompt = given.get("tier"), given.get("prompt")
    if tier not in TIERS:
        raise _WrongTask(f"tier={tier!r} is none of {', '.join(TIERS)}")
    if not isinstance(prompt, str) or not prompt.strip():
        raise _WrongTask("prompt says in words what is to be done: give a text")
    drift = given.get("drift") or {"draw": 0, "of": []}
    if not isinstance(drift, Mapping) or set(drift) != {"draw", "of"}:
        raise _WrongTask("drift has the two keys `draw` (how many) and `of` (lists of commands)")
    drifts = _many_commands("drift.of", drift["of"])
    if drifts and not 1 <= drift["draw"] <= len(drifts):
        raise _WrongTask(f"drift.draw={drift['draw']!r} is not from 1 to {len(drifts)}, the drifts there are")
    task = Task(
        name=name,
        tier=tier,
        prompt=" ".join(prompt.split()),
        goals=tuple(_goal(goal) for goal in _list("goals", given)),
        hints=_texts("hints", given),
        solution=_commands("solution", given),
        setup=_commands("setup", given),
        keep=tuple(_state_goal(goal) for goal in _list("keep", given)),
        drifts=drifts,
        num_drifts=drift["draw"] if drifts else 0,
        chaos=_many_commands("chaos", given.get("chaos") or []),
        ordered=_flag("ordered", given),
        reads_only=_flag("reads_only", given),
        max_steps=given.get("max_steps", MOST_STEPS),
    )
    _check(task)
    return task


def _check(task: Task) -> None:
    if not task.goals or not task.solution:
        raise _WrongTask("goals and solution each need at least one entry")
    if len(task.hints) != NUM_HINTS:
        raise _WrongTask(f"hints are {NUM_HINTS}, from vague to plain; here are {len(task.hints)}")
    if not isinstance(task.max_steps, int) or not len(task.solution) <= task.max_steps <= MOST_STEPS:
        raise _WrongTask(
            f"max_steps={task.max_steps!r} is not from {len(task.solution)}, the solution's length, to {MOST_STEPS}"
        )
    if task.tier != "warm-up" and any(isinstance(goal, CallGoal) for goal in task.goals):
        raise _WrongTask("goals that are calls are for the warm-up tier; the others are graded by the state")
    if task.reads_only and not all(isinstance(goal, CallGoal) for goal in task.goals):
        raise _WrongTask("reads_only forbids every change, so no goal of the state can come to hold")


def _goal(given: Any) -> Goal:
    if isinstance(given, Mapping) and set(given) == {"call"}:
        command = _call(str(given["call"]))
        return CallGoal(command.service, command.operation, command.params)
    return _state_goal(given)


def _call(line: str) -> Call:
    """Return the call of a line; one without options stands for any call of its operation."""
    try:
        found = parse(line)
    except CommandError as error:
        typed = line.split()
        if len(typed) != 3 or "arguments are required: --" not in error.said:
            raise
        return Call(typed[1], typed[2])
    if isinstance(found, Objects):
        raise _WrongTask(
            f"call: {line!r}: of `aws s3` the calls count that it makes, such as s3api list-buckets"
        )
    return found


def _state_goal(given: Any) -> StateGoal:
    answers = {"equals", "contains", "error"}
    if not isinstance(given, Mapping) or "read" not in given or len(given) != 2 or not answers & set(given):
        raise _WrongTask(f"{given!r} is not `read: <command>` and one of equals, contains, error")
    command = parse(given["read"])
    if not isinstance(command, Call) or not command.is_read:
        raise _WrongTask(f"read: {given['read']!r} would change the world: use a reading operation")
    return StateGoal(
        given["read"],
        given.get("equals", MISSING),
        given.get("contains", MISSING),
        given.get("error", ""),
    )


def _list(key: str, given: Mapping[str, Any]) -> list[Any]:
    found = given.get(key) or []
    if not isinstance(found, list):
        raise _WrongTask(f"{key} is a list")
    return found


def _texts(key: str, given: Mapping[str, Any]) -> Commands:
    found = _list(key, given)
    if not all(isinstance(text, str) and text.strip() for text in found):
        raise _WrongTask(f"{key} is a list of texts")
    return tuple(" ".join(text.split()) for text in found)


def _commands(key: str, given: Mapping[str, Any]) -> Commands:
    lines = _texts(key, given)
    for line in lines:
        parse(line)
    return lines


def _many_commands(key: str, given: Any) -> tuple[Commands, ...]:
    if not isinstance(given, list) or not all(isinstance(lines, list) and lines for lines in given):
        raise _WrongTask(f"{key} is a list of lists of commands")
    return tuple(_commands(key, {key: lines}) for lines in given)


def _flag(key: str, given: Mapping[str, Any]) -> bool:
    found = given.get(key, False)
    if not isinstance(found, bool):
        raise _WrongTask(f"{key} is true or false")
    return found
