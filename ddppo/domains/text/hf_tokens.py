"""The tokens of a language model of Hugging Face (extra `hf`), and episodes in plain text.

`LanguageTokens` is the library's tokenizer with our rules: which tokens may be typed, which end a turn, how texts are
cut. `Opening` is the text before a prompt: system message and worked examples. `PlainTokenizer` has episodes in plain
text; conversations.py has episodes in a chat template.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from ddppo.domains.text.settings import HfSettings, wrong_shots
from ddppo.errors import ConfigError, EnvOutputError, in_one_line
from ddppo.package import install_command

# Templates such as Llama 3's print the day. With today's, a run would end at midnight, as its earlier messages would
# change, and a resumed run or an evaluation would read other prompts. This macro is in front of a template, as the
# library passes no functions to it; the empty text keeps a newline that follows.
_DAY = datetime(2025, 1, 1)
_REPLACED = "".join(f" | replace('%{x}', {_DAY.strftime(f'%{x}')!r})" for x in "aAbBcdfHIjmMpSUwWxXyYZz")
_ON_ONE_DAY = "{% macro strftime_now(format) %}{{ format" + _REPLACED + " }}{% endmacro %}{{ '' }}"


class LanguageTokens:
    """The tokens of the language model at model.hf_path, a folder or a name. Raises ConfigError if they cannot be read.

    Attributes:
        special: special tokens, such as the end of text.
        begin: tokens before a plain text: the begin of text, or none.
        stops: end of text, the tokens that end a turn by generation_config, and model.stop_tokens.
    """

    def __init__(self, config: HfSettings) -> None:
        try:
            from transformers import AutoConfig, AutoTokenizer
        except ImportError as e:
            raise ConfigError(
                f"model.name=hf needs packages that are not installed: {install_command('hf')}"
            ) from e
        path = config.hf_path
        assert path is not None, "checked before"
        try:
            lm_config = AutoConfig.from_pretrained(path).get_text_config()
            self.size = int(lm_config.vocab_size)
            self.most_tokens: int | None = getattr(lm_config, "max_position_embeddings", None)
            self._tokens: Any = AutoTokenizer.from_pretrained(path)
        except Exception as e:  # of files, or the network
            raise ConfigError(
                f"model.hf_path={path}: its tokenizer cannot be loaded: {in_one_line(e)}"
            ) from e
        if self._tokens.eos_token_id is None:
            raise ConfigError(f"model.hf_path={path}: its tokenizer has no end of text (eos_token)")
        self.eos = int(self._tokens.eos_token_id)
        self.pad = self.eos if self._tokens.pad_token_id is None else int(self._tokens.pad_token_id)
        self.special = frozenset(self._tokens.all_special_ids)
        # The begin of text, if the tokenizer puts it before a text. (A chat template writes it, or leaves it out.)
        first, bos = self._tokens.encode("a")[:1], self._tokens.bos_token_id
        self.begin = [int(bos)] if bos is not None and first == [bos] else []
        self.named_stops = frozenset(self._id_of(text, config) for text in config.stop_tokens)
        self.stops = self.named_stops | {self.eos} | self._generation_stops(path)
        # Special tokens as texts, the longest first: no text of an environment may contain them.
        broken = self.special | (self.stops - self.named_stops)
        names = sorted(self._tokens.convert_ids_to_tokens(sorted(broken)), key=len)
        self._specials = re.compile("|".join(re.escape(name) for name in reversed(names) if len(name) > 1))

    def mask(self, kept: Collection[int]) -> np.ndarray:
        """Return the tokens that a policy may type, bool `[size]`: no special tokens except `kept`, and no padding."""
        # A model's vocabulary may be rounded up: tokens without a text are never typed.
        typed = np.arange(self.size) < len(self._tokens)
        typed[[i for i in self.special if i not in kept and i < self.size]] = False
        return typed

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; names of special tokens in it become these. None is added at its ends."""
        text = text.encode(errors="replace").decode()  # half of an emoji is no text
        ids: list[int] = self._tokens.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: list[int], *, skips_special: bool = False) -> str:
        return str(self._tokens.decode(ids, skip_special_tokens=skips_special))

    def template(self) -> str | None:
        """Return the tokenizer's own chat template; None if it has none."""
        try:
            found: str = self._tokens.get_chat_template()
        except ValueError:
            return None
        return found

    def rendered(self, template: str, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
        """Return a conversation as text, up to where the assistant begins to write. Raises what the template raises."""
        text: str = self._tokens.apply_chat_template(
            list(messages),
            chat_template=_ON_ONE_DAY + template,
            add_generation_prompt=True,
            tokenize=False,
            **more,
        )
        return text

    def fitted(self, text: str, config: HfSettings) -> tuple[str, bool]:
        """Return a text of the environment cut to model.obs_tokens by model.long_texts, and whether it was cut.

        A space breaks names of special tokens in it, so that an environment cannot end a message.
        """
        text = self._specials.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        ids, most = self.encode(text), config.obs_tokens
        if len(ids) <= most:
            return text, False
        return self.decode(kept_of(ids, most, config)), True

    def _id_of(self, text: str, config: HfSettings) -> int:
        ids = self.encode(text)
        if len(ids) != 1:
            raise ConfigError(
                f"model.stop_tokens: {text!r} is not one token of model.hf_path={config.hf_path}, it is {len(ids)}"
            )
        return int(ids[0])

    def _generation_stops(self, path: str) -> frozenset[int]:
        from transformers import GenerationConfig

        try:
            found = GenerationConfig.from_pretrained(path).eos_token_id
        except OSError:  # a model needs no generation_config.json
            return frozenset()
        # A model without one answers with its architecture's defaults, which may lie outside its vocabulary.
        ids = [found] if isinstance(found, int) else found or []
        return frozenset(i for i in ids if i < len(self._tokens))


def kept_of(ids: list[int], most: int, config: HfSettings) -> list[int]:
    """Return the tokens of a text that is longer than `most`, cut by model.long_texts. Raises EnvOutputError if not."""
    if config.long_texts == "error":
        raise EnvOutputError(
            f"a text of {len(ids)} tokens with model.obs_tokens={config.obs_tokens} and model.long_texts=error: use a "
            "larger model.obs_tokens, or model.long_texts=cut_front or cut_end"
        )
    return ids[len(ids) - most :] if config.long_texts == "cut_front" else ids[:most]


@dataclass(frozen=True)
class Opening:
    """The text before the prompt of an episode."""

    system: str
    shots: tuple[tuple[str, ...], ...]  # worked examples: prompt, command, answer, command, ...

    @classmethod
    def of(cls, config: HfSettings, info: Mapping[str, Any]) -> "Opening":
        """Return the opening by the settings, where they are given, else by `info` of the task's reset.

        Raises EnvOutputError if info["system"] is no text, or info["shots"] no JSON of a list of shots.
        """
        system = config.system if config.system is not None else info.get("system")
        if not (system is None or isinstance(system, str)):
            raise EnvOutputError(f'the task returned {system!r} as info["system"]: it must be a text')
        shots: Any = config.shots
        if shots is None and info.get("shots") is not None:
            try:
                shots = json.loads(info["shots"])
            except (TypeError, ValueError):
                shots = info["shots"]
            if (wrong := wrong_shots(shots)) is not None:
                raise EnvOutputError(f'the task returned info["shots"], the JSON of shots: {wrong}')
        return cls(system or "", tuple(tuple(shot) for shot in shots or ()))

    def as_text(self) -> str:
        """Return the opening in plain text: the form of an episode with model.chat=text, and a blank line."""
        parts = [self.system] if self.system else []
        for prompt, *turns in self.shots:
            lines = [f">{text}" if i % 2 == 0 else text for i, text in enumerate(turns)]
            parts.append("\n".join([prompt, *lines]))
        return "".join(f"{part}\n\n" for part in parts)


class PlainTokenizer:
    """The tokens of a language model, and episodes in plain text. A turn ends with the end of text or of the line.

    The policy reads "prompt\\n>" and after each turn "\\nanswer\\n>". It may type any token except special tokens and
    padding; of these it may type the end of text and model.stop_tokens.
    """

    reads_info = True

    def __init__(self, tokens: LanguageTokens, config: HfSettings) -> None:
        self.tokens, self.config = tokens, config
        self.size, self.pad, self.end = tokens.size, tokens.pad, tokens.eos
        self.most_tokens = tokens.most_tokens
        self.stops = tokens.named_stops | {tokens.eos}
        self.typed = tokens.mask(self.stops)
        self.decode = tokens.decode
        # Tokens before the text of a prompt, as far as the settings say.
        self.start = tokens.begin if config.begin_text else []
        self.num_opening = len(self.start) + len(tokens.encode(Opening.of(config, {}).as_text()))

    def system_of(self, info: Mapping[str, Any]) -> str | None:
        """Return the text of the system message of an episode whose reset gave `info`; None if it has none."""
        return Opening.of(self.config, info).system or None

    def begin(self, prompt: str, info: Mapping[str, Any] | None = None) -> "PlainDialogue":
        return PlainDialogue(self, Opening.of(self.config, info or {}).as_text(), prompt)


class PlainDialogue:
    """An episode in plain text."""

    def __init__(self, tokenizer: PlainTokenizer, opening: str, prompt: str) -> None:
        self._tokenizer = tokenizer
        self._typed: list[int] = []
        self.num_cut = 0  # texts of the environment that were longer than obs_tokens
        tokens = tokenizer.tokens
        self.prompt_tokens = [*tokenizer.start, *tokens.encode(opening), *self._read(prompt)]

    @property
    def is_over(self) -> bool:
        typed, tokenizer = self._typed, self._tokenizer
        if len(typed) == tokenizer.config.turn_tokens or (typed and typed[-1] in tokenizer.stops):
            return True
        return bool(typed) and "\n" in tokenizer.tokens.decode(typed[-1:])

    def allowed(self) -> np.ndarray:
        return self._tokenizer.typed

    def push(self, token: int) -> None:
        self._typed.append(token)

    def action(self) -> str:
        text = self._tokenizer.tokens.decode(self._typed, skips_special=True)
        self._typed = []
        return text.partition("\n")[0].strip()

    def observe(self, text: str) -> list[int]:
        return self._read(f"\n{text}")

    def _read(self, text: str) -> list[int]:
        """Return the tokens of a text and of the mark "\\n>". A text that is too long is cut before the mark."""
        encode, config = self._tokenizer.tokens.encode, self._tokenizer.config
        # The mark always fits, as it is cut to obs_tokens first.
        mark = encode("\n>")[-config.obs_tokens :]
        ids, most = encode(text), config.obs_tokens - len(mark)
        if len(ids) > most:
            ids = kept_of(ids, most, config)
            self.num_cut += 1
        return [*ids, *mark]
