"""Text as tokens: observations and typed commands as the integers that a model reads (docs/text.md).

`Tokenizer` and `Dialogue` are the contract. `BytesTokenizer` works for any text. hf_tokens.py and conversations.py have
the tokens of language models. `make_tokenizer` chooses one by the task and the settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ddppo.config.model_settings import ModelSettings
from ddppo.domains.text.settings import HfSettings, text_settings
from ddppo.errors import ConfigError, in_one_line
from ddppo.plugins import imported
from ddppo.spaces import EnvSpec

_NEWLINE = 10
_OF_LANGUAGE_MODELS = "ddppo.domains.text.conversations:language_tokenizer"  # which builds on this file
_REQUIRED = ("size", "pad", "end", "begin")  # attributes of a tokenizer


class Tokenizer(Protocol):
    """A vocabulary of tokens 0 to size - 1. A class of your own is called as `Class(turn_tokens=n, obs_tokens=m)`.

    A tokenizer has no state of a dialogue, so that all environments of a rank share one. It may have a method
    `decode(tokens)`, which returns typed tokens as text for records of rollouts.

    Args:
        turn_tokens: tokens of one turn of the policy at most, `end` included.
        obs_tokens: tokens of the prompt, and of each answer, at most; longer texts are cut.
    """

    size: int
    pad: int  # fills rows behind their end; neither read nor typed
    end: int  # closes a turn

    def begin(self, prompt: str) -> "Dialogue":
        """Return the dialogue of an episode that starts with the observation `prompt`.

        If the class has `reads_info = True`, it is called as begin(prompt, info), with the info of the task's reset.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoAction:
    """A turn that holds no action. The environment is not stepped: the policy reads `message` as its answer."""

    message: str


class Dialogue(Protocol):
    """One episode between a policy and an environment. The policy types its turns token by token."""

    # The tokens of the prompt, at least one. A dialogue may also have `num_cut`, the number of texts of the environment
    # that were longer than obs_tokens.
    prompt_tokens: list[int]

    @property
    def is_over(self) -> bool:
        """Whether the current turn has ended, by `end` or by its length."""
        ...

    def allowed(self) -> np.ndarray:
        """Return the tokens that may be typed next, bool `[size]`; at least one while the turn is not over.

        A dialogue may return the same array again; the caller does not write into it.
        """
        ...

    def push(self, token: int) -> None:
        """Append an allowed token to the current turn."""
        ...

    def action(self) -> str | NoAction:
        """Return the action of the turn that has ended, and start the next turn."""
        ...

    def observe(self, text: str) -> list[int]:
        """Return the tokens of the environment's answer, at least one."""
        ...


def begun(tokenizer: Tokenizer, prompt: str, info: Mapping[str, Any]) -> Dialogue:
    """Return the dialogue of an episode by the answer of the task's reset."""
    begin: Any = tokenizer.begin
    more = [info] if getattr(tokenizer, "reads_info", False) else []
    dialogue: Dialogue = begin(prompt, *more)
    return dialogue


def make_tokenizer(spec: EnvSpec, model: ModelSettings) -> Tokenizer:
    """Return the language model's tokenizer with model.name=hf, else the task's own, else bytes. Raises ConfigError."""
    assert spec.action.kind == "text", spec
    config = text_settings(model)
    # A language model has its own tokens, and not those of the task.
    if isinstance(config, HfSettings):
        of_language: Tokenizer = imported(_OF_LANGUAGE_MODELS)(config, spec.tools or ())
        return of_language
    limits = {"turn_tokens": config.turn_tokens, "obs_tokens": config.obs_tokens}
    if spec.tokens is None:
        # A character has at least one byte: so many bytes never exceed the characters that the task accepts.
        limits["turn_tokens"] = min(config.turn_tokens, spec.action.sizes[0])
        return BytesTokenizer(**limits)
    attribute = f"the task's attribute tokens={spec.tokens}"
    module_name, _, name = spec.tokens.partition(":")
    if not (module_name and name):
        raise ConfigError(f"{attribute}: must be an import path such as my_pkg.words:WordTokenizer")
    try:
        tokenizer: Tokenizer = imported(spec.tokens)(**limits)
    except ConfigError:
        raise
    except (Exception, SystemExit) as e:  # a user's module may raise anything
        raise ConfigError(
            f"{attribute} cannot be imported and made as {name}(turn_tokens={config.turn_tokens}, "
            f"obs_tokens={config.obs_tokens}): {in_one_line(e)}"
        ) from e
    # Check the methods now, and not when one is first called.
    if missing := [required for required in _REQUIRED if not hasattr(tokenizer, required)]:
        raise ConfigError(
            f"{attribute}: a {name} has no {', '.join(missing)}; see ddppo.domains.text.tokenizers.Tokenizer"
        )
    return tokenizer


# -- text as its bytes -------------------------------------------------------------------------------------------------


class BytesTokenizer:
    """UTF-8: tokens 0 to 255 are bytes, token 256 is `pad`, and token 257, `turn`, marks the start of each turn.

    A newline ends a turn. Text longer than `obs_tokens` loses its end.
    """

    size = 258
    end = _NEWLINE
    pad, turn = 256, 257

    def __init__(self, turn_tokens: int, obs_tokens: int) -> None:
        self.turn_tokens, self.obs_tokens = turn_tokens, obs_tokens
        self.typed = np.arange(self.size) < 256  # the mask of every token: any byte

    def begin(self, prompt: str) -> "BytesDialogue":
        return BytesDialogue(self, prompt)

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class BytesDialogue:
    """An episode in bytes."""

    def __init__(self, tokenizer: BytesTokenizer, prompt: str) -> None:
        self._tokenizer = tokenizer
        self._typed: list[int] = []
        self.num_cut = 0
        self.prompt_tokens = self.observe(prompt)

    @property
    def is_over(self) -> bool:
        typed = self._typed
        return len(typed) == self._tokenizer.turn_tokens or (bool(typed) and typed[-1] == _NEWLINE)

    def allowed(self) -> np.ndarray:
        return self._tokenizer.typed

    def push(self, token: int) -> None:
        self._typed.append(token)

    def action(self) -> str:
        text = bytes(self._typed).removesuffix(b"\n").decode(errors="replace")
        self._typed = []
        return text

    def observe(self, text: str) -> list[int]:
        found, most = text.encode(errors="replace"), self._tokenizer.obs_tokens - 1
        self.num_cut += len(found) > most
        return [*found[:most], self._tokenizer.turn]
