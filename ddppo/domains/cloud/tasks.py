"""Tasks in the cloud: the score of a step, and their YAML files (docs/cloud_tasks.md).

`score` turns what a grader found (goals.py) into a number. `load` reads a task and checks all of its file before it is
played.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ddppo.domains.cloud.cli import NO_FILES, SERVICES, ApiCall, S3Command, operations, parse
from ddppo.domains.cloud.cli_options import VERBS
from ddppo.domains.cloud.folder import MOST_BYTES, CommandError, Folder, inside
from ddppo.domains.cloud.goals import MISSING, CallGoal, Goal, StateGoal
from ddppo.domains.cloud.meaning import MEANINGS
from ddppo.domains.cloud.world import TIERS, Commands
from ddppo.domains.text.settings import wrong_shots
from ddppo.errors import ConfigError, near

# -- the score of a step -----------------------------------------------------------------------------------------------

# Error codes of services for creating something that exists already.
EXISTS = (
    "BucketAlreadyExists",
    "BucketAlreadyOwnedByYou",
    "EntityAlreadyExists",
    "ParameterAlreadyExists",
    "QueueAlreadyExists",
    "QueueNameExists",
    "ResourceExistsException",
    "ResourceInUseException",
)
MOST_HINTS = 3


@dataclass(frozen=True)
class GradedStep:
    """The result of a step, as the score reads it."""

    progress: float  # share of the goals that hold, 0 to 1
    achieved: bool = False  # all goals hold, and all things to keep are there
    rose: bool = False  # progress is higher than ever before in this episode
    failed: bool = False  # the command failed
    undone: bool = False  # progress fell, or a thing to keep was lost
    retried: bool = (
        False  # the command tried to create something that exists, for the first time in this episode
    )
    survived: bool = False  # a fault struck earlier in this episode
    num_hints: int = 0  # hints taken so far


def score(step: GradedStep) -> float:
    """Return the score after a step (docs/cloud_tasks.md, "Grading, reward, cheating").

    Achieved: 1, or 1.05 if a fault struck. Otherwise, clipped to [0, .99]:
        (.8 progress + .1 [rose]) * (.5 if failed) - .1 [undone] + .02 [retried]
    Both are multiplied by .85 for every hint taken.
    """
    kept = 0.85 ** min(step.num_hints, MOST_HINTS)
    if step.achieved:
        return (1.05 if step.survived else 1.0) * kept
    worth = 0.8 * step.progress + 0.1 * step.rose
    if step.failed:
        worth *= 0.5
    worth += -0.1 * step.undone + 0.02 * step.retried
    return min(max(worth, 0.0), 0.99) * kept


def score_parts(step: GradedStep) -> dict[str, float]:
    """Return the parts of the score by name. They add up to `score`, within rounding."""
    parts = {
        "progress": 0.8 * step.progress,
        "achievement": 0.0,  # from .8 to 1
        "survival": 0.0,  # of a fault
        "rise": 0.0,  # progress is higher than ever
        "failure": 0.0,  # of the command, which halves progress and rise
        "undone": 0.0,
        "retry": 0.0,
    }
    if step.achieved:
        parts |= {"achievement": 1.0 - parts["progress"], "survival": 0.05 * step.survived}
        bound = 0.0
    else:
        parts["rise"] = 0.1 * step.rose
        if step.failed:
            parts["failure"] = -0.5 * (parts["progress"] + parts["rise"])
        parts |= {"undone": -0.1 * step.undone, "retry": 0.02 * step.retried}
        worth = sum(parts.values())
        bound = min(max(worth, 0.0), 0.99) - worth
    # The bounds 0 and .99, and the price of hints, which is a share of all the rest.
    parts["bounds"] = bound
    parts["hints"] = (0.85 ** min(step.num_hints, MOST_HINTS) - 1.0) * sum(parts.values())
    return parts


def gain(after: float, before: float) -> float:
    """Return the reward of a step, the difference of two scores. The rewards of an episode sum to its last score.

    If scores were rewards, leaving a task unfinished would pay: 14 steps at .8 of the goals are worth more than
    finishing it in one.
    """
    return after - before


def is_retry(code: str, *, had_before: bool) -> bool:
    """Return whether a command that failed with `code` counts as an idempotent retry, which counts once an episode."""
    return code in EXISTS and not had_before


# -- a task and its YAML file ------------------------------------------------------------------------------------------

OWN = Path(__file__).parent / "tasks"
KEYS = (
    "prompt",
    "tier",
    "files",
    "setup_files",
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
    "system",
    "shots",
)
NUM_HINTS = 3
MOST_STEPS = 15


@dataclass(frozen=True)
class CloudTask:
    """One task."""

    name: str
    tier: str
    prompt: str
    goals: tuple[Goal, ...]
    hints: Commands  # from vague to plain
    solution: Commands  # for tests and for the tokenizer's grammar: commands that solve it after any drift; never shown
    files: Mapping[str, bytes] = field(default_factory=dict)  # in the policy's folder, by name
    setup_files: Mapping[str, bytes] = field(
        default_factory=dict
    )  # in the folder of setup, drifts and chaos alone
    setup: Commands = ()  # executed before the episode
    keep: tuple[StateGoal, ...] = ()  # that have to hold at the end, too
    drifts: tuple[Commands, ...] = ()  # changes of the setup, some of which are drawn
    num_drifts: int = 0  # how many of them
    chaos: tuple[Commands, ...] = ()  # faults, one of which may strike
    ordered: bool = False  # call goals count in their order only
    reads_only: bool = False  # every change is refused
    max_steps: int = MOST_STEPS
    system: str | None = None  # system message for language models; None: the environment's
    shots: tuple[tuple[str, ...], ...] | None = None  # worked examples: prompt, command, answer, command, ...


def own_tasks() -> dict[str, CloudTask]:
    """Return the tasks that come with ddppo by name, the easiest tier first."""
    return dict(_own_tasks())


@functools.cache
def _own_tasks() -> dict[str, CloudTask]:
    found = [load(path) for path in sorted(OWN.glob("*.yaml"))]
    return {task.name: task for task in sorted(found, key=lambda task: (TIERS.index(task.tier), task.name))}


def chosen_tasks(given: Sequence[str] | None) -> dict[str, CloudTask]:
    """Return the tasks that a list of names, tiers and YAML files selects; None selects all that come with ddppo."""
    # A word is a file, a tier, or the name of a task.
    own = own_tasks()
    if given is None:
        return own
    found: dict[str, CloudTask] = {}
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


def load(path: Path) -> CloudTask:
    """Read one task, named as its file. Raises ConfigError that names the file and the key."""
    try:
        given = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"task {path}: cannot be read: {error}") from error
    return task_of(path.stem, given)


def task_of(name: str, given: Any) -> CloudTask:
    """Return a task from the mapping of its file. Raises ConfigError that names the task and the key."""
    try:
        return _task(name, given)
    except _WrongTask as error:
        raise ConfigError(f"task {name}: {error}") from error


class _WrongTask(ValueError):
    pass


def _task(name: str, given: Any) -> CloudTask:
    # 1. Keys, tier and prompt.
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
    files, setup_files = _files("files", given), _files("setup_files", given)
    of_setup = Folder(setup_files)
    # 2. Drift: `draw` of the lists in `of`.
    drift = given.get("drift") or {"draw": 0, "of": []}
    if not isinstance(drift, Mapping) or set(drift) != {"draw", "of"}:
        raise _WrongTask("drift has the two keys `draw` (how many) and `of` (lists of commands)")
    drifts = _many_commands("drift.of", drift["of"], of_setup)
    if drifts and not 1 <= drift["draw"] <= len(drifts):
        raise _WrongTask(f"drift.draw={drift['draw']!r} is not from 1 to {len(drifts)}, the drifts there are")
    # 3. Everything else. Each command is parsed here, so that a mistake in it is found now.
    task = CloudTask(
        name=name,
        tier=tier,
        prompt=" ".join(prompt.split()),
        goals=tuple(_goal(goal) for goal in _list("goals", given)),
        hints=_texts("hints", given),
        files=files,
        setup_files=setup_files,
        solution=_commands("solution", given, Folder(files)),
        setup=_commands("setup", given, of_setup),
        keep=tuple(_state_goal(goal) for goal in _list("keep", given)),
        drifts=drifts,
        num_drifts=drift["draw"] if drifts else 0,
        chaos=_many_commands("chaos", given.get("chaos") or [], of_setup),
        ordered=_flag("ordered", given),
        reads_only=_flag("reads_only", given),
        max_steps=given.get("max_steps", MOST_STEPS),
        system=given.get("system"),
        shots=_shots(given.get("shots")),
    )
    _check(task)
    return task


def _check(task: CloudTask) -> None:
    """Raise _WrongTask if the parts of a task do not fit together."""
    if not task.goals or not task.solution:
        raise _WrongTask("goals and solution each need at least one entry")
    if len(task.hints) != NUM_HINTS:
        raise _WrongTask(f"hints are {NUM_HINTS}, from vague to plain; here are {len(task.hints)}")
    if not isinstance(task.max_steps, int) or not len(task.solution) <= task.max_steps <= MOST_STEPS:
        raise _WrongTask(
            f"max_steps={task.max_steps!r} is not from {len(task.solution)}, the solution's length, to {MOST_STEPS}"
        )
    if not (task.system is None or isinstance(task.system, str)):
        raise _WrongTask(f"system={task.system!r} is not a text")
    if task.tier != "warm-up" and any(isinstance(goal, CallGoal) for goal in task.goals):
        raise _WrongTask("goals that are calls are for the warm-up tier; the others are graded by the state")
    if task.reads_only and not all(isinstance(goal, CallGoal) for goal in task.goals):
        raise _WrongTask("reads_only forbids every change, so no goal of the state can come to hold")


def _goal(given: Any) -> Goal:
    if not isinstance(given, Mapping) or "call" not in given:
        return _state_goal(given)
    shows = given.get("shows", [])
    if set(given) - {"call", "shows"} or not isinstance(shows, list):
        raise _WrongTask(
            f"{given!r} is not `call: <command>`, and `shows: [...]`, the texts that its answer has"
        )
    command = _call(str(given["call"]))
    return CallGoal(command.service, command.operation, command.params, tuple(map(str, shows)))


def _call(line: str) -> ApiCall:
    """Return the call of a line. A line without options stands for any call of its operation."""
    # A task may name an operation without its required options, which the CLI refuses.
    try:
        found = parse(line)
    except CommandError as error:
        typed = line.split()
        if len(typed) != 3 or "arguments are required: --" not in error.output:
            raise _wrong_command("call", line, error) from error
        return ApiCall(typed[1], typed[2])
    if isinstance(found, S3Command):
        raise _WrongTask(
            f"call: {line!r}: of `aws s3` the calls count that it makes, such as s3api list-buckets"
        )
    return found


def _state_goal(given: Any) -> StateGoal:
    answers = ("equals", "contains", "error", *MEANINGS)
    if (
        not isinstance(given, Mapping)
        or "read" not in given
        or len(given) != 2
        or not set(answers) & set(given)
    ):
        raise _WrongTask(f"{given!r} is not `read: <command>` and one of {', '.join(answers)}")
    command = _parsed("read", str(given["read"]))
    if not isinstance(command, ApiCall) or not command.is_read:
        raise _WrongTask(f"read: {given['read']!r} would change the world: use a reading operation")
    meaning = next((kind for kind in MEANINGS if kind in given), "")
    goal = StateGoal(
        given["read"],
        given.get(meaning or "equals", MISSING),
        given.get("contains", MISSING),
        given.get("error", ""),
        meaning,
    )
    if meaning and None in goal.wanted:
        raise _WrongTask(
            f"{meaning}: {given[meaning]!r} has not the form of one (ddppo/domains/cloud/meaning.py)"
        )
    return goal


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


def _files(key: str, given: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a task: a mapping of names to texts."""
    found = given.get(key) or {}
    texts = isinstance(found, Mapping) and all(isinstance(one, str) for pair in found.items() for one in pair)
    if not texts or any(inside(name) != name or not name for name in found):
        raise _WrongTask(
            f"{key} is a mapping of names of files to their texts, both in quotes if they look like numbers"
        )
    if sum(len(text.encode()) for text in found.values()) > MOST_BYTES:
        raise _WrongTask(f"{key} has more than {MOST_BYTES} bytes, which is as much as a folder holds")
    return {name: text.encode() for name, text in found.items()}


