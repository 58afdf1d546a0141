"""The task of the study, for both: the prompt names a letter, and the answer is to be eight times that letter.

Its reward is a share in [0, 1], so that a network trained from nothing meets some of it by chance.
"""

import gymnasium as gym
from gymnasium.spaces import Text

LETTERS = "abcdefgh"
NUM_TOKENS = 8  # of an answer


def prompt_of(letter: str) -> str:
    return f"say {letter}"


def reward_of(letter: str, answer: str) -> float:
    """Return the share of the eight tokens that are the letter; an answer that ends early lacks the rest."""
    return answer.split().count(letter) / NUM_TOKENS


class SayEnv(gym.Env):
    """One turn: the seed draws the letter."""

    observation_space = Text(64, min_length=0)
    action_space = Text(64, min_length=0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._letter = LETTERS[int(self.np_random.integers(len(LETTERS)))]
        return prompt_of(self._letter), {}

    def step(self, action):
        return "", reward_of(self._letter, action), True, False, {}


gym.register("study/Say-v0", entry_point=f"{__name__}:SayEnv", order_enforce=False, disable_env_checker=True)
