"""What turns text into tokens and back, and says which tokens a policy may type."""

from typing import Protocol

import numpy as np


class Tokenizer(Protocol):
    """A vocabulary of tokens 0 to size - 1, made as `Class(turn_tokens=n, obs_tokens=m)`.

    n: tokens of one turn of the policy at most, `end` included. m: of the prompt, and of what follows a turn, at most;
    the rest is left out. It keeps nothing of a dialogue, so one serves all environments.
    pad: fills rows behind their end; never given, never typed. end: closes a turn.
    """

    size: int
    pad: int
    end: int

    def begin(self, prompt: str) -> "Dialogue":
        """Return the dialogue of an episode whose first observation is `prompt`."""
        ...


class Dialogue(Protocol):
    """One episode between a policy and an environment: its turns, typed token by token.

    prompt_tokens: what the policy is given first, one at least.
    """

    prompt_tokens: list[int]

    @property
    def is_over(self) -> bool:
        """Whether the turn under way has ended: by `end`, or because it may not be longer."""
        ...

    def allowed(self) -> np.ndarray:
        """Return which tokens may be typed next, bool `[size]`: one at least while the turn is not over.

        The array may be kept and returned again; nobody writes into it.
        """
        ...

    def push(self, token: int) -> None:
        """Type a token that is allowed."""
        ...

    def action(self) -> str:
        """Return the text of the turn, which is over. What `allowed` and `push` say then is of the next."""
        ...

    def observe(self, text: str) -> list[int]:
        """Return the tokens that the policy is given of what the environment answered, one at least."""
        ...
