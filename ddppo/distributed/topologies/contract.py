"""What a topology is, as data: who steps environments, who acts, who learns, and what travels between them.

From a `Layout` follow the checks before start, the sizes of every rank's share, the bytes of an iteration, and the
drawing of `python -m ddppo.fragments`. The class that a rank runs is named by its import path, so that reading a
declaration imports no torch. Idea: Zhu et al. 2023, "MSRL: Distributed Reinforcement Learning with Dataflow Fragments",
USENIX ATC.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ddppo.errors import ConfigError
from ddppo.tracebacks import in_one_line


@dataclass(frozen=True, slots=True)
class Role:
    """Ranks that do the same. does: what they do in an iteration, in order, in words.

    can_restart: one of them that is lost can be started again while the others go on.
    """

    name: str
    ranks: tuple[int, ...]
    steps: bool
    acts: bool
    learns: bool
    does: tuple[str, ...]
    can_restart: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """What travels from the ranks of one role to those of another.

    times: an iteration. num_bytes: from one rank each time. how: sum, gather, broadcast, send, shared memory.
    """

    what: str
    source: str
    target: str
    how: str
    times: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The roles of W ranks and their messages; every rank has one role.

    env_shares: how many environments each rank steps that steps some, in their order; () where all have as many.
    """

    roles: tuple[Role, ...]
    messages: tuple[Message, ...]
    env_shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ranks = sorted(rank for role in self.roles for rank in role.ranks)
        if ranks != list(range(len(ranks))):
            raise ConfigError(f"a layout gives ranks {ranks} roles: every rank from 0 on needs one")
        if not (self.stepping and self.learning):
            what = "learns" if self.stepping else "steps environments"
            raise ConfigError(f"a layout where no rank {what}: give it to a role")
        if len(self.env_shares) not in (0, len(self.stepping)):
            raise ConfigError(
                f"a layout deals shares {list(self.env_shares)} to ranks {list(self.stepping)}: give each of them one"
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
        """Ranks that step environments; the environments are dealt to them in this order."""
        return tuple(sorted(rank for role in self.roles if role.steps for rank in role.ranks))

    @property
    def learning(self) -> tuple[int, ...]:
        """Ranks that hold the optimizer; the batch is theirs in equal shares."""
        return tuple(sorted(rank for role in self.roles if role.learns for rank in role.ranks))

    def role(self, rank: int) -> Role:
        return next(role for role in self.roles if rank in role.ranks)


class Sizes(NamedTuple):
    """What the messages of an iteration are made of. Bytes: of one observation as the model is given it and as its task
    gives it, each with its mask, of one action, all parameters, one number.

    num_gradients: optimizer steps K * M. num_learners and env_shares: dist.num_learners and dist.env_shares, for the
    topologies that know them.
    """

    num_envs: int
    rollout_steps: int
    num_gradients: int
    obs_bytes: int
    raw_obs_bytes: int
    action_bytes: int
    parameter_bytes: int
    float_bytes: int
    num_learners: int | None = None
    env_shares: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologySpec:
    """A way to spread PPO over ranks. layout: of W ranks and these sizes; raises ConfigError for a W that cannot be.

    implementation: the import path of the class that a rank runs, a ddppo.distributed.topologies.base.Topology.
    env_backend: by whom its environments are stepped, if that is part of it. check: the import path of what refuses a
    run that it cannot do here, a function of Config, EnvSpec and torch.device that raises ConfigError before the start.
    settings: the dataclass of its settings, derived from DistSettings, or its import path; None for no key
    of its own. own_pace: its ranks meet in no
    collective; those that do not learn do what those that do ask for. subgroups: whether a rank asks its context for
    groups of some ranks, which over several machines is prepared for when ranks meet.
    """

    name: str
    meaning: str
    layout: Callable[[int, Sizes], Layout]
    implementation: str
    least_ranks: int = 1
    env_backend: str | None = None
    check: str | None = None
    settings: type | str | None = None
    own_pace: bool = False
    subgroups: bool = False

    def of(self, world_size: int, sizes: Sizes) -> Layout:
        """Return the layout of W ranks. Raises ConfigError where there is none."""
        if world_size < self.least_ranks:
            raise ConfigError(
                f"distributed={self.name} with dist.world_size={world_size}: {self.meaning}, which takes at least "
                f"{self.least_ranks} ranks"
            )
        try:
            layout = self.layout(world_size, sizes)
        except ConfigError:
            raise
        except Exception as e:
            raise ConfigError(
                f"distributed={self.name}: its layout of {world_size} ranks failed with {in_one_line(e)}"
            ) from e
        if layout.world_size != world_size:
            raise ConfigError(
                f"distributed={self.name}: its layout gives {layout.world_size} ranks roles, and dist.world_size="
                f"{world_size}"
            )
        return layout
