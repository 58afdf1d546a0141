"""Evaluation while a run trains: who plays which episode, the best scores so far, and when the target was reached."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ddppo.envs import make_eval_env
from ddppo.files import move_aside, stored
from ddppo.ppo.text import TextCollector
from ddppo.run import checkpoint
from ddppo.run.checkpoints.writer import BEST, PREVIOUS
from ddppo.run.evaluating.evaluation import Policy, Scores, play_episodes
from ddppo.run.evaluating.text_evaluation import of_text, play_tasks, rounded_up, success_rates
from ddppo.run.parts import Parts
from ddppo.run.records.summary import evaluation_metrics
from ddppo.topologies import find

_MAX_EVAL_ENVS = 64


class Scoring:
    """What evaluations have said so far, the same on all ranks; empty dicts where there was none, or no such.

    best: metrics of the best evaluation, and its env_steps. target: when target_return was first reached. collector: of
    a task of text, whose episodes are whole between iterations, so that evaluation plays with the rank's own.
    num_shards: lots of episodes that each rank plays one by one; where results are to be the same bits at any W, there
    are as many of all ranks.
    """

    def __init__(self, parts: Parts) -> None:
        self.config = parts.config
        self.policy = Policy(parts.model, parts.obs_normalizer, parts.spec)
        self.group = parts.group
        collector = parts.program.collector
        self.collector = collector if isinstance(collector, TextCollector) else None
        self.players = list(parts.players)  # ranks that can play: they hold the parameters
        self.num_shards = parts.shape.local_num_shards
        self.best: dict[str, float] = {}
        self.target: dict[str, float] = {}

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Go on from a checkpoint's state, with the best policy that it names in its place in `folder`.

        A crash may have undone the iteration of a later one, which goes by another name then. Where there is none, as
        after damage, the best scores are forgotten.
        """
        self.best, self.target, is_there = state["best"], state["target"], False
        if self.group.rank == 0:
            is_there = _best_is_there(folder, self.best.get("env_steps"))
        if not self.group.gather(torch.tensor([is_there], dtype=torch.float64))[0].item():
            self.best = {}

    def score(
        self,
        num_episodes: int,
        env_steps: int,
        wall_s: float,
        *,
        is_last: bool = False,
        options: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], bool]:
        """Evaluate after env_steps and wall_s of training; return eval/* metrics, and whether it is the best so far.

        options: that episodes begin with, where they are not of text.
        """
        start = time.perf_counter()
        if self.collector is None:
            scores = self._play(num_episodes, self._most_envs(is_last=is_last), options)
        else:
            scores = self._play_text(num_episodes)
        metrics = evaluation_metrics(scores.returns, scores.lengths, time.perf_counter() - start)
        metrics |= success_rates(scores)
        mean = metrics["eval/return_mean"]
        is_best = not self.best or mean > self.best["return_mean"]
        if is_best:
            self.best = {k.removeprefix("eval/"): v for k, v in metrics.items()}
            self.best["env_steps"] = env_steps
        target = self.config.target_return
        if target is not None and not self.target and mean >= target:
            self.target = {"time_to_target_s": wall_s, "steps_to_target": env_steps}
        return metrics, is_best

    def _most_envs(self, *, is_last: bool) -> int:
        """Return how many environments a player may have: served ones are only as many as there are slots."""
        env = self.config.env
        if not env.urls:
            return _MAX_EVAL_ENVS
        if is_last and not find(self.config.dist.topology).own_pace:  # those of training have been given back
            return max(1, min(_MAX_EVAL_ENVS, env.num_envs // self._num_lots))
        return 1

    def _play(self, num_episodes: int, most_envs: int, options: dict[str, Any] | None) -> Scores:
        """Play episodes 0 to num_episodes - 1, dealt to the players in turn; all ranks return all scores."""
        parts = []
        if lots := list(filter(None, self._lots(num_episodes))):
            env = make_eval_env(self.config.env, min(self._most_of_a_lot(num_episodes), most_envs))
            try:
                for lot in lots:
                    scores = play_episodes(self.policy, env, lot, self.config.seed, options)
                    parts.append(torch.tensor([scores.returns, scores.lengths], dtype=torch.float64).T)
            finally:
                env.close()
        returns, lengths = self._of_all(parts, 2, num_episodes)
        return Scores(tuple(returns), tuple(int(n) for n in lengths))

    def _play_text(self, num_episodes: int) -> Scores:
        """Play every task in turn; all ranks return all scores, but of episodes that were lost."""
        assert self.collector is not None
        tasks = self.policy.spec.tasks
        num_episodes = rounded_up(num_episodes, tasks)
        parts = [play_tasks(self.collector, lot, self.config.seed) for lot in self._lots(num_episodes)]
        return of_text(self._of_all(parts, 3, num_episodes), tasks)

    @property
    def _num_lots(self) -> int:
        return len(self.players) * self.num_shards

    def _most_of_a_lot(self, num_episodes: int) -> int:
        return -(-num_episodes // self._num_lots)

    def _lots(self, num_episodes: int) -> list[range]:
        """Return the numbers of this rank's episodes in each of its lots."""
        if self.group.rank not in self.players:
            return []
        first = self.players.index(self.group.rank) * self.num_shards
        return [range(first + s, num_episodes, self._num_lots) for s in range(self.num_shards)]

    def _of_all(self, lots: Sequence[torch.Tensor], num_columns: int, num_episodes: int) -> list[list[float]]:
        """Return numbers of all episodes by episode, of rows `[n, k]` of this rank's lots, as k lists."""
        most = self._most_of_a_lot(num_episodes)
        own = torch.full((self.num_shards, most, num_columns), math.nan, dtype=torch.float64)
        for of_lot, rows in zip(own, lots, strict=False):
            of_lot[: len(rows)] = rows
        # [W, S, n/L, k] -> [L, n/L, k] -> [n/L, L, k] -> by episode, L lots of all P players
        dealt = self.group.gather(own)[self.players].flatten(0, 1).transpose(0, 1).flatten(0, 1)
        return dealt[:num_episodes].T.tolist()


def _best_is_there(folder: Path, env_steps: float | None) -> bool:
    """Return whether best.pt is that of `env_steps`, once the one before has its place back if that is."""
    best, previous = folder / BEST, folder / PREVIOUS
    if _is_of(best, env_steps):
        return True
    move_aside(best)
    if not _is_of(previous, env_steps):
        return False
    with stored(best):
        previous.rename(best)
    return True


def _is_of(path: Path, env_steps: float | None) -> bool:
    return checkpoint.is_whole(path) and bool(checkpoint.load(path)["env_steps"] == env_steps)
