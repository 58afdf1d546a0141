"""async_actors: actors at their own pace; the learner takes rollouts from any and answers each by itself.

Espeholt et al. 2018, "IMPALA", arXiv:1802.01561; Mnih et al. 2016, "A3C", arXiv:1602.01783.
"""

from ddppo.distributed.topologies.async_actors.actor import AsyncActor
from ddppo.distributed.topologies.async_actors.learner import AsyncLearner
from ddppo.distributed.topologies.base import RankContext, Topology


def make(context: RankContext) -> Topology:
    """Return what this rank runs."""
    return AsyncLearner(context) if context.role.learns else AsyncActor(context)
