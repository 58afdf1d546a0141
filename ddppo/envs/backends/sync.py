"""Batches of scalar environments that reset in the step that ends an episode, whoever steps them: this process
(sync) or a pool of others.

Both step the same `RowEnv`s by the same code in the same order, so they give the same numbers.
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
    """Step every environment in this process. There is nothing to wait for, so timeout_s is not used."""
    envs = make_row_envs(env, spec, [names(i) for i in range(len(names.indices))])
    return SameStepEnvs(InTurn(envs), spec, names)


def make_row_envs(env: EnvConfig, spec: EnvSpec, names: Sequence[str]) -> list[RowEnv]:
    """Make an environment for every name. Raises EnvError; those made before it are closed then."""
    made: list[RowEnv] = []
    try:
        made.extend(make_row_env(env, spec, name) for name in names)
    except BaseException:
        for each in made:
            each.close()
        raise
    return made


class Answers(NamedTuple):
    """What environments answer to a step, one entry each.

    rows: `[E]` of a layout, to act on next. final_rows: `[E]` likewise, which count where an episode ended.
    rewards: `[E]` float64. terminated, truncated: `[E]` bool.
    """

    rows: np.ndarray
    final_rows: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def part(self, of: slice) -> "Answers":
        return Answers(*(array[of] for array in self))


def answer_layout(num_envs: int, row_dtype: np.dtype) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Return the shape and type of every array of Answers."""
    return [((num_envs,), np.dtype(kind)) for kind in (row_dtype, row_dtype, np.float64, bool, bool)]


class Stepper(Protocol):
    """Whoever steps E environments and writes into `answers` what they answer."""

    answers: Answers
    valid: np.ndarray  # [E] bool, as EnvStep has it
    action_space: gym.Space  # of the task
    num_restarts: int  # how often a process was lost and another took its place
    num_env_restarts: int  # how many environments were made again for that
    num_lost_episodes: int  # that were under way in those

    def take_options(self, options: Options) -> None:
        """Have each begin every episode to come with its own."""
        ...

    def reset(self, seeds: Sequence[int]) -> None: ...

    def step(self, actions: np.ndarray) -> None:
        """Step all with the task's own actions `[E, *action_space.shape]`, which environments may keep or change."""
        ...

    def call(self, method: str, arguments: Mapping[int, tuple]) -> dict[int, Any]:
        """Call a method of the `RowEnv`s at these places, each with its arguments; return what they answer.

        Plain values both ways. One whose process was lost is missing in the answers: the next step finds that.
        """
        ...

    def made_anew(self) -> list[int]:
        """Return which environments were made anew, with the process that took a lost one's place, since last asked."""
        ...

    def close(self) -> None: ...


class InTurn:
    """Steps environments of this process one after another.

    `at[0]` tells whoever shares it which of them is running.
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
        rows, final_rows, rewards, terminated, truncated = self.answers
        for i, env in enumerate(self.envs):
            self._at[0] = i
            row, rewards[i], terminated[i], truncated[i], _ = env.step(actions[i])
            if terminated[i] or truncated[i]:
                final_rows[i] = row
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
    """What all environments of a batch over a stepper are asked between iterations."""

    def __init__(self, stepper: Stepper, spec: EnvSpec, names: EnvNames) -> None:
        self.spec = spec
        self.names = names
        self.num_envs = len(names.indices)
        self._stepper = stepper
        self._layout = RowLayout(spec)
        self._next: dict[str, Any] | None = None

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
        for i in range(self.num_envs):
            if i not in answers:
                raise EnvStateError(f"{self.names(i)} cannot hand over its state: its process was lost")
        return [answers[i] for i in range(self.num_envs)]


class SameStepEnvs(SteppedEnvs):
    """`VecEnv` over a stepper of `RowEnv`s: actions are decoded for it, rows read as observations and masks."""

    def __init__(self, stepper: Stepper, spec: EnvSpec, names: EnvNames) -> None:
        super().__init__(stepper, spec, names)
        self._answers = answers = stepper.answers
        self._obs = self._layout.obs(answers.rows)
        self._mask = self._layout.mask(answers.rows)
        self._none_ended = np.empty(0, np.intp)
        self._no_final_obs = self._layout.obs(answers.final_rows[:0])

    def step(self, actions: np.ndarray) -> EnvStep:
        assert actions.shape == (self.num_envs, *self.spec.action.shape), actions.shape
        self._stepper.step(decode_actions(self._stepper.action_space, actions))
        answers = self._answers
        ended, final_obs = self._none_ended, self._no_final_obs
        over = answers.terminated | answers.truncated
        if over.any():
            (ended,) = over.nonzero()
            final_obs = self._layout.obs(answers.final_rows[ended])
        return EnvStep(
            self._obs, answers.rewards, answers.terminated, answers.truncated, self._stepper.valid, ended, final_obs,
            self._mask,
        )  # fmt: skip
