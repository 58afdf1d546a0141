"""The learner of async_actors: what it takes, whom it answers when, and what it learns from.

The lag of a rollout is the number of updates between the parameters that acted and those that learn from it.
"""

from typing import NamedTuple

import torch

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.collectives.peers import OwnPace
from ddppo.distributed.topologies.actors import RolloutMessage
from ddppo.distributed.topologies.async_actors.connected import Actor, ActorConnections
from ddppo.distributed.topologies.async_actors.messages import Answer, Parameters, Sent
from ddppo.distributed.topologies.async_actors.off_policy import with_ratios
from ddppo.distributed.topologies.async_actors.rewards import RewardsByActor
from ddppo.distributed.topologies.base import Collected, OwnPaceReport, RankContext, Topology
from ddppo.distributed.topologies.settings import AsyncActorsSettings
from ddppo.ppo.learner import Update
from ddppo.ppo.rollout import FinishedEpisode, Rollout
from ddppo.terminal import warn

_LAGS = {"0": 0, "1": 1, "2_3": 3, "4_7": 7}  # the largest of each bin but the last
_OF_START = 24  # bits of a rollout's number that count from a start of its actor; those above tell which


class _Taken(NamedTuple):
    """A rollout of the update to come, and the row of the buffer that it lies in."""

    rank: int
    number: int
    lag: int
    row: int


