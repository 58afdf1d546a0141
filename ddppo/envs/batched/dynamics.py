"""What a task is to a batch that steps all its environments at once."""

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np


class NoOptions(Exception):
    """A task begins its episodes without options."""


class Dynamics(abc.ABC):
    """E copies of one task, made as `Dynamics(E, **env.kwargs)`.

    state: `[S, E]`, all that they remember beside their last observations; `env_axis` is where E is. generators: one
    for each, which the batch seeds. max_episode_steps: where the task by itself truncates an episode.
    """

    max_episode_steps: int | None = None
    env_axis = 1

    def __init__(self, state_size: int, num_envs: int) -> None:
        self.state: np.ndarray = np.zeros((state_size, num_envs))
        self.generators: list[np.random.Generator] = []

    @abc.abstractmethod
    def reset(self, i: int) -> np.ndarray:
        """Put environment i into a state drawn from its generator; return its observation `[obs_size]`."""

    def take_options(self, i: int, options: Mapping[str, Any]) -> None:
        """Have environment i begin every episode to come with a reset's options. Raises NoOptions where none are."""
        raise NoOptions

    def publish(self) -> list[bytes]:
        """Return what each has to tell (ddppo.envs.publishing)."""
        return [b""] * len(self.generators)

    def remembered(self) -> list[dict[str, Any]]:
        """Return of each, in plain values, what is remembered besides `state`."""
        return [{} for _ in self.generators]

    def remember(self, states: list[dict[str, Any]]) -> None:  # noqa: B027 (most remember nothing more)
        """Go on from what `remembered` returned, of the same environments in these or other batches."""

    @abc.abstractmethod
    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move all by actions of the task's space; return rewards `[E]` (float64) and terminated `[E]`.

        `obs` `[E, obs_size]` holds the last observations, and gets the next.
        """
