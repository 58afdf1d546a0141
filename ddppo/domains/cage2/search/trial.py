"""One order while it is tried, and how that goes, iteration by iteration."""

import math
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from ddppo.domains.cage2.search.orders import ORDERS, Order, words

_RISE = 0.01  # of compliance, and in returns the share, that ends a plateau


@dataclass(slots=True)
class Trial:
    """One order while it is tried, for `episodes` of all environments so far; `episodes_total` with those before it.

    inherited_from: the trial whose policy it began with, None for the parameters as at the start of the run. passed:
    the gate. ended_by: gate, plateau, limit or budget; None while it lasts, and so are the numbers after it. score:
    mean environment return of the last iterations, less what is missing to the gate. noise_variance: of that mean, by
    the episodes alone. compliance, repairs: of the last iteration.
    """

    trial: int
    order_id: int
    inherited_from: int | None
    episodes: int = 0
    episodes_total: int = 0
    passed: bool = False
    ended_by: str | None = None
    score: float | None = None
    noise_variance: float | None = None
    compliance: float | None = None
    repairs: int | None = None

    @property
    def order(self) -> Order:
        return ORDERS[self.order_id]

    def as_written(self) -> dict[str, Any]:
        """Return what search.json says of it: what is known, and the order in words."""
        told = {name: value for name, value in asdict(self).items() if value is not None}
        return {**told, "order": words(self.order), "inherited_from": self.inherited_from}


@dataclass(slots=True)
class Course:
    """The trial under way, iteration by iteration: returns of the last ones, and how compliance and they rose."""

    returns: list[list[float]] = field(default_factory=list)
    best_compliance: float = -math.inf
    since_best: int = 0
    best_return: float | None = None
    since_best_return: int = 0

    def hear(self, compliance: float, returns: list[float], num_kept: int) -> None:
        """Note an iteration, and keep the returns of the last `num_kept`."""
        self.returns = [*self.returns, returns][-num_kept:]
        if compliance > self.best_compliance + _RISE:
            self.best_compliance, self.since_best = compliance, 0
        else:
            self.since_best += 1
        mean = float(np.mean(list(chain(*self.returns))))
        if self.best_return is None or mean > self.best_return + _RISE * abs(self.best_return):
            self.best_return, self.since_best_return = mean, 0
        else:
            self.since_best_return += 1