class AsyncLearner(Topology):
    """Rank 0. K rollouts make an update; `version` counts the updates done."""

    collector = None

    def __init__(self, context: RankContext) -> None:
        assert isinstance(context.group, OwnPace)
        self._context = context
        config, shape, dist = context.config, context.shape, context.config.dist
        assert isinstance(dist, AsyncActorsSettings), dist
        self._corrects = dist.correction != "none"
        self.learners = Group()  # of one
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, 0, self.sync)
        self._rewards: RewardsByActor | None = None
        if config.ppo.normalize_rewards:
            self._rewards = RewardsByActor(shape.local_num_envs, config.ppo.gamma, context.device)
            self.learner.reward_normalizer = self._rewards
        parameters = Parameters(context.parameters, context.obs_normalizer)
        self._actors = ActorConnections(context.group, context.layout.stepping, config.dist, parameters)
        self._per_update = shape.batch_size // shape.local_batch_size
        self._max_lag = largest_lag(dist.max_lag, len(self._actors), self._per_update)
        self._version = 0
        self._rollouts = RolloutMessage(
            context.spec, shape.rollout_steps, shape.local_num_envs, getattr(torch, config.dtype),
            with_raw_obs=context.obs_normalizer is not None,
        )  # fmt: skip
        self._room = torch.zeros(self._per_update, self._rollouts.num_bytes, dtype=torch.uint8)
        self._taken: list[_Taken] = []
        self._lags: list[int] = []  # of the last update
        self._num_refused, self._depths = 0, 0  # in the update under way
        self._stops = False

    def reset(self, sample: TaskSample) -> None:
        """Wait for all actors, and have them begin."""
        self._version = sample.iteration
        if sample.iteration:
            warn(
                "async_actors goes on approximately: actors begin new episodes, and who comes when is chance"
            )
        self._actors.meet()
        self._answer()

    def collect(self, iteration: int) -> Collected:
        self._num_refused = self._depths = 0
        episodes: list[FinishedEpisode] = []
        while (num_missing := self._per_update - len(self._taken)) > 0:
            ready = self._actors.ready()
            for place, actor in enumerate(ready[:num_missing]):
                num_taken = len(self._taken)
                episodes += self._take(actor)
                self._depths += (len(self._taken) - num_taken) * (len(ready) - place)
                self._answer()
            self._answer()  # who has come back
        self._taken.sort()
        # In the order of actors and their numbers, side by side.
        rows = self._room[[taken.row for taken in self._taken]]
        return Collected(0, episodes, self._rollouts.unpack(rows, self._context.device))

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        assert collected.rollout is not None
        lags = [taken.lag for taken in self._taken]
        assert max(lags) <= self._max_lag, (lags, self._max_lag)
        if self._rewards is not None:
            self._rewards.expect([(taken.rank, taken.number >> _OF_START) for taken in self._taken])
        update = self.learner.update(self._corrected(collected.rollout, lags), iteration, progress)
        self._version, self._lags = iteration, lags
        self._taken.clear()
        self._answer()
        return update

    def _corrected(self, rollout: Rollout, lags: list[int]) -> Rollout:
        """Return the K rollouts as the present policy sees them, with ratios; as they are where none is asked for."""
        context = self._context
        if not self._corrects or not any(lags):
            return rollout
        # [K] -> [K * E]
        is_old = torch.tensor(lags, device=context.device).repeat_interleave(context.shape.local_num_envs) > 0
        return with_ratios(rollout, is_old, context.model, context.obs_normalizer)

    def _take(self, actor: Actor) -> list[FinishedEpisode]:
        """Receive an actor's rollout, and keep it unless it is too old; return the episodes that ended in it."""
        row = len(self._taken)
        received = self._actors.receive(actor, self._room[row]) if actor.wire is not None else None
        if received is None:
            return []
        sent, episodes = received
        self._stops |= bool(sent.asks_to_stop)
        lag = self._version - sent.version
        if lag > self._max_lag:
            self._num_refused += 1
            actor.report = _with(actor.report, sent, num_steps=0)
            return []
        actor.report = _with(actor.report, sent, sent.num_steps)
        self._taken.append(_Taken(actor.rank, sent.number, lag, row))
        return episodes

    def _answer(self) -> None:
        """Have those actors go on whose next rollouts can be used, those first that have waited longest."""
        for actor in self._actors.waiting:
            if updates_ahead(len(self._taken), self._actors.num_acting, self._per_update) > self._max_lag:
                return
            first = -1
            if actor.is_new:
                # A number that no rollout of this run has had: noise and seeds follow. 0 where all begins.
                first = (self._version << 32) + ((actor.num_hellos - 1) << _OF_START)
            self._actors.send(actor, Answer(self._version, first))

    def measured(self) -> dict[str, float]:
        lags = self._lags
        counts, below = {}, -1
        for name, most in _LAGS.items():
            counts[f"dist/lag_{name}"] = float(sum(below < lag <= most for lag in lags))
            below = most
        return {
            "dist/lag_mean": sum(lags) / len(lags),
            "dist/lag_max": max(lags),
            **counts,
            "dist/lag_8": sum(lag > below for lag in lags),
            "dist/queue_depth": self._depths / len(lags),
            "dist/refused": self._num_refused,
            "dist/restarts": sum(max(0, actor.num_hellos - 1) for actor in self._actors),
        }

    def own_pace_reports(self) -> tuple[OwnPaceReport, ...]:
        found = tuple(actor.report for actor in self._actors)
        for actor in self._actors:
            actor.report = OwnPaceReport()
        return found

    def is_asked_to_stop(self) -> bool:
        return self._stops

    def rest(self) -> None:
        """Wait until nobody acts: what is acted while the clock stands would cost nothing."""
        self._actors.rest()

    def finish(self) -> None:
        self._actors.finish()

    def close(self) -> None:
        self._actors.close()


def largest_lag(max_lag: int | None, num_actors: int, per_update: int) -> int:
    """Return max_lag, or by default the least with which no actor ever waits for the end of an update."""
    return updates_ahead(per_update, num_actors - 1, per_update) if max_lag is None else max_lag


def updates_ahead(num_taken: int, num_acting: int, per_update: int) -> int:
    """Return how many updates come before that which the next actor to begin will have its rollout in.

    num_taken rollouts wait for the next update already, and those of num_acting actors are expected before its own.
    """
    return (num_taken + num_acting) // per_update


def _with(report: OwnPaceReport, sent: Sent, num_steps: int) -> OwnPaceReport:
    return OwnPaceReport(
        report.num_steps + num_steps,
        report.t_iter + sent.t_iter,
        report.t_rollout + sent.t_rollout,
        report.t_comm + sent.t_comm,
        {"learner": report.waited.get("learner", 0.0) + sent.t_wait},
        report.num_messages + sent.num_sends,
        report.num_bytes + sent.num_bytes,
        sent.num_restarts,
    )
