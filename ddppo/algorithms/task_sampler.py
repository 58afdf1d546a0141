"""Task samplers choose the seeds and reset options of episodes. (The word is AllenAct's.)

The loop calls the sampler of the run like this; topologies only receive samples:

    sampler = make_sampler(config, spec, num_envs)
    if not sampler.every_iteration:                        # PPO: a rollout continues where the last one ended
        topology.reset(sampler.sample(0))
    for iteration in 1, 2, ...:
        if sampler.every_iteration:                        # GRPO, text, searches: each iteration begins new episodes
            topology.reset(sampler.sample(iteration))
        ...                                                # collect, learn
        sampler.update(results, messages)
    sampler.conclude()

Every rank has a sampler. All of them get the same results and messages, so all return the same samples. A sampler
derives its seeds from the global index of an environment, never from the rank, so samples do not depend on W. This
module imports no torch.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ddppo.algorithms.known import PPO, algorithm_name, algorithm_setting
from ddppo.config.algorithm_settings import check_groups
from ddppo.config.settings import Config, section
from ddppo.distributed.topologies.known import find
from ddppo.errors import ConfigError, RunFolderError
from ddppo.plugins import added, imported
from ddppo.scaling import BatchShape
from ddppo.seeding import derived_seed
from ddppo.spaces import EnvSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TaskSample:
    """Seeds and reset options of the next episodes, by the global index of the environment, 0 to N - 1."""

    iteration: int  # the iteration that begins with these episodes; without `every_iteration`, the number done so far
    seed_of: Callable[[int], int]
    options_of: Callable[[int], dict[str, Any]] | None = None  # of Gymnasium's reset; None for no options

    def of(self, env_indices: Iterable[int]) -> tuple[list[int], list[dict[str, Any]] | None]:
        """Return the seeds of these environments, and their options or None."""
        indices = list(env_indices)
        options = None if self.options_of is None else [self.options_of(i) for i in indices]
        return [self.seed_of(i) for i in indices], options


@dataclass(frozen=True, slots=True)
class EpisodeResults:
    """Results of the N episodes of an iteration, `[N]` float64, equal on all ranks."""

    achieved: "torch.Tensor"  # 1 if the task was achieved, 0 if not; NaN if the episode failed or does not report it
    was_played: "torch.Tensor"  # 0 if the episode failed, for example with its process, else 1

    def rates(self, group_size: int) -> list[float | None]:
        """Return for each group the share of its episodes that achieved the task; None if no episode reports it."""
        rates = self.achieved.view(-1, group_size).nanmean(dim=1).tolist()
        return [None if math.isnan(rate) else rate for rate in rates]


class RunAccess(Protocol):
    """Methods of the run that a sampler may call, for example to exchange policies as population-based training does.

    All ranks make the same calls, between iterations.
    """

    def policy_snapshot(self) -> list[Any]:
        """Return copies of the parameters and of Adam's step counts and moments, as tensors."""
        ...

    def put_policy_(self, snapshot: Sequence[Any]) -> None:
        """Replace the parameters and Adam's step counts and moments by those of a snapshot."""
        ...

    def number_of_rank_0(self, number: int) -> int:
        """Return rank 0's number. Ranks on different machines may round differently, and must agree."""
        ...


class SamplerRecords:
    """Files that rank 0 keeps in the run folder for a sampler. This class keeps none."""

    def note(self) -> None:
        """Write the records of the iteration just done. A StorageError ends the run."""

    def status(self) -> list[str]:
        """Return words for the progress line: what the sampler does now."""
        return []

    def news(self) -> list[str]:
        """Return lines about what has happened since the last call; each is printed once."""
        return []

    def table(self) -> str:
        """Return lines for the terminal, or ""; also write them to a file. Called every two minutes and at the end."""
        return ""

    def summary(self) -> dict[str, Any]:
        """Return sections of summary.json by name.

        In a section, "said" holds sentences by label, which the end of the run shows, and "go_on" holds settings with
        which a complete run can be continued.
        """
        return {}


