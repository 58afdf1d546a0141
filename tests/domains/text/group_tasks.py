"""A task of text that does what it is told, so that a test decides what each member of a group meets."""

import math
import os
import threading
import time
from pathlib import Path

import gymnasium as gym
from gymnasium.spaces import Text

from tests.support import wait_until


class ObeyEnv(gym.Env):
    """A line is a list of words: a number is the reward; or end, cut, fail, raise, exit, hang, slow, meet.

    A step with `meet` ends once as many environments have begun it as options["meets"] says, by files in
    options["folder"].
    """

    observation_space = Text(200, min_length=0)
    action_space = Text(100, min_length=0)
    task_tiers = {"walk": "warm-up", "run": "warm-up", "fly": "beginner"}  # noqa: RUF012 (as the contract has it)

    def __init__(self, says=True, slow_s=0.05):
        self.says, self.slow_s = says, slow_s

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options or {}
        if self.options.get("raises"):
            raise RuntimeError("no power")
        self.num_steps, self.total = 0, 0.0
        drawn = list(self.task_tiers)[int(self.np_random.integers(3))]
        self.task = self.options.get("task", drawn)
        opening = (
            {"system": "Obey.", "shots": '[["Q", "A", "fine"], ["R", "B"]]'}
            if self.options.get("opens")
            else {}
        )
        return f"{self.task} {int(self.np_random.integers(1000))}", self.info() | opening

    def step(self, action):
        self.num_steps += 1
        words = action.split()
        if "raise" in words:
            raise RuntimeError("it broke")
        if "exit" in words:
            os._exit(7)
        if "hang" in words:
            threading.Event().wait()
        if "slow" in words:
            time.sleep(self.slow_s)
        if "meet" in words:
            folder = Path(self.options["folder"])
            (folder / f"{self.num_steps} {os.getpid()}").touch()
            wait_until(lambda: len(list(folder.glob(f"{self.num_steps} *"))) == self.options["meets"])
        reward = math.fsum(float(word) for word in words if word[0].isdigit())
        self.total += reward
        info = self.info() | {"reward_parts": {"given": reward}, "tool_failed": "fail" in words}
        return f"{self.num_steps}: {action}", reward, "end" in words, "cut" in words, info

    def info(self):
        score = {"task": self.task, "score": self.total}
        return score | ({"is_success": self.total >= 1.0} if self.says else {})


gym.register("tests/Obey-v0", ObeyEnv)
