"""The contract between a batch of environments and whoever acts in it. Knows numpy, not torch.

Every backend (batched, sync, pool, native) hides its autoreset mode behind the same three facts per step: the
observation to act on next, the true final observation of every episode that ended, and which rows were real
transitions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ddppo.envs.encoding.rows import ObsArrays
from ddppo.envs.faults import EnvNames, no_state
from ddppo.spaces import ActionSpec, EnvSpec

__all__ = ["ActionSpec", "EnvNames", "EnvSpec", "EnvStep", "ObsArrays", "Options", "Unsaved", "VecEnv"]


Options = Sequence[Mapping[str, Any]]  # of a reset, as Gymnasium takes them, of each environment


@dataclass(slots=True)
class EnvStep:
    """What E environments answer to one step. Arrays belong to the environment and live until its next step.

    obs: `[E, *shape]`, one array or a dict of them as spec.obs is: what to act on next (the reset observation where an
    episode just ended, if the backend resets in the same step). rewards: `[E]` float64. terminated, truncated: `[E]`
    bool. valid: `[E]` bool, False where the step was an autoreset pseudo-step: no transition, reward 0, never trained
    on or counted; so is one whose process was lost, which ends an episode that is not reported, for nobody saw its end.
    ended: `[n]` indices of the environments whose episode ended in this step, and final_obs:
    `[n, *shape]` their true last observations. action_mask: `[E, mask_size]` bool, True where allowed, for `obs`; None
    without masks. goes_on: `[n]` bool, True where the end is one for learning alone, such as a lost life, and rewards
    to come belong to the same reported return; None where no end is.
    """

    obs: ObsArrays
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    ended: np.ndarray
    final_obs: ObsArrays
    action_mask: np.ndarray | None
    goes_on: np.ndarray | None = None


class VecEnv(Protocol):
    """A batch of E environments that reset themselves.

    reset and step raise EnvError, which names the environment and the step, if a task raises, dies, hangs or returns
    what its space does not describe. Whether numbers are finite and masks allow anything, the caller checks, for many
    steps at once (`ddppo.envs.faults`).
    """

    spec: EnvSpec
    num_envs: int
    names: EnvNames  # what its environments are called in messages

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        """Start every environment from its own seed; return obs `[E, *shape]` and the mask or None.

        options: what each is reset with, then and at the start of every later episode, until others are given. Raises
        EnvError where who steps them can hand none over.
        """
        ...

    def step(self, actions: np.ndarray) -> EnvStep:
        """Step all with actions `[E, *spec.action.shape]` as the model produced them (not yet clipped)."""
        ...

    def state(self) -> dict[str, Any]:
        """Return all that decides what follows: {"envs": [of environment i, in order]}, so that it can be dealt anew.

        In values that `saving.packed` takes: None, numbers, str, bytes, arrays, lists, and dicts by str. Raises
        EnvStateError, which names the environment, where that cannot be had exactly.
        """
        ...

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, np.ndarray | None]:
        """Go on exactly where environments were when they gave `state`; return obs and mask as reset.

        They may come from several batches of this task and backend. Raises EnvStateError for those of others.
        """
        ...

    def go_on_from(self, state: dict[str, Any]) -> None:
        """Have the next reset lead to what `state` returned, instead of to new episodes."""
        ...

    def close(self) -> None: ...


class Unsaved:
    """The part of a `VecEnv` that is about states, where these are not known: each raises EnvStateError."""

    names: EnvNames

    def state(self) -> dict[str, Any]:
        raise no_state(self.names)

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, np.ndarray | None]:
        raise no_state(self.names)

    def go_on_from(self, state: dict[str, Any]) -> None:
        raise no_state(self.names)
