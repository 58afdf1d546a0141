"""Tokens of the cloud's dialogue for a small policy that is trained from scratch in minutes (docs/cloud_tasks.md).

A prompt writes names, numbers and texts of its task in `backticks`. These are its names. A form is a line of a solution
with a blank for each name; equal names have the same blank:

    aws iam tag-user --user-name _0 --tags Key=_1,Value=_2

The policy types a turn as
1. an operation, or `hint`;
2. the form, if the operation has several forms;
3. for each blank, one of the names in the prompt that the line has not used yet.
A choice with a single option takes no token, and no token ends a turn: a line ends when its blanks are filled.

At the start of a turn the operations of all tasks are allowed, for every prompt. So every line of every solution
can be typed, and the grammar does not reveal which line belongs to which task.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddppo.domains.cloud.env import HINT
from ddppo.domains.cloud.tasks import chosen_tasks
from ddppo.errors import ConfigError

MOST_NAMES = 8  # of a prompt; further ones are treated as words
MISSING = "x"  # fills a blank for which the prompt has no name
QUOTED = re.compile(r"`([^`\n]+)`")
_OPERATION = re.compile(r"aws \S+ \S+")
MOST_ANSWERED = 16  # words of an output that the policy reads; of the prompt it reads obs_tokens
NUM_OTHER = 128  # tokens that words outside all prompts share, by their hash
_WORD = re.compile(r"[\w./:-]*\w")
_FAILED = re.compile(r"\nexit status \d+$")
_CODE = re.compile(r"An error occurred \(([\w.]+)\)")


@dataclass(frozen=True)
class Form:
    """A command line with blanks. Its parts are texts and numbers of blanks, counted in the order of the line."""

    parts: tuple[str | int, ...]

    @property
    def operation(self) -> str:
        """The first three words: `aws s3 mb` of `aws s3 mb s3://_0`."""
        found = _OPERATION.match(str(self.parts[0]))
        assert found is not None, self.parts
        return found.group()

    @property
    def num_blanks(self) -> int:
        return len({part for part in self.parts if isinstance(part, int)})

    def filled(self, names: Sequence[str]) -> str:
        return "".join(part if isinstance(part, str) else names[part] for part in self.parts)


def names_of(prompt: str) -> tuple[str, ...]:
    """Return the names in a prompt, each once, in their order."""
    return tuple(dict.fromkeys(QUOTED.findall(prompt)))[:MOST_NAMES]


def form_of(line: str, names: Sequence[str]) -> tuple[Form, tuple[str, ...]]:
    """Return the form of a line and the names that fill it.

    A name counts only as a whole word: `id` does not occur in `user-id` or in `--id`.
    """
    if not names:
        return Form((line,)), ()
    # Longer names first, so that a name which contains another one is found as a whole.
    longest_first = sorted(names, key=len, reverse=True)
    anywhere = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, longest_first))})(?![\w-])")
    pieces = anywhere.split(line)  # texts at even places, names between them
    filling = tuple(dict.fromkeys(pieces[1::2]))
    parts = [filling.index(piece) if at % 2 else piece for at, piece in enumerate(pieces)]
    return Form(tuple(part for part in parts if part != "")), filling


class CloudTokens:
    """The vocabulary for some tasks (names, tiers, files; by default all that come with ddppo).

    Tokens, in this order:
    - pad; end, which is never typed;
    - asked, done, failed: the mark before a turn, behind the prompt or behind an output, by the success of the line;
    - names of a prompt, by their places in it;
    - words of prompts;
    - all other words, by their hash;
    - hint; operations; forms of operations that have several.
    """

    def __init__(self, turn_tokens: int, obs_tokens: int, tasks: Sequence[str] | None = None) -> None:
        # 1. The forms of all lines of all solutions, by operation.
        played = chosen_tasks(tasks).values()
        lines = [(line, names_of(task.prompt)) for task in played for line in task.solution]
        found = sorted({form_of(line, names)[0] for line, names in lines}, key=lambda form: str(form.parts))
        self.forms: dict[str, list[Form]] = {}
        for form in found:
            self.forms.setdefault(form.operation, []).append(form)
        longest = max(
            1 + (len(forms) > 1) + form.num_blanks for forms in self.forms.values() for form in forms
        )
        if turn_tokens < longest:
            raise ConfigError(
                f"model.turn_tokens={turn_tokens}: a line in the cloud takes up to {longest} tokens"
            )
        # 2. Numbers of tokens, in the order of the class's docstring.
        self.obs_tokens = obs_tokens
        several = [form for forms in self.forms.values() if len(forms) > 1 for form in forms]
        words = sorted({word for task in played for word in _words(task.prompt)})
        self.pad, self.end, self.asked, self.done, self.failed = range(5)
        self.names = range(5, 5 + MOST_NAMES)
        self.words = {word: self.names.stop + at for at, word in enumerate(words)}
        self._others = self.names.stop + len(words)
        self.hint = self._others + NUM_OTHER
        self.operations = {operation: self.hint + 1 + at for at, operation in enumerate(self.forms)}
        self.form_tokens = {form: self.hint + 1 + len(self.forms) + at for at, form in enumerate(several)}
        self.size = self.hint + 1 + len(self.forms) + len(several)
        # 3. The inverse tables, and masks of allowed tokens, each made once.
        self.operation_at = {token: operation for operation, token in self.operations.items()}
        self.form_at = {token: form for form, token in self.form_tokens.items()}
        self._masks: dict[frozenset[int], np.ndarray] = {}
        self.openings = self.mask(frozenset({self.hint, *self.operation_at}))

    def begin(self, prompt: str) -> "CloudDialogue":
        return CloudDialogue(self, prompt)

    def mask(self, tokens: frozenset[int]) -> np.ndarray:
        """Return the mask [V] of these tokens, always the same read-only array."""
        mask = self._masks.get(tokens)
        if mask is None:
            mask = self._masks[tokens] = np.zeros(self.size, bool)
            mask[list(tokens)] = True
            mask.flags.writeable = False
        return mask

    def word(self, word: str) -> int:
        known = self.words.get(word)
        return self._others + zlib.crc32(word.encode()) % NUM_OTHER if known is None else known


class CloudDialogue:
    """One episode: the prompt, then lines of the policy and outputs of the environment in turn."""

    def __init__(self, tokens: CloudTokens, prompt: str) -> None:
        self._tokens = tokens
        asked = prompt.partition("\n")[0]  # the second line is the same for all tasks
        self._names = names_of(asked)
        self._places = {name.lower(): tokens.names[at] for at, name in enumerate(self._names)}
        self.prompt_tokens = [*self._asked(asked)[: tokens.obs_tokens - 1], tokens.asked]
        self._line: str | None = None  # of the current turn, when it is complete
        self._choices: frozenset[int] = frozenset()  # tokens allowed next; empty: the first token of a turn
        self._filling: list[str] = []  # names in the blanks so far

    def allowed(self) -> np.ndarray:
        return self._tokens.mask(self._choices) if self._choices else self._tokens.openings

    def push(self, token: int) -> None:
        assert not self.is_over, "the line is filled"
        assert self.allowed()[token], f"token {token} is not allowed here"
        # The kind of token follows from its number: hint, operation, form, or the place of a name.
        tokens = self._tokens
        if token == tokens.hint:
            self._line = HINT
        elif token in tokens.operation_at:
            forms = tokens.forms[tokens.operation_at[token]]
            if len(forms) > 1:
                self._choices = frozenset(tokens.form_tokens[form] for form in forms)
            else:
                self._fill(forms[0])
        elif token in tokens.form_at:
            self._fill(tokens.form_at[token])
        else:
            self._filling.append(self._names[token - tokens.names.start])
            self._fill(self._form)

    @property
    def is_over(self) -> bool:
        return self._line is not None

    def action(self) -> str:
        """Return the complete line, and start the next turn."""
        assert self._line is not None, "the line is not filled yet"
        line = self._line
        self._line, self._choices, self._filling = None, frozenset(), []
        return line

    def observe(self, text: str) -> list[int]:
        # Of an error, the policy reads its code; of other outputs, the first words.
        tokens = self._tokens
        code = _CODE.search(text)
        words = [code[1].lower()] if code else _words(text)[:MOST_ANSWERED]
        found = [self._places.get(word) or tokens.word(word) for word in words]
        return [*found[: tokens.obs_tokens - 1], tokens.failed if _FAILED.search(text) else tokens.done]

    def _asked(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt. A name gives two tokens: its place, and its word."""
        # Splitting at quotes gives texts at even positions, and quoted names at odd ones.
        found: list[int] = []
        for at, piece in enumerate(QUOTED.split(prompt)):
            if at % 2 and piece.lower() in self._places:
                found += [self._places[piece.lower()], self._tokens.word(piece.lower())]
            else:
                found += map(self._tokens.word, _words(piece))
        return found

    def _fill(self, form: Form) -> None:
        """Continue to the next blank with several options, or to the end of the line."""
        self._form = form
        while len(self._filling) < form.num_blanks:
            left = [at for at, name in enumerate(self._names) if name not in self._filling]
            if len(left) > 1:
                self._choices = frozenset(self._tokens.names[at] for at in left)
                return
            self._filling.append(self._names[left[0]] if left else MISSING)
        self._line = form.filled(self._filling)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
