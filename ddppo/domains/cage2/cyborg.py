"""`ddppo/CybORG-v0`: CAGE challenge 2 played by an installed CybORG, with the actions, observations and orders of
CageEnv.

It serves to compare `ddppo/CAGE2-v0` with the original, and as a slow task: a step takes 2 ms, so a pool pays.
"""

import importlib
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from ddppo.domains.cage2.env import check_episode_steps
from ddppo.domains.cage2.games import OBS_SIZE
from ddppo.domains.cage2.orders import CODE_SIZE, JOURNAL, KIND_REPAIRED, orders_of
from ddppo.domains.cage2.rules import ACTIONS, CYBORG_NAMES, HOST, NUM_HOSTS, agent_named
from ddppo.envs.single import CONTEXT
from ddppo.errors import ConfigError

# The modules of CybORG's agents.
_MODULES = {
    "b_line": "CybORG.Agents",
    "meander": "CybORG.Agents.SimpleAgents.Meander",
    "sleep": "CybORG.Agents",
}
_SCENARIO = "Shared/Scenarios/Scenario2.yaml"
_GET = (
    "git clone https://github.com/cage-challenge/cage-challenge-2, then pip install -e cage-challenge-2/CybORG "
    "(the package cyborg of the index is another thing)"
)
_ANOTHER = "the CybORG that is installed is not that of CAGE challenge 2"
_ROOTS = {"root", "SYSTEM"}
_ONE = np.zeros(1, np.int64)


class CyborgEnv(gym.Env):
    """One game of CybORG. Green is asleep, as in the challenge. Never terminated, truncated after episode_steps.

    With an order, observations, rewards and messages are those of CageEnv.

    CybORG draws from the global generators of `random` and NumPy. Each environment saves and restores their states
    around its own calls, so that several environments in one process, as in an evaluation, do not affect each other.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium.Env declares it so)
    one_a_process = True
    journal: str | None = None

    def __init__(
        self,
        red: str = "b_line",
        episode_steps: int = 100,
        true_state_every: int = 10,  # steps after which `compromised` is read again; repairs always read it
        order: str | Sequence[int] | None = None,
        compliance: str = "state",
        alignment_weight: float = 30.0,
    ) -> None:
        # Check the settings, as users give them on the command line.
        check_episode_steps(episode_steps)
        red = agent_named(red)
        if type(true_state_every) is not int or true_state_every < 1:
            raise ConfigError(
                f"true_state_every={true_state_every} must be a whole number of steps, at least 1"
            )
        # Spaces: those of CageEnv, with the code of the order if there is one.
        self.observation_space: gym.Space = Box(0.0, 1.0, (OBS_SIZE,), np.float32)
        self.orders = orders_of(1, order, compliance, alignment_weight)
        if self.orders is not None:
            self.journal = JOURNAL
            codes: gym.Space = Box(0.0, 1.0, (CODE_SIZE,), np.float32)
            self.observation_space = Dict({"obs": self.observation_space, CONTEXT: codes})
        self._needs_state = compliance == "state"
        self.action_space = Discrete(len(ACTIONS))
        self._episode_steps = episode_steps
        self._num_steps = 0
        # The game. Making it draws random numbers, too.
        self._generators = _seeded(0)
        with self._own_generators():
            self.game = _make_game(red)
            self.game.reset()  # lists Blue's actions; before a reset, CybORG's wrapper may list those of Red
            self._number = _numbers(self.game)
        self._true_state = TrueState(self._read_true_state, true_state_every)

    @property
    def compromised(self) -> np.ndarray:
        """The true state `[13]`, less than true_state_every steps old: 0 no session of Red, 1 a user's, 2 root."""
        return self._true_state.lately()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._generators = _seeded(int(self.np_random.integers(2**32)))
        with self._own_generators():
            obs = self.game.reset()
        self._num_steps = 0
        self._true_state.forget()
        if self.orders is not None:
            self.orders.take_options(0, options or {})
            self.orders.begin(_ONE)
        return self._observed(obs), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # Repairs are judged by the state before the step.
        alignment = np.zeros(1)
        if self.orders is not None:
            alignment = self.orders.judge(np.array([action]), self._found(action)[None])
        with self._own_generators():
            obs, reward, _, _ = self.game.step(self._number[action])
        self._num_steps += 1
        self._true_state.grow_older()
        is_over = self._num_steps >= self._episode_steps
        if self.orders is not None:
            (reward,) = self.orders.conclude(np.array([reward], float), alignment, np.array([is_over]))
        return self._observed(obs), float(reward), False, is_over, {}

    def publish(self) -> bytes:
        """Return the results of episodes that ended since the last call; empty without an order."""
        return b"" if self.orders is None else self.orders.publish()[0]

    def receive(self, messages: Sequence[bytes]) -> None:
        """Ignore messages: no game depends on other games."""

    def _found(self, action: int) -> np.ndarray:
        """Return the true state `[13]` for judging an action; zeros if the action is no repair."""
        is_judged = self._needs_state and KIND_REPAIRED[action] >= 0
        return self._true_state.now() if is_judged else np.zeros(NUM_HOSTS, np.uint8)

    def _observed(self, bits: Any) -> Any:
        obs = np.asarray(bits, np.float32)
        return obs if self.orders is None else {"obs": obs, CONTEXT: self.orders.codes[0].copy()}

    def _read_true_state(self) -> np.ndarray:
        return _compromised(self.game.get_agent_state("True"))

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        outer = random.getstate(), np.random.get_state()
        _set_generators(self._generators)
        try:
            yield
        finally:
            self._generators = random.getstate(), np.random.get_state()
            _set_generators(outer)


