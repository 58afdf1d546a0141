"""A search over orders while one run trains: which order is tried, when its trial ends, and what follows from that.

Pure: numbers in, decisions out. Every rank has a campaign, hears the same, and says the same; which order comes next is
asked of rank 0's alone, for another machine may round otherwise.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np

from ddppo.domains.cage2.search import orders
from ddppo.domains.cage2.search.orders import ORDERS, Order, nearest, words
from ddppo.domains.cage2.search.outcomes import OrderOutcome, read
from ddppo.domains.cage2.search.settings import SearchSettings
from ddppo.errors import TrainingError
from ddppo.search.ucb import Estimate

_RISE = 0.01  # of compliance, and in returns the share, that ends a plateau
_NUM_BEST = 3  # that are noted when an order is chosen


class Proposer(Protocol):
    """Which order comes next, by what came of those before; `UCB` is one. State in plain values."""

    def ask(self, n: int = 1) -> list[Order]: ...

    def tell(self, point: Order, value: float, noise_variance: float | None = None) -> None: ...

    def posterior(self) -> tuple[np.ndarray, np.ndarray]: ...

    def best(self, k: int) -> list[Estimate]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


@dataclass(slots=True)
class OrderTrial:
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


class Campaign:
    """The trials of a run of `num_envs` environments over all ranks.

    heard: the trial and the episodes of the last iteration. noted: for each trial, the best orders by UCB when it was
    chosen.
    """

    def __init__(self, settings: SearchSettings, num_envs: int, proposer: Proposer) -> None:
        self.settings = settings
        self.proposer = proposer
        self.trials: list[OrderTrial] = []
        self.noted: list[list[dict[str, Any]]] = []
        self.heard: tuple[int, list[OrderOutcome]] = (0, [])
        self._limit = settings.max_episodes_per_order * num_envs
        self._course = Course()

    @property
    def under_way(self) -> OrderTrial | None:
        """The trial that lasts; None before the first, and between the end of one and the begin of the next."""
        return self.trials[-1] if self.trials and self.trials[-1].ended_by is None else None

    @property
    def num_episodes(self) -> int:
        """Of all environments, so far."""
        return self.trials[-1].episodes_total if self.trials else 0

    @property
    def is_over(self) -> bool:
        return self.num_episodes >= self.settings.budget_episodes

    def choose(self) -> int:
        """Return the id of the order to try next."""
        return orders.order_id(self.proposer.ask()[0])

    def begin(self, order_id: int) -> OrderTrial:
        """Begin a trial of an order."""
        assert self.under_way is None, self.under_way
        self.noted.append(self._best_by_ucb(order_id))
        source = self._source(ORDERS[order_id])
        trial = OrderTrial(len(self.trials), order_id, source, episodes_total=self.num_episodes)
        self.trials.append(trial)
        self._course = Course()
        return trial

    def hear(self, news: Sequence[bytes]) -> OrderTrial | None:
        """Hear of an iteration's episodes; return the trial if it ended with it. Raises TrainingError.

        So it does where no episode ended, or several of an environment: iterations are whole episodes, of one order.
        """
        trial, outcomes = self.trials[-1], read(news)
        if not outcomes:
            raise TrainingError(
                f"no episode of trial {trial.trial} ended in an iteration: ppo.rollout_steps must be the steps of an "
                "episode, and the task must publish its episodes"
            )
        for outcome in outcomes:
            if outcome.order != trial.order:
                raise TrainingError(
                    f"environment {outcome.environment} played an episode by the order {words(outcome.order)} in trial "
                    f"{trial.trial} of {words(trial.order)}"
                )
        played = [outcome.environment for outcome in outcomes]
        if len(set(played)) < len(played):
            twice = next(i for i in played if played.count(i) > 1)
            raise TrainingError(
                f"environment {twice} ended {played.count(twice)} episodes of trial {trial.trial} in an iteration: "
                "ppo.rollout_steps must be the steps of an episode, of which all have as many"
            )
        self.heard = trial.trial, outcomes
        trial.episodes += len(outcomes)
        trial.episodes_total += len(outcomes)
        trial.compliance = float(np.mean([outcome.compliance for outcome in outcomes]))
        trial.repairs = sum(outcome.repairs for outcome in outcomes)
        returns = [outcome.reward for outcome in outcomes]
        self._course.hear(trial.compliance, returns, self.settings.score_iterations)
        trial.ended_by = self._why_ended(trial)
        if trial.ended_by is None:
            return None
        self._score(trial)
        return trial

    def to_keep(self) -> list[int]:
        """Return the trials whose policies may be asked for: of each order the last, and the last that passed."""
        ended = [trial for trial in self.trials if trial.ended_by is not None]
        last = {trial.order_id: trial.trial for trial in ended}
        passed = {trial.order_id: trial.trial for trial in ended if trial.passed}
        return sorted({*last.values(), *passed.values()})

    def conclude(self) -> OrderTrial | None:
        """End the run: a trial that is under way, as where episodes were lost, ends with the budget; return it."""
        trial = self.under_way
        if trial is None:
            return None
        if not trial.episodes:
            self.trials.pop()
            self.noted.pop()
            return None
        trial.ended_by = "budget"
        self._score(trial)
        return trial

    def metrics(self) -> dict[str, float]:
        """Return numbers of the iteration heard last, by names of search/* in the table of metrics."""
        number, outcomes = self.heard
        compliance = [outcome.compliance for outcome in outcomes]
        return {
            "trial": float(number),
            "order_id": float(self.trials[number].order_id),
            "return_mean": float(np.mean([outcome.reward for outcome in outcomes])),
            "alignment_mean": float(np.mean([outcome.alignment for outcome in outcomes])),
            "compliance": float(np.mean(compliance)),
            "repairs": float(sum(outcome.repairs for outcome in outcomes)),
            "without_repairs": float(np.mean([outcome.repairs == 0 for outcome in outcomes])),
            "passed": float(sum(trial.passed for trial in self.trials)),
            "episodes": float(self.num_episodes),
        }

    def best(self) -> dict[str, Any] | None:
        """Return the best of the orders tried, by posterior mean; of those that passed their gate, if any did."""
        ended = [trial for trial in self.trials if trial.ended_by is not None]
        found = [trial for trial in ended if trial.passed] or ended
        if not found:
            return None
        mean, deviation = self.proposer.posterior()
        best = max(found, key=lambda trial: (mean[trial.order_id], trial.trial))
        told = {"mean": float(mean[best.order_id]), "deviation": float(deviation[best.order_id])}
        return {**best.as_written(), "preset": preset_of(best.order), **told}

    def written(self) -> dict[str, Any]:
        """Return what search.json holds."""
        settings, posterior = self.settings, {}
        if any(trial.score is not None for trial in self.trials):
            mean, deviation = self.proposer.posterior()
            posterior = {"mean": mean.tolist(), "deviation": deviation.tolist()}
        return {
            "names": list(orders.KINDS),
            "beta": settings.beta,
            "inherit": settings.inherit,
            "budget_episodes": settings.budget_episodes,
            "trials": [trial.as_written() for trial in self.trials],
            "posterior": posterior,
            "best": self.best(),
        }

    def state(self) -> dict[str, Any]:
        """Return all that decides what follows, in plain values."""
        return {
            "trials": [asdict(trial) for trial in self.trials],
            "noted": self.noted,
            "course": asdict(self._course),
            "proposer": self.proposer.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.trials = [OrderTrial(**each) for each in state["trials"]]
        self.noted = list(state["noted"])
        self._course = Course(**state["course"])
        self.proposer.restore(state["proposer"])

    def digest(self, before: str = "") -> str:
        """Return a hash, in hexadecimal digits, of the trials and what came `before`; equal on ranks that agree."""
        trials = json.dumps([asdict(trial) for trial in self.trials])
        return hashlib.sha256((before + trials).encode()).hexdigest()

    # -- the rules ------------------------------------------------------------------------------------------------

    def _source(self, order: Order) -> int | None:
        """Return the trial whose policy the next inherits."""
        latest = {trial.order: trial.trial for trial in self.trials}
        match self.settings.inherit:
            case "shared":
                return len(self.trials) - 1 if self.trials else None
            case "same":
                return latest.get(order)
            case "nearest":
                return latest[nearest(order, latest)] if latest else None
        return None

    def _why_ended(self, trial: OrderTrial) -> str | None:
        settings = self.settings
        assert trial.compliance is not None
        assert trial.repairs is not None
        trial.passed = trial.compliance >= settings.gate_compliance and trial.repairs >= settings.gate_repairs
        if trial.passed and self._course.since_best_return >= settings.settle_iterations:
            return "gate"
        if trial.episodes >= self._limit:
            return "limit"
        if settings.plateau is not None and self._course.since_best >= settings.plateau:
            return "plateau"
        return "budget" if self.is_over else None

    def _score(self, trial: OrderTrial) -> None:
        """Give an ended trial its score, and tell the proposer, whether it passed or not."""
        assert trial.compliance is not None
        returns = np.array(list(chain(*self._course.returns)))
        shortfall = 0.0 if trial.passed else max(0.0, self.settings.gate_compliance - trial.compliance)
        trial.score = float(returns.mean()) - self.settings.shortfall_weight * shortfall
        trial.noise_variance = float(returns.var(ddof=1)) / len(returns) if len(returns) > 1 else 0.0
        # The noise of training itself, which is larger than that of episodes, is learned from all trials.
        self.proposer.tell(trial.order, trial.score, None)

    def _best_by_ucb(self, chosen: int) -> list[dict[str, Any]]:
        estimates = self.proposer.best(_NUM_BEST) if any(t.score is not None for t in self.trials) else []
        return [
            {"order_id": orders.order_id(e.point), "ucb": e.ucb, "mean": e.mean, "deviation": e.deviation}
            | {"chosen": orders.order_id(e.point) == chosen}
            for e in estimates
        ]


def preset_of(order: Order) -> str:
    """Return the name of a preset order, "other" for any other."""
    return next((name for name, preset in orders.PRESETS.items() if preset == order), "other")
