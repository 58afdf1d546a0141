"""A model with memory under test: its steps, and that learning from many at once sees what acting saw."""

from typing import Any

import torch

from ddppo.config import ModelSettings
from ddppo.models.actor_critic import ActorCritic, Obs
from ddppo.models.trials.trial import Trial, rounding
from ddppo.spaces import EnvSpec, each, leaves

_STEPS = 4


class MemoryTrial(Trial):
    """One model that remembers; what it is tried on are 4 steps, in which some environments start an episode."""

    def __init__(self, model: ActorCritic, spec: EnvSpec, config: ModelSettings) -> None:
        super().__init__(model, spec, config)
        self.learns_by = "unroll"

    def check_outputs(self, size: int) -> None:
        """Step `size` environments, unroll the same steps, and compare."""
        obs, starts = self._episode(size)
        state = self._state(size)
        with torch.inference_mode():
            self._stepped(each(lambda x: x[0], obs), state, size)
        both = self._tried(
            "unroll", lambda: self.model.unroll(obs, state, starts), f" for {self._said(size)}"
        )
        self._check_unrolled(both, size)
        params, values = both
        for t in range(_STEPS):
            state = torch.where(starts[t].unsqueeze(-1), 0.0, state)
            row = each(lambda x, t=t: x[t], obs)
            with torch.inference_mode():
                said, value, state = self._stepped(row, state, size)
            if self._is_repeatable(row):
                self._check_seen("action parameters", said, params[t])
                self._check_seen("values", value, values[t])

    def check_policy(self, size: int) -> None:
        """Act on `size` observations by the model's own distribution, as at the start of episodes."""
        self.learns_by = "forward"
        try:
            super().check_policy(size)
        finally:
            self.learns_by = "unroll"

    def unused_parameters(self, size: int) -> list[str]:
        obs, starts = self._episode(max(size, 2))
        state = self._state(max(size, 2))
        return self._without_gradient(*self._tried("unroll", lambda: self.model.unroll(obs, state, starts)))

    def _stepped(self, obs: Obs, state: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
        given = state.clone()
        found: Any = self._tried("step", lambda: self.model.step(obs, given), f" for {self._said(size)}")
        if not (isinstance(found, (tuple, list)) and len(found) == 3):
            raise self.fails(
                "step", "must return three: action parameters, values and the state that follows"
            )
        params, values, after = found
        if not torch.equal(given, state):
            raise self.fails("step", "changes the state it is given: return another")
        self._check_tensor("step", "action parameters", params, obs, (size, self.num_params))
        self._check_tensor("step", "values", values, obs, (size,))
        self._check_tensor("step", "a state", after, obs, (size, self.model.state_size))
        return params, values, after

    def _check_unrolled(self, both: Any, size: int) -> None:
        if not (isinstance(both, (tuple, list)) and len(both) == 2):
            raise self.fails(
                "unroll",
                f"must return two, action parameters [{_STEPS}, {size}, {self.num_params}] and values "
                f"[{_STEPS}, {size}]",
            )
        row = self._obs(size)
        self._check_tensor("unroll", "action parameters", both[0], row, (_STEPS, size, self.num_params))
        self._check_tensor("unroll", "values", both[1], row, (_STEPS, size))

    def _check_seen(self, what: str, stepped: torch.Tensor, unrolled: torch.Tensor) -> None:
        close = rounding(stepped)
        if not torch.allclose(stepped, unrolled, rtol=close, atol=close, equal_nan=True):
            off = (stepped - unrolled).abs().max().item()
            raise self.fails(
                "unroll",
                f"returned {what} that differ from those of {self.kind}.step, row after row from the same state, by "
                f"{off:.2g}: set the state to 0 before rows where starts says so, and keep nothing else",
            )

    def _episode(self, size: int) -> tuple[Obs, torch.Tensor]:
        """Return obs `[T, size, ...]`, and where episodes start `[T, size]`: environment 1 in row 2, and so on."""
        obs = each(lambda x: x.unflatten(0, (_STEPS, size)), self._obs(_STEPS * size))
        starts = torch.zeros(_STEPS, size, dtype=torch.bool, device=leaves(obs)[0].device)
        starts[2, 1::3] = True
        return obs, starts

    def _state(self, size: int) -> torch.Tensor:
        p = next(self.model.parameters())
        rows = torch.linspace(-0.5, 0.5, size * self.model.state_size, dtype=p.dtype, device=p.device)
        return rows.view(size, self.model.state_size)

    def _said(self, size: int) -> str:
        return f"{size} environments and a state [{size}, {self.model.state_size}]"
