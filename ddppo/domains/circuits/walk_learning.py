"""Learning while walking: `ddppo-circuit optimise learn=true`, and experiments/circuits/learning.py.

The policy is that of `model=pairs` (pairs.py), a table of weights of the features of pairs. It takes one step of a
policy gradient after every T steps of a walk: REINFORCE with the advantages of GAE, and Adam. NumPy alone: an update
takes a few milliseconds, a decision microseconds, so that a step costs little more than one at random.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ddppo.domains.circuits.task.board import num_weights
from ddppo.domains.circuits.task.env import CircuitEnv, Obs

T = 256  # steps between two updates


@dataclass(frozen=True, slots=True)
class LearningRule:
    """How a walk learns. The defaults are those that experiments/circuits found."""

    rate: float = (
        0.1  # step size of Adam, in units of a logit; 0: weights stay 0, which is rewriting at random
    )
    gamma: float = 0.9
    lam: float = 0.7
    prior: float = 3.0  # a rule that adds n gates is e^(-prior n) times as likely
    limit: float = 3.0  # of what learning adds to a logit, as PairPolicy has it


@dataclass(slots=True)
class Steps:
    """The steps since the last update, k pairs each."""

    features: list[np.ndarray] = field(default_factory=list)  # [k, F]
    chances: list[np.ndarray] = field(default_factory=list)  # [k]
    slopes: list[np.ndarray] = field(default_factory=list)  # [k] d logit / d sum of weights
    actions: list[int] = field(default_factory=list)
    statuses: list[np.ndarray] = field(default_factory=list)  # [3]
    rewards: list[float] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)


class WalkLearner:
    """A table of weights, a linear value of the episode's state, and their updates."""

    def __init__(self, size: int, rule: LearningRule) -> None:
        self.rule, self.weights = rule, np.zeros(size)
        self._mean, self._square, self._count = np.zeros(size), np.zeros(size), 0  # of Adam
        self._critic = np.zeros(4)

    def logits(self, features: np.ndarray, growth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return logits `[k]` of pairs with features `[k, F]`, and their slopes by the sums of weights."""
        bent = np.tanh(self.weights[features].sum(axis=1) / self.rule.limit)
        return self.rule.limit * bent - self.rule.prior * growth, 1 - bent**2

    def update(self, steps: Steps) -> None:
        """Move the weights along the gradient of the mean of A log pi(pair) over the steps."""
        rule, rewards, ends = self.rule, np.array(steps.rewards), np.array(steps.ends)
        # 1. Advantages (GAE), and a step of the values towards the returns.
        states = np.c_[np.ones(len(rewards)), np.array(steps.statuses)]
        values = states @ self._critic
        following = np.where(ends, 0, np.append(values[1:], values[-1]))
        deltas = rewards + rule.gamma * following - values
        advantages, sum_ = np.zeros(len(rewards)), 0.0
        for t in reversed(range(len(rewards))):
            sum_ = deltas[t] + (0 if ends[t] else rule.gamma * rule.lam * sum_)
            advantages[t] = sum_
        self._critic += 0.3 * np.linalg.solve(states.T @ states + 10 * np.eye(4), states.T @ advantages)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        # 2. Adam.
        gradient = self.gradient(steps, advantages)
        self._count += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        size = np.sqrt(self._square / (1 - 0.99**self._count)) + 1e-4
        self.weights += rule.rate * self._mean / (1 - 0.9**self._count) / size

    def gradient(self, steps: Steps, advantages: np.ndarray) -> np.ndarray:
        """Return d mean(A log pi) / d weights: A (1 of the action - chance) for each pair's logit, added up."""
        sizes = [len(chances) for chances in steps.chances]
        of_logits = np.repeat(-advantages, sizes) * np.concatenate(steps.chances)
        of_logits[np.cumsum([0, *sizes[:-1]]) + np.array(steps.actions)] += advantages
        of_logits *= np.concatenate(steps.slopes)
        places = np.concatenate(steps.features)
        per_weight = np.repeat(of_logits, places.shape[1])
        return np.bincount(places.ravel(), per_weight, len(self.weights)) / len(advantages)


class ByLearning:
    """Draws the rewrites of one environment by a policy that learns from them.

    The choice to change nothing is masked: it ends an episode, and the best circuit is kept anyway.
    """

    def __init__(self, env: CircuitEnv, rng: np.random.Generator, rule: LearningRule) -> None:
        self._learner = WalkLearner(num_weights(env.rewriter), rule)
        self._env, self._rng, self._steps = env, rng, Steps()

    def __call__(self, obs: Sequence[Obs]) -> list[int]:
        (seen,) = obs
        number = int(seen["num_pairs"][0])
        features = seen["features"][:number]
        logits, slopes = self._learner.logits(features, seen["growth"][:number])
        weights = np.exp(logits - logits.max())
        weights *= self._env.pairs[:number, 1] != self._env.rewriter.nop
        sums = np.cumsum(weights)
        if not sums[-1]:  # to change nothing is the only choice
            sums, weights = np.ones(1), np.ones(1)
        action = int(np.searchsorted(sums, self._rng.random() * sums[-1], side="right"))
        steps = self._steps
        steps.features.append(features)
        steps.chances.append(weights / sums[-1])
        steps.slopes.append(slopes)
        steps.actions.append(action)
        steps.statuses.append(seen["status"])
        return [action]

    def note(self, reward: float, *, is_end: bool) -> None:
        """Learn what came of the last choice."""
        self._steps.rewards.append(reward)
        self._steps.ends.append(is_end)
        if len(self._steps.rewards) == T:
            if self._learner.rule.rate:
                self._learner.update(self._steps)
            self._steps = Steps()
