"""Text in the tokens of a language model of Hugging Face (extra `hf`)."""

from typing import Any

import numpy as np

from ddppo.errors import ConfigError
from ddppo.package import install_command
from ddppo.tracebacks import in_one_line


class HuggingFaceTokenizer:
    """The tokens of the model in the folder, or of the name, `path`; a turn ends with its end of text, or a line.

    What the policy is given is plain text, "prompt\\n>" and after each turn "\\nanswer\\n>": no chat template is known.
    Anything may be typed but special tokens and padding.
    """

    def __init__(self, path: str, turn_tokens: int, obs_tokens: int) -> None:
        try:
            from transformers import AutoConfig, AutoTokenizer
        except ImportError as e:
            raise ConfigError(
                f"model.name=hf needs packages that are not installed: {install_command('hf')}"
            ) from e
        try:
            self.size = int(AutoConfig.from_pretrained(path).get_text_config().vocab_size)
            self.tokens: Any = AutoTokenizer.from_pretrained(path)
        except Exception as e:  # of files, or the network
            raise ConfigError(f"model.hf_path={path}: no tokenizer can be had of it: {in_one_line(e)}") from e
        if self.tokens.eos_token_id is None:
            raise ConfigError(f"model.hf_path={path}: its tokenizer has no end of text (eos_token)")
        self.turn_tokens, self.obs_tokens = turn_tokens, obs_tokens
        self.end = int(self.tokens.eos_token_id)
        self.pad = self.end if self.tokens.pad_token_id is None else int(self.tokens.pad_token_id)
        self.typed = np.arange(self.size) < len(self.tokens)  # models round their vocabulary up
        self.typed[[i for i in self.tokens.all_special_ids if i != self.end]] = False

    def begin(self, prompt: str) -> "HuggingFaceDialogue":
        return HuggingFaceDialogue(self, prompt)


class HuggingFaceDialogue:
    """An episode in the tokens of a language model."""

    def __init__(self, tokenizer: HuggingFaceTokenizer, prompt: str) -> None:
        self._tokenizer = tokenizer
        self._typed: list[int] = []
        self.prompt_tokens = self._read(prompt)

    @property
    def is_over(self) -> bool:
        typed, tokenizer = self._typed, self._tokenizer
        if len(typed) == tokenizer.turn_tokens or (typed and typed[-1] == tokenizer.end):
            return True
        return bool(typed) and "\n" in tokenizer.tokens.decode(typed[-1:])

    def allowed(self) -> np.ndarray:
        return self._tokenizer.typed

    def push(self, token: int) -> None:
        self._typed.append(token)

    def action(self) -> str:
        text = self._tokenizer.tokens.decode(self._typed, skip_special_tokens=True)
        self._typed = []
        return text.partition("\n")[0].strip()

    def observe(self, text: str) -> list[int]:
        return self._read(f"\n{text}")

    def _read(self, text: str) -> list[int]:
        """Return the tokens of a text and of "\\n>", which stays where the text is too long."""
        encode, most = self._tokenizer.tokens.encode, self._tokenizer.obs_tokens
        mark = encode("\n>", add_special_tokens=False)[-most:]
        return [*encode(text, add_special_tokens=False)[: most - len(mark)], *mark]
