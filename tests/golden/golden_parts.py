"""Tasks, a network, a loss term and a metric for the runs of same_parameters.py and of tests/kept.

Both sides of a comparison import this very file, so that a difference is one of ddppo. It imports of ddppo only what
a project of a user's own does.
"""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text
from torch import nn

from ddppo.models.actor_critic import ActorCritic

WORDS = {"go": "warm-up", "stay": "warm-up", "turn": "beginner"}  # tasks of text, and the tier of each


class Seen(gym.Env):
    """A picture whose left or right half is lit, beside its step number; the action names the half."""

    action_space = Discrete(2)

    def __init__(self, size=12):
        self.size = size
        self.observation_space = self.space(Box(0, 255, (1, size, size), np.uint8))

    def space(self, camera):
        return Dict({"camera": camera, "step": Box(0, 9, (2,), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return self.observe(), {}

    def step(self, action):
        reward = float(action == self.lit)
        self.num_steps += 1
        return self.observe(), reward, False, self.num_steps == 9, {}

    def observe(self):
        return {"camera": self.picture(), "step": np.array([self.num_steps, self.num_steps / 3], np.float32)}

    def picture(self):
        self.lit = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 128, (1, self.size, self.size), dtype=np.uint8)
        half = self.size // 2
        picture[..., half * self.lit : half * (self.lit + 1)] += 100
        return picture


class Picture(Seen):
    """The same, of which the picture alone is observed."""

    def space(self, camera):
        return camera

    def observe(self):
        return self.picture()


class Say(gym.Env):
    """Two turns, each of which is worth more the more of the word's letters it contains."""

    observation_space = Text(64, min_length=0)
    action_space = Text(16, min_length=0)
    task_tiers = WORDS

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = list(WORDS)[int(self.np_random.integers(len(WORDS)))]
        self.word, self.num_turns, self.num_right = (options or {}).get("task", drawn), 0, 0
        return self.word, self.info()

    def step(self, action):
        self.num_turns += 1
        said = sum(letter in action for letter in self.word)
        self.num_right += said > 0
        return "again", said / len(self.word), self.num_turns == 2, False, self.info()

    def info(self):
        return {"task": self.word, "tier": WORDS[self.word], "is_success": self.num_right > 0}


gym.register("golden/Seen-v0", Seen)
gym.register("golden/Picture-v0", Picture)
gym.register("golden/Say-v0", Say)


class Own(ActorCritic):
    """A network of a user's own: one linear layer in front of actions and value."""

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.first = nn.Linear(4, config.hidden_sizes[-1])
        self.policy = nn.Linear(config.hidden_sizes[-1], 2)
        self.critic = nn.Linear(config.hidden_sizes[-1], 1)

    def forward(self, obs):
        features = self.first(obs).tanh()
        return self.policy(features), self.critic(features).squeeze(-1)

    def action_params(self, obs):
        return self.policy(self.first(obs).tanh())

    def value(self, obs):
        return self.critic(self.first(obs).tanh()).squeeze(-1)


def still(samples):
    """A loss term: the square of a normal distribution's mean, summed over dimensions."""
    return samples.policy.mean.square().sum(dim=-1)


def pushes(seen):
    """A metric: the size of actions."""
    valid = seen.rollout.valid
    return {"push": (seen.rollout.actions[valid].abs().sum(), valid.sum())}
