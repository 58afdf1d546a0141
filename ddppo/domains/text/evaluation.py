"""Deterministic evaluation of tasks of text: the likeliest tokens, every task in turn, fixed seeds.

Episode j plays task j modulo their number from seed (seed, "eval", j), whoever plays it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from ddppo.config import Config
from ddppo.domains.text.collector import TextCollector
from ddppo.domains.text.policy import TokenActorCritic
from ddppo.domains.text.turns import make_turns
from ddppo.errors import TrainingError
from ddppo.run.evaluating.evaluation import Policy, Scores
from ddppo.run.records.metrics import SUCCESS_OF
from ddppo.seeding import derived_seed


def rounded_up(num_episodes: int, tasks: Mapping[str, str] | None) -> int:
    """Return how many episodes are played so that every task has as many: the next multiple of their number."""
    num_tasks = len(tasks or ()) or 1
    return -(-num_episodes // num_tasks) * num_tasks


def play_tasks(
    collector: TextCollector,
    episodes: Sequence[int],
    seed: int,
    check_stop: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Play the episodes of these numbers, as many side by side as there are environments; `check_stop` before each lot.

    Returns return, length and whether it achieved for each, float64 `[n, 3]`; NaN of an episode that was lost.
    """
    num_envs, tasks = collector.turns.num_envs, list(collector.turns.spec.tasks or ())
    rows = torch.full((len(episodes), 3), math.nan, dtype=torch.float64)
    for first in range(0, len(episodes), num_envs):
        check_stop()
        wave = episodes[first : first + num_envs]
        numbers = [wave[i % len(wave)] for i in range(num_envs)]  # a short last wave repeats episodes, unread
        options = [{"task": tasks[j % len(tasks)]} if tasks else {} for j in numbers]
        collector.reset([derived_seed(seed, "eval", j) for j in numbers], options)
        for episode in collector.play(None):
            i = episode.env_index - collector.first_env
            if i < len(wave):
                numbers_of_one = (episode.episode_return, episode.length, collector.achieved[i])
                rows[first + i] = torch.tensor(numbers_of_one, dtype=torch.float64)
    return rows


def play_alone(policy: Policy, config: Config, num_episodes: int, seed: int) -> Scores:
    """Play episodes in environments of their own, as many as training has at most. Raises TrainingError."""
    num_episodes = rounded_up(num_episodes, policy.spec.tasks)
    envs = range(min(num_episodes, config.env.num_envs))
    env = config.env
    if env.backend == "sync":  # which may do for those of a rank and not for all
        env = replace(env, backend="auto")
    turns = make_turns(env, envs, 0, config.dist.timeout_s, config.dist.allowed_restarts)
    device = next(policy.model.parameters()).device
    try:
        assert isinstance(policy.model, TokenActorCritic)
        collector = TextCollector.of_config(config, turns, policy.model, first_env=0, device=device)
        rows = play_tasks(collector, range(num_episodes), seed)
    finally:
        turns.close()
    return of_text(rows.T.tolist(), policy.spec.tasks)


def of_text(columns: Sequence[Sequence[float]], tasks: Mapping[str, str] | None) -> Scores:
    """Return the scores of the episodes that were not lost, of what `play_tasks` says of all. Raises TrainingError."""
    tiers = list((tasks or {}).values()) or [""]
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


def success_rates(scores: Scores) -> dict[str, float]:
    """Return eval/success_rate and that of each tier, of the episodes of which it is known."""
    found: dict[str, list[float]] = {}
    for achieved, tier in zip(scores.achieved, scores.tiers, strict=True):
        if not math.isnan(achieved):
            found.setdefault("eval/success_rate", []).append(achieved)
            if tier:
                found.setdefault(SUCCESS_OF + tier, []).append(achieved)
    return {name: sum(each) / len(each) for name, each in found.items()}
