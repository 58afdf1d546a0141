"""async_actors: one learner, actors at their own pace."""

from ddppo.topologies.actors import rollout_bytes
from ddppo.topologies.declaration import Layout, Message, Role, Sizes, Topology


def _layout(world_size: int, sizes: Sizes) -> Layout:
    learner = Role(
        "learner", (0,), steps=False, acts=False, learns=True,
        does=(
            "take rollouts from whichever actors have one, refuse those older than dist.max_lag",
            "answer an actor with the parameters as soon as its next rollout can be used",
            "learn from as many as make a batch",
        ),
    )  # fmt: skip
    actors = tuple(range(1, world_size))
    actor = Role(
        "actor", actors, steps=True, acts=True, learns=False,
        does=("step environments and act", "send the rollout", "wait for the parameters"),
        can_restart=True,
    )  # fmt: skip
    return Layout(
        (learner, actor),
        (
            Message("rollout", "actor", "learner", "send", 1, rollout_bytes(len(actors), sizes)),
            Message("parameters", "learner", "actor", "send", len(actors), sizes.parameter_bytes),
        ),
    )


ASYNC_ACTORS = Topology(
    "async_actors",
    "rank 0 learns, the others act at their own pace",
    _layout,
    "ddppo.distributed.programs.async_actors:program",
    least_ranks=2,
    settings="ddppo.topologies.settings:AsyncActorsSettings",
    own_pace=True,
)
