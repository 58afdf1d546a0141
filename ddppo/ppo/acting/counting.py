"""Returns and lengths of training episodes."""

import numpy as np

from ddppo.ppo.acting.rollout import Episode


def count_(
    returns: np.ndarray,
    lengths: np.ndarray,
    rewards: np.ndarray,
    valid: np.ndarray,
    ends: list[tuple[int, int]],
    first_env: int,
) -> list[Episode]:
    """Return the episodes that ended in a rollout, in the order of `ends`, rows and environments.

    returns, lengths `[E]`: of the episodes under way, before the rollout and then after it. rewards, valid `[T, E]`.
    """
    rewards = np.where(valid, rewards, 0.0)
    first_rows = np.zeros(len(returns), dtype=np.int64)  # of the episodes under way
    episodes: list[Episode] = []
    for t, i in ends:
        rows = slice(first_rows[i], t + 1)
        episode_return = float(returns[i] + rewards[rows, i].sum())
        length = int(lengths[i] + valid[rows, i].sum())
        episodes.append(Episode(t, first_env + i, episode_return, length))
        returns[i], lengths[i], first_rows[i] = 0.0, 0, t + 1
    is_under_way = np.arange(len(rewards))[:, None] >= first_rows
    # Row after row: a sum over rows adds in another order where there is one environment alone.
    returns += (rewards * is_under_way).cumsum(axis=0)[-1:].sum(axis=0)
    lengths += (valid & is_under_way).sum(axis=0)
    return episodes
