"""The contract of algorithms: how actions are chosen, and how a rollout is learned from.

`Algorithm` is what a user writes (docs/guide/algorithm.md has a whole one). It sees no rank, no group and no process:
any topology spreads it. A rank makes one object of it, which acts, learns, or does both:

    act      on every rank that acts, once a step for some environments of the run
    learn    on every rank that learns, once an iteration, with the rollout of that rank's environments

Two rules make results independent of the number of ranks. `act` draws its randomness from `noise`, which belongs to an
environment and not to a rank. `learn` calls `step` with a local sum of losses and a count over all learners.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from ddppo.config.algorithm_settings import AlgorithmSettings
from ddppo.config.model_settings import ModelSettings
from ddppo.models.actor_critic import ActorCritic, Obs
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.ppo.rollout import Transitions
from ddppo.spaces import EnvSpec

__all__ = ["Acted", "Algorithm", "AlgorithmSettings", "KeptReplay", "Part", "Step", "Transitions"]


@dataclass(frozen=True, slots=True)
class Acted:
    """The result of `Algorithm.act` for n environments."""

    actions: torch.Tensor  # [n, *action.shape], on the CPU
    # [n, ...] by name: values that learning needs of each step, such as a log-probability. They travel with the step.
    # Names, shapes and types are the same in every call.
    extras: Mapping[str, torch.Tensor] = field(default_factory=dict)
    memory: torch.Tensor | None = None  # [n, S] the next state of a model with memory


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the parameters with an Adam of its own."""

    learning_rate: float
    parameters: tuple[str, ...] = ("",)  # prefixes of names of parameters; "" is all of them
    max_grad_norm: float = math.inf  # gradients are scaled down to at most this norm, over the part
    adam_eps: float = 1e-8


class MinibatchRows(NamedTuple):
    """The rows of this learner in one minibatch of all learners."""

    rows: torch.Tensor  # [n] numbers t * E + i of steps (t, i) of the rollout, for `x.flatten(0, 1)[rows]`
    num_valid: float  # valid steps over all learners: what divides the loss


class Share(NamedTuple):
    """The environments of a learner. Under async_actors a rollout is of a part of them, and may come late."""

    envs: torch.Tensor  # int64, global indices of all environments that this learner may get rollouts of
    run_envs: int  # environments of the run
    follows: torch.Tensor  # [E] bool: no steps are missing before the rollout's column