def _commands(key: str, given: Mapping[str, Any], folder: Folder) -> Commands:
    lines = _texts(key, given)
    for line in lines:
        _parsed(key, line, folder)
    return lines


def _parsed(key: str, line: str, folder: Folder = NO_FILES) -> ApiCall | S3Command:
    """Return the command of a line. Raises _WrongTask."""
    try:
        return parse(line, folder)
    except CommandError as error:
        raise _wrong_command(key, line, error) from error


def _wrong_command(key: str, line: str, error: CommandError) -> _WrongTask:
    """Return what is wrong with a line in a sentence, where the AWS CLI prints its usage and all choices."""
    _, service, operation = (*line.split()[:3], "", "", "")[:3]
    services = ("s3", *SERVICES)
    if "Invalid choice" not in error.output:
        why = " ".join(error.output.splitlines()[-1].removeprefix("aws: error: ").split())
    elif service not in services:
        why = f"tasks have no service {service}{near(service, services)}, but {', '.join(services)}"
    else:
        known = operations(service) if service in SERVICES else VERBS
        why = f"tasks have no operation {operation} of {service}{near(operation, list(known))}"
    return _WrongTask(f"{key}: {line}: {why}")


def _many_commands(key: str, given: Any, folder: Folder) -> tuple[Commands, ...]:
    if not isinstance(given, list) or not all(isinstance(lines, list) and lines for lines in given):
        raise _WrongTask(f"{key} is a list of lists of commands")
    return tuple(_commands(key, {key: lines}, folder) for lines in given)


def _shots(given: Any) -> tuple[tuple[str, ...], ...] | None:
    if (wrong := wrong_shots(given)) is not None:
        raise _WrongTask(f"shots: {wrong}")
    return None if given is None else tuple(tuple(shot) for shot in given)


def _flag(key: str, given: Mapping[str, Any]) -> bool:
    found = given.get(key, False)
    if not isinstance(found, bool):
        raise _WrongTask(f"{key} is true or false")
    return found
