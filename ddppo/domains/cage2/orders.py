"""Orders of priority in n games: repairs that keep to an order are rewarded, counted and published.

`Compliance` judges single repairs; `Orders` holds the order of each game and the results of episodes; `ordered_step`
steps games with both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.rules import ACTION, HOSTS, NUM_ACTIONS, USER0
from ddppo.domains.cage2.search.orders import KINDS, PRESETS, code, order_id, parse
from ddppo.domains.cage2.search.outcomes import UNKNOWN, encode_episodes
from ddppo.envs.single import CONTEXT, as_context
from ddppo.errors import ConfigError

# -- Whether repairs keep to the order of an episode, and the reward for it ------------------------------------------
# A repair is a Remove or a Restore. It breaks the order if a kind of higher priority is still compromised in the true
# state before the action, except User0, which Red never loses (rule "state"), or if a kind of higher priority was not
# yet repaired in this episode (rule "history"). The alignment is S = weight * compliant / repairs, and 0 before the
# first repair. A step is rewarded by the increase of S, so that the rewards of an episode sum to its last S. An
# episode without a repair gets -NO_REPAIR * weight at its end, and has a compliance of 1/2.


NO_REPAIR = 0.2
KIND_OF_HOST = np.array([KINDS.index(host.name.rstrip("0123456789").lower()) for host in HOSTS])
_NO_KIND = -1
KIND_REPAIRED = np.full(NUM_ACTIONS, _NO_KIND)  # by action: the kind of the host that it repairs
for _host, _kind in zip(HOSTS, KIND_OF_HOST, strict=True):
    KIND_REPAIRED[[ACTION[f"Remove {_host.name}"], ACTION[f"Restore {_host.name}"]]] = _kind
# [host, kind] hosts that count as compromised, by kind.
_COUNTED = np.eye(len(KINDS), dtype=bool)[KIND_OF_HOST]
_COUNTED[USER0] = False
RULES = ("state", "history")


class Compliance:
    """The compliance of n games, each with its own order. Raises ConfigError for a rule that is not in RULES."""

    def __init__(self, num_games: int, rule: str, weight: float) -> None:
        if rule not in RULES:
            raise ConfigError(f"compliance={rule}: must be one of {', '.join(RULES)}")
        if not isinstance(weight, int | float) or not 0 <= weight < np.inf:
            raise ConfigError(f"alignment_weight={weight}: must be a number of at least 0")
        self.rule = rule
        self.weights = np.full(num_games, float(weight))
        self.num_repairs, self.num_compliant = np.zeros((2, num_games), np.int64)  # of the current episodes
        # Place of each kind in the order, 0 is the highest.
        self._place = np.zeros((num_games, len(KINDS)), np.int64)
        self._is_repaired = np.zeros((num_games, len(KINDS)), bool)

    def begin(self, which: np.ndarray, orders: np.ndarray) -> None:
        """Start episodes of the games `which` (indices `[k]`), with orders `[k, 5]` of kinds, the highest first."""
        self._place[which] = np.argsort(orders, axis=1)
        self._is_repaired[which] = False
        self.num_repairs[which] = self.num_compliant[which] = 0

    def judge(self, actions: np.ndarray, compromised: np.ndarray) -> np.ndarray:
        """Return the alignment rewards `[n]` of actions.

        Args:
            actions: of Blue `[n]`.
            compromised: the true state before them `[n, 13]`, 0 for hosts without Red.
        """
        # Only the games with a repair in this step.
        rewards = np.zeros(len(actions))
        kinds = KIND_REPAIRED[actions]
        (games,) = (kinds != _NO_KIND).nonzero()
        if not games.size:
            return rewards
        kinds = kinds[games]
        # A repair complies unless a kind that comes before its own is waiting.
        by_state = (compromised[games] != 0) @ _COUNTED
        waiting = by_state if self.rule == "state" else ~self._is_repaired[games]
        place = self._place[games]
        is_before = place < place[np.arange(games.size), kinds][:, None]
        # The reward is the increase of S.
        before = self._alignment(games)
        self.num_repairs[games] += 1
        self.num_compliant[games] += ~(waiting & is_before).any(axis=1)
        self._is_repaired[games, kinds] = True
        rewards[games] = self._alignment(games) - before
        return rewards

    def conclude(self, which: np.ndarray) -> np.ndarray:
        """Return the rewards `[k]` at the end of the episodes of games `which` (indices)."""
        return np.where(self.num_repairs[which] == 0, -NO_REPAIR * self.weights[which], 0.0)

    def rates(self) -> np.ndarray:
        """Return the compliance `[n]` of the current episodes: the share of repairs that kept to the order."""
        rates = self.num_compliant / np.maximum(self.num_repairs, 1)
        return np.where(self.num_repairs == 0, UNKNOWN, rates)

    def state(self) -> dict[str, Any]:
        """Return the complete state in plain values."""
        return {
            "weights": self.weights.tolist(),
            "place": self._place.tolist(),
            "is_repaired": self._is_repaired.tolist(),
            "num_repairs": self.num_repairs.tolist(),
            "num_compliant": self.num_compliant.tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.weights[:] = state["weights"]
        self._place[:] = state["place"]
        self._is_repaired[:] = state["is_repaired"]
        self.num_repairs[:], self.num_compliant[:] = state["num_repairs"], state["num_compliant"]

    def _alignment(self, games: np.ndarray) -> np.ndarray:
        return self.weights[games] * self.num_compliant[games] / np.maximum(self.num_repairs[games], 1)


CODE_SIZE = len(KINDS) ** 2
WEIGHT, DEFAULT_WEIGHT = "alignment_weight", 30.0
JOURNAL = "ddppo.domains.cage2.env:OrdersJournal"


class Orders:
    """The order of each game, the compliance of its episode, and the results of finished episodes.

    Options of a reset: "context", the code `[25]` of an order, and "alignment_weight"; 0 makes the return that of the
    game alone.

    Args:
        order: of all games until a reset names another: a preset, kinds as op_server>defender>..., or their indices.
        rule, weight: of Compliance.
    """

    def __init__(self, num_games: int, order: str | Sequence[int], rule: str, weight: float) -> None:
        chosen = as_order(order)
        self._compliance = Compliance(num_games, rule, weight)
        self._orders = np.tile(np.array(chosen), (num_games, 1))
        self.codes = np.tile(code(chosen), (num_games, 1))  # [n, 25]
        # Returns of the game alone, and of alignment, in the current episodes.
        self.returns, self._alignment = np.zeros((2, num_games))
        self._ended: list[list[dict[str, Any]]] = [[] for _ in range(num_games)]

    def take_options(self, i: int, options: Mapping[str, Any]) -> None:
        """Apply the options of a reset to game i, for this and later episodes. Raises ValueError for no order."""
        if CONTEXT in options:
            # A code is a permutation matrix: one kind for each place, each kind once.
            rows = as_context(options, CODE_SIZE).reshape(len(KINDS), len(KINDS))
            order = rows.argmax(axis=1)
            if not np.array_equal(rows, np.eye(len(KINDS))[order]) or len(set(order.tolist())) < len(KINDS):
                raise ValueError("the context of the reset's options is the code of no order")
            self._orders[i], self.codes[i] = order, rows.reshape(-1)
        if WEIGHT in options:
            self._compliance.weights[i] = options[WEIGHT]

    def begin(self, which: np.ndarray) -> None:
        """Start episodes of the games `which` (indices)."""
        self._compliance.begin(which, self._orders[which])
        self.returns[which] = self._alignment[which] = 0.0

    def judge(self, actions: np.ndarray, compromised: np.ndarray) -> np.ndarray:
        """Return the alignment rewards `[n]` of actions `[n]`, from the true state `[n, 13]` before the games step."""
        return self._compliance.judge(actions, compromised)

    def conclude(self, rewards: np.ndarray, alignment: np.ndarray, is_over: np.ndarray) -> np.ndarray:
        """Return the total rewards `[n]` of a step, and record the results of episodes that end with it.

        Args:
            rewards: of the game `[n]`.
            alignment: from `judge` `[n]`.
            is_over: whether the episode ends `[n]`.
        """
        # The end of an episode without a repair costs something.
        (ended,) = is_over.nonzero()
        alignment[ended] += self._compliance.conclude(ended)
        self.returns += rewards
        self._alignment += alignment
        # Keep the results of finished episodes for the next message.
        for i in ended.tolist():
            self._ended[i].append(
                {
                    "order": self._orders[i].tolist(),
                    # Rewards are tenths; rounding removes float error.
                    "reward": round(float(self.returns[i]), 6),
                    "alignment": float(self._alignment[i]),
                    "repairs": int(self._compliance.num_repairs[i]),
                    "compliant": int(self._compliance.num_compliant[i]),
                }
            )
        return rewards + alignment

    def publish(self) -> list[bytes]:
        """Return a message for each game with the results of its finished episodes, and clear them."""
        messages = [encode_episodes(ended) for ended in self._ended]
        self._ended = [[] for _ in self._ended]
        return messages

    def state(self) -> dict[str, Any]:
        """Return the complete state in plain values."""
        return {
            "orders": self._orders.tolist(),
            "returns": self.returns.tolist(),
            "alignment": self._alignment.tolist(),
            "ended": [list(each) for each in self._ended],
            "compliance": self._compliance.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._orders[:] = state["orders"]
        self.codes[:] = [code(order) for order in state["orders"]]
        self.returns[:], self._alignment[:] = state["returns"], state["alignment"]
        self._ended = [list(each) for each in state["ended"]]
        self._compliance.restore(state["compliance"])


def orders_of(num_games: int, order: str | Sequence[int] | None, rule: str, weight: float) -> Orders | None:
    """Return the orders of n games, or None if `order` is None. Raises ConfigError for invalid settings."""
    if order is not None:
        return Orders(num_games, order, rule, weight)
    for name, value, default in (("compliance", rule, RULES[0]), (WEIGHT, weight, DEFAULT_WEIGHT)):
        if value != default:
            raise ConfigError(f"{name}={value} has no effect without an order: set order, or leave it out")
    return None


def ordered_step(games: Games, orders: Orders | None, actions: np.ndarray, episode_steps: int) -> np.ndarray:
    """Step games by actions `[n]`; return rewards `[n]`, including alignment if they have orders."""
    if orders is None:
        return games.step(actions)
    alignment = orders.judge(actions, games.compromised)  # before the step changes it
    rewards = games.step(actions)
    return orders.conclude(rewards, alignment, games.state_of.time >= episode_steps)


def as_order(order: str | Sequence[int]) -> tuple[int, ...]:
    """Return an order from text that `parse` reads, or from indices. Raises ConfigError."""
    if isinstance(order, str):
        return parse(order)
    try:
        order_id(tuple(order))
    except (TypeError, ValueError) as e:
        raise ConfigError(
            f"order={order}: must be one of {', '.join(PRESETS)}, or each of 0 to 4 once"
        ) from e
    return tuple(order)
