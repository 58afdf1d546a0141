"""Deterministic evaluation of tasks of text: the likeliest tokens, all tasks in turn, fixed seeds.

Episode j plays task j modulo the number of tasks, from the seed derived from (seed, "eval", j). The rank that plays it
does not matter.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddppo.config.settings import Config
from ddppo.domains.text.collector import TextCollector
from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.rollouts import FOLDER, RolloutRecord, records_of, write_records
from ddppo.domains.text.turns import make_turns
from ddppo.errors import TrainingError
from ddppo.loop.evaluation import Evaluator, Policy, Scores
from ddppo.ppo.rollout import RolloutCollector
from ddppo.records.metrics import SUCCESS_RATE_PREFIX
from ddppo.seeding import derived_seed, stream


def rounded_up(num_episodes: int, tasks: Mapping[str, str] | None) -> int:
    """Return `num_episodes` rounded up to a multiple of the number of tasks, so that each is played equally often."""
    num_tasks = len(tasks or ()) or 1
    return -(-num_episodes // num_tasks) * num_tasks


def play_tasks(
    collector: TextCollector,
    episodes: Sequence[int],
    seed: int,
    check_stop: Callable[[], None] = lambda: None,
    look: Callable[[TextCollector, Sequence[int]], None] = lambda collector, wave: None,
    *,
    deterministic: bool = True,
) -> torch.Tensor:
    """Play the episodes with these numbers, in waves of one episode per environment.

    Returns return, length and success of each, float64 `[n, 3]`; a row of NaN for an episode that was lost.

    Args:
        check_stop: called before each wave; it raises if the run is to stop.
        deterministic: type the likeliest tokens; else draw them, each episode from its own random stream.
        look: called after each wave, with the numbers of its episodes, which are those of the first environments.
    """
    num_envs, tasks = collector.turns.num_envs, list(collector.turns.spec.tasks or ())
    rows = torch.full((len(episodes), 3), math.nan, dtype=torch.float64)
    for first in range(0, len(episodes), num_envs):
        check_stop()
        wave = episodes[first : first + num_envs]
        # Every environment plays in every wave. In a short last wave, some repeat episodes; their results are not read.
        numbers = [wave[i % len(wave)] for i in range(num_envs)]
        options = [{"task": tasks[j % len(tasks)]} if tasks else {} for j in numbers]
        seeds = [derived_seed(seed, "eval", j) for j in numbers]
        collector.reset(seeds, options)
        for episode in collector.play(None if deterministic else _noise(collector, seeds)):
            i = episode.env_index - collector.first_env
            if i < len(wave):
                numbers_of_one = (episode.episode_return, episode.length, collector.achieved[i])
                rows[first + i] = torch.tensor(numbers_of_one, dtype=torch.float64)
        look(collector, wave)
    return rows


def _noise(collector: TextCollector, seeds: Sequence[int]) -> np.ndarray:
    """Return the noise `[L, E, num_noise]` from which the tokens of episodes with these seeds are drawn."""
    shape = (collector.num_tokens, collector.model.num_noise)
    return np.stack([stream(seed, "action").random(shape) for seed in seeds], axis=1)


@contextmanager
def own_collector(policy: Policy, config: Config, most: int) -> Iterator[TextCollector]:
    """Make a collector with environments of its own, at most `most` and as many as training has; close them."""
    env = config.env
    # One process may hold the environments of a rank, and not those of all ranks.
    if env.backend == "sync":
        env = replace(env, backend="auto")
    num_envs = min(most, env.num_envs)
    turns = make_turns(env, range(num_envs), 0, config.dist.timeout_s, config.dist.allowed_restarts)
    model = policy.model
    assert isinstance(model, TokenActorCritic)
    try:
        device = next(model.parameters()).device
        yield TextCollector.from_config(config, turns, model, first_env=0, device=device)
    finally:
        turns.close()


class TextEvaluator(Evaluator):
    """Plays all tasks equally often.

    During training it uses the training environments of the rank, which are idle between iterations. Without training
    it makes its own, at most as many as training has. An episode of a lost environment is not scored.
    """

    num_columns = 3  # return, number of typed tokens, and success
    unit = "tokens"
    in_training_envs = True
    policy_class = "ddppo.domains.text.playing:TextPolicy"
    conversations = "ddppo.domains.text.playing:conversations"
    rollouts: Sequence[RolloutRecord] = ()  # of the last `play`, in the order in which they were played

    def __init__(
        self,
        policy: Policy,
        config: Config,
        collector: RolloutCollector | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        super().__init__(policy, config, collector)
        self._keeps = keeps or config.log.rollouts != "none"

    def num_episodes(self, asked: int) -> int:
        return rounded_up(asked, self.policy.spec.tasks)

    def play(
        self, chunks: Sequence[Sequence[int]], num_envs: int, seed: int, options: dict[str, Any] | None = None,
        *, deterministic: bool = True, check_stop: Callable[[], None] = lambda: None,
    ) -> list[torch.Tensor]:  # fmt: skip
        """Play episodes with the likeliest tokens, or drawn ones. `num_envs` and `options` are not used."""
        records: list[RolloutRecord] = []
        self.rollouts = records

        def look(collector: TextCollector, wave: Sequence[int]) -> None:
            if self._keeps:
                played = records_of(
                    collector,
                    range(len(wave)),
                    kind="evaluation",
                    iteration=0,
                    env_steps=0,
                    group=None,
                    policy=0,
                )
                records.extend(replace(record, env=j) for record, j in zip(played, wave, strict=True))

        play = partial(play_tasks, seed=seed, check_stop=check_stop, look=look, deterministic=deterministic)
        # During training: the collector of this rank.
        if self.collector is not None:
            assert isinstance(self.collector, TextCollector)
            return [play(self.collector, chunk) for chunk in chunks]
        # Without training: environments of our own.
        with own_collector(self.policy, self.config, max(map(len, chunks))) as own:
            return [play(own, chunk) for chunk in chunks]

    def scores(self, columns: Sequence[Sequence[float]]) -> Scores:
        """Return the scores of the episodes that were not lost. Raises TrainingError if all were lost."""
        # Episode j plays task j modulo their number; a lost episode is a row of NaN.
        tiers = list((self.policy.spec.tasks or {}).values()) or [""]
        kept = [
            (*of_one, tiers[j % len(tiers)])
            for j, of_one in enumerate(zip(*columns, strict=True))
            if not math.isnan(of_one[0])
        ]
        if not kept:
            raise TrainingError(
                f"all {len(columns[0])} episodes of the evaluation were lost with their environments"
            )
        returns, lengths, achieved, of_tasks = zip(*kept, strict=True)
        return Scores(returns, tuple(int(n) for n in lengths), achieved, of_tasks)

    def metrics(self, scores: Scores) -> dict[str, float]:
        """Return eval/success_rate, and the rate of each tier, over the episodes with a known success."""
        found: dict[str, list[float]] = {}
        for achieved, tier in zip(scores.achieved, scores.tiers, strict=True):
            if not math.isnan(achieved):
                found.setdefault("eval/success_rate", []).append(achieved)
                if tier:
                    found.setdefault(SUCCESS_RATE_PREFIX + tier, []).append(achieved)
        return {name: sum(each) / len(each) for name, each in found.items()}

    def write_rollouts(self, run_dir: Path, iteration: int, env_steps: int, by: str) -> None:
        """Record the episodes of the last `play`: all of them, unless log.rollouts=none."""
        records = [
            replace(record, iteration=iteration, env_steps=env_steps, policy=iteration)
            for record in self.rollouts
        ]
        self.rollouts = ()
        if records:
            folder, name = run_dir / FOLDER, f"eval_{env_steps:012d}"
            # A rank has a folder of its own: two ranks may have the same process id, and so the same temporary name.
            path = folder / by / f"{name}.jsonl" if by.startswith("rank_") else folder / f"{name}_{by}.jsonl"
            write_records(path, records)
