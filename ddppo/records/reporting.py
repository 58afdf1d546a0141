"""One exchange of numbers per iteration: what every rank measured becomes the same report on all ranks."""

import itertools
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from ddppo.collectives.group import Group
from ddppo.distributed.topologies.contract import Layout
from ddppo.distributed.topologies.program import OwnPaceReport
from ddppo.errors import ReplicaMismatchError
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import FinishedEpisode
from ddppo.ppo.step import STATISTICS
from ddppo.records.metrics import OF_TOPOLOGIES, ROLES, IterationReport
from ddppo.records.timing import LocalTimes, split_waiting

_MEASURED = [metric.name for metric in OF_TOPOLOGIES]
_NOTHING = [math.nan] * len(_MEASURED)
_OF_PPO = tuple(f"train/{name}" for name in STATISTICS)


@dataclass(frozen=True, slots=True)
class LocalIteration:
    """What this rank knows about its iteration. params_hash is 0 where replicas are not compared, NaN
    on a rank that holds no parameters. save_due: of rank 0, whether its clock asks for a checkpoint. measured: by the
    names of OF_TOPOLOGIES. own_pace: of ranks at their own pace."""

    iteration: int
    times: LocalTimes
    update: Update
    num_steps: int
    episodes: list[FinishedEpisode]
    stop_requested: bool
    save_due: bool
    params_hash: float
    measured: dict[str, float] = field(default_factory=dict)
    own_pace: tuple[OwnPaceReport, ...] = ()


class SharedDecision(NamedTuple):
    """What the ranks decide on together: whether any asks to stop, and whether a checkpoint is due."""

    stopping: bool
    save_due: bool