class TaskSampler:
    """The default sampler, and the contract of the others: every environment has its own seed, and no options."""

    every_iteration: bool = False  # whether every iteration begins new episodes in all environments
    name: ClassVar[str] = (
        ""  # in error messages; "" if the sampler learns nothing, so ranks need not compare it
    )
    called_before: ClassVar[str] = (
        "curriculum"  # key of its state in checkpoints from before there were samplers
    )

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def attach(self, run: RunAccess) -> None:
        """Keep `run`. Called before a checkpoint is loaded, so the run still has its initial parameters."""

    def sample(self, iteration: int) -> TaskSample:
        """Return seeds and options for `TaskSample.iteration`; equal for equal iterations."""
        return TaskSample(iteration, lambda i: derived_seed(self._seed, "env", i, iteration))

    def update(self, results: EpisodeResults | None, messages: Sequence[bytes]) -> None:
        """Learn from an iteration.

        results: of its episodes; None if environments do not report whether they achieved their tasks. messages: the
        message that each of the N environments published in the iteration; [] if the task publishes nothing.
        """

    def conclude(self) -> None:
        """Choose the final policy, after the last iteration."""

    def eval_options(self) -> dict[str, Any] | None:
        """Return the reset options of evaluation episodes."""
        return None

    def state(self) -> dict[str, Any] | None:
        """Return what the sampler has learned, as tensors and plain values for a checkpoint; None for nothing."""
        return None

    def load(self, state: dict[str, Any] | None) -> None:
        """Continue from the value of `state`. Raises RunFolderError if another sampler wrote it."""
        if state is not None:
            raise RunFolderError(
                "the checkpoint holds the state of a curriculum or a search, and this run has none: continue with the "
                "tasks that the environment had, or begin a new run"
            )

    def digest(self, before: str = "") -> str:
        """Return a hash of `before` and of the state, in hexadecimal digits. Ranks compare it: it must be equal."""
        return hashlib.sha256((before + json.dumps(self.state(), sort_keys=True)).encode()).hexdigest()

    def metrics(self) -> dict[str, float]:
        """Return metrics of the iteration just done; the sampler's plugin lists their names."""
        return {}

    def open_records(self, run_dir: Path) -> SamplerRecords:
        """Open the sampler's files on rank 0. A resumed run drops lines that are newer than its checkpoint."""
        return SamplerRecords()


class EpisodeSampler(TaskSampler):
    """Whole episodes, each from a seed of its own."""

    every_iteration = True


class GroupSampler(TaskSampler):
    """Whole episodes in K groups of G, for GRPO: environment i is in group i // G, and a group has one seed.

    The environment chooses its task by the seed, so all episodes of a group have the same task. A group may lie on
    several ranks.
    """

    every_iteration = True

    def __init__(self, seed: int, num_envs: int, group_size: int) -> None:
        super().__init__(seed)
        self.num_groups = num_envs // group_size
        self.group_size = group_size

    def sample(self, iteration: int) -> TaskSample:
        def seed_of(i: int) -> int:
            return derived_seed(self._seed, "group", i // self.group_size, iteration)

        return TaskSample(iteration, seed_of)


def make_sampler(config: Config, spec: EnvSpec, num_envs: int) -> TaskSampler:
    """Return the sampler of a run of `num_envs` environments over all ranks.

    A plugin may add samplers: a section of settings with a method `asks(config, spec)`, true if this run uses it, and
    under the same name a function with the arguments of this one. Raises ConfigError if two samplers are asked for.
    """
    # 1. A plugin's sampler, if its settings ask for it.
    makers = added("samplers")
    asked = [name for name in makers if section(config, name).asks(config, spec)]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} each choose the tasks of episodes: use one of them")
    if asked:
        sampler: TaskSampler = imported(makers[asked[0]])(config, spec, num_envs)
        return sampler
    # 2. Whole episodes: in groups of one seed, or each from a seed of its own. 3. Else episodes go on and on.
    if (kind := hands_over(config, spec)) == "groups":
        return GroupSampler(config.seed, num_envs, config.training.group_size)
    return TaskSampler(config.seed) if kind == "steps" else EpisodeSampler(config.seed)


def state_in(checkpoint: Mapping[str, Any], sampler: TaskSampler) -> dict[str, Any] | None:
    """Return the state of a sampler in a checkpoint; an old checkpoint has it under another key."""
    state: dict[str, Any] | None = checkpoint.get(
        "sampler" if "sampler" in checkpoint else sampler.called_before
    )
    return state


def hands_over(config: Config, spec: EnvSpec) -> str:
    """Return what an iteration hands over (`Algorithm.hands_over`); of a task of text always groups of episodes."""
    if spec.is_text:
        return "groups"
    kind: str = imported("ddppo.algorithms.build:algorithm_class")(config).hands_over  # imports torch
    return kind


def check_whole_episodes(config: Config, shape: BatchShape, spec: EnvSpec) -> None:
    """Raise ConfigError if ppo.group_size, the task or its settings do not fit the algorithm."""
    name, group_size = config.env.id, config.training.group_size
    kind = hands_over(config, spec)
    if kind == "steps":
        if config.training is config.ppo and group_size != type(config.ppo)().group_size:
            raise ConfigError(
                f"ppo.group_size={group_size} has no effect with ppo.algorithm=ppo and {name}, which is not a text "
                "task: use ppo=grpo, or leave it out"
            )
        return
    if spec.is_text:
        find(config.dist.topology).check_work("text", f"{name}, of text")
    chosen_by = algorithm_setting(config)
    why = f"{name}, of text" if algorithm_name(config) == PPO else chosen_by
    check_groups(config, shape, why, kind)
    if spec.journal is not None:
        raise ConfigError(
            f"{chosen_by} with {name}: its environments publish messages and continue from the messages of others, so "
            "the episodes of a group cannot begin equally: use ppo.algorithm=ppo"
        )
