"""The contract between a batch of environments and the code that acts in it. Imports NumPy, not torch.

`EnvStep` is the result of one step and `VecEnv` the interface of every backend (ddppo/envs/backends). Backends differ
in when they reset an environment after its episode; behind this contract the difference is not visible. The rest of
the file serves the backends: environments that exchange messages, the wording of errors, and the checks of numbers and
masks.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.observations import ObsArrays
from ddppo.envs.encoding.step_values import WrongOutput, translated
from ddppo.errors import (
    ConfigError,
    EnvError,
    EnvOutputError,
    EnvRaised,
    EnvStateError,
    in_one_line,
    own_traceback,
)
from ddppo.spaces import ActionSpec, EnvSpec, leaves

__all__ = ["ActionSpec", "EnvNames", "EnvSpec", "EnvStep", "ObsArrays", "Options", "Unsaved", "VecEnv"]

Options = Sequence[Mapping[str, Any]]  # Gymnasium's `options` of a reset, one mapping per environment


@dataclass(frozen=True, slots=True)
class EnvNames:
    """The names of a batch's environments in messages."""

    indices: range  # global indices of the environments
    rank: int | None  # the rank that steps them; None for the batch of an evaluation

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


@dataclass(slots=True)
class EnvStep:
    """The result of one step of E environments.

    The batch owns the arrays and overwrites them in its next step: copy what has to outlive it.
    """

    # The observation to act on next, `[E, *shape]`, one array or a dict of arrays as spec.obs is. If an episode ended
    # and the backend resets in the same step, this is the first observation of the next episode.
    obs: ObsArrays
    rewards: np.ndarray  # [E] float64
    terminated: np.ndarray  # [E] bool
    truncated: np.ndarray  # [E] bool
    # [E] bool, False if the row is no transition: the extra step in which some backends reset, or the step in which an
    # environment process was lost. Such a row has reward 0 and is neither learned from nor counted. A lost process
    # also ends its episode, which is not reported.
    valid: np.ndarray
    ended: np.ndarray  # [n] indices of the environments in which an episode ended in this step
    final_obs: ObsArrays  # [n, *shape] the last observations of these episodes
    action_mask: np.ndarray | None  # [E, mask_size] bool for `obs`, True = allowed; None without masks
    # [n] bool, True if the end is a lost life: the episode ends for learning, but later rewards still count towards the
    # same reported return. None if no end is a lost life.
    is_life_loss: np.ndarray | None = None


class VecEnv(Protocol):
    """A batch of E environments that reset themselves.

    reset and step raise EnvError, which names the environment and the step, if a task raises, dies, hangs or returns
    something that its space does not describe. The caller checks many steps at once for NaN, infinity and masks that
    allow nothing (`check_finite`, `check_masks`).
    """

    spec: EnvSpec
    num_envs: int  # E
    names: EnvNames  # of its environments in messages

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        """Reset every environment with its own seed; return obs `[E, *shape]` and the mask or None.

        `options` apply to this reset and to all later ones, until a call gives others. Raises EnvError if the backend
        cannot pass options on.
        """
        ...

    def step(self, actions: np.ndarray) -> EnvStep:
        """Step all environments with actions `[E, *spec.action.shape]` of the model, not yet clipped."""
        ...

    def state(self) -> dict[str, Any]:
        """Return {"envs": [state of environment i, in order]}, which determines all that follows.

        A list, so that a resumed run can distribute the environments over other ranks. Values are of the types that
        `saving.packed` takes. Raises EnvStateError, which names the environment, if the exact state is not available.
        """
        ...

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, np.ndarray | None]:
        """Continue exactly from `state`; return obs and mask as reset does.

        The states may come from several batches of this task and backend. Raises EnvStateError for any other state.
        """
        ...

    def go_on_from(self, state: dict[str, Any]) -> None:
        """Make the next reset restore `state` instead of starting new episodes."""
        ...

    def close(self) -> None: ...


def take_infos(env: Any) -> dict[int, list[dict[str, float]]]:
    """Return the numbers in the last infos of a batch's episodes since the last call, by environment; {} for none.

    Only backends of single environments, sync and pool, see infos.
    """
    take = getattr(env, "take_infos", None)
    return {} if take is None else take()


class Unsaved:
    """Mixin for backends that cannot save their environments: every method about states raises EnvStateError."""

    names: EnvNames

    def state(self) -> dict[str, Any]:
        raise no_state(self.names)

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, np.ndarray | None]:
        raise no_state(self.names)

    def go_on_from(self, state: dict[str, Any]) -> None:
        raise no_state(self.names)


