"""A walk at random in Python, one step at a time, with the random numbers of a walk in C++."""

from bisect import insort
from collections import Counter

import numpy as np

from ddppo.domains.circuits.task.board import CircuitBoard, LengthCap, growth_of
from ddppo.domains.circuits.task.buffer import chances
from ddppo.domains.circuits.task.settings import EpisodeSettings

_MASK = 2**64 - 1


def split_mix(state):
    """Yield numbers from 0 to 1 (Steele, Lea, Flood 2014, SplitMix64)."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        x = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
        yield ((x ^ x >> 31) >> 11) * 2.0**-53


def node_at(circuit, wire, place):
    """Return the node of gate number `place` on a wire."""
    return int(np.flatnonzero((circuit.wires == wire).any(axis=1))[place])


class WalkOracle:
    """Episodes from circuits found before, in lists by cost; cost=gate_count, draw=greedy."""

    def __init__(self, start, rewriter, seed, max_steps=100):
        self.rewriter, self.numbers = rewriter, split_mix(seed)
        self.cap = LengthCap(EpisodeSettings(max_steps=max_steps))
        self.levels, self.known, self.most = {len(start): [start]}, {start.digest()}, len(start)
        self.num_ends = 0
        self._begin()

    def _begin(self):
        costs = []
        for cost in self.levels:
            insort(costs, cost)
        shares = np.cumsum(chances(np.array(costs), "greedy"))
        level = self.levels[costs[int(np.searchsorted(shares, next(self.numbers), side="right"))]]
        self.circuit = level[int(next(self.numbers) * len(level))]
        self.least, self.num_steps = len(self.circuit), 0

    def step(self, rows, weights):
        """Take a step; rows (wire, place, rule) and weights are all matches, negative where one is not possible."""
        shares = np.cumsum(np.abs(weights))
        while weights[at := int(np.searchsorted(shares, next(self.numbers) * shares[-1], side="right"))] < 0:
            pass
        wire, place, rule = rows[at].tolist()
        self.circuit, _ = self.rewriter.apply(self.circuit, node_at(self.circuit, wire, place), rule)
        self.num_steps += 1
        cost = len(self.circuit)
        self.least = min(self.least, cost)
        if cost > self.least + 6 or self.num_steps >= self.cap.cap:
            self.cap.note(self.num_steps)
            self.num_ends += 1
            self._begin()
        elif cost <= self.most and self.circuit.digest() not in self.known:
            self.known.add(self.circuit.digest())
            self.levels.setdefault(cost, []).append(self.circuit)


class LearningOracle(WalkOracle):
    """The same with a policy that learns (src/learning.hpp). Ages of gates are those of the environment's board."""

    def __init__(self, start, rewriter, seed, rule, max_nodes):
        self.rule, self.table = rule, np.zeros(15 + len(rewriter.rules))
        self.mean, self.square, self.num_updates = np.zeros_like(self.table), np.zeros_like(self.table), 0
        self.growth = growth_of(rewriter)
        self.steps = []  # (features, features of samples, parents, reward) since the last update
        self.returns = []
        episode = EpisodeSettings(nop="never")
        self.board = CircuitBoard(rewriter, max_nodes, 2 * max_nodes, episode, "features")
        super().__init__(start, rewriter, seed)

    def _begin(self):
        super()._begin()
        self.board.show(self.circuit)
        self.first = len(self.steps)

    def classes(self, rows, weights):
        """Return the class of each match.

        The board lists no match that a path leads round; its class is told by its weight.
        """
        number = self.board.num_pairs
        listed = {tuple(pair): k for k, pair in enumerate(self.board.pairs[:number].tolist())}
        behind = 3 * self.rewriter.num_rules + 7 * 5 * 5  # where the board's feature of ages begins
        ages = (self.board.observation()["features"][:number, 2].astype(int) - behind) // 3 % 7
        recency = np.array([0, 1, 1, 2, 2, 3, 4])[ages]  # bins of the board: 0, 1, 2, below 6, 12, 24, older
        self.at = [
            listed.get((node_at(self.circuit, wire, place), rule)) for wire, place, rule in rows.tolist()
        ]
        sign = np.sign(self.growth[rows[:, 2]]) + 1
        found = np.array([5 * s + recency[at or 0] for s, at in zip(sign, self.at, strict=True)])
        self.is_listed = np.array([at is not None for at in self.at])
        for k in np.flatnonzero(~self.is_listed):
            same = np.arange(5 * sign[k], 5 * sign[k] + 5)
            far = np.abs(np.log(self.weights(np.repeat(rows[k : k + 1], 5, axis=0), same) / -weights[k]))
            assert far.min() < 1e-9, far
            found[k] = same[np.argmin(far)]
        return found

    def weights(self, rows, classes):
        learned = self.table[classes] + self.table[15 + rows[:, 2]]
        limit, shipped = self.rule.limit, np.array(self.rule.shipped)
        return np.exp(limit * np.tanh(learned / limit) + shipped[classes] - 3.0 * self.growth[rows[:, 2]])

    def step(self, rows, weights):
        shares, classes = np.cumsum(np.abs(weights)), self.classes(rows, weights)

        def drawn():
            return int(np.searchsorted(shares, next(self.numbers) * shares[-1], side="right"))

        def features(at):
            return [classes[at], 15 + rows[at, 2]]

        while weights[at := drawn()] < 0:
            pass
        samples = [drawn() for _ in range(self.rule.num_samples)]
        before, cost = Counter(self.births()), len(self.circuit)
        self.board.choose(self.at[at])
        self.circuit = self.board.circuit
        self.num_steps += 1
        after = Counter(birth + 1 for birth in self.births())  # the board counts from the last rewrite
        parents = {birth + self.first + self.num_steps - 1 for birth in before - after if birth > -1000}
        self.steps.append((features(at), [features(k) for k in samples], parents, cost - len(self.circuit)))
        self.least = min(self.least, len(self.circuit))
        if len(self.circuit) > self.least + 6 or self.num_steps >= self.cap.cap:
            self._credit()
            self.cap.note(self.num_steps)
            self.num_ends += 1
            self._begin()
        elif len(self.circuit) <= self.most and self.circuit.digest() not in self.known:
            self.known.add(self.circuit.digest())
            self.levels.setdefault(len(self.circuit), []).append(self.circuit)

    def births(self):
        """Return when each gate was inserted, counted from now: -1 by the last rewrite."""
        return [-1 - age for age in self.board.ages]

    def _credit(self):
        later = Counter()
        found = []
        for t in reversed(range(self.first, len(self.steps))):
            _, _, parents, reward = self.steps[t]
            found.append(reward + self.rule.gamma * later[t])
            for parent in parents:
                later[parent] = max(later[parent], found[-1])
        self.returns += reversed(found)
        if len(self.steps) < self.rule.num_steps:
            return
        # REINFORCE, and Adam.
        advantages = np.array(self.returns)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6) / len(self.returns)
        gradient = np.zeros_like(self.table)
        for advantage, (chosen, samples, _, _) in zip(advantages, self.steps, strict=True):
            np.add.at(gradient, chosen, advantage)
            for sample in samples:
                np.add.at(gradient, sample, -advantage / len(samples))
        self.num_updates += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.99 * self.square + 0.01 * gradient**2
        size = np.sqrt(self.square / (1 - 0.99**self.num_updates)) + 1e-4
        self.table += self.rule.rate * self.mean / (1 - 0.9**self.num_updates) / size
        self.table *= self.rule.decay
        self.steps, self.returns = [], []
