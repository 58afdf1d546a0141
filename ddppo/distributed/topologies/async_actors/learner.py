"""The learner of async_actors: it takes rollouts from any actors, replies to each, and learns from K at a time.

The lag of a rollout is the number of updates between the parameters that acted and the parameters that learn from it.
Two rules bound it by dist.max_lag: `AsyncLearner._reply` lets an actor go on only if its next rollout can be used, and
`AsyncLearner._take` refuses a rollout that is too old.

Below the learner: `RewardsByActor`, which normalises rewards of rollouts that arrive in any order. A rollout of older
parameters is corrected by the algorithm (`Algorithm.corrected`; PPO's is in ddppo/algorithms/ppo.py).

Espeholt et al. 2018, "IMPALA", arXiv:1802.01561; Mnih et al. 2016, "A3C", arXiv:1602.01783.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from ddppo.algorithms.learner import AlgorithmLearner
from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.collectives.peers import OwnPace
from ddppo.distributed.topologies.async_actors.actor import AsyncActor
from ddppo.distributed.topologies.async_actors.connections import (
    ActorConnections,
    ConnectedActor,
    ParameterReply,
    ReplyHeader,
    RolloutHeader,
)
from ddppo.distributed.topologies.base import Collected, OwnPaceReport, RankContext, Topology
from ddppo.distributed.topologies.settings import AsyncActorsSettings
from ddppo.ppo.learner import Update
from ddppo.ppo.normalization import Gather, RewardNormalizer
from ddppo.ppo.rollout import FinishedEpisode, Rollout
from ddppo.terminal import warn


def make(context: RankContext) -> Topology:
    """Return the topology of this rank: a learner's or an actor's."""
    return AsyncLearner(context) if context.role.learns else AsyncActor(context)


# Bins of the metrics dist/lag_*: the largest lag of all but the last.
_LAGS = {
    "0": 0,
    "1": 1,
    "2_3": 3,
    "4_7": 7,
}
# Numbers of rollouts: the low bits count since the last start of the actor's process, the bits above count its starts.
_COUNT_BITS = 24


class _TakenRollout(NamedTuple):
    """A rollout that the next update learns from. Tuples sort by actor, then by number."""

    rank: int  # of its actor
    number: int
    lag: int
    place: int  # of its bytes in `AsyncLearner._received`


class AsyncLearner(Topology):
    """Rank 0. An update learns from K rollouts, of as many environments as their actors step."""

    collector = None

    def __init__(self, context: RankContext) -> None:
        assert isinstance(context.group, OwnPace)
        self._context = context
        config, dist = context.config, context.config.dist
        assert isinstance(dist, AsyncActorsSettings), dist
        self._corrects = dist.correction != "none"
        self.learners = Group()  # of one rank
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, self.sync)
        self._rewards: RewardsByActor | None = None
        if config.training.normalize_rewards:
            self._rewards = RewardsByActor(config.training.gamma, context.device)
            self.learner.reward_normalizer = self._rewards
        reply = ParameterReply(context.parameters, context.obs_normalizer, context.synchronised)
        self._actors = ActorConnections(context.group, context.layout.stepping, config.dist, reply)
        # K: by default one rollout of each actor.
        self._per_update = config.training.rollouts_per_update or len(self._actors)
        # An algorithm that tolerates less lag sets the limit.
        max_lag = context.algorithm.max_lag if dist.max_lag is None else dist.max_lag
        self._max_lag = largest_lag(max_lag, len(self._actors), self._per_update)
        self._version = 0  # number of updates done
        self._rollouts = context.rollout_message()
        # Bytes of the rollouts that the next update learns from, in the order of arrival; memory is used again.
        self._received = [torch.empty(0, dtype=torch.uint8)] * self._per_update
        self._taken: list[_TakenRollout] = []
        self._last_numbers: dict[int, int] = {}  # of the last rollout that was taken of each actor, by rank
        self._lags: list[int] = []  # of the last update's rollouts
        self._num_refused = 0  # rollouts that were too old, in the update under way
        self._queue_depths = 0  # sum over its rollouts: how many rollouts waited when each was taken
        self._is_asked_to_stop = False
        self._has_begun = False

    def reset(self, sample: TaskSample) -> None:
        """Wait for all actors, and let them begin. Later calls do nothing: an actor begins new episodes itself."""
        if self._has_begun:
            return
        self._has_begun = True
        # A sampler of whole episodes names the iteration that begins, another one the iterations done.
        self._version = sample.iteration - self._context.sampler.every_iteration
        if self._version:
            warn(
                "async_actors goes on approximately: actors begin new episodes, and rollouts arrive in any order"
            )
        self._actors.wait_for_all()
        self._reply()

    def collect(self, iteration: int) -> Collected:
        self._num_refused = self._queue_depths = 0
        episodes: list[FinishedEpisode] = []
        while (num_missing := self._per_update - len(self._taken)) > 0:
            # Rollouts beyond the missing ones stay in their sockets for the next update.
            ready = self._actors.ready()
            for place, actor in enumerate(ready[:num_missing]):
                num_taken = len(self._taken)
                episodes += self._take(actor)
                self._queue_depths += (len(self._taken) - num_taken) * (len(ready) - place)
                # Reply after each rollout, so that its actor does not wait for the others to be received.
                self._reply()
            self._reply()  # `ready` may have accepted an actor that was started again
        # Side by side by actor and number, in any order of arrival.
        self._taken.sort()
        messages = [self._received[taken.place] for taken in self._taken]
        return Collected(0, episodes, self._rollouts.unpack(messages, self._context.device))

    def _num_envs(self) -> list[int]:
        """Return the number of environments of each rollout that the next update learns from."""
        return [len(self._context.envs_of(taken.rank)) for taken in self._taken]

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        assert collected.rollout is not None
        lags = [taken.lag for taken in self._taken]
        assert max(lags) <= self._max_lag, (lags, self._max_lag)
        if self._rewards is not None:
            # An actor's rank and start: after a restart its episodes are new, and so are its running returns.
            actors = [(taken.rank, taken.number >> _COUNT_BITS) for taken in self._taken]
            self._rewards.expect(actors, self._num_envs())
        # With unequal shares the batch is as large as the rollouts that came.
        num_envs = collected.rollout.rewards.shape[1]
        self.learner.shape = replace(self.learner.shape, num_envs=num_envs)
        if isinstance(self.learner, AlgorithmLearner):
            envs = [i for taken in self._taken for i in self._context.envs_of(taken.rank)]
            self.learner.step.expect(envs, self._follows(), self._context.shape.num_envs)
        update = self.learner.update(self._corrected(collected.rollout, lags), iteration, progress)
        self._version, self._lags = iteration, lags
        # Actors that go on now act in the next iteration.
        num_steps = int(collected.rollout.valid.sum())
        self._context.algorithm.progress = progress + num_steps / self._context.config.training.total_steps
        self._taken.clear()
        # Actors that waited for this update go on.
        self._reply()
        return update

    def _follows(self) -> list[bool]:
        """Return for each environment whether its rollout comes after the last one taken, with none refused between."""
        found: list[bool] = []
        for taken in self._taken:
            follows = taken.number == self._last_numbers.get(taken.rank, taken.number) + 1
            found += [follows] * len(self._context.envs_of(taken.rank))
            self._last_numbers[taken.rank] = taken.number
        return found

    def _corrected(self, rollout: Rollout, lags: list[int]) -> Rollout:
        """Return the rollout with ratios for the environments of old rollouts; unchanged if dist.correction=none."""
        context = self._context
        if not self._corrects or not any(lags):
            return rollout
        is_old = torch.tensor(lags).repeat_interleave(torch.tensor(self._num_envs())) > 0  # [K] -> [E]
        return context.algorithm.corrected(rollout, is_old.to(context.device), context.obs_normalizer)

    def _take(self, actor: ConnectedActor) -> list[FinishedEpisode]:
        """Receive an actor's rollout and keep it unless it is too old; return the episodes that ended in it."""
        place = len(self._taken)
        if actor.connection is None:
            return []
        received = self._actors.receive(actor, self._received[place])
        if received is None:
            return []
        header, self._received[place], episodes = received
        self._is_asked_to_stop |= bool(header.asks_to_stop)
        lag = self._version - header.version
        if lag > self._max_lag:
            # Refused: its steps do not count, and the next rollout overwrites its bytes.
            self._num_refused += 1
            actor.report = _with(actor.report, header, num_steps=0)
            return []
        actor.report = _with(actor.report, header, header.num_steps)
        self._taken.append(_TakenRollout(actor.rank, header.number, lag, place))
        return episodes

    def _reply(self) -> None:
        """Reply to the waiting actors with a next rollout that can be used, the longest wait first."""
        for actor in self._actors.waiting:
            if updates_ahead(len(self._taken), self._actors.num_acting, self._per_update) > self._max_lag:
                return
            first = -1
            if actor.is_new:
                # Noise and seeds follow from a rollout's number, so a process must begin with one that no rollout of
                # this run has had: (updates done, starts of this actor, 0). It is 0 at the start of a run.
                first = (self._version << 32) + ((actor.num_starts - 1) << _COUNT_BITS)
            self._actors.send(actor, ReplyHeader(self._version, first, self._context.algorithm.progress))

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
            "dist/queue_depth": self._queue_depths / len(lags),
            "dist/refused": self._num_refused,
            "dist/restarts": sum(max(0, actor.num_starts - 1) for actor in self._actors),
        }

    def own_pace_reports(self) -> tuple[OwnPaceReport, ...]:
        found = tuple(actor.report for actor in self._actors)
        for actor in self._actors:
            actor.report = OwnPaceReport()
        return found

    def is_asked_to_stop(self) -> bool:
        return self._is_asked_to_stop

    def rest(self) -> None:
        """Block until no actor acts: steps during an evaluation would be free, because its time does not count."""
        self._actors.wait_until_idle()

    def finish(self) -> None:
        self._actors.finish()

    def close(self) -> None:
        self._actors.close()


