"""A task for tests of served environments, whose actions do what a world must not do to others."""

import os
import subprocess
import sys
import threading
import time

import gymnasium as gym
import numpy as np

NOTHING, MARK, EXIT, HANG, START_A_PROCESS, RAISE, PAUSE = range(7)
MARKS = []  # of the whole process: what a later holder would see


class World(gym.Env):
    """obs: marks left in this process, the id of the process it started (0 for none), its own, and `size` zeros."""

    action_space = gym.spaces.Discrete(7)

    def __init__(self, size=0, broken=False):
        if broken:
            raise OSError("the cloud is down")
        self.observation_space = gym.spaces.Box(0, np.inf, (3 + size,), np.float64)
        self.child = 0

    def _obs(self):
        obs = np.zeros(self.observation_space.shape)
        obs[:3] = len(MARKS), self.child, os.getpid()
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.is_armed = seed != 0  # not where it is probed
        return self._obs(), {}

    def step(self, action):
        action = action if self.is_armed else NOTHING
        if action == MARK:
            MARKS.append(1)
        elif action == EXIT:
            os._exit(7)
        elif action == HANG:
            threading.Event().wait()
        elif action == PAUSE:
            time.sleep(0.3)
        elif action == START_A_PROCESS:
            self.child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid
        elif action == RAISE:
            raise RuntimeError("no such bucket")
        return self._obs(), 0.0, False, False, {}


gym.register("World-v0", World)
