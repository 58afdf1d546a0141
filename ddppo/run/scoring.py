"""Evaluation while a run trains: who plays which episode, the best scores so far, and when the target was reached."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ddppo.collectives import Group
from ddppo.config import Config
from ddppo.envs import make_eval_env
from ddppo.files import move_aside
from ddppo.run import checkpoint
from ddppo.run.evaluation import Policy, Scores, play_episodes
from ddppo.run.records.summary import evaluation_metrics

_MAX_EVAL_ENVS = 64


class Scoring:
    """What evaluations have said so far, the same on all ranks; empty dicts where there was none, or no such.

    best: metrics of the best evaluation, and its env_steps. target: when target_return was first reached.
    """

    def __init__(self, config: Config, policy: Policy, group: Group, players: Sequence[int]) -> None:
        self.config = config
        self.policy = policy
        self.group = group
        self.players = list(players)  # ranks that can play: they hold the parameters
        self.best: dict[str, float] = {}
        self.target: dict[str, float] = {}

    def restore(self, state: dict[str, Any], best: Path) -> None:
        """Go on from a checkpoint's state; forget the best scores where the file `best` is not of them.

        A crash undid its iteration then, or it was damaged.
        """
        self.best, self.target, is_there = state["best"], state["target"], False
        if self.group.rank == 0 and best.is_file():
            is_there = checkpoint.load(best)["env_steps"] == self.best.get("env_steps")
            if not is_there:
                move_aside(best)
        if not self.group.gather(torch.tensor([is_there], dtype=torch.float64))[0].item():
            self.best = {}

    def score(self, num_episodes: int, env_steps: int, wall_s: float) -> tuple[dict[str, Any], bool]:
        """Evaluate after env_steps and wall_s of training; return eval/* metrics, and whether it is the best so far."""
        start = time.perf_counter()
        scores = self._play(num_episodes)
        metrics = evaluation_metrics(scores.returns, scores.lengths, time.perf_counter() - start)
        mean = metrics["eval/return_mean"]
        is_best = not self.best or mean > self.best["return_mean"]
        if is_best:
            self.best = {k.removeprefix("eval/"): v for k, v in metrics.items()}
            self.best["env_steps"] = env_steps
        target = self.config.target_return
        if target is not None and not self.target and mean >= target:
            self.target = {"time_to_target_s": wall_s, "steps_to_target": env_steps}
        return metrics, is_best

    def _play(self, num_episodes: int) -> Scores:
        """Play episodes 0 to num_episodes - 1, dealt to the players in turn; all ranks return all scores."""
        num_players, mine = len(self.players), range(0)
        if self.group.rank in self.players:
            mine = range(self.players.index(self.group.rank), num_episodes, num_players)
        rows = torch.full((-(-num_episodes // num_players), 2), math.nan, dtype=torch.float64)
        if mine:
            env = make_eval_env(self.config.env, min(len(mine), _MAX_EVAL_ENVS))
            try:
                scores = play_episodes(self.policy, env, mine, self.config.seed)
            finally:
                env.close()
            rows[: len(mine)] = torch.tensor([scores.returns, scores.lengths], dtype=torch.float64).T
        # [W, n/P, 2] -> [P, n/P, 2] -> [n/P, P, 2] -> by episode
        dealt = self.group.gather(rows)[self.players].transpose(0, 1).reshape(-1, 2)
        returns, lengths = dealt[:num_episodes].T.tolist()
        return Scores(tuple(returns), tuple(int(n) for n in lengths))
