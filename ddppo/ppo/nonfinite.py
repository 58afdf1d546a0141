"""What a learner does where a loss, a gradient or what was learned is not finite: on_nonfinite."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddppo.ppo.step import NotFinite, adam_state

if TYPE_CHECKING:
    from ddppo.ppo.learner import Learner


@dataclass(slots=True)
class Tolerance:
    """What on_nonfinite says, and what came of it so far; equal on all ranks that learn.

    most: batches skipped in a row, or ways back. factor: of step sizes, with every way back. skipped: batches in all;
    in_row: since the last that was learned from. restored: ways back to a checkpoint.
    """

    mode: str = "stop"
    most: int = 10
    factor: float = 0.5
    skipped: int = 0
    in_row: int = 0
    restored: int = 0

    @property
    def step_factor(self) -> float:
        """What step sizes are multiplied by."""
        return self.factor**self.restored

    @property
    def metrics(self) -> dict[str, float]:
        if self.mode == "skip_batch":
            return {"train/skipped_batches": float(self.skipped)}
        return {"train/restores": float(self.restored)} if self.mode == "restore" else {}

    def may_skip(self) -> bool:
        """Count a batch that is not finite and return whether it may be skipped."""
        if self.mode != "skip_batch" or self.in_row == self.most:
            return False
        self.skipped += 1
        self.in_row += 1
        return True

    def exhausted(self) -> str:
        """Return what to add to an error's message, of what was tried before."""
        if self.mode == "skip_batch":
            return f". {self.in_row} batches in a row were skipped before (on_nonfinite_max)"
        if self.mode == "restore" and self.restored:
            return f". Ways back to a checkpoint so far: {self.restored}"
        return ""

    def state(self) -> list[int]:
        """Return what came of it, for a checkpoint."""
        return [self.skipped, self.in_row, self.restored]

    def load(self, state: list[int]) -> None:
        self.skipped, self.in_row, self.restored = state


def remembered(learner: "Learner") -> Callable[[], None]:
    """Copy what an update changes that lasts: parameters, Adam's moments, normalisers, the step size.

    Returns what puts it back. Discounted returns under way go on: they are of the environments, not of learning.
    """
    moving = [learner.parameters.data, *adam_state(learner.optimizer, learner.parameters)]
    copies = [x.clone() for x in moving]
    learning_rate, of_obs, of_rewards = (
        learner.learning_rate,
        learner.obs_normalizer,
        learner.reward_normalizer,
    )
    obs_state = None if of_obs is None else of_obs.state
    reward_state = None if of_rewards is None else of_rewards.state

    def put_back() -> None:
        for x, copy in zip(moving, copies, strict=True):
            x.copy_(copy)
        learner.learning_rate = learning_rate
        if of_obs is not None and obs_state is not None:
            of_obs.load(obs_state)
        if of_rewards is not None and reward_state is not None:
            of_rewards.state = reward_state

    return put_back


def all_finite(learner: "Learner") -> bool:
    """Return whether what was learned is finite: parameters, and the moments of normalisers."""
    found = [learner.parameters.data]
    found += [of.state for of in (learner.obs_normalizer, learner.reward_normalizer) if of is not None]
    # NumPy adds in a fifth of torch's time what a C++ epoch left; only a sum that overflowed is looked at again.
    with np.errstate(all="ignore"):
        return all(math.isfinite(x.cpu().numpy().sum()) or bool(x.isfinite().all()) for x in found)


def where_not_finite(error: NotFinite, losses_by_rank: list[float], to_blame: list[list[float]]) -> str:
    """Return what was not finite, by ranks. to_blame: of each of error.terms, 1 on ranks where it is why, else 0."""
    ranks = [rank for rank, value in enumerate(losses_by_rank) if not math.isfinite(value)]
    if not ranks:
        return error.what
    said = f"the loss of rank {', '.join(map(str, ranks))}"
    terms = [name for name, of_ranks in zip(error.terms, to_blame, strict=True) if any(of_ranks)]
    return f"ppo.losses.{', ppo.losses.'.join(terms)}, a part of {said}," if terms else said
