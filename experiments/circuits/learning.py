"""Which update makes rewriting better than chance? Walks that learn while they walk, without the trainer.

PYTHONPATH=. python experiments/circuits/learning.py circuit=vbe_adder_3 steps=8000 seeds=4 > learning.csv

Each walk is one environment of `env=circuit` in one process. `random` keeps all weights at 0; `power` likewise, with
draw=power and episodes of 600 steps; the others learn `model=pairs`' table of weights by one policy gradient of 256
steps after another (REINFORCE with GAE's advantages and Adam): its prior, limit and features are those of the model. So
an update can be tried in seconds; PPO's settings in conf/ppo/circuit.yaml follow what was found here.
"""

import csv
import sys
import time
from dataclasses import dataclass, field

import numpy as np

from ddppo.config.fields import setting
from ddppo.domains.circuits.task.board import num_weights
from ddppo.domains.circuits.task.env import CircuitEnv
from ddppo.options import parse

T, PRIOR, MARKS = 256, 3.0, (1000, 2000, 4000, 8000, 16000, 32000, 64000)
WAYS = {  # name: what differs
    "random": {"rate": 0.0},
    "power": {"rate": 0.0, "draw": "power", "max_steps": 600},
    "learned": {},
    "slower": {"rate": 0.03},
    "faster": {"rate": 0.3},
    "one_step": {"lam": 0.0},  # A = r + gamma V(s') - V(s)
    "long": {"gamma": 0.97, "lam": 0.9},
    "new_best": {"reward": "best"},  # a reward only for a circuit that is smaller than all before
    "narrow": {"limit": 1.5},
}


@dataclass(slots=True)
class Options:
    circuit: str = setting("vbe_adder_3", "name or file")
    ways: str = setting("random,power,learned", f"separated by commas, of {', '.join(WAYS)}")
    seeds: int = setting(3, "number of seeds, from 0 on", low=1)
    steps: int = setting(8000, "of each walk", low=1000)


@dataclass(slots=True)
class Rule:
    """How a walk learns."""

    rate: float = 0.1  # step size of Adam in units of a logit
    gamma: float = 0.9
    lam: float = 0.7
    reward: str = "saved"  # cost before - cost after; best: the decrease of the least cost known
    limit: float = 3.0
    draw: str = "greedy"
    max_steps: int = 100


@dataclass(slots=True)
class Steps:
    """The steps since the last update."""

    features: list = field(default_factory=list)  # [k, F] of the pairs
    chances: list = field(default_factory=list)  # [k]
    slopes: list = field(default_factory=list)  # [k] d logit / d sum of weights
    actions: list = field(default_factory=list)
    statuses: list = field(default_factory=list)  # [3]
    rewards: list = field(default_factory=list)
    ends: list = field(default_factory=list)


class Learner:
    """A table of weights, a linear value of the episode's state, and their updates."""

    def __init__(self, size: int, rule: Rule) -> None:
        self.rule, self.weights = rule, np.zeros(size)
        self._mean, self._square, self._count = np.zeros(size), np.zeros(size), 0
        self._critic = np.zeros(4)

    def logits(self, obs: dict) -> tuple[np.ndarray, np.ndarray]:
        """Return logits of the pairs, and their slopes."""
        number, limit = int(obs["num_pairs"][0]), self.rule.limit
        bent = np.tanh(self.weights[obs["features"][:number]].sum(axis=1) / limit)
        return limit * bent - PRIOR * obs["growth"][:number], 1 - bent**2

    def update(self, steps: Steps) -> None:
        rule, rewards, ends = self.rule, np.array(steps.rewards), np.array(steps.ends)
        # 1. Advantages (GAE), and a step of the values towards the returns.
        states = np.c_[np.ones(T), np.array(steps.statuses)]
        values = states @ self._critic
        following = np.where(ends, 0, np.append(values[1:], values[-1]))
        deltas = rewards + rule.gamma * following - values
        advantages, sum_ = np.zeros(T), 0.0
        for t in reversed(range(T)):
            sum_ = deltas[t] + (0 if ends[t] else rule.gamma * rule.lam * sum_)
            advantages[t] = sum_
        self._critic += 0.3 * np.linalg.solve(states.T @ states + 10 * np.eye(4), states.T @ advantages)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        # 2. The gradient of the mean of A log pi: A (1 for the action - chance) of each pair's logit.
        sizes = [len(chances) for chances in steps.chances]
        of_logits = np.repeat(-advantages, sizes) * np.concatenate(steps.chances)
        of_logits[np.cumsum([0, *sizes[:-1]]) + np.array(steps.actions)] += advantages
        of_logits *= np.concatenate(steps.slopes)
        places = np.concatenate(steps.features)
        per_weight = np.repeat(of_logits, places.shape[1])
        gradient = np.bincount(places.ravel(), per_weight, len(self.weights)) / T
        # 3. Adam.
        self._count += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        size = np.sqrt(self._square / (1 - 0.99**self._count)) + 1e-4
        self.weights += rule.rate * self._mean / (1 - 0.9**self._count) / size


def walk(circuit: str, seed: int, num_steps: int, rule: Rule) -> list[tuple[int, float, float]]:
    """Return steps, seconds of CPU and least cost at each of MARKS."""
    episode = {"nop": "never", "max_steps": rule.max_steps}
    env = CircuitEnv(circuit, observe="features", buffer={"draw": rule.draw}, episode=episode)
    learner, steps, rng = (
        Learner(num_weights(env.rewriter), rule),
        Steps(),
        np.random.default_rng(seed + 1000),
    )
    obs, _ = env.reset(seed=seed)
    least, rows, began = env.best()[0].cost, [], time.process_time()
    for number in range(1, num_steps + 1):
        logits, slopes = learner.logits(obs)
        sums = np.cumsum(np.exp(logits - logits.max()))
        action = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
        before, status = obs, obs["status"]
        obs, reward, terminated, truncated, _ = env.step(action)
        if rule.reward == "best":
            reward, least = least - min(least, float(len(env.circuit))), min(least, float(len(env.circuit)))
        if terminated or truncated:
            obs, _ = env.reset()
        if rule.rate:
            steps.features.append(before["features"][: len(sums)])
            steps.chances.append(np.diff(sums, prepend=0) / sums[-1])
            steps.slopes.append(slopes)
            steps.actions.append(action)
            steps.statuses.append(status)
            steps.rewards.append(reward)
            steps.ends.append(terminated or truncated)
            if len(steps.rewards) == T:
                learner.update(steps)
                steps = Steps()
        if number in MARKS:
            rows.append((number, time.process_time() - began, env.best()[0].cost))
    return rows


def main() -> None:
    options = parse(Options, sys.argv[1:], usage=__doc__ or "")
    table = csv.writer(sys.stdout)
    table.writerow(["circuit", "way", "seed", "steps", "cpu_s", "cost"])
    for way in options.ways.split(","):
        for seed in range(options.seeds):
            for number, cpu_s, cost in walk(options.circuit, seed, options.steps, Rule(**WAYS[way])):
                name = options.circuit.rpartition("/")[2].removesuffix(".qasm")
                table.writerow([name, way, seed, number, f"{cpu_s:.2f}", f"{cost:g}"])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
