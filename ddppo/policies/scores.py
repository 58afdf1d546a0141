"""Scores of trained policies: episodes of one run by several seeds, and of several runs together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddppo.loop.evaluation import Evaluator, Scores, evaluator_of
from ddppo.policies.loading import Trained
from ddppo.records.summary import evaluation_metrics
from ddppo.statistics import LEAST_SEEDS, bootstrap, iqm

_MOST_ENVS = 64


def evaluated(
    of: Trained, num_episodes: int, seeds: Sequence[int], deterministic: bool = True
) -> dict[str, Any]:
    """Play episodes 0 to num_episodes - 1 of every seed, by the mode or by drawn actions; return what they scored.

    Means, quartiles and their like are of all episodes, intervals are 95 % bootstraps over them: what other episodes
    would have given, not other runs. The evaluator may play more than are asked for, as many of every task.
    """
    evaluator = evaluator_of(of.spec)(of.policy, of.config)
    scores = _joined([_played(of, evaluator, num_episodes, seed, deterministic) for seed in seeds])
    metrics = evaluation_metrics(scores.returns, scores.lengths, 0.0) | evaluator.metrics(scores)
    low, high = np.percentile(scores.returns, (25, 75))
    result: dict[str, Any] = {
        "run": str(of.run_dir),
        "checkpoint": of.checkpoint.name,
        "env_steps": of.state["env_steps"],
        "env": of.config.env.id,
        **({"seed": seeds[0]} if len(seeds) == 1 else {"seeds": list(seeds)}),
        "deterministic": deterministic,
        **{k.removeprefix("eval/"): v for k, v in metrics.items() if k != "eval/t_eval"},
        "return_p25": float(low),
        "return_p75": float(high),
        "return_mean_interval": bootstrap(_means, scores.returns),
        "return_iqm_interval": bootstrap(_iqms, scores.returns),
        "returns": scores.returns,
        "lengths": scores.lengths,
    }
    if scores.achieved:
        result |= {"achieved": scores.achieved, "tiers": scores.tiers}
    return result


def by_task(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return by task what its runs' mean returns say of runs like them: mean, IQM and 95 % bootstrap intervals.

    Intervals are over runs, NaN for fewer than 3 (rliable's method for one task, arXiv:2108.13264).
    """
    found: dict[str, list[float]] = {}
    for result in results:
        found.setdefault(result["env"], []).append(result["return_mean"])
    return {env: _of_runs(means) for env, means in found.items()}


def _of_runs(means: list[float]) -> dict[str, Any]:
    has_interval = len(means) >= LEAST_SEEDS
    return {
        "runs": len(means),
        "return_mean": float(np.mean(means)),
        "return_mean_interval": bootstrap(_means, means) if has_interval else (np.nan, np.nan),
        "return_iqm": iqm(means),
        "return_iqm_interval": bootstrap(_iqms, means) if has_interval else (np.nan, np.nan),
    }


def _played(of: Trained, evaluator: Evaluator, num_episodes: int, seed: int, deterministic: bool) -> Scores:
    episodes = range(evaluator.num_episodes(num_episodes))
    num_envs, options = min(len(episodes), _MOST_ENVS), of.state.get("options")
    (rows,) = evaluator.play([episodes], num_envs, seed, options, deterministic=deterministic)
    return evaluator.scores(rows.T.tolist())


def _joined(scores: Sequence[Scores]) -> Scores:
    return Scores(
        tuple(x for each in scores for x in each.returns),
        tuple(x for each in scores for x in each.lengths),
        tuple(x for each in scores for x in each.achieved),
        tuple(x for each in scores for x in each.tiers),
    )


def _means(samples: np.ndarray) -> np.ndarray:
    return samples.mean(axis=-1)


def _iqms(samples: np.ndarray) -> np.ndarray:
    """Return `ddppo.statistics.iqm` over the last axis."""
    cut = samples.shape[-1] // 4
    return np.sort(samples, axis=-1)[..., cut : samples.shape[-1] - cut].mean(axis=-1)
