"""The end of an iteration: the numbers of all ranks become one report, which is equal on all ranks.

Each rank describes its iteration as a `LocalIteration`. `Reporter.reduce` packs the numbers in it into one row of
float64, gathers the rows of all ranks in a single collective, and computes the `IterationReport` that rank 0 records.
`_row_type` lists the row by name: it is the one place that says what ranks send to each other here.

The gather's own bytes are not counted in dist/bytes: they belong to no topology.
"""

import functools
import json
import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from ddppo.collectives.group import Group, gather_bytes
from ddppo.distributed.topologies.base import Collected, OwnPaceReport
from ddppo.distributed.topologies.contract import Layout
from ddppo.errors import ReplicaMismatchError
from ddppo.ppo.learner import Update
from ddppo.ppo.losses import STATISTICS
from ddppo.ppo.rollout import FinishedEpisode
from ddppo.records.metrics import ENV_PREFIX, ROLES, TOPOLOGY_METRICS, IterationReport, info_metrics
from ddppo.records.timing import LocalTimes, split_waiting

TOPOLOGY_METRIC_NAMES = tuple(metric.name for metric in TOPOLOGY_METRICS)
_PPO_STATISTICS = tuple(f"train/{name}" for name in STATISTICS)


# -- The iteration of one rank, and the row that it sends.


class LoopRequests(NamedTuple):
    """The requests of a rank to the loop; after the reduction, those of any rank.

    All ranks act on the reduced requests, never on their own: otherwise one would leave the loop and the others hang.
    """

    stop: bool  # end the run after this iteration
    save: bool  # save a checkpoint after this iteration
    finish: bool = False  # complete the run after this iteration: the task has nothing left to gain


@dataclass(frozen=True, slots=True)
class LocalIteration:
    """One iteration on one rank."""

    iteration: int  # counted from 1
    times: LocalTimes
    collected: Collected  # steps and finished episodes are reported
    update: Update
    requests: LoopRequests
    # 0 if replicas are not compared in this iteration; NaN if this rank holds no parameters.
    params_hash: float
    # Measured by the topology: a subset of TOPOLOGY_METRIC_NAMES.
    measured: dict[str, float] = field(default_factory=dict)
    own_pace: tuple[OwnPaceReport, ...] = ()  # of the ranks that act at their own pace and send no row
    # Numbers in the last infos of this rank's episodes: (sum, number of episodes), by name.
    infos: dict[str, tuple[float, int]] = field(default_factory=dict)
    device_memory: float | None = None  # the most bytes on this rank's accelerator; None on a CPU


@functools.lru_cache(maxsize=16)
def _row_type(num_shards: int, num_statistics: int, num_collectives: int) -> np.dtype:
    """Return the layout of the row that every rank sends: float64, by name.

    num_collectives is the same on all ranks, which is why the rows have one length.
    """
    return np.dtype(
        [
            # Times of the iteration, in seconds.
            ("t_iter", "f8"),
            ("t_rollout", "f8"),
            ("t_learn", "f8"),
            ("t_checkpoint", "f8"),
            ("t_comm", "f8"),  # in collectives of a part of the ranks; that in others follows from stamps
            ("hidden_comm", "f8"),
            ("t_wait", "f8", (len(ROLES),)),  # outside collectives, and in those of a part of the ranks
            ("stamps", "f8", (num_collectives, 2)),  # start and end of each collective of all ranks
            # Counts.
            ("num_messages", "f8"),
            ("num_bytes", "f8"),
            ("num_steps", "f8"),
            ("num_episodes", "f8"),
            ("has_infos", "f8"),  # 0 or 1
            ("device_memory", "f8"),  # NaN on a CPU
            # The update: sums over the samples of each of this rank's shards, zeros on a rank that does not learn.
            ("statistics", "f8", (num_shards, num_statistics)),
            ("params_hash", "f8"),
            # Requests, 0 or 1.
            ("stop", "f8"),
            ("save", "f8"),
            ("finish", "f8"),
            # Measured by the topology, NaN where it measures nothing.
            ("measured", "f8", (len(TOPOLOGY_METRIC_NAMES),)),
        ]
    )


# -- From the rows of all ranks to a report.


