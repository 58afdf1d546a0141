"""What is asked of n games besides defending: repairs by an order of priority, rewarded, counted and published."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddppo.domains.cage2.compliance import RULES, Compliance
from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.search.orders import KINDS, PRESETS, code, order_id, parse
from ddppo.domains.cage2.search.outcomes import written
from ddppo.envs.single import CONTEXT, as_context
from ddppo.errors import ConfigError

CODE_SIZE = len(KINDS) ** 2
WEIGHT, DEFAULT_WEIGHT = "alignment_weight", 30.0
JOURNAL = "ddppo.domains.cage2.journal:OrdersJournal"


class Orders:
    """The order of each game, how its episode keeps to it, and what came of episodes that ended.

    order: of all games until a reset's options name another: a preset, kinds as op_server>defender>..., or their
    indices. rule, weight: as Compliance has them. Options of a reset: context, the code `[25]` of an order, and
    alignment_weight, e.g. 0 where the return is to be the game's alone. codes: `[n, 25]`.
    """

    def __init__(self, num_games: int, order: str | Sequence[int], rule: str, weight: float) -> None:
        chosen = as_order(order)
        self._compliance = Compliance(num_games, rule, weight)
        self._orders = np.tile(np.array(chosen), (num_games, 1))
        self.codes = np.tile(code(chosen), (num_games, 1))
        self._returns, self._alignment = np.zeros((2, num_games))
        self._ended: list[list[dict[str, Any]]] = [[] for _ in range(num_games)]

    def take_options(self, i: int, options: Mapping[str, Any]) -> None:
        """Hear the options that game i begins its next episodes with. Raises ValueError for what is no order."""
        if CONTEXT in options:
            rows = as_context(options, CODE_SIZE).reshape(len(KINDS), len(KINDS))
            order = rows.argmax(axis=1)
            if not np.array_equal(rows, np.eye(len(KINDS))[order]) or len(set(order.tolist())) < len(KINDS):
                raise ValueError("the context of the reset's options is the code of no order")
            self._orders[i], self.codes[i] = order, rows.reshape(-1)
        if WEIGHT in options:
            self._compliance.weights[i] = options[WEIGHT]

    def begin(self, which: np.ndarray) -> None:
        """Begin episodes of the games `which` (indices)."""
        self._compliance.begin(which, self._orders[which])
        self._returns[which] = self._alignment[which] = 0.0

    def judge(self, actions: np.ndarray, compromised: np.ndarray) -> np.ndarray:
        """Return what actions `[n]` bring by the true state before them `[n, 13]`; call it before the games step."""
        return self._compliance.judge(actions, compromised)

    def conclude(self, rewards: np.ndarray, alignment: np.ndarray, is_over: np.ndarray) -> np.ndarray:
        """Count a step's rewards `[n]` by the game and by `judge`; return their sums, with what ends `[n]` bring."""
        (ended,) = is_over.nonzero()
        alignment[ended] += self._compliance.conclude(ended)
        self._returns += rewards
        self._alignment += alignment
        for i in ended.tolist():
            self._ended[i].append(
                {
                    "order": self._orders[i].tolist(),
                    "reward": round(float(self._returns[i]), 6),  # of tenths
                    "alignment": float(self._alignment[i]),
                    "repairs": int(self._compliance.num_repairs[i]),
                    "compliant": int(self._compliance.num_compliant[i]),
                }
            )
        return rewards + alignment

    def publish(self) -> list[bytes]:
        """Return, and forget, what came of each game's episodes that ended."""
        news = [written(ended) for ended in self._ended]
        self._ended = [[] for _ in self._ended]
        return news

    def state(self) -> dict[str, Any]:
        """Return all that decides what follows, in plain values."""
        return {
            "orders": self._orders.tolist(),
            "returns": self._returns.tolist(),
            "alignment": self._alignment.tolist(),
            "ended": [list(each) for each in self._ended],
            "compliance": self._compliance.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._orders[:] = state["orders"]
        self.codes[:] = [code(order) for order in state["orders"]]
        self._returns[:], self._alignment[:] = state["returns"], state["alignment"]
        self._ended = [list(each) for each in state["ended"]]
        self._compliance.restore(state["compliance"])


def orders_of(num_games: int, order: str | Sequence[int] | None, rule: str, weight: float) -> Orders | None:
    """Return the orders of games, None without any. Raises ConfigError for settings that cannot be."""
    if order is not None:
        return Orders(num_games, order, rule, weight)
    for name, value, default in (("compliance", rule, RULES[0]), (WEIGHT, weight, DEFAULT_WEIGHT)):
        if value != default:
            raise ConfigError(f"{name}={value} has no effect without an order: set order, or leave it out")
    return None


def ordered_step(games: Games, orders: Orders | None, actions: np.ndarray, episode_steps: int) -> np.ndarray:
    """Step games by actions `[n]` and return rewards `[n]`, for keeping to their orders too if they have any."""
    if orders is None:
        return games.step(actions)
    alignment = orders.judge(actions, games.compromised)  # before the step changes it
    rewards = games.step(actions)
    return orders.conclude(rewards, alignment, games.state_of.time >= episode_steps)


def as_order(order: str | Sequence[int]) -> tuple[int, ...]:
    """Return an order as it is given: a text that `parse` reads, or indices. Raises ConfigError."""
    if isinstance(order, str):
        return parse(order)
    try:
        order_id(tuple(order))
    except (TypeError, ValueError) as e:
        raise ConfigError(
            f"order={order}: must be one of {', '.join(PRESETS)}, or each of 0 to 4 once"
        ) from e
    return tuple(order)