class _Head(NamedTuple):
    """What every rank tells of itself first: a number each, or a column `[W]` of all ranks' each."""

    t_iter: Any
    t_rollout: Any
    t_learn: Any
    t_checkpoint: Any
    hidden_comm: Any
    num_steps: Any
    num_episodes: Any
    stop_requested: Any
    save_due: Any
    params_hash: Any


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

    def reduce(
        self, local: LocalIteration, *, env_steps_before: int, wall_s: float
    ) -> tuple[IterationReport, SharedDecision]:
        """Return the report of the iteration and what the ranks agreed on, the same on all ranks.

        Raises ReplicaMismatchError on all ranks if parameters differ.
        """
        of_all = local.times.collectives[0]
        parts = [*self._own_parts(local), of_all.stamps.ravel()]
        ends = [*itertools.accumulate(map(len, parts))]
        rows = self._gather(self.group, np.concatenate(parts))
        heads, sums, traffic, measured, stamps = (
            rows[:, end - len(part) : end] for part, end in zip(parts, ends, strict=True)
        )
        head = _Head(*heads.T)
        _check_replicas(head.params_hash, local.iteration, self._compared)
        roles = [self._roles[rank] for rank in self.group.members]
        waited = split_waiting(stamps.reshape(len(rows), -1, 2), of_all.is_barrier, roles)
        self._share_episodes(local.episodes, int(head.num_episodes.max()))
        is_measured = not np.isnan(measured).all()
        per_rank = self._per_rank(head, traffic, *waited)
        if is_measured:
            per_rank.update(zip(_MEASURED, measured.T, strict=True))
        values_of_ranks = np.array(list(per_rank.values())).T.tolist()
        num_steps = float(head.num_steps.sum()) + sum(report.num_steps for report in local.own_pace)
        metrics = {
            "rollout/steps": num_steps,
            "rollout/fps": num_steps / float(head.t_iter.max()),
            "rollout/episodes": float(head.num_episodes.sum()),
            **self._learned(local.update, sums.sum(axis=0)),
        }
        report = IterationReport(
            iteration=local.iteration,
            env_steps=env_steps_before + int(num_steps),
            wall_s=wall_s,
            rank_metrics=tuple(
                _told(dict(zip(per_rank, values, strict=True)), is_measured) for values in values_of_ranks
            )
            + tuple(self._own_pace_metrics(own) for own in local.own_pace),
            global_metrics=metrics,
        )
        return report, SharedDecision(
            1.0 in head.stop_requested.tolist(),
            1.0 in head.save_due.tolist(),
        )

    def _own_parts(self, local: LocalIteration) -> list[np.ndarray]:
        """Return what this rank tells: its head, its sums, its traffic, what its topology measured."""
        times = local.times
        waited, communicated = self._within_parts(times)
        for role, seconds in times.waits.items():
            waited[ROLES.index(role)] += seconds
        head = _Head(
            t_iter=times.t_iter,
            t_rollout=times.t_rollout,
            t_learn=times.t_learn,
            t_checkpoint=times.t_checkpoint,
            hidden_comm=times.hidden_comm,
            num_steps=local.num_steps,
            num_episodes=len(local.episodes),
            stop_requested=local.stop_requested,
            save_due=local.save_due,
            params_hash=local.params_hash,
        )
        traffic = [times.num_messages, times.num_bytes, communicated, *waited]
        measured = [local.measured.get(name, np.nan) for name in _MEASURED] if local.measured else _NOTHING
        return [np.array(head, float), self._sums(local.update), np.array(traffic), np.array(measured)]

    def _per_rank(
        self, head: _Head, traffic: np.ndarray, together: dict[str, np.ndarray], comm: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return metrics `[W]` of ranks from what they told, and from what they waited and sent all together."""
        messages, num_bytes, t_comm, *waits = traffic.T
        t_comm = t_comm + comm
        t_wait = dict(zip(ROLES, waits, strict=True))
        for role, of_ranks in together.items():
            t_wait[role] = t_wait[role] + of_ranks
        t_iter, t_sync = head.t_iter, sum(t_wait.values(), start=np.zeros(len(comm)))
        return {
            "rollout/local_steps": head.num_steps,
            "rollout/local_fps": head.num_steps / t_iter,
            "time/t_iter": t_iter,
            "time/t_rollout": head.t_rollout,
            "time/t_learn": head.t_learn,
            "time/t_sync": t_sync,
            "time/t_comm": t_comm,
            "time/t_other": t_iter - head.t_rollout - head.t_learn - t_sync - t_comm,
            "time/t_checkpoint": head.t_checkpoint,
            "time/t_comm_total": t_comm + head.hidden_comm,
            "dist/rho_comm": t_comm / t_iter,
            "dist/rho_sync": t_sync / t_iter,
            **{f"time/t_wait_{role}": t_wait[role] for role in self._waited_for},
            **({"dist/messages": messages, "dist/bytes": num_bytes} if self._waited_for else {}),
        }

    def _own_pace_metrics(self, own: OwnPaceReport) -> dict[str, float]:
        """Return the metrics of a rank that serves; zeros where it had no news."""
        t_sync, t_iter = sum(own.waited.values()), own.t_iter or math.inf
        return {
            "rollout/local_steps": own.num_steps,
            "rollout/local_fps": own.num_steps / t_iter,
            "time/t_iter": own.t_iter,
            "time/t_rollout": own.t_rollout,
            "time/t_learn": 0.0,
            "time/t_sync": t_sync,
            "time/t_comm": own.t_comm,
            "time/t_other": own.t_iter - own.t_rollout - t_sync - own.t_comm,
            "time/t_checkpoint": 0.0,
            "time/t_comm_total": own.t_comm,
            "dist/rho_comm": own.t_comm / t_iter,
            "dist/rho_sync": t_sync / t_iter,
            **{f"time/t_wait_{role}": own.waited.get(role, 0.0) for role in self._waited_for},
            "dist/messages": own.num_messages,
            "dist/bytes": own.num_bytes,
            **({"dist/restarts": own.num_restarts} if own.num_restarts else {}),
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

    def _share_episodes(self, episodes: list[FinishedEpisode], most: int) -> None:
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
