"""What environments that are given an order publish of every episode that ended, and how it is read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddppo.domains.cage2.search.orders import Order, order_id
from ddppo.errors import EnvOutputError

UNKNOWN = 0.5  # the compliance of an episode without a repair
_NUMBERS = ("reward", "alignment", "repairs", "compliant")


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """An episode. reward: its return by the environment alone; alignment: what keeping to the order brought besides."""

    environment: int
    order: Order
    reward: float
    alignment: float
    repairs: int
    compliant: int

    @property
    def compliance(self) -> float:
        return self.compliant / self.repairs if self.repairs else UNKNOWN


def written(episodes: Sequence[Mapping[str, Any]]) -> bytes:
    """Return as news what an environment tells of its episodes since the last news: a line of JSON for each."""
    return "\n".join(json.dumps(dict(episode)) for episode in episodes).encode()


def read(news: Sequence[bytes]) -> list[OrderOutcome]:
    """Return the episodes that news tell of, by the environments' indices. Raises EnvOutputError for what is none."""
    return [_read(i, line) for i, each in enumerate(news) for line in each.splitlines()]


def _read(environment: int, line: bytes) -> OrderOutcome:
    try:
        told = json.loads(line)
        order = tuple(told["order"])
        order_id(order)
        reward, alignment, repairs, compliant = (told[name] for name in _NUMBERS)
        if not (0 <= compliant <= repairs):
            raise ValueError(f"{compliant} compliant of {repairs} repairs")
        return OrderOutcome(environment, order, float(reward), float(alignment), int(repairs), int(compliant))
    except (ValueError, KeyError, TypeError) as e:
        raise EnvOutputError(
            f"environment {environment} published {line!r:.80}, no episode under an order ({type(e).__name__}: {e}): a "
            f"search needs JSON with order, {', '.join(_NUMBERS)}"
        ) from e
