"""What ale-py's batch cannot tell of its games: the seed that each had last, and the actions since.

A game follows from these to the bit, so a state is as much as the games that it has to play again. It is kept short by
seeds: a game that is over begins the next by a seed of its own where its last is RESEED_AFTER steps ago. Not sooner,
because a seed makes ale-py load the game anew, which takes as long as some 300 steps: 1 % of RESEED_AFTER.
"""

from typing import Any

import numpy as np

RESEED_AFTER = 32_768  # steps of a game


class Journal:
    """Seeds and actions of E games. seeds: `[E]`, by which each was started last. Actions are `[E, *shape]`."""

    def __init__(self, num_envs: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.num_envs = num_envs
        self._seeds = [0] * num_envs  # that the batch was reset with
        self._num_seedings = np.zeros(num_envs, np.int64)  # since
        self._starts = np.zeros(num_envs, np.int64)  # of the rows
        self._rows = np.zeros((256, num_envs, *shape), dtype)
        self._num_rows = 0

    def begin(self, seeds: list[int]) -> None:
        """Forget all: every game begins by a seed."""
        self._seeds = seeds
        self._num_seedings[:] = self._starts[:] = self._num_rows = 0

    def append(self, actions: np.ndarray) -> None:
        if self._num_rows == len(self._rows):
            self._make_room()
        self._rows[self._num_rows] = actions
        self._num_rows += 1

    def _make_room(self) -> None:
        first = int(self._starts.min())
        kept = self._rows[first : self._num_rows]
        if 2 * len(kept) > len(self._rows):
            self._rows = np.concatenate([kept, np.zeros_like(self._rows)])
        else:
            self._rows[: len(kept)] = kept
        self._num_rows = len(kept)
        self._starts -= first

    def lengths(self) -> np.ndarray:
        """Return how many steps ago each game was seeded `[E]`."""
        return self._num_rows - self._starts

    def seed(self, which: np.ndarray) -> np.ndarray:
        """Give the games `which` (bool `[E]`) their next seeds, and return those."""
        self._num_seedings[which] += 1
        self._starts[which] = self._num_rows
        return self.seeds()[which]

    def seeds(self) -> np.ndarray:
        """Return the last seed of each, as ale-py takes them: 31 bits."""
        pairs = zip(self._seeds, self._num_seedings.tolist(), strict=True)
        keys = [[seed, count] if count else [seed] for seed, count in pairs]
        return np.array([np.random.SeedSequence(key).generate_state(1)[0] >> 1 for key in keys], np.int64)

    def state(self) -> list[dict[str, Any]]:
        """Return of each what it takes to come to where it is."""
        return [
            {
                "seed": self._seeds[i],
                "num_seedings": int(self._num_seedings[i]),
                "actions": self._rows[self._starts[i] : self._num_rows, i].copy(),
            }
            for i in range(self.num_envs)
        ]

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Go on from what `state` returned of these games."""
        lengths = [len(state["actions"]) for state in states]
        self._seeds = [state["seed"] for state in states]
        self._num_seedings[:] = [state["num_seedings"] for state in states]
        self._num_rows = max(lengths)
        self._starts[:] = self._num_rows - np.array(lengths)
        self._rows = np.zeros((self._num_rows + 256, *self._rows.shape[1:]), self._rows.dtype)
        for i, state in enumerate(states):
            self._rows[self._starts[i] : self._num_rows, i] = state["actions"]

    def replay(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, step by step, which games begin by their seeds before it (bool `[E]`), and its actions.

        All end together. Of a game that has not begun yet the actions are 0; the last entry has none to do.
        """
        steps = [(self._starts == k, self._rows[k]) for k in range(self._num_rows)]
        return [*steps, (self._starts == self._num_rows, self._rows[0][:0])]