class Step(Protocol):
    """What `learn` may ask of all learners. Every learner makes the same calls in the same order.

    So a loop around these calls depends only on values that they return, or on settings.
    """

    envs: torch.Tensor  # [E] int64, global index of the environment of each column of this learner's rollout
    share: Share  # for replay buffers
    iteration: int  # counted from 1

    @property
    def num_envs(self) -> int:
        """N, columns of the rollouts of all learners: the environments of the run, but for async_actors."""
        ...

    def __call__(self, loss: torch.Tensor | None, count: float, part: str = "all") -> None:
        """Move a part's parameters by the gradient of sum(loss over learners) / count.

        loss: this learner's sum over its own samples; None if it has none. count: over all learners, as returned by
        `sum`; nothing moves if it is 0.
        """
        ...

    def sum(self, x: torch.Tensor | float) -> torch.Tensor:
        """Return the sum over all learners, float64, of the shape of x."""
        ...

    def normalized(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Return (x - mean) / (std + 1e-8) by moments of the valid samples of all learners; x, valid `[T, E]`."""
        ...

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values `[E, ...]` of the environments of all learners, in global order: `[N, ...]`.

        Under async_actors these are the rollouts of the update, by actor: some environments may miss, others repeat.
        """
        ...

    def minibatches(
        self, rollout: Transitions, num_epochs: int, num_minibatches: int
    ) -> Iterator[MinibatchRows]:
        """Yield the minibatches of all epochs: the same rows for any number of learners."""
        ...

    def stream(self, *numbers: int) -> np.random.Generator:
        """Return a random generator, the same on all learners, that depends on the seed, iteration and `numbers`."""
        ...


def in_words(x: Any) -> str:
    """Return what a user's method returned, for messages: a tensor [3, 4], or a list."""
    return f"a tensor {list(x.shape)}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"


class KeptReplay(Protocol):
    """Transitions of earlier iterations that a learner keeps of its environments (ddppo/algorithms/replay.py)."""

    def state(self) -> dict[str, torch.Tensor]:
        """Return what this learner keeps, as tensors."""
        ...

    def merged(self, states: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return the states of all learners as one."""
        ...

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this learner's share of a state of all learners, perhaps of another number of learners."""
        ...


class Algorithm:
    """One algorithm. A subclass defines `learn`, and what of the rest differs from the defaults.

    The object is made on every rank as `Class(spec, settings, model)`.
    """

    # The dataclass of its settings: `algorithm.<setting>=` on the command line.
    settings_class: ClassVar[type] = AlgorithmSettings
    # What an iteration hands over: "steps" (rollout_steps of every environment), "episodes" (one whole episode of every
    # environment, cut after rollout_steps), or "groups" (episodes in groups of settings.group_size that share a seed).
    hands_over: ClassVar[str] = "steps"
    # What `act` records, unless a subclass replaces it: "logprobs", log pi(a | s) of the action.
    records: ClassVar[tuple[str, ...]] = ()
    # Whether learning needs the successor of every step: rollout.last_obs and final_obs then travel too.
    needs_successors: ClassVar[bool] = False
    # Prefixes of the parameters that acting and evaluation need. The others stay with the learners.
    synchronised: ClassVar[tuple[str, ...]] = ("",)
    # Updates that may lie between acting and learning. 0: rollouts of the present parameters only; None: any number.
    max_lag: ClassVar[int | None] = 0
    takes_memory: ClassVar[bool] = False  # whether it acts and learns with a model that has memory
    # A learner of its own, for PPO and GRPO, which also run in C++; None: ddppo.algorithms.learner.AlgorithmLearner.
    learner_class: ClassVar[type | None] = None

    progress: float = (
        0.0  # in [0, 1): share of total_steps done before this iteration; set before act and learn
    )
    replay: KeptReplay | None = (
        None  # made in __init__ by an algorithm that replays; checkpointed by environment
    )

    def __init__(self, spec: EnvSpec, settings: Any, model: ActorCritic) -> None:
        self.spec = spec
        self.settings = settings
        self.model = model
        # Tensors that learning carries from one iteration to the next, equal on all learners, such as a target network
        # or a counter. `learn` changes them in place. They are checkpointed, and compared with those of other ranks.
        self.kept: dict[str, torch.Tensor] = {}

    @classmethod
    def networks(
        cls, spec: EnvSpec, settings: Any, model: ModelSettings, build: Callable[[], ActorCritic]
    ) -> ActorCritic:
        """Return the networks; by default `build()`, the actor-critic that model= names.

        Evaluation acts with the mode of `networks.distribution(networks.action_params(obs), mask)`.
        """
        return build()

    @classmethod
    def check(cls, spec: EnvSpec, settings: Any) -> None:
        """Raise ConfigError if the algorithm cannot train on this task, before any process starts."""

    def parts(self) -> Mapping[str, Part]:
        """Return the parts of the parameters that `step` moves, by name."""
        return {"all": Part(self.settings.learning_rate)}

    def act(
        self,
        obs: Obs,  # [n, *shape], of any n environments
        mask: torch.Tensor | None,  # [n, mask_size] bool, True = allowed choice
        noise: torch.Tensor,  # [n, model.num_noise]: standard normal for a Box, else uniform on [0, 1)
        memory: torch.Tensor | None,  # [n, S], 0 where an episode starts; None unless `takes_memory`
    ) -> Acted:
        """Choose actions. By default they are sampled from the model's distribution, in C++ if it has the network."""
        if memory is None:
            params = self.model.action_params(obs)
        else:
            params, _, memory = self.model.step(obs, memory)
        policy = self.model.distribution(params, mask)
        actions = policy.sample(noise)
        return Acted(actions, {"logprobs": policy.log_prob(actions)} if self.records else {}, memory)

    def corrected(self, rollout: Any, is_old: torch.Tensor, normalizer: ObsNormalizer | None) -> Any:
        """Return the rollout as `learn` takes it, if older parameters acted in the environments `is_old` `[E]` bool."""
        return rollout

    def learn(self, rollout: Transitions, step: Step) -> Mapping[str, float]:
        """Learn from a rollout by calls of `step`; return metrics, equal on all learners, by names of your own."""
        raise NotImplementedError