class TrueState:
    """Red's access to each host `[13]`. A reading takes as long as a step, so one may serve for `every` steps."""

    def __init__(self, read: Callable[[], np.ndarray], every: int) -> None:
        self._read = read
        self._every = every
        self._age: int | None = None  # in steps; None before the first reading
        self._last = np.zeros(NUM_HOSTS, np.uint8)

    def forget(self) -> None:
        self._age = None

    def grow_older(self) -> None:
        """Count a step."""
        if self._age is not None:
            self._age += 1

    def lately(self) -> np.ndarray:
        """Return the state of less than `every` steps ago."""
        return self.now() if self._age is None or self._age >= self._every else self._last

    def now(self) -> np.ndarray:
        """Return the current state."""
        if self._age != 0:
            self._last, self._age = self._read(), 0
        return self._last


# -- CybORG ----------------------------------------------------------------------------------------------------------


def _make_game(red: str) -> Any:
    """Make the game as the challenge evaluates it. Raises ConfigError if CybORG is missing or another version."""
    # Other packages are called cyborg, too, and other challenges have a CybORG: check that this one has all parts.
    try:
        cyborg = importlib.import_module("CybORG").CybORG
        agent = getattr(importlib.import_module(_MODULES[red]), CYBORG_NAMES[red])
        wrapper = importlib.import_module("CybORG.Agents.Wrappers").ChallengeWrapper
    except ModuleNotFoundError as e:
        if e.name == "CybORG":
            raise ConfigError(f"CybORG is not installed: {_GET}") from e
        raise ConfigError(
            f"CybORG is installed, but not the module {e.name}, or it is another CybORG: {_GET}"
        ) from e
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"{_ANOTHER} ({e}): {_GET}") from e
    scenario = Path(inspect.getfile(cyborg)).parent / _SCENARIO
    if not scenario.exists():
        raise ConfigError(f"{_ANOTHER} (it has no {_SCENARIO}): {_GET}")
    return wrapper(env=cyborg(str(scenario), "sim", agents={"Red": agent}), agent_name="Blue")


def _numbers(game: Any) -> list[int]:
    """Return CybORG's number of each of our actions, found by name. Raises ConfigError if the names differ."""
    names = [
        " ".join(filter(None, (type(action).__name__, getattr(action, "hostname", None))))
        for action in game.get_attr("possible_actions")
    ]
    if sorted(names) != sorted(ACTIONS):
        raise ConfigError(f"{_ANOTHER} (it has not those {len(ACTIONS)} actions): {_GET}")
    return [names.index(name) for name in ACTIONS]


def _compromised(true_state: Any) -> np.ndarray:
    """Return Red's access to each host `[13]` by its sessions: 0 none, 1 a user's, 2 root's or SYSTEM's."""
    found = np.zeros(NUM_HOSTS, np.uint8)
    for name, h in HOST.items():
        users = {s["Username"] for s in true_state.get(name, {}).get("Sessions", ()) if s["Agent"] == "Red"}
        found[h] = 2 if users & _ROOTS else min(len(users), 1)
    return found


def _seeded(key: int) -> tuple[Any, Any]:
    """Return the states of the generators of `random` and NumPy after seeding them with `key`."""
    return random.Random(key).getstate(), np.random.RandomState(key).get_state()


def _set_generators(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
