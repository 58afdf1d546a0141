"""A task that is given an order: kinds break at random, and a repair complies if none of a higher priority is broken.

Its return by itself falls with the order's distance from a hidden one, whatever the policy does, and with idle repairs.
"""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from ddppo.domains.cage2.search.orders import ORDERS, kendall
from ddppo.domains.cage2.search.outcomes import encode_episodes

STEPS = 10
WEIGHT = 5.0
HIDDEN = ORDERS[77]


class Ordered(gym.Env):
    """Actions: 0 nothing, k repairs kind k - 1. Observes which kinds are broken, and the code of the order.

    fault: "plays-another-order" than it was given.
    """

    observation_space = Dict({"obs": Box(0, 1, (5,), np.float32), "context": Box(0, 1, (25,), np.float32)})
    action_space = Discrete(6)
    journal: str | None = "tests.domains.cage2.ordered:Silence"

    def __init__(self, fault=""):
        self._fault, self._order, self._ended = fault, ORDERS[0], []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        options = options or {}
        self._weight, code = options.get("alignment_weight", WEIGHT), options.get("context")
        if code is not None:
            self._order = tuple(int(i) for i in np.reshape(code, (5, 5)).argmax(axis=1))
        self._step = self._repairs = self._compliant = 0
        self._reward = self._paid = 0.0
        self._broken = self.np_random.random(5) < 0.5
        return self._obs(), {}

    def step(self, action):
        self._step += 1
        reward = -float(kendall(self._order, HIDDEN)) / STEPS
        if action:
            kind = int(action) - 1
            higher = list(self._order[: self._order.index(kind)])
            reward -= 0.0 if self._broken[kind] else 0.1
            self._repairs += 1
            self._compliant += not self._broken[higher].any()
            self._broken[kind] = False
        alignment = self._weight * self._compliant / max(self._repairs, 1) - self._paid
        self._paid += alignment
        self._reward += reward
        self._broken |= self.np_random.random(5) < 0.15
        over = self._step == STEPS
        if over:
            order = ORDERS[3] if self._fault else self._order
            told = {"repairs": self._repairs, "compliant": self._compliant, "steps": self._step}
            self._ended.append({"order": order, "reward": self._reward, "alignment": self._paid, **told})
        return self._obs(), reward + alignment, False, over, {}

    def _obs(self):
        code = np.eye(5, dtype=np.float32)[list(self._order)].reshape(-1)
        return {"obs": self._broken.astype(np.float32), "context": code}

    def publish(self):
        ended, self._ended = self._ended, []
        return encode_episodes(ended)

    def receive(self, news):
        pass


class Silence:
    """A journal of nothing."""

    metrics = {}  # noqa: RUF012

    def __init__(self, env, folder):
        pass

    def note(self, news, env_steps, wall_s):
        return {}

    def pictures(self):
        return {}

    def before(self):
        return []

    def summary(self):
        return {}


gym.register("tests/Ordered-v0", "tests.domains.cage2.ordered:Ordered")
