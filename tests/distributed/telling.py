"""A task whose environments tell one another numbers, and its journal."""

import json
import struct
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

LENGTH = 7  # of an episode
_MODULUS = 9973
_NUMBER = struct.Struct("<q")


def number(news: bytes) -> int:
    """Return the number that news begin with."""
    return _NUMBER.unpack_from(news)[0]


class Telling(gym.Env):
    """Tells how many steps and rewarded actions there were, and observes what it heard, in the order in which it did.

    fault: what it or its journal does wrong; "silent" tells nothing. padding: bytes that news are made longer by.
    """

    observation_space = Box(-1, 1, (3,), np.float64)
    action_space = Discrete(2)
    journal: str | None = "tests.distributed.telling:Notebook"

    def __init__(self, fault: str = "", padding: int = 0) -> None:
        self._fault, self._padding = fault, padding
        self._heard, self._num_steps, self._right, self._seed = 1, 0, 0, 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._heard, self._num_steps, self._right, self._seed = 1, 0, 0, seed % _MODULUS
        self._step = 0
        return self._obs(), {}

    def step(self, action):
        self._step += 1
        self._num_steps += 1
        right = int(action) == self._heard % 2
        self._right += right
        return self._obs(), float(right), False, self._step == LENGTH, {}

    def _obs(self):
        self._last = [self._heard, self._seed, self._right % _MODULUS]  # and not what was heard since
        return np.array(self._last) / _MODULUS

    def publish(self):
        if self._fault == "raises in publish":
            raise ValueError("nothing to say")
        if self._fault == "publishes text":
            return "a number"
        if self._fault == "silent":
            return b""
        said = (self._heard * 31 + self._right * 7 + self._seed) % _MODULUS
        return _NUMBER.pack(said) + bytes(self._padding)

    def receive(self, news):
        if self._fault == "raises in receive":
            raise ValueError("not for me")
        assert all(len(each) in (0, _NUMBER.size + self._padding) for each in news)
        for each in filter(None, news):
            self._heard = (self._heard * 17 + number(each)) % _MODULUS

    def state(self):
        at = [self._num_steps, self._right, self._seed, self._step]
        return {"heard": self._heard, "at": at, "last": self._last}

    def restore(self, state):
        self._heard = state["heard"]
        self._num_steps, self._right, self._seed, self._step = state["at"]
        self._last = state["last"]
        return np.array(self._last) / _MODULUS, {}


class Notebook:
    """Keeps the sum of all numbers told, iteration by iteration, in sums.json."""

    metrics = {"sum": ("1", "of the numbers told"), "told": ("1", "environments that told one")}  # noqa: RUF012

    def __init__(self, env, folder: Path) -> None:
        self._path = folder / "sums.json"
        self._fault = env.kwargs.get("fault", "")
        self.sums = json.loads(self._path.read_text()) if self._path.exists() else []

    def note(self, news, env_steps, wall_s):
        if self._fault == "raises in note":
            raise ValueError("no ink")
        told = [number(each) for each in news if each]
        self.sums.append([env_steps, sum(told), len(news)])
        self._path.write_text(json.dumps(self.sums))
        if self._fault == "notes what is not listed":
            return {"summ": 1.0}
        if self._fault == "notes nothing":
            return None
        return {"sum": sum(told), "sum/mean": sum(told) / len(news), "told": len(told)}

    def pictures(self):
        if self._fault == "draws badly":
            return {"page": np.zeros(3)}
        return {"page": np.full((4, 5, 3), len(self.sums), np.uint8)}

    def before(self):
        if self._fault == "knows a number":
            return [7]
        return [_NUMBER.pack(total) for _, total, _ in self.sums[-1:]]

    def summary(self):
        if self._fault == "says a sentence":
            return {"said": "all is told"}
        return {"pages": len(self.sums), "last": self.sums[-1][1] if self.sums else None}


class Mute(Telling):
    """Names a journal and cannot receive."""

    receive = None


class Unjournalled(Telling):
    """Names a journal that nobody finds."""

    journal = "tests.distributed.telling:Diary"


for _name in ("Telling", "Mute", "Unjournalled"):
    gym.register(f"tests/{_name}-v0", f"tests.distributed.telling:{_name}")
