"""Who says which order comes next."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ddppo.domains.cage2.search import orders
from ddppo.domains.cage2.search.orders import Order
from ddppo.search.ucb import UCB, Estimate


class Proposer(Protocol):
    """Which order comes next, by what came of those before; `UCB` is one. State in plain values."""

    def ask(self, n: int = 1) -> list[Order]: ...

    def tell(self, point: Order, value: float, noise_variance: float | None = None) -> None: ...

    def posterior(self) -> tuple[np.ndarray, np.ndarray]: ...

    def best(self, k: int) -> list[Estimate]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


def ucb_over_orders(*, beta: float, seed: int) -> Proposer:
    return UCB(orders.space(), beta=beta, seed=seed)


PROPOSERS: dict[str, Callable[..., Proposer]] = {"orders": ucb_over_orders}
