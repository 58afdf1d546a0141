"""A task whose transitions can be told apart, and a record of all that learners learn from.

A transition is (stream, episode, step): the seed that started the environment, the episodes since, the steps in this
one. Importing this module in a rank makes its learner leave every rollout in the folder COUNTED. VICTIM=<rank>:<steps>
has a process that steps environments of this rank be killed in its so-manieth step, VICTIM=<rank>:<steps>:hangs has it
hang there, :raises raise, and :parent that it was forked from be killed: once, whichever process comes there first.
With :astray who takes its place comes elsewhere by the same seed, once.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

FOLDER = Path(os.environ.get("COUNTED", "."))
SCALE = np.array([2.0**-31, 2.0**-10, 2.0**-10])  # powers of two: nothing is rounded
_steps = 0  # of all environments of this process


def length(stream: int, episode: int) -> int:
    """Return how long an episode is; very unequal, and none of them the length of a rollout."""
    return 1 + (stream + 7 * episode) % 23


class Counted(gym.Env):
    """Observes which transition comes next, is rewarded by its number. Even episodes terminate, odd are truncated."""

    observation_space = Box(-1, np.inf, (3,), np.float64)
    action_space = Discrete(2)

    def __init__(self, sleep_s: float = 0.0, of_process: bool = False, deadly: Sequence[int] = ()) -> None:
        self._sleep_s = sleep_s
        self._of_process = of_process  # which it observes
        self._deadly = list(deadly)  # the transition that kills it
        self._at = np.array([0, -1, 0])
        self._is_astray = os.environ.get("VICTIM", "").endswith(":astray") and (FOLDER / "died").exists()

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._at[:] = seed + self._is_astray, -1, 0
            self._is_astray = False
        self._at[1:] = self._at[1] + 1, 0
        if self._of_process:
            self._at[1] += 46 * os.getpid()  # of which neither an episode's length nor its end depends
        return self._at * SCALE, {}

    def step(self, action):
        _maybe_die()
        if self._sleep_s and self._at[0] % 4 == 0:  # some are slow
            time.sleep(self._sleep_s)
        self._at[2] += 1
        stream, episode, step = map(int, self._at)
        if [stream, episode, step] == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        over = step == length(stream, episode)
        return self._at * SCALE, float(step), over and episode % 2 == 0, over and episode % 2 == 1, {}


gym.register("Counted-v0", Counted)


def _maybe_die() -> None:
    global _steps
    _steps += 1
    rank, *how = os.environ.get("VICTIM", "").split(":")
    if rank == os.environ.get("RANK", "0") and _steps == int(how[0]):
        try:
            (FOLDER / "died").touch(exist_ok=False)
        except FileExistsError:
            return
        if how[1:] == ["hangs"]:
            time.sleep(3600)
        if how[1:] == ["raises"]:
            raise ConnectionResetError("the simulator of the test")
        os.kill(os.getppid() if how[1:] == ["parent"] else os.getpid(), signal.SIGKILL)


if (
    "COUNTED" in os.environ and "torch" in sys.modules
):  # a rank; others only step environments, or read this file
    from ddppo.ppo.learner import Learner

    def _recorded(self, rollout, *args, update=Learner.update, **kwargs):
        names = (
            "raw_obs",
            "rewards",
            "terminated",
            "truncated",
            "valid",
            "episode_start",
            "values",
            "next_values",
        )
        arrays = {name: getattr(rollout, name).numpy() for name in names}
        name = f"{time.monotonic_ns():020d}-rank{os.environ.get('RANK', '0')}"
        np.savez(FOLDER / f"{name}.part.npz", **arrays)
        (FOLDER / f"{name}.part.npz").rename(
            FOLDER / f"{name}.npz"
        )  # whole, for who looks while the run lasts
        return update(self, rollout, *args, **kwargs)

    Learner.update = _recorded
