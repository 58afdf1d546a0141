"""What environments do wrong, in sentences that name the environment and the step.

Steps are counted per environment since the batch was reset from seeds: step 0 is that reset.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from ddppo.envs.encoding.returned import WrongOutput, translated
from ddppo.envs.encoding.rows import ObsArrays
from ddppo.errors import EnvError, EnvOutputError, EnvRaised, EnvStateError
from ddppo.spaces import ActionSpec, leaves
from ddppo.tracebacks import own_traceback


@dataclass(frozen=True, slots=True)
class EnvNames:
    """What the environments of a batch are called: by global index and rank, or as evaluation's (rank None)."""

    indices: range
    rank: int | None

    def __call__(self, i: int) -> str:
        """Return the name of the batch's environment i, counted from 0."""
        if self.rank is None:
            return f"evaluation environment {self.indices[i]}"
        return f"environment {self.indices[i]} of rank {self.rank}"

    def all(self) -> str:
        first, last = self.indices[0], self.indices[-1]
        if first == last:
            return self(0)
        kind, owner = ("evaluation ", "") if self.rank is None else ("", f" of rank {self.rank}")
        return f"{kind}environments {first} to {last}{owner}"


def when_stepped(step: int) -> str:
    return f"in step {step}"


def when_reset(step: int) -> str:
    return f"in the reset after step {step}" if step else "in its first reset"


def when_asked(method: str, step: int) -> str:
    return f"from {method}() after step {step}"


def no_state(names: EnvNames) -> EnvStateError:
    """Return what to raise where a backend does not know all that its task remembers."""
    return EnvStateError(
        f"{names(0)} cannot hand over its state: who steps it does not know it; use env.backend=batched, sync or pool"
    )


def other_state(name: str, found: Any, wanted: str) -> EnvStateError:
    """Return what to raise where environment `name`, saved as `wanted`, is to go on from a state saved as `found`."""
    return EnvStateError(
        f"{name} cannot go on from the state of an environment that was saved as {found}, and is saved as {wanted} "
        "here: resume with the env.id, env.kwargs, env.backend and packages that it was saved with"
    )


def no_options(names: EnvNames) -> EnvError:
    """Return what to raise where a backend cannot hand a reset's options over."""
    return EnvError(
        f"{names(0)} takes no options at a reset: use env.backend=sync or pool, which hand them over"
    )


def task_name(task: gym.Env) -> str:
    """Return the id under which a task is registered, else the name of its class."""
    spec = task.unwrapped.spec
    return type(task.unwrapped).__name__ if spec is None else spec.id


def explained(name: str, when: str, error: BaseException, task: str = "") -> EnvError:
    """Return what to raise where environment `name` raised `error`, or handed over what cannot be encoded."""
    if isinstance(error, EnvError):
        return error
    error = translated(error)
    if isinstance(error, WrongOutput):
        of_task = f" (task {task})" if task else ""
        return EnvOutputError(f"{name} {error.verb} {error.found} {when}, {error.wanted}{of_task}")
    said = " ".join(str(error).split())
    colon = f": {said}" if said else ""
    return EnvRaised(f"{name} raised {type(error).__name__} {when}{colon}", own_traceback(error))


End = tuple[int, np.ndarray, ObsArrays]


def check_finite(
    names: EnvNames, first_step: int, obs: ObsArrays, rewards: np.ndarray, ends: Sequence[End]
) -> None:
    """Raise EnvOutputError for the first NaN or infinity that environments returned, if there is any.

    obs `[R, E, *shape]` and rewards `[R, E]` are what the steps first_step to first_step + R - 1 returned. ends:
    (row, indices of environments `[n]`, their final observations `[n, *shape]`) of the episodes that ended. Where
    all is well this costs one sum over each array of floats.
    """
    with np.errstate(all="ignore"):
        sums = [x.sum() for x in (rewards, *_floats(obs), *(x for end in ends for x in _floats(end[2])))]
    if all(math.isfinite(x) for x in sums):
        return
    found: list[tuple[int, int, int, str]] = []  # row, order within the step, environment, what
    resets = {(row, int(i)) for row, ended, _ in ends for i in ended}
    for row, ended, final_obs in ends:
        for (k,), what in _not_finite(final_obs, 1):
            found.append(
                (row, 0, int(ended[k]), f"{what[0]} in the observation of step {first_step + row} {what[1]}")
            )
    for row, i in np.argwhere(~np.isfinite(rewards)):
        found.append((row, 1, i, f"{rewards[row, i]:g} as the reward of step {first_step + row}"))
    for (row, i), what in _not_finite(obs, 2):
        step = first_step + row
        where = f"step {step}" if step else "its first reset"
        if (row, i) in resets:
            where = f"the reset after step {step}"
        found.append((row, 2, i, f"{what[0]} in the observation of {where} {what[1]}"))
    if found:  # not where finite numbers only overflowed in their sum
        _, _, i, said = min(found)
        raise EnvOutputError(
            f"{names(int(i))} returned {said}: nothing can be learned from it; mend the task, or wrap it so that "
            "it returns finite numbers"
        )


def _floats(obs: ObsArrays) -> list[np.ndarray]:
    return [x for x in leaves(obs) if x.dtype.kind == "f"]  # others are finite


def _not_finite(obs: ObsArrays, batch_dims: int) -> list[tuple[tuple[int, ...], tuple[str, str]]]:
    """Return where in the batch an observation has a number that is not finite, the first such and where in it."""
    found = []
    for name, x in obs.items() if isinstance(obs, dict) else [("", obs)]:
        flat = x.reshape(*x.shape[:batch_dims], -1)
        of_which = f" of {name}" if name else ""
        for index in np.argwhere(~np.isfinite(flat).all(axis=-1)):
            numbers = flat[tuple(index)]
            bad = np.flatnonzero(~np.isfinite(numbers))[0]
            where = f"(entry {bad} of {numbers.size}{of_which}, flattened)"
            found.append((tuple(int(i) for i in index), (f"{numbers[bad]:g}", where)))
    return found


def check_masks(
    names: Callable[[int], str], first_step: int, masks: np.ndarray, acted_on: np.ndarray, action: ActionSpec
) -> None:
    """Raise EnvOutputError for the first mask that forbids all choices of a component.

    masks `[R, E, mask_size]` bool came with the steps first_step to first_step + R - 1; acted_on `[R, E]` is False
    where no action was taken under the mask.
    """
    starts = np.concatenate([[0], np.cumsum(action.sizes)[:-1]])
    allowed = np.logical_or.reduceat(masks, starts, axis=-1)
    stuck = acted_on & ~allowed.all(axis=-1)
    if stuck.any():
        row, i = np.argwhere(stuck)[0]
        step = first_step + row
        component = np.flatnonzero(~allowed[row, i])[0]
        which = f" of component {component}" if len(action.sizes) > 1 else ""
        raise EnvOutputError(
            f"{names(int(i))} returned an action_mask {when_stepped(step) if step else when_reset(0)} that forbids "
            f"every choice{which}: allow one at least, or end the episode where none is left"
        )
