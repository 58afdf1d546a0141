"""Batches of single environments, which reset in the step that ends an episode: the backends sync and pool.

A `Stepper` steps the environments and writes the results into arrays (`Answers`): `InTurn` in this process, the pool's
(pool.py) in other processes. Both run the same `RowEnv`s in the same order, so they give the same numbers.
`SameStepEnvs` makes a `VecEnv` of a stepper.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from ddppo.config.settings import EnvConfig
from ddppo.envs.encoding.gym_spaces import decode_actions
from ddppo.envs.encoding.observations import ObsArrays, RowLayout
from ddppo.envs.single import RowEnv, make_row_env
from ddppo.envs.vec_env import EnvNames, EnvSpec, EnvStep, Options
from ddppo.errors import EnvStateError


def make_sync(env: EnvConfig, spec: EnvSpec, names: EnvNames, timeout_s: float) -> "SameStepEnvs":
    """Make a batch that this process steps, one environment after another. timeout_s is unused: nothing waits."""
    envs = make_row_envs(env, spec, [names(i) for i in range(len(names.indices))])
    return SameStepEnvs(InTurn(envs), spec, names)


def make_row_envs(env: EnvConfig, spec: EnvSpec, names: Sequence[str]) -> list[RowEnv]:
    """Make an environment for every name. If one cannot be made, close the others and raise EnvError."""
    # All environments exist, or none.
    made: list[RowEnv] = []
    try:
        made.extend(make_row_env(env, spec, name) for name in names)
    except BaseException:
        for each in made:
            each.close()
        raise
    return made


class Answers(NamedTuple):
    """The results of a step of E environments. A pool keeps these arrays in shared memory."""

    rows: np.ndarray  # [E] of RowLayout.dtype: observations and masks to act on next
    final_rows: np.ndarray  # [E] likewise: the last observation, set only where an episode ended
    rewards: np.ndarray  # [E] float64
    terminated: np.ndarray  # [E] bool
    truncated: np.ndarray  # [E] bool
    noted: (
        np.ndarray
    )  # [E] bool: an episode has ended with numbers in its info, which `take_infos` has not taken yet

    def part(self, of: slice) -> "Answers":
        return Answers(*(array[of] for array in self))


def answer_layout(num_envs: int, row_dtype: np.dtype) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Return the shape and type of every array of `Answers`, in order."""
    return [((num_envs,), np.dtype(kind)) for kind in (row_dtype, row_dtype, np.float64, bool, bool, bool)]


class Stepper(Protocol):
    """Steps E environments and writes the results into `answers`."""

    answers: Answers
    valid: np.ndarray  # [E] bool, see EnvStep.valid
    action_space: gym.Space  # of the task
    num_restarts: int  # processes that were lost and replaced
    num_env_restarts: int  # environments that were made again in these processes
    num_lost_episodes: int  # episodes that were under way in them

    def take_options(self, options: Options) -> None:
        """Pass options[i] to every later reset of environment i."""
        ...

    def reset(self, seeds: Sequence[int]) -> None: ...

    def step(self, actions: np.ndarray) -> None:
        """Step all environments with the task's own actions `[E, *action_space.shape]`, which tasks may change."""
        ...

    def call(self, method: str, arguments: Mapping[int, tuple]) -> dict[int, Any]:
        """Call a method of the `RowEnv`s at these indices, each with its arguments; return the results by index.

        Arguments and results are plain values. An environment with a lost process is missing in the results; the next
        step reports it.
        """
        ...

    def made_anew(self) -> list[int]:
        """Return the environments that were made again, in the place of lost ones, since the last call."""
        ...

    def close(self) -> None: ...


class InTurn:
    """Steps the environments of this process one after another.

    `at[0]` is the index of the running environment: a pool shares it with its parent, which names it if it hangs.
    """

    num_restarts = num_env_restarts = num_lost_episodes = 0

    def __init__(
        self, envs: list[RowEnv], answers: Answers | None = None, at: np.ndarray | None = None
    ) -> None:
        self.envs = envs
        if answers is None:
            layout = answer_layout(len(envs), envs[0].layout.dtype)
            answers = Answers(*(np.zeros(shape, dtype) for shape, dtype in layout))
        self.answers = answers
        self.valid = np.ones(len(envs), bool)
        self.action_space: gym.Space = envs[0].action_space
        self._at = np.zeros(1, np.int64) if at is None else at

    def take_options(self, options: Options) -> None:
        for env, own in zip(self.envs, options, strict=True):
            env.take_options(own)

    def reset(self, seeds: Sequence[int]) -> None:
        for i, (env, seed) in enumerate(zip(self.envs, seeds, strict=True)):
            self._at[0] = i
            self.answers.rows[i] = env.reset(seed=int(seed))[0]  # Gymnasium refuses np.int64

    def step(self, actions: np.ndarray) -> None:
        rows, final_rows, rewards, terminated, truncated, noted = self.answers
        for i, env in enumerate(self.envs):
            self._at[0] = i
            row, rewards[i], terminated[i], truncated[i], _ = env.step(actions[i])
            # An episode that ends is reset at once: its last observation goes to final_rows.
            if terminated[i] or truncated[i]:
                final_rows[i] = row
                if env.info:
                    noted[i] |= env.note_info()
                row = env.reset()[0]
            rows[i] = row

    def call(self, method: str, arguments: Mapping[int, tuple]) -> dict[int, Any]:
        answers = {}
        for i, given in arguments.items():
            self._at[0] = i
            answers[i] = getattr(self.envs[i], method)(*given)
            if method == "restore":
                self.answers.rows[i] = self.envs[i].row
        return answers

    def made_anew(self) -> list[int]:
        return []

    def close(self) -> None:
        for env in self.envs:
            env.close()


