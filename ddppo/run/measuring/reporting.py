"""One exchange of numbers per iteration: what every rank measured becomes the same report on all ranks."""

import itertools
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from ddppo.collectives import Group
from ddppo.distributed.programs.kit import News
from ddppo.errors import ReplicaMismatchError
from ddppo.ppo.acting.rollout import Episode
from ddppo.ppo.learning.learner import Update
from ddppo.ppo.learning.step import STATISTICS
from ddppo.run.measuring.timing import LocalTimes, split_waiting
from ddppo.run.records.metrics import OF_TOPOLOGIES, ROLES, IterationReport
from ddppo.topologies import Layout

_MEASURED = [metric.name for metric in OF_TOPOLOGIES]
_NOTHING = [math.nan] * len(_MEASURED)
_OF_PPO = tuple(f"train/{name}" for name in STATISTICS)


@dataclass(frozen=True, slots=True)
class LocalIteration:
    """What this rank knows about its iteration. params_hash is 0 where replicas are not compared, NaN
    on a rank that holds no parameters. save_due: of rank 0, whether its clock asks for a checkpoint. measured: by the
    names of OF_TOPOLOGIES. news: of ranks at their own pace."""

    iteration: int
    times: LocalTimes
    update: Update
    num_steps: int
    episodes: list[Episode]
    stop_requested: bool
    step_ready: bool
    save_due: bool
    params_hash: float
    measured: dict[str, float] = field(default_factory=dict)
    news: tuple[News, ...] = ()


class Agreed(NamedTuple):
    """What the ranks decide on together: whether any asks to stop, whether all can take the compiled step, and whether
    a checkpoint is due."""

    stopping: bool
    step_ready: bool
    save_due: bool


