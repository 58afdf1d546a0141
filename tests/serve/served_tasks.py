"""A task for tests of served environments, whose actions do what a world must not do to others."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import gymnasium as gym
import numpy as np

NOTHING, MARK, EXIT, HANG, START_A_PROCESS, RAISE, DAEMONISE, TELL, BABBLE = range(9)
MARKS = []  # of the whole process: what a later holder would see


class World(gym.Env):
    """obs: marks left in this process, the id of the process it started (0 for none), its own, and `size` zeros."""

    action_space = gym.spaces.Discrete(9)

    def __init__(self, size=0, broken=False, babble=(), farewell=None):
        self.farewell, self.needs_close = farewell, farewell is not None
        self.babble = bytes(babble)
        if broken:
            raise OSError("the cloud is down")
        if isinstance(size, str):
            size = int(Path(size).read_text())
        self.observation_space = gym.spaces.Box(0, np.inf, (3 + size,), np.float64)
        self.child = 0

    def close(self):
        if self.farewell == "never":
            threading.Event().wait()
        if self.farewell is not None:
            Path(self.farewell, str(os.getpid())).touch()

    def _obs(self):
        obs = np.zeros(self.observation_space.shape)
        obs[:3] = len(MARKS), self.child, os.getpid()
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.is_armed = seed != 0  # not where it is probed
        MARKS.extend([1] * (options or {}).get("marks", 0))
        huge = {"huge": 2**70} if (options or {}).get("huge") else {}
        return self._obs(), {"marks": len(MARKS), **huge}

    def step(self, action):
        action = action if self.is_armed else NOTHING
        if action == MARK:
            MARKS.append(1)
        elif action == EXIT:
            os._exit(7)
        elif action == HANG:
            threading.Event().wait()
        elif action == START_A_PROCESS:
            self.child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid
        elif action == RAISE:
            raise RuntimeError("no such bucket")
        elif action == DAEMONISE:
            self.child = started_as_a_daemon()
        elif action == TELL:
            raise RuntimeError(json.dumps(told()))
        elif action == BABBLE:
            for fd in range(3, 100):
                with suppress(OSError):
                    socket.socket(fileno=os.dup(fd)).sendall(self.babble)
        return self._obs(), 0.0, False, False, {}


def started_as_a_daemon():
    """Start a process in a session of its own, whose parents have ended; return its number."""
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            threading.Event().wait()
        os._exit(0)
    os.waitpid(parent, 0)
    return int(os.read(read, 20))


def told():
    """What a world finds around itself, and what it is refused."""
    (Path.cwd() / "left").write_text("x")
    found = {
        "variables": sorted(os.environ),
        "folders": [str(Path.cwd()), tempfile.gettempdir(), os.environ["HOME"]],
        "user": os.geteuid(),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "no new privileges": "NoNewPrivs:\t1" in Path("/proc/self/status").read_text(),
    }
    opened, refused = [], {}
    try:
        while len(opened) < 10_000:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as e:
        refused["files"] = e.strerror
    for fd in opened:
        os.close(fd)
    attempts = {
        "a large file": lambda: Path("large").write_bytes(bytes(3 * 2**20)),
        "killing its parent": lambda: os.kill(os.getppid(), signal.SIGTERM if os.geteuid() else 0),
        "its parent's variables": Path(f"/proc/{os.getppid()}/environ").read_bytes,
        "another's folder": lambda: [os.listdir(Path.cwd().parent / name) for name in "12"],
        "another user": lambda: os.setuid(0 if os.geteuid() else 12345),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError as e:
            refused[name] = e.strerror
    return {**found, "refused": refused}


gym.register("World-v0", World)
