"""Right spellings and near misses of each task: `right_ways` and `near_misses` are lists of command lines to type.

Some follow from the task's solution by rules; the others are data in graded/, one file a service. There, `solution` is
all lines of the solution, `step 2` its second line, and $Q, $SQS, $SNS, $P and $TRUST are parts of long names.
"""

import functools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import yaml

from ddppo.domains.cloud.cli import SERVICES, S3Command, parse
from ddppo.domains.cloud.cli_parameters import members
from ddppo.domains.cloud.folder import Folder
from ddppo.domains.cloud.goals import CallGoal
from ddppo.domains.cloud.tasks import CloudTask
from ddppo.domains.cloud.tokenizer import form_of, names_of

FOLDER = Path(__file__).parent / "graded"
LAMBDA = {"Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
LONG = {
    "$Q": "https://sqs.us-east-1.amazonaws.com/123456789012",
    "$SQS": "arn:aws:sqs:us-east-1:123456789012",
    "$SNS": "arn:aws:sns:us-east-1:123456789012",
    "$P": "arn:aws:iam::123456789012:policy",
    "$TRUST": json.dumps({"Version": "2012-10-17", "Statement": {"Effect": "Allow", **LAMBDA}}),
}


@functools.cache
def written() -> dict[str, dict[str, list[list[str]]]]:
    """The cases in graded/ by task: {"right": ..., "wrong": ...}."""
    found: dict[str, dict[str, list[list[str]]]] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        found |= yaml.safe_load(path.read_text())
    return found


def files_of(task: CloudTask) -> dict[str, bytes]:
    """Return the files of a task, and one for each `--body TEXT` of its cases, with that text."""
    lines = [line for case in written().get(task.name, {}).values() for lines in case for line in lines]
    bodies = [words[words.index("--body") + 1] for words in map(shlex.split, lines) if "--body" in words]
    return {body: body.encode() for body in bodies} | dict(task.files)


def right_ways(task: CloudTask) -> dict[str, list[str]]:
    """Return lines that solve a task, by a description of their spelling."""
    by_rule = {
        "options in reverse, as JSON": [_as_json(line, task.files) for line in task.solution],
        "each line twice": [line for line in task.solution for _ in range(2)],
    }
    if not task.reads_only:
        by_rule["something new beside it"] = ["aws s3 mb s3://beside-it", *task.solution]
    return by_rule | _written(task, "right")


def near_misses(task: CloudTask) -> dict[str, list[str]]:
    """Return lines that nearly solve a task, by a description of what is wrong."""
    found: dict[str, list[str]] = {}
    if len(task.solution) > 1:
        for left_out, line in enumerate(task.solution):
            lines = [other for at, other in enumerate(task.solution) if at != left_out]
            found[f"without {' '.join(line.split()[1:3])} ({left_out + 1})"] = lines
    # Each name of the prompt with a letter more, or a number with a digit more.
    names = names_of(task.prompt)
    used = {name for line in task.solution for name in form_of(line, names)[1]}
    for name in sorted(used):
        found[f"{name} misspelt"] = [_misspelt(line, name) for line in task.solution]
    # Calls whose answer shows nothing of what was asked for.
    if all(isinstance(goal, CallGoal) for goal in task.goals):
        for query in ("nothing", "length(@)", "type(@)", "keys(@)"):
            last = task.solution[-1]
            if not isinstance(parse(last), S3Command):
                found[f"--query {query}"] = [*task.solution[:-1], f"{last} --query {query}"]
    return found | _written(task, "wrong")


def _written(task: CloudTask, kind: str) -> dict[str, list[str]]:
    cases = written().get(task.name, {}).get(kind, [])
    return {f"{kind} {at}: {lines[-1][:60]}": _lines(task, lines) for at, lines in enumerate(cases, 1)}


def _lines(task: CloudTask, lines: list[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        if line == "solution":
            found += task.solution
        elif line.startswith("step "):
            found.append(task.solution[int(line.removeprefix("step ")) - 1])
        else:
            for short, long in LONG.items():
                line = line.replace(short, long)
            found.append(line)
    return found


def _as_json(line: str, files: Mapping[str, bytes]) -> str:
    """Spell a line otherwise: its options in reverse, structures as JSON, and = before scalars."""
    command = parse(line, Folder(files))
    if isinstance(command, S3Command):
        bucket = command.places[0].removeprefix("s3://")
        verbs = {"mb": "create-bucket", "rb": "delete-bucket", "ls": "list-objects-v2"}
        if command.verb in verbs:
            return f"aws s3api {verbs[command.verb]} --bucket={bucket}"
        source, (to, _, key) = bucket, command.places[1].removeprefix("s3://").partition("/")
        return f"aws s3api copy-object --key={key} --copy-source={source} --bucket={to}"
    options = {
        name: option for option, (name, _) in members(SERVICES[command.service], command.operation).items()
    }
    typed = []
    for name, value in command.params.items():
        if isinstance(value, bool):
            typed.append(options[name] if value else options[name].replace("--", "--no-", 1))
        elif isinstance(value, dict | list):
            typed.append(f"{options[name]} {shlex.quote(json.dumps(value))}")
        else:
            text = (
                next(name for name in files if files[name] == value)
                if isinstance(value, bytes)
                else str(value)
            )
            typed.append(f"{options[name]}={shlex.quote(text)}")
    outfile = [command.view.outfile] if command.view.outfile else []
    return " ".join(["aws", command.service, command.operation, *outfile, *reversed(typed)])


def _misspelt(line: str, name: str) -> str:
    other = f"{name}0" if name.isdigit() else f"{name}x"
    return "".join(part if isinstance(part, str) else other for part in form_of(line, (name,))[0].parts)