class Reporter:
    """Reduces LocalIterations to IterationReports, and keeps the window of finished episodes."""

    def __init__(
        self,
        groups: Sequence[Group],  # of the iteration's clock; the first one holds all ranks of the loop
        layout: Layout,
        episode_window: int,  # episodes in rollout/return_mean
        compared: str = "parameters",  # the content of params_hash, for the message of an error
        statistics: Sequence[str] = _PPO_STATISTICS,  # names of Update.local_sums, in order
        num_shards: int = 1,  # of this rank, with dist.reduction=ordered
    ) -> None:
        self.groups = groups
        self.group = groups[0]
        self._compared = compared
        self._statistics = tuple(statistics)
        self._num_shards = num_shards
        # A role that a topology of the user's own defines counts as "other".
        names = [layout.role(rank).name for rank in range(layout.world_size)]
        self._roles = [name if name in ROLES else "other" for name in names]
        roles = {role.name if role.name in ROLES else "other" for role in layout.roles}
        # A topology without messages has no time/t_wait_<role> and no dist/messages: its ranks wait for nothing.
        self._awaited_roles = sorted(roles) if layout.messages else []
        self.window: deque[tuple[float, int]] = deque(maxlen=episode_window)  # (return, length) of all ranks

    def reduce(
        self, local: LocalIteration, *, env_steps_before: int, wall_s: float
    ) -> tuple[IterationReport, LoopRequests]:
        """Return the report of the iteration and the requests of all ranks. All ranks call it.

        Raises ReplicaMismatchError on all ranks if replicas differ.
        """
        # 1. One gather: a row from every rank. From here on a field of `rows` is an array over ranks, [W] or [W, n].
        row = self._pack(local)
        rows = self._gather(self.group, row.reshape(1).view(np.float64)).view(row.dtype)[:, 0]
        _check_replicas(rows["params_hash"], local.iteration, self._compared)
        # 2. A second gather shares the finished episodes, only if there are any.
        self._share_episodes(local.collected.episodes, int(rows["num_episodes"].max()))
        # 3. Metrics that stay one number per rank.
        per_rank = self._per_rank_metrics(rows, local.times.collectives[0].is_barrier)
        rank_metrics = _one_dict_per_rank(per_rank)
        rank_metrics += [self._own_pace_metrics(own) for own in local.own_pace]
        # 4. Metrics over all ranks. An iteration lasts as long as its slowest rank takes.
        num_steps = float(rows["num_steps"].sum()) + sum(own.num_steps for own in local.own_pace)
        global_metrics = {
            "rollout/steps": num_steps,
            "rollout/fps": num_steps / float(rows["t_iter"].max()),
            "rollout/episodes": float(rows["num_episodes"].sum()),
            **self._learning_metrics(local.update, _in_order(rows["statistics"]).sum(axis=0)),
        }
        if rows["has_infos"].any():
            global_metrics |= self._share_infos(local.infos)
        report = IterationReport(
            iteration=local.iteration,
            env_steps=env_steps_before + int(num_steps),
            wall_s=wall_s,
            rank_metrics=tuple(rank_metrics),
            global_metrics=global_metrics,
        )
        asked = (bool(rows[name].any()) for name in LoopRequests._fields)
        return report, LoopRequests(*asked)

    def _pack(self, local: LocalIteration) -> np.ndarray:
        """Return the row of this rank, of `_row_type`."""
        times, collected = local.times, local.collected
        stamps = times.collectives[0].stamps
        row = np.zeros((), _row_type(self._num_shards, len(self._statistics), len(stamps)))
        row["t_iter"] = times.t_iter
        row["t_rollout"] = times.t_rollout
        row["t_learn"] = times.t_learn
        row["t_checkpoint"] = times.t_checkpoint
        row["hidden_comm"] = times.hidden_comm
        row["t_wait"], row["t_comm"] = self._split_subgroups(times)
        for role, seconds in times.waits.items():
            row["t_wait"][ROLES.index(role)] += seconds
        row["stamps"] = stamps
        row["num_messages"] = times.num_messages
        row["num_bytes"] = times.num_bytes
        row["num_steps"] = collected.num_steps
        row["num_episodes"] = len(collected.episodes)
        row["has_infos"] = bool(local.infos)
        row["device_memory"] = math.nan if local.device_memory is None else local.device_memory
        # A rank that does not learn may have fewer sums than the learner: the rest stay zero.
        sums = local.update.local_sums.numpy()[..., : len(self._statistics)]
        row["statistics"][:, : sums.shape[-1]] = sums
        row["params_hash"] = local.params_hash
        row["stop"], row["save"], row["finish"] = local.requests
        row["measured"] = [local.measured.get(name, math.nan) for name in TOPOLOGY_METRIC_NAMES]
        return row

    def _split_subgroups(self, times: LocalTimes) -> tuple[np.ndarray, float]:
        """Return seconds waited, by ROLES, and communicated in collectives of some of the ranks.

        One gather within each subgroup: its members alone know when they entered its collectives.
        """
        waited, communicated = np.zeros(len(ROLES)), 0.0
        for group, collectives in zip(self.groups[1:], times.collectives[1:], strict=True):
            stamps = self._gather(group, collectives.stamps)
            roles = [self._roles[rank] for rank in group.members]
            by_role, t_comm = split_waiting(stamps, collectives.is_barrier, roles)
            for role, seconds in by_role.items():
                waited[ROLES.index(role)] += seconds[group.rank]
            communicated += float(t_comm[group.rank])
        return waited, communicated

    @staticmethod
    def _gather(group: Group, values: np.ndarray) -> np.ndarray:
        """Return the values of all ranks `[W, ...]`, without counting the message."""
        gathered = group.gather(torch.from_numpy(values)).numpy()
        group.records[-1:] = [record._replace(num_bytes=None) for record in group.records[-1:]]
        return gathered

    def _share_episodes(self, episodes: list[FinishedEpisode], most: int) -> None:
        """Append the finished episodes of all ranks to the window; `most` is the largest number on one rank.

        They are appended in order of step and global environment index, so that the window is the same for every W.
        """
        most = min(most, self.window.maxlen or 0)
        if most == 0:
            return
        # All ranks send `most` rows; rows of -1 fill up.
        rows = np.full((most, 4), -1.0)
        for row, e in zip(rows, episodes[-most:], strict=False):
            row[:] = e.step, e.env_index, e.episode_return, e.length
        gathered = self._gather(self.group, rows)
        ended = [row for row in gathered.reshape(-1, 4).tolist() if row[0] >= 0]
        self.window.extend((episode_return, int(length)) for _, _, episode_return, length in sorted(ended))

    def _share_infos(self, local: dict[str, tuple[float, int]]) -> dict[str, float]:
        """Return the means of infos over the episodes of all ranks, as metrics. Names may differ between ranks."""
        contents, _ = gather_bytes(self.group, json.dumps(local).encode())
        self.group.records[-2:] = [record._replace(num_bytes=None) for record in self.group.records[-2:]]
        sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for content in contents:
            for name, pair in json.loads(content).items():
                for i, x in enumerate(pair):
                    sums[name][i] += x
        means = {name: total / count for name, (total, count) in sorted(sums.items())}
        return info_metrics(means, ENV_PREFIX, "rollout/success_rate")

    # -- Metrics from the rows.

    def _per_rank_metrics(self, rows: np.ndarray, is_barrier: tuple[bool, ...]) -> dict[str, np.ndarray]:
        """Return the metrics per rank `[W]`, by name; the formulas of times are in records/timing.py."""
        # Stamps of all ranks tell how long each waited in the collectives of all ranks, and for which role.
        roles = [self._roles[rank] for rank in self.group.members]
        waited, communicated = split_waiting(rows["stamps"], is_barrier, roles)
        t_wait = dict(zip(ROLES, rows["t_wait"].T, strict=True))
        for role, seconds in waited.items():
            t_wait[role] = t_wait[role] + seconds
        t_comm = rows["t_comm"] + communicated
        t_iter, t_sync = rows["t_iter"], sum(t_wait.values(), start=np.zeros(len(rows)))
        metrics = {
            "rollout/local_steps": rows["num_steps"],
            "rollout/local_fps": rows["num_steps"] / t_iter,
            "time/t_iter": t_iter,
            "time/t_rollout": rows["t_rollout"],
            "time/t_learn": rows["t_learn"],
            "time/t_sync": t_sync,
            "time/t_comm": t_comm,
            "time/t_other": t_iter - rows["t_rollout"] - rows["t_learn"] - t_sync - t_comm,
            "time/t_checkpoint": rows["t_checkpoint"],
            "time/t_comm_total": t_comm + rows["hidden_comm"],
            "dist/rho_comm": t_comm / t_iter,
            "dist/rho_sync": t_sync / t_iter,
        }
        if self._awaited_roles:
            metrics |= {f"time/t_wait_{role}": t_wait[role] for role in self._awaited_roles}
            metrics |= {"dist/messages": rows["num_messages"], "dist/bytes": rows["num_bytes"]}
        if not np.isnan(rows["device_memory"]).all():
            metrics["dist/device_memory"] = rows["device_memory"]
        if not np.isnan(rows["measured"]).all():
            metrics |= dict(zip(TOPOLOGY_METRIC_NAMES, rows["measured"].T, strict=True))
        return metrics

    def _own_pace_metrics(self, own: OwnPaceReport) -> dict[str, float]:
        """Return the metrics of a rank that acts at its own pace; zeros if it sent nothing in this iteration."""
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
            **{f"time/t_wait_{role}": own.waited.get(role, 0.0) for role in self._awaited_roles},
            "dist/messages": own.num_messages,
            "dist/bytes": own.num_bytes,
            **({"dist/restarts": own.num_restarts} if own.num_restarts else {}),
        }

    def _learning_metrics(self, update: Update, sums: np.ndarray) -> dict[str, float]:
        """Return the metrics of the update, from statistics summed over all ranks, and the window's means."""
        # NaN rather than 0 / 0 if there was no sample to learn from.
        means = (sums / (update.num_samples or math.nan)).tolist()
        metrics = {
            **dict(zip(self._statistics, means, strict=True)),
            "train/grad_norm": update.grad_norm,
            "train/learning_rate": update.learning_rate,
            "train/epochs": float(update.epochs),
        }
        # An algorithm without a critic (GRPO) has no loss of values.
        if update.explained_variance is None:
            metrics.pop("train/value_loss", None)
        else:
            metrics["train/explained_variance"] = update.explained_variance
        metrics |= update.metrics
        if self.window:
            returns, lengths = zip(*self.window, strict=True)
            metrics["rollout/return_mean"] = sum(returns) / len(returns)
            metrics["rollout/length_mean"] = sum(lengths) / len(lengths)
        return metrics


