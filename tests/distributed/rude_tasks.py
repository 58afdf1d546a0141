"""A polite task, and its rude twin, which changes all that a process lets it change: when it is made, reset or stepped.

rude_import.py does the same by being imported. `RUDE` names each single change.
"""

import atexit
import gc
import io
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np

from tests.support import CHECKOUT


def torch(function, *arguments):
    """Return a change of torch, where it is imported: processes of a pool have none."""

    def change():
        if found := sys.modules.get("torch"):
            getattr(found, function)(*(found.float64 if each == "float64" else each for each in arguments))

    return change


def forget_the_checkout():
    sys.path[:] = [each for each in sys.path if each != str(CHECKOUT)]


def change_variables():
    for name in ("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "DDPPO_CORES_PER_RANK"):
        os.environ[name] = "5"
    os.environ["A_VARIABLE_OF_ITS_OWN"] = "1"


def take_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: None)


def turn_warnings_to_errors():
    warnings.simplefilter("error")
    warnings.filterwarnings("error", "of which the tests have none")


def limit_itself():
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def say():
    """Print by all ways, as a library in C and a program that it starts would."""
    print("rude", end="")
    os.write(1, b"rude")
    sys.__stdout__.write("rude")
    subprocess.run(["echo", "rude"], check=True)
    atexit.register(print, "rude")


def leave_behind():
    threading.Thread(target=threading.Event().wait, name="forever").start()
    multiprocessing.Process(target=time.sleep, args=(86_400,), name="asleep").start()


START_METHOD = "multiprocessing's start method"  # which can be set once
RUDE = {
    "the working directory": lambda: os.chdir(tempfile.gettempdir()),
    "np.seterr": lambda: np.seterr(all="raise"),
    "warnings.filters": turn_warnings_to_errors,
    "logging.disable": lambda: logging.disable(logging.CRITICAL),
    "logging.basicConfig": lambda: logging.basicConfig(level=logging.DEBUG, force=True),
    "sys.stdout": lambda: setattr(sys, "stdout", io.StringIO()),
    "sys.excepthook": lambda: setattr(sys, "excepthook", lambda *error: None),
    "sys.settrace": lambda: sys.settrace(lambda *event: None),
    "sys.setswitchinterval": lambda: sys.setswitchinterval(0.1),
    "sys.setrecursionlimit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() - 1),
    "sys.path": forget_the_checkout,
    "gc.disable": gc.disable,
    "os.umask": lambda: os.umask(0o777),
    "socket.setdefaulttimeout": lambda: socket.setdefaulttimeout(0.001),
    "os.environ": change_variables,
    "locale.setlocale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "RLIMIT_NOFILE": limit_itself,
    "os.sched_setaffinity": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "SIGTERM": take_signals,
    "signal.pthread_sigmask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]),
    "signal.alarm": lambda: signal.alarm(86_400),
    START_METHOD: lambda: multiprocessing.set_start_method("spawn"),
    "torch.set_default_dtype": torch("set_default_dtype", "float64"),
    "torch.set_default_device": torch("set_default_device", "meta"),
    "torch.set_num_threads": torch("set_num_threads", 3),
    "torch.set_grad_enabled": torch("set_grad_enabled", False),
    "torch.use_deterministic_algorithms": torch("use_deterministic_algorithms", True),
    "torch.set_float32_matmul_precision": torch("set_float32_matmul_precision", "medium"),
    "torch.set_flush_denormal": torch("set_flush_denormal", True),
}
# What training does not rely on: nothing is put back, and nothing said.
HARMLESS = {
    "random.seed": lambda: random.seed(0),
    "np.random.seed": lambda: np.random.seed(0),
    "torch.manual_seed": torch("manual_seed", 0),
    "np.set_printoptions": lambda: np.set_printoptions(precision=1),
    "a daemon thread": lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
}
OTHERS = {
    "says": say,
    "leaves behind": leave_behind,
    "exits": lambda: sys.exit("enough"),
    "stops": lambda: os.kill(os.getpid(), signal.SIGTERM),
}


def misbehave(names):
    for name in names:
        (RUDE | HARMLESS | OTHERS)[name]()


class Polite(gym.Env):
    """Four numbers, of which the action moves one; the reward is how near to zero they are."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(4)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=4)
        return self.state.astype(np.float32), {}

    def step(self, action):
        self.state[action] *= 0.5
        self.state += 0.1 * self.np_random.normal(size=4)
        return self.state.astype(np.float32), -float(np.abs(self.state).sum()), False, False, {}

    def render(self):
        return np.full((32, 32, 3), 100, np.uint8)


class Rude(Polite):
    """The same, but for what it changes: rude, names of RUDE and others; when, as it is made, reset or stepped.

    since: the first step, over all its episodes, in which it does.
    """

    def __init__(self, rude=(*RUDE, *HARMLESS), when=("made", "reset", "stepped"), since=1, render_mode=None):
        super().__init__(render_mode)
        self.rude, self.when, self.since, self.num_steps = rude, when, since, 0
        self.misbehave("made")

    def misbehave(self, when):
        if when in self.when:
            misbehave([each for each in self.rude if when == "made" or each != START_METHOD])

    def reset(self, *, seed=None, options=None):
        self.misbehave("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.num_steps += 1
        if self.num_steps >= self.since:
            self.misbehave("stepped")
        return super().step(action)


class Moved(Polite):
    """A task that goes to the folder of its files when it is made, by a relative path, and reads them in a reset."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        os.chdir("files")

    def reset(self, *, seed=None, options=None):
        assert Path("level.txt").read_text() == "1"
        return super().reset(seed=seed, options=options)


gym.register("Polite-v0", entry_point=Polite, max_episode_steps=10)
gym.register("Rude-v0", entry_point=Rude, max_episode_steps=10)
gym.register("Moved-v0", entry_point=Moved, max_episode_steps=10)
