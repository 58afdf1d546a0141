"""`ddppo/CAGE2-v0`: `CageEnv` is one game, `Cage2` steps all games of a rank at once (env.backend=batched).

With an order of priority, `OrdersJournal` reports how episodes kept to it.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from ddppo.config.settings import EnvConfig
from ddppo.domains.cage2.drawing import as_pixels, as_svg, as_text, scene
from ddppo.domains.cage2.games import OBS_SIZE, Games
from ddppo.domains.cage2.orders import CODE_SIZE, JOURNAL, ordered_step, orders_of
from ddppo.domains.cage2.rules import NUM_ACTIONS
from ddppo.domains.cage2.search.outcomes import decode_outcomes
from ddppo.envs.backends.batched import Dynamics
from ddppo.envs.single import CONTEXT
from ddppo.errors import ConfigError

_ONE = np.zeros(1, np.int64)


class CageEnv(gym.Env):
    """Blue defends the network against the agent `red`, while users (`green`) are asleep or active (docs/cage2.md).

    Actions are the 145 of `rules.ACTIONS`, observations `[52]` are zeros and ones. An episode is never terminated; it
    is truncated after episode_steps, 30, 50 or 100 in the challenge. With an order of priority, repairs that keep to
    it are rewarded, its code `[25]` is part of the observation, and results of episodes are published
    (`orders.Orders`).
    """

    journal: str | None = None  # the class on rank 0 that reads published messages; None without an order

    metadata = {  # noqa: RUF012 (gymnasium.Env declares it so)
        "render_modes": ["human", "ansi", "html", "rgb_array"],
        "render_fps": 2,
    }

    def __init__(
        self,
        red: str = "b_line",
        green: str = "sleep",
        episode_steps: int = 100,
        faithful_ot_quirk: bool = False,
        order: str | Sequence[int] | None = None,
        compliance: str = "state",
        alignment_weight: float = 30.0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode={render_mode}: one of {', '.join(self.metadata['render_modes'])}")
        self.render_mode = render_mode
        self._played: tuple[list[int], list[float]] = (
            [],
            [],
        )  # actions and rewards of the episode, for pictures
        check_episode_steps(episode_steps)
        self.games = Games(1, red, green, faithful_ot_quirk)
        self.observation_space: gym.Space = Box(0.0, 1.0, (OBS_SIZE,), np.float32)
        self.orders = orders_of(1, order, compliance, alignment_weight)
        # With an order, its code is the "context" that a model such as model=order_conditioned reads.
        if self.orders is not None:
            self.journal = JOURNAL
            codes: gym.Space = Box(0.0, 1.0, (CODE_SIZE,), np.float32)
            self.observation_space = Dict({"obs": self.observation_space, CONTEXT: codes})
        self.action_space = Discrete(NUM_ACTIONS)
        self._episode_steps = episode_steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.games.reset(_ONE, episode_key(self.np_random))
        if self.orders is not None:
            self.orders.take_options(0, options or {})
            self.orders.begin(_ONE)
        self._played = ([], [])
        self._show()
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = None if self.orders is None else self.orders.returns[0]
        (reward,) = ordered_step(self.games, self.orders, np.array([action]), self._episode_steps)
        # Pictures show the rewards of the game alone.
        own = float(reward) if self.orders is None else float(self.orders.returns[0] - before)
        self._played[0].append(int(action))
        self._played[1].append(own)
        self._show()
        is_over = int(self.games.state_of.time[0]) >= self._episode_steps
        return self._observe(), float(reward), False, is_over, {}

    def render(self) -> Any:
        """Return the game as text (ansi), as SVG (html) or as pixels [H, W, 3] uint8 (rgb_array)."""
        if self.render_mode in ("ansi", "html", "rgb_array"):
            draw = {"ansi": as_text, "html": as_svg, "rgb_array": as_pixels}[self.render_mode]
            return draw(scene(self.games, *self._played, self._episode_steps))
        return None

    def _show(self) -> None:
        """Draw the game on the terminal, for render_mode=human, and wait until the next picture is due."""
        if self.render_mode == "human":
            clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
            print(f"{clear}{as_text(scene(self.games, *self._played, self._episode_steps))}\n", flush=True)
            time.sleep(1 / self.metadata["render_fps"])

    def state(self) -> dict[str, Any]:
        """Return the complete state in plain values."""
        orders = {} if self.orders is None else {"orders": self.orders.state()}
        return {"generator": self.np_random.bit_generator.state, "game": self.games.state(), **orders}

    def restore(self, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self.np_random.bit_generator.state = state["generator"]
        self.games.restore(state["game"])
        if self.orders is not None:
            self.orders.restore(state["orders"])
        return self._observe(), {}

    def publish(self) -> bytes:
        """Return the results of episodes that ended since the last call; empty without an order."""
        return b"" if self.orders is None else self.orders.publish()[0]

    def receive(self, messages: Sequence[bytes]) -> None:
        """Ignore messages: no game depends on other games."""

    def _observe(self) -> Any:
        obs = self.games.obs[0].copy()
        return obs if self.orders is None else {"obs": obs, CONTEXT: self.orders.codes[0].copy()}


def episode_key(generator: np.random.Generator) -> np.ndarray:
    """Draw the key `[1]` that determines all random numbers of an episode."""
    return generator.integers(2**64, size=1, dtype=np.uint64)


def check_episode_steps(episode_steps: int) -> None:
    if type(episode_steps) is not int or episode_steps < 1:
        raise ConfigError(
            f"episode_steps={episode_steps} must be a whole number of at least 1: the challenge's are 30, 50 and 100"
        )


# -- `ddppo/CAGE2-v0` as a batch (env.backend=batched): all games in one step ----------------------------------------


class Cage2(Dynamics):
    """The games of E environments. Their state is their records as bytes. The code of an order comes first in obs."""

    env_axis = 0

    def __init__(
        self,
        num_envs: int,
        red: str = "b_line",
        green: str = "sleep",
        episode_steps: int = 100,
        faithful_ot_quirk: bool = False,
        order: str | Sequence[int] | None = None,
        compliance: str = "state",
        alignment_weight: float = 30.0,
    ) -> None:
        self.games = Games(num_envs, red, green, faithful_ot_quirk)
        # The state that the batch saves and restores, as rows of bytes. Changing it changes the games.
        self.state = self.games.state_of.records.view(np.uint8).reshape(num_envs, -1)
        self.generators = []
        self.max_episode_steps: int = episode_steps
        self.orders = orders_of(num_envs, order, compliance, alignment_weight)
        self._never = np.zeros(num_envs, bool)

    def reset(self, i: int) -> np.ndarray:
        which = np.array([i])
        self.games.reset(which, episode_key(self.generators[i]))
        if self.orders is None:
            return self.games.obs[i]
        self.orders.begin(which)
        return np.concatenate([self.orders.codes[i], self.games.obs[i]])

    def step(self, actions: np.ndarray, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # The code, if there is one, stands in the first columns, and stays from reset to reset.
        rewards = ordered_step(self.games, self.orders, actions, self.max_episode_steps)
        obs[:, -OBS_SIZE:] = self.games.obs
        return rewards, self._never

    def take_options(self, i: int, options: Mapping[str, Any]) -> None:
        if self.orders is None:
            super().take_options(i, options)
        else:
            self.orders.take_options(i, options)

    def publish(self) -> list[bytes]:
        return super().publish() if self.orders is None else self.orders.publish()

    def remembered(self) -> list[dict[str, Any]]:
        if self.orders is None:
            return super().remembered()
        state = self.orders.state()
        return [_of_one(state, i) for i in range(len(self.generators))]

    def remember(self, states: list[dict[str, Any]]) -> None:
        if self.orders is not None:
            self.orders.restore(_of_all(states))


def _of_one(state: dict[str, Any], i: int) -> dict[str, Any]:
    """Return the state of game i from the state of a batch, where each list has an entry for each game."""
    return {key: _of_one(each, i) if isinstance(each, dict) else [each[i]] for key, each in state.items()}


def _of_all(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of a batch from the states that `_of_one` returned."""
    return {
        key: _of_all([state[key] for state in states])
        if isinstance(first, dict)
        else [state[key][0] for state in states]
        for key, first in states[0].items()
    }


