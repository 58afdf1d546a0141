"""The decisions of a search over orders: which order is tried, when its trial ends, and which policy the next one
inherits.

No policies, files or ranks here: numbers in, decisions out. Every rank has a campaign and records the same messages, so
all make the same decisions. Only the next order is taken from rank 0, because other machines may round differently.
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
from ddppo.domains.cage2.search.outcomes import OrderOutcome, decode_outcomes
from ddppo.domains.cage2.search.settings import SearchSettings
from ddppo.errors import TrainingError
from ddppo.search.ucb import COVERS, Estimate

_RISE = 0.01  # rise of compliance, and relative rise of returns, that counts as progress
FEW = 4  # scores from which intervals are shown: so many trials are drawn at random before the search chooses
_NUM_BEST = 3  # candidates that are recorded when an order is chosen
_ENDS = {
    "gate": "passed its gate",
    "plateau": "ended at a plateau",
    "limit": "ended at its limit",
    "budget": "was cut off by the budget",
}


class Proposer(Protocol):
    """Proposes the next order from the scores of earlier ones, as `UCB` does. Its state is plain values."""

    def ask(self, n: int = 1) -> list[Order]: ...

    def tell(
        self, point: Order, value: float, noise_variance: float | None = None, covariate: float = 0.0
    ) -> None:
        """Take in a score, and as its covariate the logarithm of the policy's age in episodes."""

    def posterior(self) -> tuple[np.ndarray, np.ndarray]: ...

    def best(self, k: int) -> list[Estimate]: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