# -- Environments that exchange messages, and the journal that records them.
#
# A task takes part if it has a class attribute `journal`, an import path "module:Class", and two methods: `publish()`
# returns bytes for all environments, b"" for nothing, and `receive(news)` takes the messages of all environments of the
# run, its own included, in the order of their global indices. Both are called once between iterations, so that results
# do not depend on which rank or process steps which environment. Only the task interprets the bytes.


_METHODS = ("publish", "receive")


class PublishingEnvs(VecEnv, Protocol):
    """A batch of environments with `spec.journal` set."""

    def publish(self) -> list[bytes]:
        """Return the message of each environment; b"" if its process was lost, which the next step reports."""
        ...

    def receive(self, news: Sequence[bytes], envs: Sequence[int] | None = None) -> None:
        """Pass messages to all environments of the batch, or to those at the indices `envs`."""
        ...

    def made_anew(self) -> list[int]:
        """Return the environments that replaced lost ones since the last call: they have received nothing yet."""
        ...


class Journal(Protocol):
    """Records the messages, once in a run, in its own files in the run folder. Made as Journal(env, run_folder)."""

    # The metrics that `note` may return: name -> (unit, meaning). A metric may append a slash and a suffix to a name,
    # such as best_cost/tof_3 for best_cost.
    metrics: Mapping[str, tuple[str, str]]

    def note(self, news: list[bytes], env_steps: int, wall_s: float) -> dict[str, float]:
        """Record the messages of an iteration, in the order of the environments; return metrics by name.

        The first metric, and those that share its name up to a slash, are shown in the progress line.
        """
        ...

    def pictures(self) -> dict[str, np.ndarray]:
        """Return the pictures that changed since the last call: name -> `[height, width, 3]` uint8."""
        ...

    def before(self) -> list[bytes]:
        """Return the recorded contents as messages, for a resumed run or for an environment that was made anew."""
        ...

    # A journal may also have `is_finished() -> bool`: whether the run may end, because nothing is left to gain.

    def summary(self) -> dict[str, Any]:
        """Return this journal's part of summary.json; the sentences under "said" are printed when the run ends."""
        ...


def journal_of(task: gym.Env) -> str | None:
    """Return the import path of a task's journal, or None. Raises ConfigError if the journal cannot be used."""
    path = getattr(task.unwrapped, "journal", None)
    if path is None:
        return None
    lacking = [name for name in _METHODS if not callable(getattr(task.unwrapped, name, None))]
    if lacking:
        raise ConfigError(
            f"it names a journal, {path}, but has no {lacking[0]}(): give it one, or no journal"
        )
    journal_class(path)
    return path


def journal_class(path: str) -> Any:
    """Import and return the class at `path`, which makes a Journal. Raises ConfigError."""
    try:
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name)
    except Exception as e:  # a user's module may raise anything
        raise ConfigError(
            f"its journal={path} cannot be imported ({in_one_line(e)}): give it as my_pkg.journals:MyJournal"
        ) from e


def make_journal(env: EnvConfig, path: str, folder: Path) -> Journal:
    return journal_class(path)(env, folder)


# -- Errors of environments, in sentences that name the environment and the step.
#
# Steps are counted per environment since the last reset with a seed: step 0 is that reset.


def when_stepped(step: int) -> str:
    return f"in step {step}"


def when_reset(step: int) -> str:
    return f"in the reset after step {step}" if step else "in its first reset"


def when_asked(method: str, step: int) -> str:
    return f"from {method}() after step {step}"


def no_state(names: EnvNames) -> EnvStateError:
    """Return the error of a backend that does not know the whole state of its task."""
    return EnvStateError(
        f"{names(0)} cannot save its state: its backend does not know it; use env.backend=batched, sync or pool"
    )


def other_state(name: str, found: Any, wanted: str) -> EnvStateError:
    """Return the error of environment `name`, which saves itself as `wanted` and got a state saved as `found`."""
    return EnvStateError(
        f"{name} cannot go on from the state of an environment that was saved as {found}, and is saved as {wanted} "
        "here: resume with the env.id, env.kwargs, env.backend and packages that it was saved with"
    )


def no_options(names: EnvNames) -> EnvError:
    """Return the error of a backend that cannot pass a reset's options on."""
    return EnvError(
        f"{names(0)} takes no options at a reset: use env.backend=sync or pool, which pass them on"
    )


