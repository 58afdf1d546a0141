"""Evaluation while a run trains: who plays which episode, the best scores so far, and when the target was reached."""

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ddppo.distributed.programs.kit import RankContext
from ddppo.errors import CollectiveError, EnvRaised, EvaluationFailed, Stopped, TrainingError
from ddppo.files import move_aside, stored
from ddppo.processes.signals import StopRequest
from ddppo.run import checkpoint
from ddppo.run.checkpoints.writer import BEST, PREVIOUS
from ddppo.run.evaluating.evaluation import Policy, Scores, evaluator_of
from ddppo.run.loop.exchange import gather_bytes
from ddppo.run.records.summary import evaluation_metrics
from ddppo.topologies import find
from ddppo.tracebacks import in_one_line, own_traceback

_MAX_EVAL_ENVS = 64


class Scoring:
    """What evaluations have said so far, the same on all ranks; empty dicts where there was none, or no such.

    best: metrics of the best evaluation, and its env_steps. target: when target_return was first reached.
    num_shards: lots of episodes that each rank plays one by one; where results are to be the same bits at any W, there
    are as many of all ranks.
    """

    def __init__(self, parts: RankContext) -> None:
        self.config = parts.config
        policy = Policy(parts.model, parts.obs_normalizer, parts.spec)
        self.evaluator = evaluator_of(parts.spec)(policy, parts.config, parts.program.collector)
        self.group = parts.group
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
        stop: StopRequest | None = None,
    ) -> tuple[dict[str, Any], bool]:
        """Evaluate after env_steps and wall_s of training; return eval/* metrics, and whether it is the best so far.

        options: that episodes begin with, where the evaluator gives none of its own. stop: whose signal cuts the
        evaluation short. Raises EvaluationFailed, on all ranks alike, where one rank came to no scores; the best so far
        stays that.
        """
        start = time.perf_counter()

        def check_stop() -> None:
            if (
                stop is not None and stop.signal is not None
            ):  # the end of run.max_minutes does not count: see Loop
                raise Stopped(stop.signal)

        scores = self._play(num_episodes, self._most_envs(is_last=is_last), options, check_stop)
        if not math.isfinite(total := sum(scores.returns)):  # nothing would ever be better than NaN
            raise EvaluationFailed(f"the mean return of {self.config.env.id} is {total:g}")
        metrics = evaluation_metrics(scores.returns, scores.lengths, time.perf_counter() - start)
        metrics |= self.evaluator.metrics(scores)
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

    def _play(
        self,
        num_episodes: int,
        most_envs: int,
        options: dict[str, Any] | None,
        check_stop: Callable[[], None],
    ) -> Scores:
        """Play episodes 0 to num_episodes - 1, dealt to the players in turn; all ranks return all scores."""
        evaluator, num_episodes = self.evaluator, self.evaluator.num_episodes(num_episodes)
        lots = [lot for lot in self._lots(num_episodes) if lot]
        num_envs = min(self._most_of_a_lot(num_episodes), most_envs)

        def play_mine() -> list[torch.Tensor]:
            if not lots:
                return []
            return evaluator.play(lots, num_envs, self.config.seed, options, check_stop=check_stop)

        columns = self._of_all(self._agreed(play_mine), evaluator.num_columns, num_episodes)
        try:
            return evaluator.scores(columns)
        except TrainingError as e:  # all episodes were lost, which all ranks see alike
            raise EvaluationFailed(str(e)) from e

    def _agreed(self, play_mine: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        """Return what `play_mine` returns, once all ranks have told that theirs did. Raises EvaluationFailed on all.

        A rank whose episodes fail says so here instead of leaving the others to wait for its scores.
        """
        parts: list[torch.Tensor] = []
        fault: BaseException | None = None
        try:
            parts = play_mine()
        except CollectiveError:  # nothing can be told
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as e:  # of the user's task: anything
            fault = e
        said = b"" if fault is None else json.dumps(_in_words(fault)).encode()
        told, _ = gather_bytes(self.group, said)
        for rank, words in enumerate(told):
            if words:
                sentence, signal = json.loads(words)
                where = f"rank {rank}: " if len(told) > 1 and signal is None else ""
                cause = fault or CollectiveError(f"an evaluation failed: {where}{sentence}")
                raise EvaluationFailed(where + sentence, _trace_of(fault), signal) from cause
        return parts

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


def _in_words(fault: BaseException) -> tuple[str, int | None]:
    """Return what ended a rank's episodes in a sentence, and the number of the signal if it was one."""
    if isinstance(fault, KeyboardInterrupt):
        stopped = fault if isinstance(fault, Stopped) else Stopped()
        return stopped.what, stopped.number
    if isinstance(fault, EnvRaised):
        return fault.said, None
    return (str(fault) if isinstance(fault, TrainingError) else in_one_line(fault)), None


def _trace_of(fault: BaseException | None) -> str:
    """Return the user's own part of a traceback, "" where the sentence says all."""
    if isinstance(fault, EnvRaised):
        return fault.trace
    if fault is None or isinstance(fault, (TrainingError, KeyboardInterrupt)):
        return ""
    return own_traceback(fault)


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
