"""How ranks share the work, as data: the roles of ranks, and the messages between roles.

Read from top to bottom: a `Role` is a set of ranks with equal tasks, a `Message` travels between two roles, a `Layout`
holds both for W ranks, and a `TopologySpec` declares a topology by name. From the layout follow the checks before the
start, the share of every rank, the bytes of an iteration, and the drawing of `python -m ddppo.fragments`. A declaration
names its class by an import path, so that reading it imports no torch. Idea: Zhu et al. 2023, "MSRL: Distributed
Reinforcement Learning with Dataflow Fragments", USENIX ATC.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ddppo.errors import ConfigError, in_one_line


@dataclass(frozen=True, slots=True)
class Role:
    """A set of ranks with equal tasks."""

    name: str
    ranks: tuple[int, ...]  # () for processes that a rank starts, such as observers
    steps: bool  # whether its ranks step environments
    acts: bool  # whether its ranks compute actions
    learns: bool  # whether its ranks hold the optimizer
    does: tuple[str, ...]  # the tasks of an iteration in order, in words
    can_restart: bool = False  # whether a lost rank can be started again while the others go on


@dataclass(frozen=True, slots=True)
class Message:
    """One kind of message from the ranks of one role to the ranks of another."""

    what: str  # its content, in words
    source: str  # name of the sending role
    target: str  # name of the receiving role
    how: str  # sum, gather, broadcast, send, or shared memory
    times: int  # per iteration
    num_bytes: int  # from one rank, each time


@dataclass(frozen=True, slots=True)
class Layout:
    """The roles of W ranks and their messages. Every rank has one role."""

    roles: tuple[Role, ...]
    messages: tuple[Message, ...]
    # Environments of each rank that steps environments, in rank order. () for nearly equal shares.
    env_shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ranks = sorted(rank for role in self.roles for rank in role.ranks)
        if ranks != list(range(len(ranks))):
            raise ConfigError(f"a layout gives roles to ranks {ranks}: every rank from 0 on needs one role")
        if not (self.stepping and self.learning):
            missing = "learns" if self.stepping else "steps environments"
            raise ConfigError(f"a layout where no rank {missing}: give this task to a role")
        if len(self.env_shares) not in (0, len(self.stepping)):
            raise ConfigError(
                f"a layout has env_shares={list(self.env_shares)} for ranks {list(self.stepping)}: give one share for "
                "each of these ranks"
            )
        names = [role.name for role in self.roles]
        for message in self.messages:
            if not {message.source, message.target} <= set(names):
                raise ConfigError(
                    f"a layout sends {message.what} from {message.source} to {message.target}: name two of its roles, "
                    f"{', '.join(names)}"
                )

    @property
    def world_size(self) -> int:
        return sum(len(role.ranks) for role in self.roles)

    @property
    def stepping(self) -> tuple[int, ...]:
        """Ranks that step environments. The first one has the environments from index 0 on, and so forth."""
        return tuple(sorted(rank for role in self.roles if role.steps for rank in role.ranks))

    @property
    def learning(self) -> tuple[int, ...]:
        """Ranks that hold the optimizer. Each one learns from a nearly equal share of the batch.

        A share is that of as many stepping ranks, neighbours in rank order, or of one more for the first learners.
        """
        return tuple(sorted(rank for role in self.roles if role.learns for rank in role.ranks))

    def role(self, rank: int) -> Role:
        return next(role for role in self.roles if rank in role.ranks)


class OwnPaceReport(NamedTuple):
    """Activity of one actor at its own pace since its last report. Times in seconds, as in docs/metrics.md."""

    num_steps: int = 0  # environment steps that the learner accepted
    t_iter: float = 0.0
    t_rollout: float = 0.0
    t_comm: float = 0.0
    waited: Mapping[str, float] = {}  # seconds, by the role that it waited for
    num_messages: int = 0
    num_bytes: int = 0
    num_restarts: int = 0  # environment processes replaced since the start of the run


class Sizes(NamedTuple):
    """The numbers from which a layout computes the sizes of its messages."""

    num_envs: int
    rollout_steps: int
    num_gradients: int  # gradients of one iteration: num_epochs * num_minibatches
    obs_bytes: int  # one observation as the model receives it, with its action mask
    raw_obs_bytes: int  # one observation as the task returns it, with its action mask
    action_bytes: int
    parameter_bytes: int  # all parameters, or their gradient
    float_bytes: int  # one number of config.dtype
    num_learners: int | None = None  # dist.num_learners, for topologies that have this setting
    env_shares: tuple[int, ...] = ()  # dist.env_shares, likewise
    acting_bytes: int | None = None  # the parameters that acting needs; None: all of them
    step_numbers: int = (
        4  # of a step in a rollout: log-probability, value, next value and reward, or the reward alone
    )
    turns: int = 0  # tasks of text: the most turns of an episode; 0 for other tasks
    turn_bytes: int = 0  # of the longest turn


# Kinds of work that ask more of a topology than T steps of every environment, and what they ask.
WORK = {
    "episodes": "an iteration is one whole episode of every environment (REINFORCE)",
    "groups": "the same, and the episodes of a group begin from one seed and are compared (GRPO)",
    "text": "whole episodes in turns of text, with environments that answer at their own pace",
    "memory": "the state of a policy with memory goes on from step to step, and is learned from",
    "messages": "environments exchange messages after every iteration (circuits)",
    "orders": "every iteration begins new episodes, of an order that all environments share (searches)",
}
# Ranks at their own pace begin and end no iteration together.
_CANNOT_AT_OWN_PACE = {
    "groups": "a group compares episodes of one policy, and actors at their own pace act with several: use "
    "distributed=sync_actors",
    "text": "its episodes are compared in groups of one policy, and actors at their own pace act with several: use "
    "distributed=sync_actors",
    "messages": "its environments exchange messages after every iteration, and ranks at their own pace end no "
    "iteration together: use distributed=sync_actors, ddp or central_inference",
    "orders": "all environments get the next order together, and ranks at their own pace begin no iteration "
    "together: use distributed=sync_actors",
}


@dataclass(frozen=True, slots=True)
class TopologySpec:
    """The declaration of a topology: a way to share the work of an algorithm among W ranks."""

    name: str
    meaning: str  # one line for lists and error messages
    # layout(W, sizes) returns the layout of W ranks. It raises ConfigError for a W that the topology does not allow.
    layout: Callable[[int, Sizes], Layout]
    # Import path of a ddppo.distributed.topologies.base.Topology, which every rank makes from its RankContext.
    implementation: str
    least_ranks: int = 1
    env_backend: str | None = None  # the env.backend that this topology uses, unless it takes another one
    # Whether every rank acts in its own environments and learns from them, so that env.backend=device is possible.
    takes_device_envs: bool = False
    # Import path of check(config, env_spec, torch_device): raises ConfigError for a run that cannot work here.
    check: str | None = None
    # Dataclass of the topology's own settings, derived from DistSettings, or its import path.
    settings: type | str | None = None
    # True: ranks take part in no collective. The ranks that do not learn serve those that learn (`Topology.serve`).
    own_pace: bool = False
    # True: ranks call `RankContext.subgroup`. Over several machines this is prepared when ranks meet.
    subgroups: bool = False
    # Kinds of work, keys of WORK, that it cannot do, each with the reason and what to use instead.
    cannot: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, kind: str) -> str | None:
        """Return why this topology cannot do a kind of work, and what to use instead; None if it can."""
        assert kind in WORK, kind
        return self.cannot.get(kind) or (_CANNOT_AT_OWN_PACE.get(kind) if self.own_pace else None)

    def check_work(self, kind: str, subject: str) -> None:
        """Raise ConfigError if this topology cannot do a kind of work. subject: the settings that ask for it."""
        if (why_not := self.why_not(kind)) is not None:
            raise ConfigError(f"distributed={self.name} with {subject}: {why_not}")

    def of(self, world_size: int, sizes: Sizes) -> Layout:
        """Return the layout of W ranks. Raises ConfigError if there is none."""
        if world_size < self.least_ranks:
            raise ConfigError(
                f"distributed={self.name} with dist.world_size={world_size}: {self.meaning}, which takes at least "
                f"{self.least_ranks} ranks"
            )
        try:
            layout = self.layout(world_size, sizes)
        except ConfigError:
            raise
        except Exception as e:  # the function may be a user's
            raise ConfigError(
                f"distributed={self.name}: its layout of {world_size} ranks failed with {in_one_line(e)}"
            ) from e
        if layout.world_size != world_size:
            raise ConfigError(
                f"distributed={self.name}: its layout gives {layout.world_size} ranks roles, and dist.world_size="
                f"{world_size}"
            )
        return layout
