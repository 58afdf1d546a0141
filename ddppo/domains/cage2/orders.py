"""What is asked of n games besides defending: repairs by an order of priority, rewarded, counted and published."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddppo.domains.cage2.games import Games
from ddppo.domains.cage2.rules import ACTION, HOSTS, NUM_ACTIONS, USER0
from ddppo.domains.cage2.search.orders import KINDS, PRESETS, code, order_id, parse
from ddppo.domains.cage2.search.outcomes import UNKNOWN, written
from ddppo.envs.single import CONTEXT, as_context
from ddppo.errors import ConfigError

# -- Whether repairs keep to the order of priority that an episode was given, and what that is worth -----------------
# A repair is a Remove or a Restore. It breaks the order where a kind of a higher priority is still compromised (by
# state: the true state before the action, but for User0, which Red never loses) or was not repaired yet in this episode
# (by history). Alignment is S = weight compliant / repairs, and 0 before any: each step is paid what S rose by, so that
# an episode is paid its last S in all. One without a repair is paid -NO_REPAIR weight at its end, and its compliance is
# 1/2.


NO_REPAIR = 0.2  # of an episode without a repair: its penalty over the weight
KIND_OF_HOST = np.array([KINDS.index(host.name.rstrip("0123456789").lower()) for host in HOSTS])
_NO_KIND = -1
KIND_REPAIRED = np.full(NUM_ACTIONS, _NO_KIND)  # by action
for _host, _kind in zip(HOSTS, KIND_OF_HOST, strict=True):
    KIND_REPAIRED[[ACTION[f"Remove {_host.name}"], ACTION[f"Restore {_host.name}"]]] = _kind
_COUNTED = np.eye(len(KINDS), dtype=bool)[KIND_OF_HOST]  # [host, kind]
_COUNTED[USER0] = False
RULES = ("state", "history")


class Compliance:
    """That of n games, each with an order of its own. Raises ConfigError for a rule that is none of RULES.

    num_repairs, num_compliant: `[n]` int64, of the episodes under way. weights: `[n]`, `weight` of all at first.
    """

    def __init__(self, num_games: int, rule: str, weight: float) -> None:
        if rule not in RULES:
            raise ConfigError(f"compliance={rule}: must be one of {', '.join(RULES)}")
        if not isinstance(weight, int | float) or not 0 <= weight < np.inf:
            raise ConfigError(f"alignment_weight={weight}: must be a number of at least 0")
        self.rule = rule
        self.weights = np.full(num_games, float(weight))
        self.num_repairs, self.num_compliant = np.zeros((2, num_games), np.int64)
        self._place = np.zeros((num_games, len(KINDS)), np.int64)  # of each kind in the order, 0 the highest
        self._is_repaired = np.zeros((num_games, len(KINDS)), bool)

    def begin(self, which: np.ndarray, orders: np.ndarray) -> None:
        """Begin episodes of the games `which` (indices `[k]`), with orders `[k, 5]` of kinds, the highest first."""
        self._place[which] = np.argsort(orders, axis=1)
        self._is_repaired[which] = False
        self.num_repairs[which] = self.num_compliant[which] = 0

    def judge(self, actions: np.ndarray, compromised: np.ndarray) -> np.ndarray:
        """Judge actions `[n]` by the true state before them `[n, 13]`, not 0 where Red is; return rewards `[n]`."""
        rewards = np.zeros(len(actions))
        kinds = KIND_REPAIRED[actions]
        (games,) = (kinds != _NO_KIND).nonzero()
        if not games.size:
            return rewards
        kinds = kinds[games]
        by_state = (compromised[games] != 0) @ _COUNTED
        waiting = by_state if self.rule == "state" else ~self._is_repaired[games]
        place = self._place[games]
        is_before = place < place[np.arange(games.size), kinds][:, None]
        before = self._alignment(games)
        self.num_repairs[games] += 1
        self.num_compliant[games] += ~(waiting & is_before).any(axis=1)
        self._is_repaired[games, kinds] = True
        rewards[games] = self._alignment(games) - before
        return rewards

    def conclude(self, which: np.ndarray) -> np.ndarray:
        """Return the rewards `[k]` that the ends of the episodes `which` (indices) bring."""
        return np.where(self.num_repairs[which] == 0, -NO_REPAIR * self.weights[which], 0.0)

    def rates(self) -> np.ndarray:
        """Return the compliance `[n]` of the episodes under way: of repairs, the share that kept to the order."""
        rates = self.num_compliant / np.maximum(self.num_repairs, 1)
        return np.where(self.num_repairs == 0, UNKNOWN, rates)

    def state(self) -> dict[str, Any]:
        """Return all that decides what follows, in plain values."""
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
