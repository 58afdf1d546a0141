"""One exchange of numbers per iteration: what every rank measured becomes the same report on all ranks."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ddppo.collectives import Group
from ddppo.errors import ReplicaMismatchError
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import Episode
from ddppo.ppo.step import STATISTICS
from ddppo.run.records.metrics import IterationReport
from ddppo.run.timing import LocalTimes, split_waiting


@dataclass(frozen=True, slots=True)
class LocalIteration:
    """What this rank knows about its iteration. params_hash is 0 where replicas are not compared, NaN
    on a rank that holds no parameters."""

    iteration: int
    times: LocalTimes
    update: Update
    num_steps: int
    episodes: list[Episode]
    stop_requested: bool
    step_ready: bool
    params_hash: float


class Agreed(NamedTuple):
    """What the ranks decide on together: whether any asks to stop, whether all can take the compiled step."""

    stopping: bool
    step_ready: bool


class Reporter:
    """Turns LocalIterations of all ranks into IterationReports, and keeps the window of finished episodes."""

    def __init__(self, group: Group, episode_window: int) -> None:
        self.group = group
        self.window: deque[tuple[float, int]] = deque(maxlen=episode_window)

    def exchange(
        self, local: LocalIteration, *, env_steps_before: int, wall_s: float
    ) -> tuple[IterationReport, Agreed]:
        """Return the report of the iteration and what the ranks agreed on, the same on all ranks.

        Raises ReplicaMismatchError on all ranks if parameters differ.
        """
        times, update = local.times, local.update
        row = [
            times.t_iter,
            times.t_rollout,
            times.t_learn,
            times.hidden_comm,
            local.num_steps,
            len(local.episodes),
            local.stop_requested,
            local.step_ready,
            local.params_hash,
        ]
        mine = np.concatenate([np.array(row, np.float64), update.local_sums.numpy(), times.stamps.ravel()])
        rows = self.group.gather(torch.from_numpy(mine)).numpy()
        heads, sums, stamps = np.split(rows, [len(row), len(row) + len(STATISTICS)], axis=1)
        t_iter, t_rollout, t_learn, hidden, steps, num_episodes, stops, ready, hashes = heads.T
        _check_replicas(hashes, local.iteration)
        t_sync, t_comm = split_waiting(stamps.reshape(len(rows), -1, 2), times.is_barrier)
        self._share_episodes(local.episodes, int(num_episodes.max()))
        per_rank = {
            "rollout/local_steps": steps,
            "rollout/local_fps": steps / t_iter,
            "time/t_iter": t_iter,
            "time/t_rollout": t_rollout,
            "time/t_learn": t_learn,
            "time/t_sync": t_sync,
            "time/t_comm": t_comm,
            "time/t_other": t_iter - t_rollout - t_learn - t_sync - t_comm,
            "time/t_comm_total": t_comm + hidden,
            "dist/rho_comm": t_comm / t_iter,
            "dist/rho_sync": t_sync / t_iter,
        }
        values_of_ranks = np.array(list(per_rank.values())).T.tolist()
        means = (sums.sum(axis=0) / update.num_samples).tolist()
        num_steps = float(steps.sum())
        metrics = {
            "rollout/steps": num_steps,
            "rollout/fps": num_steps / float(t_iter.max()),
            "rollout/episodes": float(num_episodes.sum()),
            **{f"train/{name}": mean for name, mean in zip(STATISTICS, means, strict=True)},
            "train/explained_variance": update.explained_variance,
            "train/grad_norm": update.grad_norm,
            "train/learning_rate": update.learning_rate,
            "train/epochs": float(update.epochs),
        }
        if self.window:
            metrics["rollout/return_mean"] = sum(r for r, _ in self.window) / len(self.window)
            metrics["rollout/length_mean"] = sum(n for _, n in self.window) / len(self.window)
        report = IterationReport(
            iteration=local.iteration,
            env_steps=env_steps_before + int(num_steps),
            wall_s=wall_s,
            rank_metrics=tuple(dict(zip(per_rank, values, strict=True)) for values in values_of_ranks),
            global_metrics=metrics,
        )
        return report, Agreed(bool(stops.any()), bool(ready.all()))

    def _share_episodes(self, episodes: list[Episode], most: int) -> None:
        """Add all ranks' finished episodes to the window, in an order that does not depend on W."""
        most = min(most, self.window.maxlen or 0)
        if most == 0:
            return
        rows = np.full((most, 4), -1.0)
        for row, e in zip(rows, episodes[-most:], strict=False):
            row[:] = e.step, e.env_index, e.episode_return, e.length
        gathered = self.group.gather(torch.from_numpy(rows))
        ended = [row for row in gathered.reshape(-1, 4).tolist() if row[0] >= 0]
        self.window.extend((episode_return, int(length)) for _, _, episode_return, length in sorted(ended))


def _check_replicas(hashes: np.ndarray, iteration: int) -> None:
    """Stop all ranks if the parameters of one differ from the most common ones."""
    known = hashes[~np.isnan(hashes)]
    if (known == known[0]).all():
        return
    kinds, numbers = np.unique(known, return_counts=True)
    different = np.flatnonzero(~np.isnan(hashes) & (hashes != kinds[numbers.argmax()])).tolist()
    raise ReplicaMismatchError(
        f"after iteration {iteration} the parameters of rank {', '.join(map(str, different))} differ from those "
        f"of the other {len(known) - len(different)} of {len(known)} ranks; all ranks stopped"
    )
