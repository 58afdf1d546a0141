"""What a model remembers of environments while it acts in them."""

from typing import Any

import numpy as np
import torch

from ddppo.models import ActorCritic, Obs

Envs = slice | torch.Tensor
_ALL = slice(None)


class Memory:
    """The state of a model with memory in each of E environments, `[E, S]`, 0 where an episode starts.

    state: before the row that is acted on next. kept: of a rollout, before rows 0, L, 2 L, ..., `[T / L, E, S]`.
    """

    def __init__(
        self,
        model: ActorCritic,
        like: torch.Tensor,
        num_envs: int,
        num_steps: int,
        sequence_length: int | None,
    ) -> None:
        self._model = model
        self._length = sequence_length or num_steps
        self.state = like.new_zeros(num_envs, model.state_size)
        self.kept = like.new_zeros(num_steps // self._length, num_envs, model.state_size)
        self._of_ends: list[torch.Tensor] = []  # with which episodes ended

    def reset(self) -> None:
        self.state.zero_()

    def begin(self) -> None:
        """Begin a rollout."""
        self.kept[0] = self.state
        self._of_ends.clear()

    def act(self, obs: Obs, envs: Envs = _ALL) -> tuple[torch.Tensor, torch.Tensor]:
        """Return action parameters `[n, P]` and values `[n]` of some environments, and remember."""
        params, values, self.state[envs] = self._model.step(obs, self._of(envs))
        return params, values

    def stepped(self, row: int, ended: np.ndarray, starts: np.ndarray, envs: slice = _ALL) -> None:
        """Keep what episodes `[k]` that ended in this row ended with, and forget it where others start after it.

        starts `[E]` bool; envs: those that were stepped.
        """
        if len(ended):
            self._of_ends.append(self.state[torch.from_numpy(ended)])
        if starts.any():
            self.state[torch.from_numpy(starts)] = 0
        sequence, step = divmod(row + 1, self._length)
        if step == 0 and sequence < len(self.kept):
            self.kept[sequence, envs] = self.state[envs]

    def values(self, obs: Obs, envs: Envs = _ALL) -> torch.Tensor:
        """Return values `[n]` of what some environments are in after the last row."""
        return self._model.step(obs, self._of(envs))[1]

    def final_values(self, obs: Obs, which: Any = _ALL) -> torch.Tensor:
        """Return values `[n]` of final observations of the episodes `which`, of all that ended in their order."""
        return self._model.step(obs, torch.cat(self._of_ends)[which])[1]

    def _of(self, envs: Envs) -> torch.Tensor:
        """Return the state of some environments; a copy of a part's, for kernels give other bits at other places."""
        is_all = isinstance(envs, slice) and envs == _ALL
        return self.state if is_all else self.state[envs].clone()
