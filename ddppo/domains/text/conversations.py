"""Episodes as conversations in a chat template of Hugging Face (docs/text.md, "Conversations").

Tokens in, tokens out: a row is the tokens of the rendered prompt, then for each turn the sampled tokens as they are and
the tokens of the text that the template puts between that turn and the next. `ChatTemplate.after` finds this text by
the difference of two renderings; in place of the sampled text, the renderings hold a mark.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ddppo.domains.text.hf_tokens import LanguageTokens, Opening, PlainTokenizer
from ddppo.domains.text.settings import HfSettings
from ddppo.domains.text.tokenizers import NoAction, Tokenizer
from ddppo.errors import ConfigError, in_one_line

_MARK = "ddppo-turn"  # stands for a turn of the policy in a rendering
_NUM_TRIED = 3  # turns of the conversation that is tried before a run

Message = dict[str, Any]


def language_tokenizer(config: HfSettings) -> Tokenizer:
    """Return the tokenizer of model.name=hf, with episodes in a chat template or in plain text. Raises ConfigError."""
    tokens = LanguageTokens(config)
    template = chat_template(tokens, config)
    return PlainTokenizer(tokens, config) if template is None else ChatTokenizer(tokens, template, config)


def chat_template(tokens: LanguageTokens, config: HfSettings) -> "ChatTemplate | None":
    """Return the template by model.chat and model.chat_template, tried; None for plain text. Raises ConfigError."""
    if config.chat == "text":
        return None
    name = f"the chat template of model.hf_path={config.hf_path}"
    source = tokens.template()
    if config.chat_template is not None:
        source, name = Path(config.chat_template).read_text(), f"model.chat_template={config.chat_template}"
    if source is None:
        if config.chat == "auto":
            return None
        raise ConfigError(
            f"model.chat=template: the tokenizer of model.hf_path={config.hf_path} has no chat template: give a file "
            "by model.chat_template, or use model.chat=text"
        )
    return ChatTemplate(tokens, source, name, config)


class ChatTemplate:
    """A chat template that was tried: it renders a conversation so that each rendering begins with the one before.

    Attributes:
        end: token that ends a message of the assistant.
        stops: tokens of which each ends a turn of the policy.
    """

    def __init__(self, tokens: LanguageTokens, source: str, name: str, config: HfSettings) -> None:
        self._tokens, self._source, self._name = tokens, source, name
        self._kwargs = dict(config.chat_template_kwargs)
        self.stops = set(tokens.stops)
        # 1. Templates such as Gemma's have no system message: its text then stands before the first prompt.
        self._has_system = self._knows_system()
        # 2. A conversation of some turns, with all that a run may have in it.
        shots = tuple(tuple(shot) for shot in config.shots or ())
        tried = Conversation(self, Opening(config.system or "system", shots), "prompt")
        self.end = -1
        for i in range(_NUM_TRIED):
            text = self.after(tried.messages, tried.rendered, f"answer {i}")
            if self.end < 0:
                self.end = self._found_end(text)
                self.stops.add(self.end)
            tried.extend(f"answer {i}")

    def opening(self, opening: Opening, prompt: str) -> list[Message]:
        """Return the messages before the first turn of the policy."""
        texts: list[tuple[str, str]] = []
        for first, *turns in (*opening.shots, (prompt,)):
            # An answer at the end of a shot and the next prompt are one message: roles alternate.
            if texts and texts[-1][0] == "user":
                texts[-1] = ("user", f"{texts[-1][1]}\n\n{first}")
            else:
                texts.append(("user", first))
            texts += [("user" if i % 2 else "assistant", text) for i, text in enumerate(turns)]
        if opening.system and not self._has_system:
            texts[0] = ("user", f"{opening.system}\n\n{texts[0][1]}")
        elif opening.system:
            texts.insert(0, ("system", opening.system))
        return [{"role": role, "content": text} for role, text in texts]

    def render(self, messages: Sequence[Message]) -> str:
        """Return the text of a conversation, up to where the assistant begins to write."""
        try:
            text = self._tokens.rendered(self._source, messages, **self._kwargs)
        except Exception as e:  # of Jinja, or of the template itself
            raise ConfigError(
                f"{self._name} cannot render a conversation of {', '.join(m['role'] for m in messages)}: "
                f"{in_one_line(e)}; use another model.chat_template, or model.chat=text"
            ) from e
        return text

    def turned(self, messages: Sequence[Message], answer: str) -> list[Message]:
        """Return the conversation with one more turn of the policy, a mark, and its answer."""
        return [*messages, {"role": "assistant", "content": _MARK}, {"role": "user", "content": answer}]

    def after(self, messages: Sequence[Message], rendered: str, answer: str) -> str:
        """Return the text between the next turn of the policy and the turn behind it.

        Args:
            messages: the conversation before the turn, and `rendered`, its rendering.
            answer: the answer to the turn.

        Raises ConfigError unless the rendering of the longer conversation is `rendered`, the turn, and more text.
        """
        longer = self.render(self.turned(messages, answer))
        _, mark, after = longer.removeprefix(rendered).partition(_MARK)
        if not longer.startswith(rendered) or not mark:
            raise ConfigError(
                f"{self._name} does not preserve prefixes: it renders earlier messages differently once others follow, "
                "so a turn cannot be learned from what it was sampled from; use a template for training as "
                "model.chat_template, or model.chat=text"
            )
        return after

    def _found_end(self, after: str) -> int:
        """Return the token that ends a message: the first one of the stop tokens, else the first special token."""
        ids = self._tokens.encode(after)
        found = next((i for i in ids if i in self.stops), None)
        if found is None:
            found = next((i for i in ids if i in self._tokens.special), None)
        if found is None:
            raise ConfigError(
                f"{self._name} ends no message of the assistant by a special token: nothing would end a turn; name "
                "the token by model.stop_tokens, or use model.chat=text"
            )
        return found

    def _knows_system(self) -> bool:
        messages = [{"role": "system", "content": _MARK}, {"role": "user", "content": "prompt"}]
        try:
            return _MARK in self._tokens.rendered(self._source, messages, **self._kwargs)
        except Exception:  # a template's own way to refuse a role
            return False


class Conversation:
    """The messages of an episode, with a mark for each turn of the policy, and their rendering."""

    def __init__(self, template: ChatTemplate, opening: Opening, prompt: str) -> None:
        self._template = template
        self.messages = template.opening(opening, prompt)
        self.rendered = template.render(self.messages)

    def extend(self, answer: str) -> str:
        """Add a turn and its answer; return the text between that turn and the next."""
        after = self._template.after(self.messages, self.rendered, answer)
        self.messages = self._template.turned(self.messages, answer)
        self.rendered = self._template.render(self.messages)
        return after


class ChatTokenizer:
    """The tokens of a language model, and episodes in its chat template.

    A turn is a message of the assistant, and its first line, or the first line of its first fenced block, is the
    command. The policy may type any token except special tokens and padding; of these it may type the stop tokens.
    """

    reads_info = True

    def __init__(self, tokens: LanguageTokens, template: ChatTemplate, config: HfSettings) -> None:
        self.tokens, self.template, self.config = tokens, template, config
        self.size, self.pad, self.end = tokens.size, tokens.pad, template.end
        self.stops = frozenset(template.stops)
        self.typed = tokens.mask(self.stops)
        self.decode = tokens.decode

    def begin(self, prompt: str, info: Mapping[str, Any] | None = None) -> "ChatDialogue":
        return ChatDialogue(self, prompt, info or {})


class ChatDialogue:
    """An episode in a chat template."""

    def __init__(self, tokenizer: ChatTokenizer, prompt: str, info: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._typed: list[int] = []
        self._was_cut = False  # the last turn was ended by its length, and not by a stop token
        self.num_cut = 0  # texts of the environment that were longer than obs_tokens
        opening = Opening.of(tokenizer.config, info)
        self._conversation = Conversation(tokenizer.template, opening, self._shown(prompt))
        self.prompt_tokens = tokenizer.tokens.encode(self._conversation.rendered)

    @property
    def is_over(self) -> bool:
        typed = self._typed
        return len(typed) == self._tokenizer.config.turn_tokens or (
            bool(typed) and typed[-1] in self._tokenizer.stops
        )

    def allowed(self) -> np.ndarray:
        return self._tokenizer.typed

    def push(self, token: int) -> None:
        self._typed.append(token)

    def action(self) -> str | NoAction:
        typed, self._typed = self._typed, []
        self._was_cut = typed[-1] not in self._tokenizer.stops
        return command_of(
            self._tokenizer.tokens.decode(typed if self._was_cut else typed[:-1]), was_cut=self._was_cut
        )

    def observe(self, text: str) -> list[int]:
        ids = self._tokenizer.tokens.encode(self._conversation.extend(self._shown(text)))
        # The token that ends the turn was typed. If the turn was cut, it is supplied here: read, and not learned.
        end = self._tokenizer.end
        if end in ids:
            ids = ids[ids.index(end) + (not self._was_cut) :]
        return ids

    def _shown(self, text: str) -> str:
        text, was_cut = self._tokenizer.tokens.fitted(text, self._tokenizer.config)
        self.num_cut += was_cut
        return text


def command_of(message: str, *, was_cut: bool) -> str | NoAction:
    """Return the command in a message: its first line that is not empty, or that of its first fenced block.

    Text in <think> is left out, as are a prompt "$ " before the command, and a backslash at the end of a line, which
    joins it with the next one.

    Args:
        was_cut: the message has reached model.turn_tokens; its last line is not complete.
    """
    # 1. What stands behind the thoughts, which a template may have opened.
    _, closed, rest = message.rpartition("</think>")
    if not closed and "<think>" in message:
        rest = ""
    # 2. The fenced block, if there is one: behind the line of its opening, up to its closing.
    lines = [line.strip() for line in rest.replace("\\\n", " ").split("\n")]
    fence = next((i for i, line in enumerate(lines) if line.startswith("```")), None)
    if fence is not None and any(lines[fence + 1 :]):
        lines = lines[fence + 1 :]
    # 3. Its first line.
    at = next((i for i, line in enumerate(lines) if line and not line.startswith("```")), None)
    if at is None:
        return NoAction("error: the message has no command: write one command on its first line")
    if was_cut and at == len(lines) - 1:
        return NoAction("error: the message was too long, and was cut before its command ended")
    return " ".join(lines[at].removeprefix("$ ").split(" "))