class SteppedEnvs:
    """The part of a batch over a stepper that runs between rollouts: resets, states and messages."""

    def __init__(self, stepper: Stepper, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self._stepper = stepper
        self._layout = RowLayout(spec)
        self._next: dict[str, Any] | None = None  # the state that the next reset restores

    @property
    def num_restarts(self) -> int:
        return self._stepper.num_restarts

    @property
    def num_env_restarts(self) -> int:
        return self._stepper.num_env_restarts

    @property
    def num_lost_episodes(self) -> int:
        return self._stepper.num_lost_episodes

    def reset(
        self, seeds: Sequence[int], options: Options | None = None
    ) -> tuple[ObsArrays, np.ndarray | None]:
        assert len(seeds) == self.num_envs, (len(seeds), self.num_envs)
        if options is not None:
            self._stepper.take_options(options)
        self._stepper.reset(seeds)
        # A resumed run: the reset is needed first, because tasks expect one before any state.
        if self._next is not None:
            state, self._next = self._next, None
            return self.restore(state)
        rows = self._stepper.answers.rows
        return self._layout.obs(rows), self._layout.mask(rows)

    def go_on_from(self, state: dict[str, Any]) -> None:
        self._next = state

    def publish(self) -> list[bytes]:
        answers = self._call_all("publish")
        return [answers.get(i, b"") for i in range(self.num_envs)]

    def receive(self, news: Sequence[bytes], envs: Sequence[int] | None = None) -> None:
        arguments = (tuple(news),)  # one object, which travels to a process once
        self._stepper.call(
            "receive", dict.fromkeys(range(self.num_envs) if envs is None else envs, arguments)
        )

    def made_anew(self) -> list[int]:
        return self._stepper.made_anew()

    def take_infos(self) -> dict[int, list[dict[str, float]]]:
        """Return the numbers in the last infos of episodes that ended since the last call, by environment."""
        noted = self._stepper.answers.noted
        if not noted.any():
            return {}
        (envs,) = noted.nonzero()
        noted[:] = False
        return self._stepper.call("take_infos", dict.fromkeys(envs.tolist(), ()))

    def state(self) -> dict[str, Any]:
        return {"envs": self._of_all(self._call_all("state"))}

    def restore(self, state: dict[str, Any]) -> tuple[ObsArrays, np.ndarray | None]:
        states = state["envs"]
        assert len(states) == self.num_envs, (len(states), self.num_envs)
        self._of_all(self._stepper.call("restore", {i: (each,) for i, each in enumerate(states)}))
        rows = self._stepper.answers.rows
        return self._layout.obs(rows), self._layout.mask(rows)

    def close(self) -> None:
        self._stepper.close()

    def _call_all(self, method: str) -> dict[int, Any]:
        return self._stepper.call(method, dict.fromkeys(range(self.num_envs), ()))

    def _of_all(self, answers: Mapping[int, Any]) -> list[Any]:
        """Return the answers in order. Raises EnvStateError if one is missing."""
        for i in range(self.num_envs):
            if i not in answers:
                raise EnvStateError(f"{self.names(i)} cannot save its state: its process was lost")
        return [answers[i] for i in range(self.num_envs)]


class SameStepEnvs(SteppedEnvs):
    """A `VecEnv` over a stepper of `RowEnv`s: decodes actions, and reads rows as observations and masks."""

    def __init__(self, stepper: Stepper, spec: EnvSpec, names: EnvNames) -> None:
        super().__init__(stepper, spec, names)
        # Views of the stepper's arrays: a step allocates nothing unless an episode ends.
        self._answers = answers = stepper.answers
        self._obs = self._layout.obs(answers.rows)
        self._mask = self._layout.mask(answers.rows)
        self._none_ended = np.empty(0, np.intp)
        self._no_final_obs = self._layout.obs(answers.final_rows[:0])

    def step(self, actions: np.ndarray) -> EnvStep:
        assert actions.shape == (self.num_envs, *self.spec.action.shape), actions.shape
        # Decode the actions of all environments in one NumPy call.
        self._stepper.step(decode_actions(self._stepper.action_space, actions))
        answers = self._answers
        ended, final_obs = self._none_ended, self._no_final_obs
        # Final observations are copied, because the next step overwrites the rows.
        over = answers.terminated | answers.truncated
        if over.any():
            (ended,) = over.nonzero()
            final_obs = self._layout.obs(answers.final_rows[ended])
        return EnvStep(
            self._obs, answers.rewards, answers.terminated, answers.truncated, self._stepper.valid, ended, final_obs,
            self._mask,
        )  # fmt: skip
