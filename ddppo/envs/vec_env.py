"""The contract between a batch of environments and whoever acts in it. Knows numpy, not torch.

Every backend (batched, sync, pool, gym_vector) hides its autoreset mode behind the same three facts per step: the
observation to act on next, the true final observation of every episode that ended, and which rows were real
transitions.
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
from ddppo.errors import ConfigError, EnvError, EnvOutputError, EnvRaised, EnvStateError
from ddppo.spaces import ActionSpec, EnvSpec, leaves
from ddppo.tracebacks import in_one_line, own_traceback

# -- What environments do wrong, in sentences that name the environment and the step.
#
# Steps are counted per environment since the batch was reset from seeds: step 0 is that reset.


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
    without masks. is_life_loss: `[n]` bool, True if the end is a lost life, which ends an episode for learning only:
    later rewards count towards the same reported return. None if no end is a lost life.
    """

    obs: ObsArrays
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    ended: np.ndarray
    final_obs: ObsArrays
    action_mask: np.ndarray | None
    is_life_loss: np.ndarray | None = None


class VecEnv(Protocol):
    """A batch of E environments that reset themselves.

    reset and step raise EnvError, which names the environment and the step, if a task raises, dies, hangs or returns
    what its space does not describe. Whether numbers are finite and masks allow anything, the caller checks, for many
    steps at once (`ddppo.envs.vec_env`).
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


# -- Environments that tell one another what they found, and the journal of it.
#
# An environment takes part by a class attribute `journal`, an import path "module:Class", and two methods:
# `publish()` returns bytes for all others, b"" for nothing, and `receive(news)` takes what all environments of the run
# published, its own included, in the order of their indices. Both are called once between iterations, so that what
# follows does not depend on how environments are dealt to ranks and processes. What the bytes mean is the task's own.


_METHODS = ("publish", "receive")


class PublishingEnvs(VecEnv, Protocol):
    """A batch of environments whose `spec.journal` is set."""

    def publish(self) -> list[bytes]:
        """Return what each has to tell; b"" of one whose process was lost, which the next step finds."""
        ...

    def receive(self, news: Sequence[bytes], envs: Sequence[int] | None = None) -> None:
        """Hand news to all, or to those of the batch at `envs`."""
        ...

    def made_anew(self) -> list[int]:
        """Return which were lost with their process and made anew since this was last asked: they know nothing."""
        ...


class Journal(Protocol):
    """What keeps a record of news, once in a run, in files of its own in the run folder.

    Made as Journal(env, run_folder). metrics: of what `note` returns, name -> (unit, meaning); a name may go on after a
    slash, as best_cost/tof_3 for best_cost.
    """

    metrics: Mapping[str, tuple[str, str]]

    def note(self, news: list[bytes], env_steps: int, wall_s: float) -> dict[str, float]:
        """Record the news of an iteration, by the environments' indices; return metrics by their names.

        The first, and others of its name up to a slash, are shown while the run goes on.
        """
        ...

    def pictures(self) -> dict[str, np.ndarray]:
        """Return pictures `[height, width, 3]` uint8 by name, those that changed since the last call."""
        ...

    def before(self) -> list[bytes]:
        """Return, as news, what the folder knows: of a run that goes on, or for an environment that lost all."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return what summary.json is to hold of it; "said", a sentence by label, is printed when the run ends."""
        ...


def journal_of(task: gym.Env) -> str | None:
    """Return the import path of a task's journal, None if it has none. Raises ConfigError where it cannot be used."""
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
    """Return what makes a Journal of an EnvConfig and a folder. Raises ConfigError."""
    try:
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name)
    except Exception as e:  # what a module of a user's own may raise
        raise ConfigError(
            f"its journal={path} cannot be imported ({in_one_line(e)}): give it as my_pkg.journals:MyJournal"
        ) from e


def make_journal(env: EnvConfig, path: str, folder: Path) -> Journal:
    return journal_class(path)(env, folder)
