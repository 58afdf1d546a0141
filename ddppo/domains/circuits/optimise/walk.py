"""A walk over the circuits that rules make of one: a few environments side by side, and who chooses for them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ddppo.domains.circuits.task.env import CircuitEnv, Obs
from ddppo.domains.circuits.task.found import Found
from ddppo.domains.circuits.task.pairs import growth_of
from ddppo.seeding import derived_seed, stream

Choose = Callable[
    [Sequence[Obs]], Sequence[int]
]  # of each environment's observation the row of `pairs` to take


class Progress(NamedTuple):
    """Steps and rewrites since the walk began; the least cost so far, and the rewrites that lead there.

    rewrites: None where there is none better than was told before. news: for the other walks, one of each environment.
    """

    num_steps: int
    num_rewrites: int
    cost: float
    rewrites: tuple[tuple[int, int], ...] | None
    news: list[bytes]


class Walk:
    """Environments of one circuit, stepped in turn; each has its own stream and its own buffer of circuits."""

    def __init__(self, envs: Sequence[CircuitEnv], choose: Choose, seeds: Sequence[int]) -> None:
        self._envs = envs
        self._choose = choose
        self._obs = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
        self._num_steps = self._num_rewrites = 0
        self._told = np.inf

    def go(self, news: Sequence[bytes], num_steps: int, until: float) -> Progress:
        """Hear what all walks found, then take so many steps, rounded up to one of each environment.

        until: seconds of time.monotonic() from which on no further one is taken.
        """
        for env in self._envs:
            env.receive(news)
        for _ in range(-(-num_steps // len(self._envs))):
            if time.monotonic() >= until:
                break
            self._step()
        best = self._best()
        is_better, self._told = best.cost < self._told, min(best.cost, self._told)
        rewrites = best.rewrites if is_better else None
        told = [env.publish() for env in self._envs]
        return Progress(self._num_steps, self._num_rewrites, best.cost, rewrites, told)

    def _step(self) -> None:
        for i, (env, action) in enumerate(zip(self._envs, self._choose(self._obs), strict=True)):
            rule = self._obs[i]["pairs"][action, 1]
            self._num_rewrites += int(rule != env.rewriter.nop)
            self._obs[i], _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                self._obs[i], _ = env.reset()
        self._num_steps += len(self._envs)

    def _best(self) -> Found:
        return min((env.best()[0] for env in self._envs), key=lambda found: found.cost)


class AtRandom:
    """Chooses among the rewrites, one that adds n gates more with a chance in proportion to e^(-bias n)."""

    def __init__(self, env: CircuitEnv, bias: float, rng: np.random.Generator) -> None:
        self._weights = np.exp(-bias * growth_of(env.rewriter))
        self._weights[env.rewriter.nop] = 0.0
        self._rng = rng

    def __call__(self, obs: Sequence[Obs]) -> list[int]:
        return [self._chosen(each["pairs"][: each["num_pairs"][0], 1]) for each in obs]

    def _chosen(self, rules: np.ndarray) -> int:
        sums = np.cumsum(self._weights[rules])
        # Where nothing but to change nothing is left, that is row 0.
        return int(np.searchsorted(sums, self._rng.random() * sums[-1], side="right")) if sums[-1] else 0


def random_walk(env: Mapping[str, Any], bias: float, index: int, seed: int) -> Walk:
    """Return the walk of one environment, the one of this index, made of these keyword arguments."""
    alone = CircuitEnv(**env)
    choose = AtRandom(alone, bias, stream(seed, "action", 0, index))
    return Walk([alone], choose, [derived_seed(seed, "env", index)])