def task_name(task: gym.Env) -> str:
    """Return the id under which a task is registered, else the name of its class."""
    spec = task.unwrapped.spec
    return type(task.unwrapped).__name__ if spec is None else spec.id


def explained(name: str, when: str, error: BaseException, task: str = "") -> EnvError:
    """Turn an exception of environment `name`, or a value that cannot be encoded, into an EnvError."""
    if isinstance(error, EnvError):
        return error
    error = translated(error)
    if isinstance(error, WrongOutput):
        of_task = f" (task {task})" if task else ""
        return EnvOutputError(f"{name} {error.verb} {error.found} {when}, {error.wanted}{of_task}")
    text = " ".join(str(error).split())
    colon = f": {text}" if text else ""
    return EnvRaised(f"{name} raised {type(error).__name__} {when}{colon}", own_traceback(error))


# -- Checks of numbers and masks, over all steps of a rollout at once.


# (row, indices of the environments [n], their final observations [n, *shape]) of the episodes that ended in a row.
End = tuple[int, np.ndarray, ObsArrays]


def check_finite(
    names: EnvNames, first_step: int, obs: ObsArrays, rewards: np.ndarray, ends: Sequence[End]
) -> None:
    """Raise EnvOutputError for the first NaN or infinity that environments returned, if there is any.

    obs `[R, E, *shape]` and rewards `[R, E]` come from the steps first_step to first_step + R - 1, final observations
    in `ends`. If all numbers are finite, the cost is one sum over each array of floats.
    """
    # A sum is finite only if every term is. It may overflow although all terms are finite: then look at each number.
    with np.errstate(all="ignore"):
        sums = [x.sum() for x in (rewards, *_floats(obs), *(x for end in ends for x in _floats(end[2])))]
    if all(math.isfinite(x) for x in sums):
        return
    # (row, order within the step, environment, description): the smallest is the first in the order of events, a final
    # observation before its reward, and this before the observation of the reset.
    found: list[tuple[int, int, int, str]] = []
    resets = {(row, int(i)) for row, ended, _ in ends for i in ended}
    for row, ended, final_obs in ends:
        for (k,), (number, where) in _not_finite(final_obs, 1):
            step = first_step + row
            found.append((row, 0, int(ended[k]), f"{number} in the observation of step {step} {where}"))
    for row, i in np.argwhere(~np.isfinite(rewards)):
        found.append((row, 1, i, f"{rewards[row, i]:g} as the reward of step {first_step + row}"))
    for (row, i), (number, where) in _not_finite(obs, 2):
        step = first_step + row
        event = f"step {step}" if step else "its first reset"
        if (row, i) in resets:
            event = f"the reset after step {step}"
        found.append((row, 2, i, f"{number} in the observation of {event} {where}"))
    if found:
        _, _, i, text = min(found)
        raise EnvOutputError(
            f"{names(int(i))} returned {text}: nothing can be learned from it; mend the task, or wrap it so that "
            "it returns finite numbers"
        )


def _floats(obs: ObsArrays) -> list[np.ndarray]:
    return [x for x in leaves(obs) if x.dtype.kind == "f"]  # integers are always finite


def _not_finite(obs: ObsArrays, batch_dims: int) -> list[tuple[tuple[int, ...], tuple[str, str]]]:
    """Return (index in the batch, (number, place)) of the first number in each observation that is not finite."""
    found = []
    for name, x in obs.items() if isinstance(obs, dict) else [("", obs)]:
        flat = x.reshape(*x.shape[:batch_dims], -1)
        of_key = f" of {name}" if name else ""
        for index in np.argwhere(~np.isfinite(flat).all(axis=-1)):
            numbers = flat[tuple(index)]
            bad = np.flatnonzero(~np.isfinite(numbers))[0]
            where = f"(entry {bad} of {numbers.size}{of_key}, flattened)"
            found.append((tuple(int(i) for i in index), (f"{numbers[bad]:g}", where)))
    return found


def check_masks(
    names: Callable[[int], str], first_step: int, masks: np.ndarray, acted_on: np.ndarray, action: ActionSpec
) -> None:
    """Raise EnvOutputError for the first mask that forbids every choice of a component.

    masks `[R, E, mask_size]` bool come from the steps first_step to first_step + R - 1. acted_on `[R, E]` is False
    if no action was taken under the mask.
    """
    # The masks of all components lie side by side: reduce each component's slice to "is anything allowed".
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
