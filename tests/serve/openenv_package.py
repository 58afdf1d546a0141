"""Environments on the base classes of the package openenv, served by it alone. Run in an environment that has it:

python tests/serve/openenv_package.py bandit 8123 8          # at most 8 sessions
python tests/serve/openenv_package.py bandit 8123 8 200      # the step number 200 of all takes 10 s

It begins to serve when a line comes at its standard input.
"""

import random
import sys
import time
from itertools import count
from typing import Any, Literal

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

STEPS, LATE = count(), int((sys.argv[4:] or ["-1"])[0])


class Pull(Action):
    arm: Literal["left", "middle", "right"]


class Light(Observation):
    lamps: list[float]


class Bandit(Environment):
    """Four times, one of three lamps is on: its arm gives 1. So an episode is worth 4 at most."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **others: Any):
        self._random = random.Random(seed)
        self._state = State(episode_id=episode_id, step_count=0)
        return self._light(None)

    def step(self, action, timeout_s=None, **others: Any):
        self._state.step_count += 1
        if next(STEPS) == LATE:
            time.sleep(10.0)
        return self._light(float(["left", "middle", "right"][self._on] == action.arm))

    def _light(self, reward):
        self._on = self._random.randrange(3)
        lamps = [float(i == self._on) for i in range(3)]
        return Light(lamps=lamps, reward=reward, done=self._state.step_count == 4)

    @property
    def state(self):
        return self._state


class Say(Action):
    text: str
    loudness: int = 3


class Heard(Observation):
    text: str


class Echo(Environment):
    """A word is to be repeated, the one that reset names."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, word="north", **others: Any):
        self._word = word
        self._state = State(episode_id=episode_id, step_count=0)
        return Heard(text=word)

    def step(self, action, timeout_s=None, **others: Any):
        if action.text == "fail":
            raise RuntimeError("no voice")
        self._state.step_count += 1
        return Heard(
            text="yes" if action.text == self._word else "no", reward=action.text == self._word, done=True
        )

    @property
    def state(self):
        return self._state


class Shell(MCPEnvironment):
    """A tool of one text. The right command ends the episode with a reward of 1."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("shell")

        @mcp.tool
        def run(command: str) -> str:
            """Run a command."""
            if command == "fail":
                raise ValueError("no such command")
            return f"ran {command}"

        super().__init__(mcp)
        self._state = State()

    def reset(self, seed=None, episode_id=None, **others: Any):
        self._state = State(episode_id=episode_id, step_count=0)
        return Observation(metadata={"message": "type go"})

    async def step_async(self, action, timeout_s=None, **others: Any):
        seen = await super().step_async(action, timeout_s=timeout_s)
        if isinstance(action, CallToolAction):
            self._state.step_count += 1
            seen.reward = float(action.arguments.get("command") == "go")
            seen.done = seen.reward == 1.0 or self._state.step_count == 3
        return seen

    def _step_impl(self, action, timeout_s=None, **others: Any):
        raise ValueError("call a tool")

    @property
    def state(self):
        return self._state


MADE = {
    "bandit": (Bandit, Pull, Light),
    "echo": (Echo, Say, Heard),
    "shell": (Shell, CallToolAction, CallToolObservation),
}

if __name__ == "__main__":
    kind, port, sessions = sys.argv[1], *map(int, sys.argv[2:4])
    app = create_app(*MADE[kind], env_name=kind, max_concurrent_envs=sessions)
    sys.stdin.readline()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
