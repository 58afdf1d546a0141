"""What can be said to the cloud by filling in: the command lines of solutions with their names left blank.

A prompt writes in `backticks` what its task calls things: names, numbers, texts. These are its names. A form is a line
of a solution with a blank for each of them, the same one wherever a name occurs:

    aws iam tag-user --user-name _0 --tags Key=_1,Value=_2
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

MOST_NAMES = 8  # of a prompt; further ones are taken for words
MISSING = "x"  # fills blanks that a prompt has no names for
QUOTED = re.compile(r"`([^`\n]+)`")
_OPERATION = re.compile(r"aws \S+ \S+")


@dataclass(frozen=True)
class Form:
    """A command line; its parts are texts, and the numbers of blanks, which are counted in the order of the line."""

    parts: tuple[str | int, ...]

    @property
    def operation(self) -> str:
        """`aws s3 mb` of `aws s3 mb s3://_0`."""
        found = _OPERATION.match(str(self.parts[0]))
        assert found is not None, self.parts
        return found.group()

    @property
    def num_blanks(self) -> int:
        return len({part for part in self.parts if isinstance(part, int)})

    def filled(self, names: Sequence[str]) -> str:
        return "".join(part if isinstance(part, str) else names[part] for part in self.parts)


def names_of(prompt: str) -> tuple[str, ...]:
    """Return what a prompt quotes, each once, in its order."""
    return tuple(dict.fromkeys(QUOTED.findall(prompt)))[:MOST_NAMES]


def form_of(line: str, names: Sequence[str]) -> tuple[Form, tuple[str, ...]]:
    """Return a line's form and the names that fill it.

    A name is one where it stands by itself: `id` is none in `user-id`, nor in `--id`.
    """
    if not names:
        return Form((line,)), ()
    longest_first = sorted(names, key=len, reverse=True)
    anywhere = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, longest_first))})(?![\w-])")
    pieces = anywhere.split(line)  # texts at even places, names between them
    filling = tuple(dict.fromkeys(pieces[1::2]))
    parts = [filling.index(piece) if at % 2 else piece for at, piece in enumerate(pieces)]
    return Form(tuple(part for part in parts if part != "")), filling