@dataclass(slots=True)
class OrderTrial:
    """One trial: an order that all environments play for some iterations."""

    trial: int  # number, from 0
    order_id: int
    inherited_from: int | None  # trial from which it took the policy; None: the initial parameters of the run
    episodes: int = 0  # of all environments in this trial so far
    episodes_total: int = 0  # in this and all earlier trials
    passed: bool = False  # the gate, in the last iteration
    ended_by: str | None = None  # gate, plateau, limit or budget (cut off); None until it ends
    age: int | None = None  # episodes from which its policy has learned at its end, inherited ones included
    mean_return: float | None = None  # of the game alone, in the last iterations
    # mean_return minus the penalty for missing compliance; None if the trial was cut off: it had not settled.
    score: float | None = None
    noise_variance: float | None = None  # of mean_return, from the spread of its episodes alone
    compliance: float | None = None  # of the last iteration
    repairs: int | None = None  # of the last iteration

    @property
    def order(self) -> Order:
        return ORDERS[self.order_id]

    def as_written(self) -> dict[str, Any]:
        """Return its entry in search.json: all known values, and the order in words."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return {**known, "order": words(self.order), "inherited_from": self.inherited_from}


@dataclass(slots=True)
class TrialProgress:
    """The progress of the current trial, updated in each iteration."""

    returns: list[list[float]] = field(default_factory=list)  # of the episodes of the last iterations
    best_compliance: float = -math.inf
    since_best: int = 0  # iterations without a rise of compliance
    best_return: float | None = None  # the highest mean of `returns`
    since_best_return: int = 0  # iterations without a rise of that mean

    def record(self, compliance: float, returns: list[float], num_kept: int) -> None:
        """Record an iteration; keep the returns of the last `num_kept` iterations."""
        # Progress is a rise by more than _RISE over the best so far, so that noise does not count as progress.
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
    """The trials of a run of `num_envs` environments over all ranks."""

    def __init__(self, settings: SearchSettings, num_envs: int, proposer: Proposer) -> None:
        self.settings = settings
        self.proposer = proposer
        self.trials: list[OrderTrial] = []
        self.candidates: list[
            list[dict[str, Any]]
        ] = []  # for each trial, the best orders by UCB when it was chosen
        self.last_iteration: tuple[int, list[OrderOutcome]] = (0, [])  # its trial and its episodes
        self._limit = settings.max_episodes_per_order * num_envs
        self._progress = TrialProgress()

    @property
    def current(self) -> OrderTrial | None:
        """The trial that has not ended; None before the first trial, and between two trials."""
        return self.trials[-1] if self.trials and self.trials[-1].ended_by is None else None

    @property
    def num_episodes(self) -> int:
        """Episodes of all environments so far."""
        return self.trials[-1].episodes_total if self.trials else 0

    @property
    def is_over(self) -> bool:
        return self.num_episodes >= self.settings.budget_episodes

    def choose(self) -> int:
        """Return the id of the order to try next."""
        return orders.order_id(self.proposer.ask()[0])

    def begin(self, order_id: int) -> OrderTrial:
        """Start a trial of an order."""
        assert self.current is None, self.current
        self.candidates.append(self._best_by_ucb(order_id))
        source = self._source(ORDERS[order_id])
        trial = OrderTrial(len(self.trials), order_id, source, episodes_total=self.num_episodes)
        self.trials.append(trial)
        self._progress = TrialProgress()
        return trial

    def record(self, messages: Sequence[bytes]) -> OrderTrial | None:
        """Record the episodes of an iteration; return the trial if it ends with this iteration.

        Raises TrainingError if no episode ended, or if an environment ended several: an iteration has to be one whole
        episode of each environment, all with the order of the trial.
        """
        # 1. Check the episodes.
        trial, outcomes = self.trials[-1], decode_outcomes(messages)
        # At least one episode, all with the trial's order, and one of each environment at most.
        if not outcomes:
            raise TrainingError(
                f"no episode of trial {trial.trial} ended in an iteration: ppo.rollout_steps must be the steps of an "
                "episode, and the task must publish its episodes"
            )
        for outcome in outcomes:
            if outcome.order != trial.order:
                raise TrainingError(
                    f"environment {outcome.environment} played an episode with the order {words(outcome.order)} in "
                    f"trial {trial.trial} of {words(trial.order)}"
                )
        played = [outcome.environment for outcome in outcomes]
        if len(set(played)) < len(played):
            twice = next(i for i in played if played.count(i) > 1)
            raise TrainingError(
                f"environment {twice} ended {played.count(twice)} episodes of trial {trial.trial} in an iteration: "
                "ppo.rollout_steps must be the steps of an episode, and all episodes must have the same length"
            )
        # 2. Update the trial.
        self.last_iteration = trial.trial, outcomes
        trial.episodes += len(outcomes)
        trial.episodes_total += len(outcomes)
        trial.compliance = float(np.mean([outcome.compliance for outcome in outcomes]))
        trial.repairs = sum(outcome.repairs for outcome in outcomes)
        returns = [outcome.reward for outcome in outcomes]
        self._progress.record(trial.compliance, returns, self.settings.score_iterations)
        # 3. Decide whether it ends, and if so, score it.
        reason = self._why_ended(trial)
        if reason is None:
            return None
        self._end(trial, reason)
        return trial

    def to_keep(self) -> list[int]:
        """Return the trials with a policy that may be needed: for each order the last, and the last that passed."""
        ended = [trial for trial in self.trials if trial.ended_by is not None]
        last = {trial.order_id: trial.trial for trial in ended}
        passed = {trial.order_id: trial.trial for trial in ended if trial.passed}
        return sorted({*last.values(), *passed.values()})

    def conclude(self) -> OrderTrial | None:
        """End the run. Return the current trial, which ends with the budget, or None if there is none."""
        trial = self.current
        if trial is None:
            return None
        # A trial without an episode has no score: drop it.
        if not trial.episodes:
            self.trials.pop()
            self.candidates.pop()
            return None
        self._end(trial, "budget")
        return trial

    def metrics(self) -> dict[str, float]:
        """Return the metrics search/* of the last iteration, without the prefix."""
        number, outcomes = self.last_iteration
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

    @property
    def has_scores(self) -> bool:
        return any(trial.score is not None for trial in self.trials)

    def best(self) -> dict[str, Any] | None:
        """Return the best order tried, by posterior mean, among the trials that passed their gate if there are any.

        Trials that were cut off have no score and do not count, unless there is no other: then the last one is the
        best, and there is no posterior.
        """
        ended = [trial for trial in self.trials if trial.ended_by is not None]
        if not ended:
            return None
        if not self.has_scores:
            return {**ended[-1].as_written(), "preset": preset_of(ended[-1].order)}
        scored = [trial for trial in ended if trial.score is not None]
        found = [trial for trial in scored if trial.passed] or scored
        mean, deviation = self.proposer.posterior()
        best = max(found, key=lambda trial: (mean[trial.order_id], trial.trial))
        posterior = {"mean": float(mean[best.order_id]), "deviation": float(deviation[best.order_id])}
        return {**best.as_written(), "preset": preset_of(best.order), **posterior, "scores": len(scored)}

    def status(self) -> list[str]:
        """Return the words of the progress line: the trial and its order, its returns, and the best order so far."""
        number, outcomes = self.last_iteration
        trial = self.trials[number]
        means = [
            np.mean([getattr(o, name) for o in outcomes]) for name in ("reward", "alignment", "compliance")
        ]
        words_ = [
            f"trial {number} {words(trial.order)}",
            f"game {means[0]:.2f}",
            f"alignment {means[1]:+.2f}",
            f"compliance {means[2]:.0%}",
        ]
        best = self.best()
        return words_ if best is None else [*words_, f"best {said_of(best)}"]

    def said_of_end(self, trial: OrderTrial) -> str:
        """Return the line for a trial that has ended."""
        assert trial.ended_by is not None
        result = (
            f"not scored, it had a return of {trial.mean_return:.2f}"
            if trial.score is None
            else f"score {trial.score:.2f}"
        )
        line = (
            f"trial {trial.trial} {_ENDS[trial.ended_by]}: {words(trial.order)}, {result}, compliance "
            f"{trial.compliance:.0%}, {trial.episodes:,} episodes"
        )
        best = self.best()
        return line if best is None else f"{line}; best {said_of(best)}"

    def as_json(self) -> dict[str, Any]:
        """Return the content of search.json."""
        settings, posterior = self.settings, {}
        if self.has_scores:
            mean, deviation = self.proposer.posterior()
            posterior = {"mean": mean.tolist(), "deviation": deviation.tolist()}
            # A proposer of the user's own may not know its noise.
            if (noise := getattr(self.proposer, "noise_deviation", None)) is not None:
                posterior["noise_deviation"] = noise()
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
        """Return the complete state in plain values."""
        return {
            "trials": [asdict(trial) for trial in self.trials],
            "noted": self.candidates,
            "course": asdict(self._progress),
            "proposer": self.proposer.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.trials = [OrderTrial(**each) for each in state["trials"]]
        self.candidates = list(state["noted"])
        self._progress = TrialProgress(**state["course"])
        self.proposer.restore(state["proposer"])

    def digest(self, before: str = "") -> str:
        """Return a hash, in hexadecimal, of `before` and all trials. Ranks compare it."""
        trials = json.dumps([asdict(trial) for trial in self.trials])
        return hashlib.sha256((before + trials).encode()).hexdigest()

    # -- the rules ------------------------------------------------------------------------------------------------

    def _source(self, order: Order) -> int | None:
        """Return the trial from which a trial of this order inherits its policy, by search.inherit."""
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
        # Behind the gate, a trial goes on until returns have stopped rising, so that scores of orders are comparable.
        if trial.passed and self._progress.since_best_return >= settings.settle_iterations:
            return "gate"
        if trial.episodes >= self._limit:
            return "limit"
        if settings.plateau is not None and self._progress.since_best >= settings.plateau:
            return "plateau"
        return "budget" if self.is_over else None

    def _end(self, trial: OrderTrial, reason: str) -> None:
        """End a trial, passed or not, and report its score to the proposer.

        score = mean return of the last iterations - shortfall_weight * max(0, gate - compliance), the latter only if it
        failed its gate. A trial that the budget cuts off is not scored: its policy would still have improved.
        """
        assert trial.compliance is not None
        trial.ended_by = reason
        returns = np.array(list(chain(*self._progress.returns)))
        trial.mean_return = float(returns.mean())
        trial.noise_variance = float(returns.var(ddof=1)) / len(returns) if len(returns) > 1 else 0.0
        trial.age = self._age(trial)
        if reason == "budget":
            return
        # A trial that failed its gate loses score by its missing compliance: an order is worth nothing if episodes
        # ignore it.
        shortfall = 0.0 if trial.passed else max(0.0, self.settings.gate_compliance - trial.compliance)
        trial.score = trial.mean_return - self.settings.shortfall_weight * shortfall
        # None: the proposer estimates the noise from trials that repeat an order. The spread between two trainings of
        # one order is larger than the spread of episodes. Scores rise with the age of the policy, so it is told too;
        # trials that start alike have no age that differs.
        age = 0.0 if self.settings.inherit == "nothing" else math.log(trial.age)
        self.proposer.tell(trial.order, trial.score, None, covariate=age)

    def _age(self, trial: OrderTrial) -> int:
        """Return the episodes from which the policy of a trial has learned, those of its ancestors included."""
        age, source = trial.episodes, trial.inherited_from
        while source is not None:
            age, source = age + self.trials[source].episodes, self.trials[source].inherited_from
        return age

    def _best_by_ucb(self, chosen: int) -> list[dict[str, Any]]:
        estimates = self.proposer.best(_NUM_BEST) if self.has_scores else []
        return [
            {"order_id": orders.order_id(e.point), "ucb": e.ucb, "mean": e.mean, "deviation": e.deviation}
            | {"chosen": orders.order_id(e.point) == chosen}
            for e in estimates
        ]


def preset_of(order: Order) -> str:
    """Return the name of a preset order, or "other"."""
    return next((name for name, preset in orders.PRESETS.items() if preset == order), "other")


def said_of(best: Mapping[str, Any]) -> str:
    """Return the expected score of the best order with its 95 % interval, and the order.

    A few scores tell no scale, and have no interval yet; without any the trial was cut off.
    """
    if "mean" not in best:
        return f"cut off at {best['mean_return']:.2f} {best['order']}"
    half = COVERS * best["deviation"]
    spread = f" ({best['mean'] - half:.2f} to {best['mean'] + half:.2f})" if best["scores"] >= FEW else ""
    return f"{best['mean']:.2f}{spread} {best['order']}"
