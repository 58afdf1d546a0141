"""Scores of trained policies, with intervals: one run over episodes of several seeds, or several runs of a task."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ddppo.errors import StorageError
from ddppo.loop.evaluation import Evaluator, Scores, evaluator_of
from ddppo.policies.loading import Trained
from ddppo.records.summary import evaluation_metrics
from ddppo.statistics import LEAST_SEEDS, bootstrap, iqm, iqms, means_of
from ddppo.terminal import warn

_MAX_ENVS = 64  # side by side


def evaluated(
    trained: Trained, num_episodes: int, seeds: Sequence[int], deterministic: bool = True
) -> dict[str, Any]:
    """Play episodes 0 to num_episodes - 1 of every seed, and return their scores.

    Statistics are over the episodes of all seeds. Intervals are 95 % bootstraps over episodes: they say how much
    another sample of episodes would differ, not another training run. A text evaluator may play more episodes than
    asked for, because it plays equally many of each task.

    deterministic: take the likeliest actions, rather than sample.
    """
    evaluator = evaluator_of(trained.spec)(trained.policy, trained.config)
    # Play the episodes of every seed, and join them.
    try:
        scores = _joined([_played(trained, evaluator, num_episodes, seed, deterministic) for seed in seeds])
    finally:
        evaluator.close()
    # The eval/* metrics, and quartiles and intervals beside them.
    metrics = evaluation_metrics(scores.returns, scores.lengths, 0.0) | evaluator.metrics(scores)
    low, high = np.percentile(scores.returns, (25, 75))
    result: dict[str, Any] = {
        "run": str(trained.run_dir),
        "checkpoint": trained.checkpoint.name,
        "env_steps": trained.state["env_steps"],
        "env": trained.config.env.id,
        **({"seed": seeds[0]} if len(seeds) == 1 else {"seeds": list(seeds)}),
        "deterministic": deterministic,
        **{k.removeprefix("eval/"): v for k, v in metrics.items() if k != "eval/t_eval"},
        "return_p25": float(low),
        "return_p75": float(high),
        "return_mean_interval": bootstrap(means_of, scores.returns),
        "return_iqm_interval": bootstrap(iqms, scores.returns),
        "returns": scores.returns,
        "lengths": scores.lengths,
    }
    if scores.achieved:
        result |= {"achieved": scores.achieved, "tiers": scores.tiers}
    return result


def by_task(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return mean and IQM of the runs' mean returns, by task, with 95 % bootstrap intervals over runs.

    Fewer than 3 runs have no interval (NaN). The method is rliable's for one task, arXiv:2108.13264.
    """
    means_of: dict[str, list[float]] = {}
    for result in results:
        means_of.setdefault(result["env"], []).append(result["return_mean"])
    return {env: _over_runs(means) for env, means in means_of.items()}


def _over_runs(means: list[float]) -> dict[str, Any]:
    # Fewer runs would give an interval that says too much.
    has_interval = len(means) >= LEAST_SEEDS
    return {
        "runs": len(means),
        "return_mean": float(np.mean(means)),
        "return_mean_interval": bootstrap(means_of, means) if has_interval else (np.nan, np.nan),
        "return_iqm": iqm(means),
        "return_iqm_interval": bootstrap(iqms, means) if has_interval else (np.nan, np.nan),
    }


def _played(
    trained: Trained, evaluator: Evaluator, num_episodes: int, seed: int, deterministic: bool
) -> Scores:
    episodes = range(evaluator.num_episodes(num_episodes))
    num_envs, options = min(len(episodes), _MAX_ENVS), trained.state.get("options")
    (rows,) = evaluator.play([episodes], num_envs, seed, options, deterministic=deterministic)
    # Records of rollouts (of text) are a by-product: a folder that cannot be written must not cost the scores.
    try:
        state = trained.state
        evaluator.write_rollouts(trained.run_dir, state["iteration"], state["env_steps"], f"seed_{seed}")
    except StorageError as e:
        warn(f"the episodes are not recorded: {e}")
    infos = tuple(evaluator.infos[episode] for episode in sorted(evaluator.infos))
    return replace(evaluator.scores(rows.T.tolist()), infos=infos)


def _joined(scores: Sequence[Scores]) -> Scores:
    return Scores(
        tuple(x for each in scores for x in each.returns),
        tuple(x for each in scores for x in each.lengths),
        tuple(x for each in scores for x in each.achieved),
        tuple(x for each in scores for x in each.tiers),
        tuple(x for each in scores for x in each.infos),
    )