# -- Rank 0's report on episodes with orders -------------------------------------------------------------------------


METRICS = {
    "compliance": (
        "fraction",
        "of repairs that kept to the order, mean over episodes; 1/2 for an episode without a repair",
    ),
    "repairs": ("repairs", "of an episode, mean"),
    "without_repairs": ("fraction", "of the episodes: those without a repair"),
    "return": ("reward", "of an episode by the game alone, mean"),
    "alignment": ("reward", "of an episode for keeping to the order, mean"),
}


class OrdersJournal:
    """Returns means over the episodes that ended in an iteration. It writes no file."""

    metrics = METRICS

    def __init__(self, env: EnvConfig, folder: Path) -> None:
        pass

    def note(self, messages: list[bytes], env_steps: int, wall_s: float) -> dict[str, float]:
        outcomes = decode_outcomes(messages)
        if not outcomes:
            return {}
        columns: dict[str, list[float]] = {
            "compliance": [outcome.compliance for outcome in outcomes],
            "repairs": [outcome.repairs for outcome in outcomes],
            "without_repairs": [outcome.repairs == 0 for outcome in outcomes],
            "return": [outcome.reward for outcome in outcomes],
            "alignment": [outcome.alignment for outcome in outcomes],
        }
        return {name: float(np.mean(column)) for name, column in columns.items()}

    def pictures(self) -> dict[str, np.ndarray]:
        return {}

    def before(self) -> list[bytes]:
        return []

    def summary(self) -> dict[str, Any]:
        return {}
