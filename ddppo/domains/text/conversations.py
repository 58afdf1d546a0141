"""Episodes as conversations in a chat template of Hugging Face (docs/language_models.md, "Conversations").

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
from ddppo.domains.text.tokenizers import NoAction
from ddppo.domains.text.tool_calls import (
    FORMS,
    Call,
    Tool,
    action_of,
    call_of,
    command_of,
    form_of,
    probe_call,
    text_parameter,
)
from ddppo.errors import ConfigError, in_one_line

_MARK = "ddppo-turn"  # stands for a turn of the policy in a rendering
_CALL_ID = "call00000"  # Mistral's templates want nine letters and digits
_NUM_TRIED = 3  # turns of the conversation that is tried before a run

Message = dict[str, Any]


def language_tokenizer(config: HfSettings, tools: Sequence[Tool] = ()) -> "PlainTokenizer | ChatTokenizer":
    """Return the tokenizer of model.name=hf, with episodes in a chat template or in plain text. Raises ConfigError."""
    tokens = LanguageTokens(config)
    template = chat_template(tokens, config, tools)
    return PlainTokenizer(tokens, config) if template is None else ChatTokenizer(tokens, template, config)


def chat_template(
    tokens: LanguageTokens, config: HfSettings, tools: Sequence[Tool] = ()
) -> "ChatTemplate | None":
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
    return ChatTemplate(tokens, source, name, config, tools)


class ChatTemplate:
    """A chat template that was tried: it renders a conversation so that each rendering begins with the one before.

    Attributes:
        form: the form of calls of tools, a key of tool_calls.FORMS; None if messages hold plain commands.
        end: token that ends a message of the assistant.
        stops: tokens of which each ends a turn of the policy.
        typed: special tokens that the template writes within a message of the assistant.
    """

    def __init__(
        self, tokens: LanguageTokens, source: str, name: str, config: HfSettings, tools: Sequence[Tool]
    ) -> None:
        self._tokens, self._source, self._name = tokens, source, name
        self._kwargs = dict(config.chat_template_kwargs)
        self.tools, self.form = tools, None
        self._ends = tokens.stops | self._end_of_messages()
        if "<|channel|>" in source:
            raise ConfigError(
                f"{name} splits a message into channels, as gpt-oss does, and ends each by a token of its own: this is "
                "not supported; use another model, or model.chat=text"
            )
        # 1. What the template has: tools, a system message (Gemma's has none), and a user's message behind an answer
        # of a tool (Mistral's wants a message of the assistant between them).
        self.form = self._form_of_calls(config.tool_calls)
        self._has_system = self._renders([{"role": "system", "content": _MARK}], _MARK)
        shot = [*self.turned([_user("prompt")], "answer"), _user("next")]
        self._closing = [] if self._renders(shot, "next") else [{"role": "assistant", "content": "Done."}]
        # 2. A conversation of some turns, with the opening of a run.
        opening = Opening(config.system or "system", tuple(tuple(shot) for shot in config.shots or ()))
        tried = Conversation(self, opening, "prompt")
        self._check_has("the prompt", "prompt", tried.rendered)
        self.end = -1
        for i in range(_NUM_TRIED):
            before, answer = tried.rendered, f"answer-{i}"
            after = tried.extend(answer)
            self._check_has("answers", answer, after)
            if self.end < 0:
                self.end = self._found_end(after)
                self.stops = tokens.stops | {self.end}
                written = tokens.encode(tried.rendered[len(before) : len(tried.rendered) - len(after)])
                self.typed = frozenset(written) & tokens.special

    def opening(self, opening: Opening, prompt: str) -> list[Message]:
        """Return the messages before the first turn of the policy. Raises ConfigError for a shot that is no call."""
        messages: list[Message] = []
        for first, *turns in (*opening.shots, (prompt,)):
            # An answer at the end of a shot and the next prompt are one message: roles alternate.
            if messages and messages[-1]["role"] == "user":
                messages[-1] = _user(f"{messages[-1]['content']}\n\n{first}")
            else:
                messages.append(_user(first))
            for i in range(0, len(turns), 2):
                has_answer = self.form is not None or i + 1 < len(turns)
                turn = self._turn(turns[i], "".join(turns[i + 1 : i + 2]))
                messages += turn if has_answer else turn[:1]
            if turns and self.form is not None:
                messages += self._closing
        if opening.system and not self._has_system:
            messages[0] = _user(f"{opening.system}\n\n{messages[0]['content']}")
        elif opening.system:
            messages.insert(0, {"role": "system", "content": opening.system})
        return messages

    def render(self, messages: Sequence[Message]) -> str:
        """Return the text of a conversation, up to where the assistant begins to write. Raises ConfigError."""
        try:
            return self._rendered(messages, self.tools if self.form else ())
        except Exception as e:  # of Jinja, or of the template itself
            roles = ", ".join(message["role"] for message in messages)
            raise ConfigError(
                f"{self._name} cannot render a conversation of {roles}: {in_one_line(e)}; use another "
                "model.chat_template, or model.chat=text"
            ) from e

    def turned(self, messages: Sequence[Message], answer: str) -> list[Message]:
        """Return the conversation with one more turn of the policy, a mark, and its answer."""
        if self.form is None:
            return [*messages, {"role": "assistant", "content": _MARK}, _user(answer)]
        return [*messages, *_called(probe_call(self.tools, _MARK), answer)]

    def after(self, longer: str, shorter: str, turns: str = "turns of the policy") -> str:
        """Return the text between the last turn of the policy and the next one.

        Args:
            longer, shorter: renderings of the conversation with and without the last turn and its answer.

        Raises ConfigError unless `longer` is `shorter`, the turn, and more text.
        """
        _, mark, after = longer.removeprefix(shorter).partition(_MARK)
        if not longer.startswith(shorter):
            raise ConfigError(
                f"{self._name} does not preserve prefixes: it renders earlier messages differently once others follow, "
                "so a turn cannot be learned from the text it was sampled from; try "
                "model.chat_template_kwargs={enable_thinking:false}, give a template for training as "
                "model.chat_template, or use model.chat=text"
            )
        self._check_has(turns, _MARK, mark)
        return after

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        return self._tokens.rendered(self._source, messages, tools=list(tools) or None, **self._kwargs)

    def _renders(self, messages: list[Message], text: str) -> bool:
        """Return whether a conversation that begins with these messages can be rendered, and has this text in it."""
        last = [] if messages[-1]["role"] == "user" else [_user("prompt")]
        try:
            return text in self._rendered([*messages, *last], self.tools if self.form else ())
        except Exception:  # a template's own way to refuse a role
            return False

    def _turn(self, command: str, answer: str) -> list[Message]:
        """Return the messages of a turn of a shot. Raises ConfigError if its command is no call of a tool."""
        if self.form is None:
            return [{"role": "assistant", "content": command}, _user(answer)]
        try:
            return _called(call_of(command, self.tools), answer)
        except ValueError as e:
            raise ConfigError(
                f"the command {command!r} of a shot is no call of a tool: {e}; give the JSON of a call, "
                '{"name": ..., "arguments": {...}}'
            ) from e

    def _form_of_calls(self, wanted: str) -> str | None:
        """Return the form of calls by model.tool_calls; None for plain commands. Raises ConfigError."""
        tools = self.tools
        if wanted == "command" or (wanted == "auto" and not tools):
            return None
        if not tools:
            raise ConfigError(
                f"model.tool_calls={wanted}: the environment has no tools: use model.tool_calls=auto"
            )
        # 1. Does the template show the tools? Without, a model can be asked for commands, if these are all it may say.
        name, _ = call = probe_call(tools, _MARK)
        try:
            before = self._rendered([_user("prompt")], tools)
        except Exception as e:
            raise ConfigError(f"{self._name} cannot render the tools: {in_one_line(e)}") from e
        if name not in before:
            if wanted == "auto" and text_parameter(tools) is not None:
                return None
            raise ConfigError(
                f"{self._name} ignores tools, and the environment has some ({name}): use a model.chat_template that "
                "renders tools, or model.tool_calls=command if the environment reads plain text"
            )
        # 2. In which form does it write a call?
        try:
            longer = self._rendered([_user("prompt"), *_called(call, "answer")], tools)
        except Exception as e:
            raise ConfigError(f"{self._name} cannot render a call of a tool: {in_one_line(e)}") from e
        after = self.after(longer, before, "calls of tools")
        end = self._tokens.decode([self._found_end(after)])
        written = longer[len(before) : len(longer) - len(after)] + after.partition(end)[0]
        found = form_of(written, call)
        if wanted == "auto" and found is None:
            raise ConfigError(
                f"{self._name} writes calls in a form that is not known: {written.strip()!r}; use "
                f"model.tool_calls=command, or the form if it is one of {', '.join(FORMS)}"
            )
        if wanted != "auto" and found not in (None, wanted):
            raise ConfigError(
                f"model.tool_calls={wanted}: {self._name} writes calls in the form {found}: use model.tool_calls=auto"
            )
        return found if wanted == "auto" else wanted

    def _check_has(self, what: str, text: str, rendered: str) -> None:
        if text not in rendered:
            raise ConfigError(
                f"{self._name} leaves out {what}: use another model.chat_template, or model.chat=text"
            )

    def _end_of_messages(self) -> frozenset[int]:
        """Return the token that ends a message of the assistant without a call; nothing if none does."""
        try:
            text = self._rendered(
                [_user("prompt"), {"role": "assistant", "content": _MARK}, _user("answer")], ()
            )
        except Exception:  # a template's own way to refuse a role
            return frozenset()
        ids = self._tokens.encode(text.partition(_MARK)[2])
        special = [i for i in ids if i in self._tokens.special]
        return frozenset(special[:1])

    def _found_end(self, after: str) -> int:
        """Return the token that ends a turn: the first one that ends other messages too, else the first special one."""
        ids = self._tokens.encode(after)
        for ends in (self._ends, self._tokens.special):
            if found := [i for i in ids if i in ends]:
                return found[0]
        raise ConfigError(
            f"{self._name} ends no message of the assistant by a special token: nothing would end a turn; use "
            "another model.chat_template, or model.chat=text"
        )


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _called(call: Call, answer: str) -> list[Message]:
    """Return the messages of a call and its answer."""
    name, arguments = call
    function = {"name": name, "arguments": arguments}
    return [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": _CALL_ID, "type": "function", "function": function}],
        },
        {"role": "tool", "name": name, "tool_call_id": _CALL_ID, "content": answer},
    ]


class Conversation:
    """The messages of an episode, with a mark for each turn of the policy, and their rendering."""

    def __init__(self, template: ChatTemplate, opening: Opening, prompt: str) -> None:
        self._template = template
        self.messages = template.opening(opening, prompt)
        self.rendered = template.render(self.messages)

    def extend(self, answer: str) -> str:
        """Add a turn and its answer; return the text between that turn and the next."""
        self.messages = self._template.turned(self.messages, answer)
        shorter, self.rendered = self.rendered, self._template.render(self.messages)
        return self._template.after(self.rendered, shorter)


class ChatTokenizer:
    """The tokens of a language model, and episodes in its chat template.

    A turn is a message of the assistant with a call of a tool, or with a command. The policy may type any token except
    special tokens and padding; of these it may type the stop tokens, and those that the template writes in a message.
    """

    reads_info = True

    def __init__(self, tokens: LanguageTokens, template: ChatTemplate, config: HfSettings) -> None:
        self.tokens, self.template, self.config = tokens, template, config
        self.size, self.pad, self.end = tokens.size, tokens.pad, template.end
        self.most_tokens = tokens.most_tokens
        self.stops = template.stops
        self.typed = tokens.mask(self.stops | template.typed)
        self.decode = tokens.decode
        # Tokens of a prompt beside those of its text, as far as the settings say.
        opening = Conversation(template, Opening.of(config, {}), "prompt").rendered
        self.num_opening = len(tokens.encode(opening)) - len(tokens.encode("prompt"))

    def system_of(self, info: Mapping[str, Any]) -> str | None:
        """Return the text of the system message of an episode whose reset gave `info`; None if it has none."""
        return Opening.of(self.config, info).system or None

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
        tokenizer, template = self._tokenizer, self._tokenizer.template
        if not self._was_cut:
            typed = typed[:-1]
        if template.form is not None:
            return action_of(tokenizer.decode(typed), template.form, template.tools)
        # A command is behind the special tokens that such a message has, for example the one behind its header.
        start = max((i + 1 for i, token in enumerate(typed) if token in template.typed), default=0)
        return command_of(tokenizer.decode(typed[start:]), was_cut=self._was_cut)

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