def largest_lag(max_lag: int | None, num_actors: int, per_update: int) -> int:
    """Return max_lag; by default the least with which no actor ever waits for the end of an update."""
    return updates_ahead(per_update, num_actors - 1, per_update) if max_lag is None else max_lag


def updates_ahead(num_taken: int, num_acting: int, per_update: int) -> int:
    """Return the number of updates before the one that learns from the rollout of an actor that begins now.

    num_taken rollouts are here for the next update, and num_acting rollouts are expected before this actor's own.
    """
    return (num_taken + num_acting) // per_update


def _with(report: OwnPaceReport, header: RolloutHeader, num_steps: int) -> OwnPaceReport:
    """Return an actor's report with one more rollout."""
    return OwnPaceReport(
        report.num_steps + num_steps,
        report.t_iter + header.t_iter,
        report.t_rollout + header.t_rollout,
        report.t_comm + header.t_comm,
        {"learner": report.waited.get("learner", 0.0) + header.t_wait},
        report.num_messages + header.num_sends,
        report.num_bytes + header.num_bytes,
        header.num_restarts,
    )


# -- Normalised rewards. Dividing by the deviation of running returns needs each environment's running return, which
# continues where that environment's last rollout ended; but rollouts of an update come from any actors.


class RewardsByActor(RewardNormalizer):
    """Normalises the rewards of rollouts that lie side by side.

    With one rollout of each actor it is the normaliser of all their environments. A second rollout of an actor in the
    same update comes after its first one, with the moments that the first one left. Steps of a refused rollout are
    missing in the running returns.
    """

    def __init__(self, gamma: float, device: torch.device) -> None:
        super().__init__(0, gamma, device)
        self._carried: dict[Hashable, torch.Tensor] = {}  # running returns of an actor's environments
        self._device = device
        # Of the next rollouts.
        self._actors: Sequence[Hashable] = ()
        self._num_envs: Sequence[int] = ()

    def expect(self, actors: Sequence[Hashable], num_envs: Sequence[int]) -> None:
        """Name the actors of the next rollouts, in the order in which these lie side by side, and their environments.

        An actor that began new episodes after a restart is given as another one.
        """
        self._actors, self._num_envs = actors, num_envs

    def __call__(
        self, rewards: torch.Tensor, ended: torch.Tensor, valid: torch.Tensor, gather: Gather
    ) -> torch.Tensor:
        scaled, left = torch.empty_like(rewards), list(range(len(self._actors)))
        columns_of = torch.arange(rewards.shape[1], device=self._device).split(list(self._num_envs))
        # Each pass normalises the first rollout that is left of every actor.
        while left:
            places = {self._actors[k]: k for k in reversed(left)}
            ordered = sorted(places.values())
            columns = torch.cat([columns_of[k] for k in ordered])
            actors, sizes = [self._actors[k] for k in ordered], [self._num_envs[k] for k in ordered]
            # The parent class continues `discounted`, and leaves it where the rollouts end.
            before = [self._carried.get(*of) for of in zip(actors, map(self._zeros, sizes), strict=True)]
            self.discounted = torch.cat(before)
            scaled[:, columns] = super().__call__(
                rewards[:, columns], ended[:, columns], valid[:, columns], gather
            )
            self._carried.update(zip(actors, self.discounted.split(sizes), strict=True))
            left = [k for k in left if k not in ordered]
        return scaled

    def _zeros(self, num_envs: int) -> torch.Tensor:
        return self.discounted.new_zeros(num_envs)