class Reporter:
    """Turns LocalIterations of all ranks into IterationReports, and keeps the window of finished episodes.

    groups: those of the clock, the first of which holds all ranks. compared: what params_hash is of. learned: the
    metrics that a learner's sums are of.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        layout: Layout,
        episode_window: int,
        compared: str = "parameters",
        learned: Sequence[str] = _OF_PPO,
    ) -> None:
        self._compared = compared
        self._learned_names = tuple(learned)
        self.groups = groups
        self.group = groups[0]
        names = [layout.role(rank).name for rank in range(layout.world_size)]
        self._roles = [name if name in ROLES else "other" for name in names]
        known = [role.name if role.name in ROLES else "other" for role in layout.roles]
        # Where nothing travels nobody waits.
        self._waited_for = sorted(set(known)) if layout.messages else []
        self.window: deque[tuple[float, int]] = deque(maxlen=episode_window)

    def exchange(
        self, local: LocalIteration, *, env_steps_before: int, wall_s: float
    ) -> tuple[IterationReport, Agreed]:
        """Return the report of the iteration and what the ranks agreed on, the same on all ranks.

        Raises ReplicaMismatchError on all ranks if parameters differ.
        """
        times, update = local.times, local.update
        waited, communicated = self._within_parts(times)
        for role, seconds in times.waits.items():
            waited[ROLES.index(role)] += seconds
        row: list[float] = [
            times.t_iter,
            times.t_rollout,
            times.t_learn,
            times.t_checkpoint,
            times.hidden_comm,
            local.num_steps,
            len(local.episodes),
            local.stop_requested,
            local.step_ready,
            local.save_due,
            local.params_hash,
        ]
        measured = [local.measured.get(name, np.nan) for name in _MEASURED] if local.measured else _NOTHING
        traffic: list[float] = [times.num_messages, times.num_bytes, communicated, *waited]
        of_all = times.collectives[0]
        parts: list[list[float] | np.ndarray] = [
            row,
            self._sums(update),
            traffic,
            measured,
            of_all.stamps.ravel(),
        ]
        ends = [*itertools.accumulate(map(len, parts))]
        rows = self._gather(self.group, np.concatenate(parts))
        heads, sums, traffic_of_all, measured_of_all, stamps = (
            rows[:, end - len(part) : end] for part, end in zip(parts, ends, strict=True)
        )
        t_iter, t_rollout, t_learn, saving, hidden, steps, num_episodes, stops, ready, due, hashes = heads.T
        _check_replicas(hashes, local.iteration, self._compared)
        messages, num_bytes, t_comm, *waits = traffic_of_all.T
        is_measured = not np.isnan(measured_of_all).all()
        roles = [self._roles[rank] for rank in self.group.members]
        together, comm = split_waiting(stamps.reshape(len(rows), -1, 2), of_all.is_barrier, roles)
        t_comm = t_comm + comm
        t_wait = dict(zip(ROLES, waits, strict=True))
        for role, of_ranks in together.items():
            t_wait[role] = t_wait[role] + of_ranks
        t_sync = sum(t_wait.values(), start=np.zeros(len(rows)))
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
            "time/t_checkpoint": saving,
            "time/t_comm_total": t_comm + hidden,
            "dist/rho_comm": t_comm / t_iter,
            "dist/rho_sync": t_sync / t_iter,
            **{f"time/t_wait_{role}": t_wait[role] for role in self._waited_for},
            **({"dist/messages": messages, "dist/bytes": num_bytes} if self._waited_for else {}),
            **(dict(zip(_MEASURED, measured_of_all.T, strict=True)) if is_measured else {}),
        }
        values_of_ranks = np.array(list(per_rank.values())).T.tolist()
        num_steps = float(steps.sum()) + sum(news.num_steps for news in local.news)
        metrics = {
            "rollout/steps": num_steps,
            "rollout/fps": num_steps / float(t_iter.max()),
            "rollout/episodes": float(num_episodes.sum()),
            **self._learned(update, sums.sum(axis=0)),
        }
        report = IterationReport(
            iteration=local.iteration,
            env_steps=env_steps_before + int(num_steps),
            wall_s=wall_s,
            rank_metrics=tuple(
                _told(dict(zip(per_rank, values, strict=True)), is_measured) for values in values_of_ranks
            )
            + tuple(self._of_own_pace(news) for news in local.news),
            global_metrics=metrics,
        )
        return report, Agreed(1.0 in stops.tolist(), 0.0 not in ready.tolist(), 1.0 in due.tolist())

    def _of_own_pace(self, news: News) -> dict[str, float]:
        """Return the metrics of a rank that serves; zeros where it had no news."""
        t_sync, t_iter = sum(news.waited.values()), news.t_iter or math.inf
        return {
            "rollout/local_steps": news.num_steps,
            "rollout/local_fps": news.num_steps / t_iter,
            "time/t_iter": news.t_iter,
            "time/t_rollout": news.t_rollout,
            "time/t_learn": 0.0,
            "time/t_sync": t_sync,
            "time/t_comm": news.t_comm,
            "time/t_other": news.t_iter - news.t_rollout - t_sync - news.t_comm,
            "time/t_checkpoint": 0.0,
            "time/t_comm_total": news.t_comm,
            "dist/rho_comm": news.t_comm / t_iter,
            "dist/rho_sync": t_sync / t_iter,
            **{f"time/t_wait_{role}": news.waited.get(role, 0.0) for role in self._waited_for},
            "dist/messages": news.num_messages,
            "dist/bytes": news.num_bytes,
            **({"dist/restarts": news.num_restarts} if news.num_restarts else {}),
        }

    def _learned(self, update: Update, sums: np.ndarray) -> dict[str, float]:
        """Return how the update went, with the sums of all ranks, and the window's returns."""
        # Of an iteration without samples to learn from, means are unknown.
        means = (sums / (update.num_samples or math.nan)).tolist()
        metrics = {
            **dict(zip(self._learned_names, means, strict=True)),
            **update.metrics,
            "train/grad_norm": update.grad_norm,
            "train/learning_rate": update.learning_rate,
            "train/epochs": float(update.epochs),
        }
        if update.explained_variance is None:
            del metrics["train/value_loss"]
        else:
            metrics["train/explained_variance"] = update.explained_variance
        if self.window:
            returns, lengths = zip(*self.window, strict=True)
            metrics["rollout/return_mean"] = sum(returns) / len(returns)
            metrics["rollout/length_mean"] = sum(lengths) / len(lengths)
        return metrics

    def _sums(self, update: Update) -> np.ndarray:
        """Return this rank's sums of what is learned by; zeros on one that does not learn."""
        sums, missing = update.local_sums.numpy(), len(self._learned_names) - len(update.local_sums)
        return np.pad(sums, (0, missing)) if missing else sums

    def _within_parts(self, times: LocalTimes) -> tuple[np.ndarray, float]:
        """Return seconds waited for each of ROLES, and communicated, in collectives of some of the ranks."""
        waited, communicated = np.zeros(len(ROLES)), 0.0
        for group, own in zip(self.groups[1:], times.collectives[1:], strict=True):
            stamps = self._gather(group, own.stamps)
            roles = [self._roles[rank] for rank in group.members]
            by_role, t_comm = split_waiting(stamps, own.is_barrier, roles)
            for role, seconds in by_role.items():
                waited[ROLES.index(role)] += seconds[group.rank]
            communicated += float(t_comm[group.rank])
        return waited, communicated

    @staticmethod
    def _gather(group: Group, values: np.ndarray) -> np.ndarray:
        """Gather what no topology sends: the message is not counted."""
        gathered = group.gather(torch.from_numpy(values)).numpy()
        group.records[-1:] = [record._replace(num_bytes=None) for record in group.records[-1:]]
        return gathered

    def _share_episodes(self, episodes: list[Episode], most: int) -> None:
        """Add all ranks' finished episodes to the window, in an order that does not depend on W."""
        most = min(most, self.window.maxlen or 0)
        if most == 0:
            return
        rows = np.full((most, 4), -1.0)
        for row, e in zip(rows, episodes[-most:], strict=False):
            row[:] = e.step, e.env_index, e.episode_return, e.length
        gathered = self._gather(self.group, rows)
        ended = [row for row in gathered.reshape(-1, 4).tolist() if row[0] >= 0]
        self.window.extend((episode_return, int(length)) for _, _, episode_return, length in sorted(ended))


def _told(metrics: dict[str, float], is_measured: bool) -> dict[str, float]:
    """Return a rank's metrics without those of topologies that it did not measure."""
    if not is_measured:
        return metrics
    return {k: v for k, v in metrics.items() if not (k in _MEASURED and math.isnan(v))}


def _check_replicas(hashes: np.ndarray, iteration: int, compared: str) -> None:
    """Stop all ranks if what is `compared` of one differs from the most common; of as many, from the lowest rank's."""
    known = hashes[~np.isnan(hashes)]
    if (known == known[0]).all():
        return
    kind, _ = Counter(known.tolist()).most_common(1)[0]  # of as many, that which came first
    different = np.flatnonzero(~np.isnan(hashes) & (hashes != kind)).tolist()
    raise ReplicaMismatchError(
        f"after iteration {iteration} the {compared} of rank {', '.join(map(str, different))} differ from those "
        f"of the other {len(known) - len(different)} of {len(known)} ranks; all ranks stopped"
    )
