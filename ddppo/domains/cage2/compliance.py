"""Whether repairs keep to the order of priority that an episode was given, and what that is worth.

A repair is a Remove or a Restore. It breaks the order where a kind of a higher priority is still compromised (by state:
the true state before the action, but for User0, which Red never loses) or was not repaired yet in this episode (by
history). Alignment is S = weight compliant / repairs, and 0 before any: each step is paid what S rose by, so that an
episode is paid its last S in all. One without a repair is paid -NO_REPAIR weight at its end, and its compliance is 1/2.
"""

from typing import Any

import numpy as np

from ddppo.domains.cage2.rules import ACTION, HOSTS, NUM_ACTIONS, USER0
from ddppo.domains.cage2.search.orders import KINDS
from ddppo.domains.cage2.search.outcomes import UNKNOWN
from ddppo.errors import ConfigError

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
