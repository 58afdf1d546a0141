"""The messages of environments with orders: the result of every finished episode, one line of JSON each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddppo.domains.cage2.search.orders import Order, order_id
from ddppo.errors import EnvOutputError

UNKNOWN = 0.5  # compliance of an episode without a repair
_NUMBERS = ("reward", "alignment", "repairs", "compliant")


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """The result of one episode."""

    environment: int  # global index
    order: Order
    reward: float  # return of the environment alone
    alignment: float  # reward for keeping to the order
    repairs: int
    compliant: int  # repairs that kept to the order

    @property
    def compliance(self) -> float:
        return self.compliant / self.repairs if self.repairs else UNKNOWN


def encode_episodes(episodes: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the message of an environment about these episodes, a line of JSON for each."""
    return "\n".join(json.dumps(dict(episode)) for episode in episodes).encode()


def decode_outcomes(messages: Sequence[bytes]) -> list[OrderOutcome]:
    """Return the episodes in the messages of all environments, in their order. Raises EnvOutputError."""
    return [_decode(i, line) for i, each in enumerate(messages) for line in each.splitlines()]


def _decode(environment: int, line: bytes) -> OrderOutcome:
    # The message may come from a user's environment: check it, and name the environment in the error.
    try:
        episode = json.loads(line)
        order = tuple(episode["order"])
        order_id(order)
        reward, alignment, repairs, compliant = (episode[name] for name in _NUMBERS)
        if not (0 <= compliant <= repairs):
            raise ValueError(f"{compliant} compliant of {repairs} repairs")
        return OrderOutcome(environment, order, float(reward), float(alignment), int(repairs), int(compliant))
    except (ValueError, KeyError, TypeError) as e:
        raise EnvOutputError(
            f"environment {environment} published {line!r:.80}, no episode under an order ({type(e).__name__}: {e}): a "
            f"search needs JSON with order, {', '.join(_NUMBERS)}"
        ) from e
