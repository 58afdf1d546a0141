"""Text as its bytes: a vocabulary for any text, without a grammar."""

import numpy as np

_NEWLINE = 10


class BytesTokenizer:
    """UTF-8: tokens 0 to 255 are bytes. A newline ends a turn; `turn` stands before each, `pad` behind a row's end.

    Text longer than `obs_tokens` loses its end.
    """

    size = 258
    end = _NEWLINE
    pad, turn = 256, 257

    def __init__(self, turn_tokens: int, obs_tokens: int) -> None:
        self.turn_tokens, self.obs_tokens = turn_tokens, obs_tokens
        self.typed = np.arange(self.size) < 256

    def begin(self, prompt: str) -> "BytesDialogue":
        return BytesDialogue(self, prompt)


class BytesDialogue:
    """An episode in bytes."""

    def __init__(self, tokenizer: BytesTokenizer, prompt: str) -> None:
        self._tokenizer = tokenizer
        self._typed: list[int] = []
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
        return [*text.encode(errors="replace")[: self._tokenizer.obs_tokens - 1], self._tokenizer.turn]
