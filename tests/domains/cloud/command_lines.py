"""Command lines for a comparison with the AWS CLI itself (true_cli.py): `accepted` and `mutated`.

`accepted` are lines that the AWS CLI accepts: odd ones written by hand (lines/odd.txt), and each of lines/plain.txt as
it stands and in another spelling, by a fixed seed. They are typed in the state and among the files of true_cli.py.
"""

import random
import shlex
from pathlib import Path

SERVICES = ("s3api", "dynamodb", "sqs", "sns", "iam", "ssm", "secretsmanager")
HERE = Path(__file__).parent / "lines"
PLAIN = (HERE / "plain.txt").read_text().splitlines()  # one line or more for each operation, without `aws`
ODD = (HERE / "odd.txt").read_text().splitlines()
# Lines that the AWS CLI accepts and ours refuses, by the reason.
EXCLUDED = [line.split(": ", 1) for line in (HERE / "excluded.txt").read_text().splitlines()]
WRONG = (HERE / "wrong.txt").read_text().splitlines()  # lines that both refuse
GLOBAL = ("--region us-east-1", "--output json", "--no-paginate", "--color off", "--debug")
QUERIES = ("@", "keys(@)", "*", "*[0]", "[*]")


def accepted() -> list[str]:
    """Return all lines, each once."""
    lines = list(ODD)
    for at, line in enumerate(PLAIN):
        draw = random.Random(at)
        lines.append(f"aws {line}")
        lines.append(draw.choice(SPELLINGS)(line, draw))
    return list(dict.fromkeys(lines))


def _with_output(line: str, draw: random.Random) -> str:
    return f"aws {line} --output {draw.choice(('text', 'table'))}"


def _with_query(line: str, draw: random.Random) -> str:
    output = draw.choice(("", " --output text", " --output table"))
    return f"aws {line} --query '{draw.choice(QUERIES)}'{output}"


def _global_first(line: str, draw: random.Random) -> str:
    return f"aws {draw.choice(GLOBAL)} {line}"


def _global_between(line: str, draw: random.Random) -> str:
    service, _, rest = line.partition(" ")
    return f"aws {service} {draw.choice(GLOBAL)} {rest}"


def _shuffled(line: str, draw: random.Random) -> str:
    """Put each option, with its words, elsewhere; those of one word with =."""
    words = shlex.split(line)
    first = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    groups: list[list[str]] = []
    for word in words[first:]:
        if word.startswith("--"):
            groups.append([word])
        else:
            groups[-1].append(word)
    is_s3 = words[0] == "s3" or words[1] == "get-object"
    if not is_s3:
        draw.shuffle(groups)
    typed = [
        f"{group[0]}={shlex.quote(group[1])}" if len(group) == 2 else shlex.join(group) for group in groups
    ]
    if words[1] == "get-object":
        typed = [shlex.join(group) for group in groups]
    return " ".join(["aws", *map(shlex.quote, words[:first]), *typed])


SPELLINGS = (_with_output, _with_query, _global_first, _global_between, _shuffled)


JUNK = ("[", "]", "{", "}", "=", ",", "@", '"', "'", "-", "--", " ", "x", "0", ".", "\\", ":")
STRAY = (
    "stray",
    "--colour",
    "--output yaml",
    "--no-cli-pager",
    "--max-items x",
    "--query a[",
    "--recursive",
    "--dry-run",
)


def mutated(number: int, seed: int) -> list[str]:
    """Return lines with one or two mistakes: a word left out, repeated, swapped or added, an option or value cut."""
    draw = random.Random(seed)
    whole = [line for line in accepted() if ";" not in line and "#" not in line]
    found: list[str] = []
    while len(found) < number:
        words = shlex.split(draw.choice(whole))
        for _ in range(draw.choice((1, 1, 2))):
            _break(words, draw)
        if {"s3", *SERVICES} & set(words) and not any("/" in word and ".." in word for word in words):
            found.append(" ".join(["aws", *map(shlex.quote, words[1:])]))
    return found


def _break(words: list[str], draw: random.Random) -> None:
    at = draw.randrange(1, len(words))
    match draw.randrange(7):
        case 0 if len(words) > 2:
            del words[at]
        case 1:
            words.insert(at, words[at])
        case 2 if len(words) > 2:
            other = draw.randrange(1, len(words))
            words[at], words[other] = words[other], words[at]
        case 3:
            words[at:at] = draw.choice(STRAY).split()
        case 4:
            words[at] = words[at][: draw.randrange(len(words[at]) + 1)]
        case _:
            place = draw.randrange(len(words[at]) + 1)
            words[at] = words[at][:place] + draw.choice(JUNK) + words[at][place + draw.randrange(2) :]
