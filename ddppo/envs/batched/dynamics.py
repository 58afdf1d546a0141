"""What a task is to a batch that steps all its environments at once."""

import abc

import numpy as np


class Dynamics(abc.ABC):
    """E copies of one task, made as `Dynamics(E, **env.kwargs)`.

    state: `[S, E]`, all that they remember beside their last observations. generators: one for each, which the batch
    seeds. max_episode_steps: where the task by itself truncates an episode.
    """

    max_episode_steps: int | None = None

    def __init__(self, state_size: int, num_envs: int) -> None:
        self.state: np.ndarray = np.zeros((state_size, num_envs))
        self.generators: list[np.random.Generator] = []

    @abc.abstractmethod
    def reset(self, i: int) -> np.ndarray:
        """Put environment i into a state drawn from its generator; return its observation `[obs_size]`."""

    @abc.abstractmethod
    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move all by actions of the task's space; return rewards `[E]` (float64) and terminated `[E]`.

        `obs` `[E, obs_size]` holds the last observations, and gets the next.
        """
