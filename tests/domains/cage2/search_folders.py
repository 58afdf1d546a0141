"""Run folders of made-up searches over orders, as a search writes them: search.json and both logs."""

import csv
import itertools
import json

import numpy as np

from ddppo.domains.cage2.search.orders import KENDALL, KINDS, ORDERS, words
from ddppo.files import write_json

NUM_ENVS = 4
TRAINING = (
    "trial", "order_id", "order", "kind", "episode", "environment", "reward_environment", "reward_alignment",
    "reward_total", "compliance", "repairs", "success", "evaluation",
)  # fmt: skip
SAMPLING = ("trial", "rank", "order_id", "order", "ucb", "mean", "deviation", "chosen")


class MadeUp:
    """A search whose truth is known: the score falls by 4 with each step of Kendall's distance from order `best`."""

    def __init__(self, best=37, seed=0, inherit="nearest", beta=2.0):
        self.truth = -40 - 4.0 * KENDALL[best]
        self.inherit, self.beta = inherit, beta
        self.random = np.random.default_rng(seed)
        self.trials, self.sampled, self.episodes = [], [], []

    def posterior(self):
        """Mean and deviation of all orders under the kernel exp(-.2 Kendall), given the scores so far."""
        done = [t for t in self.trials if t["score"] is not None]
        if not done:
            return np.full(len(ORDERS), -80.0), np.full(len(ORDERS), 20.0)
        ids = [t["order_id"] for t in done]
        ys = np.array([t["score"] for t in done])
        kernel = 400 * np.exp(-0.2 * KENDALL)
        gain = kernel[:, ids] @ np.linalg.inv(kernel[np.ix_(ids, ids)] + np.eye(len(ids)))
        deviation = np.sqrt(np.clip(np.diag(kernel) - np.sum(gain * kernel[:, ids], axis=1), 1e-9, None))
        return ys.mean() + gain @ (ys - ys.mean()), deviation

    def trial(self, *, passes=True, ends=True):
        """Try the order that UCB asks for."""
        number = len(self.trials)
        mean, deviation = self.posterior()
        ranked = np.argsort(-(mean + self.beta * deviation), kind="stable")[:3].tolist()
        for rank, order in enumerate(ranked, start=1):
            row = (number, rank, order, words(ORDERS[order]), mean[order] + self.beta * deviation[order])
            self.sampled.append((*row, mean[order], deviation[order], rank == 1))
        order = ranked[0]
        parent = self._parent(order)
        far = 10 if parent is None else int(KENDALL[order, self.trials[parent]["order_id"]])
        episodes = 40 * (1 + far) if passes else 600
        self._train(number, order, episodes)
        total = sum(t["episodes"] for t in self.trials) + episodes
        told = {"score": self.truth[order] + self.random.normal(), "noise_variance": 1.0} if ends else {}
        self.trials.append(
            {
                "trial": number,
                "order_id": order,
                "order": list(ORDERS[order]),
                "inherited_from": parent,
                "episodes": episodes,
                "episodes_total": total,
                "passed": passes and ends,
                "ended_by": ("gate" if passes else "limit") if ends else None,
                "score": None,
                "noise_variance": None,
                "compliance": 0.97 if passes else 0.81,
                "repairs": 14.5,
                **told,
            }
        )
        return self

    def _parent(self, order):
        if self.inherit == "nothing" or not self.trials:
            return None
        return min(self.trials, key=lambda t: (KENDALL[order, t["order_id"]], t["trial"]))["trial"]

    def _train(self, number, order, episodes):
        for i, environment in itertools.product(range(episodes // NUM_ENVS), range(NUM_ENVS)):
            done = i * NUM_ENVS / episodes
            reward = self.truth[order] - 60 * (1 - done) + self.random.normal()
            row = (number, order, words(ORDERS[order]), "user", i, environment, reward, 20.0, reward + 20)
            self.episodes.append((*row, 0.5 + 0.45 * done, 14, done > 0.9, "train"))

    def write(self, folder, *, budget=100_000):
        """Write the folder; return it."""
        folder.mkdir(parents=True, exist_ok=True)
        mean, deviation = self.posterior()
        told = any(t["score"] is not None for t in self.trials)
        write_json(
            folder / "search.json",
            {
                "names": KINDS,
                "beta": self.beta,
                "inherit": self.inherit,
                "budget_episodes": budget,
                "trials": self.trials,
                "posterior": {"mean": mean.tolist(), "deviation": deviation.tolist()} if told else None,
                "best": None,
            },
        )
        for name, head, rows in (
            ("training_log.csv", TRAINING, self.episodes),
            ("gp_sampling_log.csv", SAMPLING, self.sampled),
        ):
            with (folder / name).open("w", newline="") as file:
                csv.writer(file).writerows([head, *rows])
        (folder / "config.yaml").write_text(
            "seed: 3\nenv:\n  id: ddppo/CAGE2-v0\n  kwargs: {red: b_line}\nsearch: {gate_compliance: 0.95}\n"
        )
        return folder

    def complete(self, folder):
        """Say that the run is complete."""
        summary = {
            "status": "completed",
            "command": "python -m ddppo.train experiment=workflows",
            "git_commit": "a" * 40,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder


def searched(num_trials, **options):
    """A search in which every fifth trial meets the limit of its episodes."""
    search = MadeUp(**options)
    for number in range(num_trials):
        search.trial(passes=number % 5 != 4)
    return search