def _in_order(sums: np.ndarray) -> np.ndarray:
    """Return the sums [W, S, n] of ranks' shards as [W S, n], which are added one after another at any W."""
    ranks, shards, n = sums.shape
    return sums.reshape(ranks * shards, n)


def _one_dict_per_rank(per_rank: dict[str, np.ndarray]) -> list[dict[str, float]]:
    """Return the metrics of each rank, without those that only some ranks measure, where this one did not (NaN)."""
    # One array and one tolist: far cheaper than a float() for each value.
    values_of_ranks = np.array(list(per_rank.values())).T.tolist()
    ranks = [dict(zip(per_rank, values, strict=True)) for values in values_of_ranks]
    of_some = [name for name in ("dist/device_memory", *TOPOLOGY_METRIC_NAMES) if name in per_rank]
    if not of_some:
        return ranks
    unmeasured = ({name for name in of_some if math.isnan(rank[name])} for rank in ranks)
    return [
        {name: value for name, value in rank.items() if name not in left_out}
        for rank, left_out in zip(ranks, unmeasured, strict=True)
    ]


def _check_replicas(hashes: np.ndarray, iteration: int, compared: str) -> None:
    """Raise ReplicaMismatchError on all ranks unless the hashes `[W]` are equal; NaN: the rank holds no parameters.

    The message names the ranks that differ from the most common hash. In a tie the lowest rank's hash counts as right.
    """
    known = hashes[~np.isnan(hashes)]
    if (known == known[0]).all():
        return
    expected, _ = Counter(known.tolist()).most_common(1)[0]  # in a tie, the first one counted
    different = np.flatnonzero(~np.isnan(hashes) & (hashes != expected)).tolist()
    raise ReplicaMismatchError(
        f"after iteration {iteration} the {compared} of rank {', '.join(map(str, different))} differ from those "
        f"of the other {len(known) - len(different)} of {len(known)} ranks; all ranks stopped"
    )
