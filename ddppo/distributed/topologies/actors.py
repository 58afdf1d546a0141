"""sync_actors and multi_learner: a learner learns from the rollouts of its actors, which act in step with it.

Each learner and its actors form a group, with the learner as root; the learners form another one, which sums gradients.
In an iteration the actors collect, the learner gathers their rollouts, learns, and broadcasts the parameters.
sync_actors has one learner, rank 0; multi_learner has several.

Results are those of distributed=ddp with as many workers as there are learners: every environment keeps its seeds and
its noise, and a learner sees the environments of its actors side by side, in order.

Rollouts and parameters travel as one flat message each (messages.py).
"""

from itertools import pairwise

from ddppo.algorithms.task_sampler import TaskSample
from ddppo.collectives.group import Group
from ddppo.collectives.peers import in_words
from ddppo.distributed.topologies.base import NO_UPDATE, Collected, RankContext, Topology
from ddppo.distributed.topologies.messages import ParameterMessage, RolloutGather
from ddppo.errors import NonFiniteError
from ddppo.ppo.learner import Update


class SyncActors(Topology):
    """A learner, or one of its actors."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._is_learner = context.role.learns
        # A learner steps no environments, and an actor's learner object only holds the parameters that it acts with.
        self.collector = context.own_collector() if context.role.acts else None
        self.env = None if self.collector is None else self.collector.env
        self.learners, self._team = self._make_groups()
        self.groups = tuple(
            g for g in (self.learners, self._team) if 1 < g.world_size < context.group.world_size
        )
        self.sync = context.sync(self.learners)
        self.learner = context.learner(self.learners, self.sync)
        self._rollouts = RolloutGather(
            self._team, context.rollout_message(), sizes_vary=context.rollouts_vary
        )
        self._parameters = ParameterMessage(context.parameters, context.obs_normalizer, context.synchronised)

    def _make_groups(self) -> tuple[Group, Group]:
        """Return the group of the learners, and this rank's team: a learner with its actors.

        On an actor the group of the learners is a group of this rank alone. All ranks call it, because all ranks make
        subgroups together.
        """
        context = self._context
        learning, team = context.layout.learning, Group()
        learners = context.subgroup(learning) or Group()
        # Ranks are ordered learner, its actors, next learner, its actors, ...
        for first, end in pairwise((*learning, context.group.world_size)):
            team = context.subgroup(range(first, end)) or team
        return learners, team

    def reset(self, sample: TaskSample) -> None:
        if self.collector is not None:
            self.collector.reset(*sample.of(self._context.env_indices))

    def collect(self, iteration: int) -> Collected:
        if self.collector is None:
            return Collected(0, [], None)
        return self._context.act(self.collector, self._context.env_indices, iteration)

    def learn(self, collected: Collected, iteration: int, progress: float) -> Update:
        update = NO_UPDATE
        rollout = self._rollouts.gather(collected.rollout, self._context.device)
        if self._is_learner:
            try:
                update = self.learner.update(rollout, iteration, progress)
            except NonFiniteError as e:
                if self.learners.world_size == 1:
                    raise
                learner_ranks = in_words(self._context.layout.learning)
                raise NonFiniteError(f"{e}. Its ranks are places among the learners, {learner_ranks}") from e
        self._parameters.broadcast(self._team)
        return update

    def measured(self) -> dict[str, float]:
        if self.collector is None:
            return {}
        return {**self._context.restarts(self.env), **self.collector.measured()}

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
