"""What happens if a loss, a gradient or a parameter is not finite: on_nonfinite = stop, skip_batch or restore.

If the loss of one rank is not finite, the gradient of all ranks is NaN (losses.py). So all ranks see the fault at the
same minibatch, move nothing from there on, and raise UpdateNotFinite at the end of the iteration. Then the learner

    stop          raises NonFiniteError: the run ends, its last checkpoint stays
    skip_batch    undoes the whole update (`snapshot`) and goes on with the next rollout
    restore       raises NonFiniteError; loop/rank.py goes back to the last checkpoint, with smaller steps
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

    from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer


class UndoableLearner(Protocol):
    """A learner of PPO, or of another algorithm."""

    parameters: "torch.nn.Parameter"
    learning_rate: float
    obs_normalizer: "ObsNormalizer | None"

    @property
    def reward_normalizer(self) -> "RewardNormalizer | None": ...

    def carried(self) -> "list[torch.Tensor]": ...


class UpdateNotFinite(Exception):
    """Raised on all ranks at the end of an iteration's minibatches; the learner handles it."""

    def __init__(
        self,
        loss: float,  # this rank's, of the first minibatch with a gradient that was not finite
        what: str | None = None,  # names what is not finite, if it is no gradient
        terms: Mapping[str, bool] = MappingProxyType(
            {}
        ),  # of ppo.losses: whether each is the cause on this rank
    ) -> None:
        super().__init__(loss)
        self.loss = loss
        self.terms = terms
        self.what = what or "the gradient, though no loss,"
        self.is_gradient = what is None


@dataclass(slots=True)
class NonFiniteGuard:
    """The settings on_nonfinite*, and what has happened so far; equal on all ranks that learn."""

    mode: str = "stop"  # on_nonfinite
    most: int = 10  # on_nonfinite_max: updates skipped in a row, or returns to a checkpoint
    factor: float = 0.5  # on_nonfinite_factor: of step sizes, with every return to a checkpoint
    skipped: int = 0  # updates, in all
    in_row: int = 0  # updates skipped since the last that was not
    restored: int = 0  # returns to a checkpoint

    @property
    def step_factor(self) -> float:
        """The factor of step sizes."""
        return self.factor**self.restored

    @property
    def metrics(self) -> dict[str, float]:
        if self.mode == "skip_batch":
            return {"train/skipped_batches": float(self.skipped)}
        return {"train/restores": float(self.restored)} if self.mode == "restore" else {}

    def may_skip(self) -> bool:
        """Return whether this update may be skipped, and count it if so."""
        if self.mode != "skip_batch" or self.in_row == self.most:
            return False
        self.skipped += 1
        self.in_row += 1
        return True

    def exhausted(self) -> str:
        """Return the end of an error message: what was tried before."""
        if self.mode == "skip_batch":
            return f". {self.in_row} batches in a row were skipped before (on_nonfinite_max)"
        if self.mode == "restore" and self.restored:
            return f". Restores from a checkpoint so far: {self.restored}"
        return ""

    def state(self) -> list[int]:
        """Return the counts, for a checkpoint."""
        return [self.skipped, self.in_row, self.restored]

    def load(self, state: list[int]) -> None:
        self.skipped, self.in_row, self.restored = state


def snapshot(learner: UndoableLearner) -> Callable[[], None]:
    """Copy what an update changes, and return a function that undoes the update.

    That is the parameters, Adam's steps and moments, tensors that an algorithm keeps, the normalisers' moments and the
    step size. The discounted
    returns under way are not restored: they belong to the environments, which have stepped on.
    """
    changing = [learner.parameters.data, *learner.carried()]
    copies = [x.clone() for x in changing]
    learning_rate, obs, rewards = learner.learning_rate, learner.obs_normalizer, learner.reward_normalizer
    obs_state = None if obs is None else obs.state
    reward_state = None if rewards is None else rewards.state

    def undo() -> None:
        for x, copy in zip(changing, copies, strict=True):
            x.copy_(copy)
        learner.learning_rate = learning_rate
        if obs is not None and obs_state is not None:
            obs.load(obs_state)
        if rewards is not None and reward_state is not None:
            rewards.state = reward_state

    return undo


def all_finite(learner: UndoableLearner) -> bool:
    """Return whether the parameters and the normalisers' moments are finite."""
    found = [learner.parameters.data]
    found += [n.state for n in (learner.obs_normalizer, learner.reward_normalizer) if n is not None]
    # One NumPy sum a tensor, which after an epoch in C++ takes a fifth of torch's time. A sum can also overflow, so one
    # that is not finite is looked at again.
    with np.errstate(all="ignore"):
        return all(math.isfinite(x.cpu().numpy().sum()) or bool(x.isfinite().all()) for x in found)


def where_not_finite(error: UpdateNotFinite, losses_by_rank: list[float], to_blame: list[list[float]]) -> str:
    """Return the subject of the error message. to_blame: for each of error.terms, 1 on ranks where it is the cause."""
    ranks = [rank for rank, value in enumerate(losses_by_rank) if not math.isfinite(value)]
    if not ranks:
        return error.what
    where = f"the loss of rank {', '.join(map(str, ranks))}"
    terms = [name for name, by_rank in zip(error.terms, to_blame, strict=True) if any(by_rank)]
    return f"ppo.losses.{', ppo.losses.'.join(terms)}, a part of {where}," if terms else where
