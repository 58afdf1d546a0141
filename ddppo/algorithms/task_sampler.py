"""Task samplers: what episodes begin with, their seeds and the options of their resets. (The word is AllenAct's.)

The loop asks the run's sampler and tells it what came of it; topologies know nothing of it:

    sampler = make_sampler(config, spec, num_envs)
    if not sampler.every_iteration:                        # rollouts go on where the last ones ended
        program.reset(sampler.sample(0))
    for iteration in 1, 2, ...:
        if sampler.every_iteration:                        # each iteration is of episodes that begin with it
            program.reset(sampler.sample(iteration))
        ...                                                # collect, learn
        sampler.update(results, messages)
    sampler.conclude()

Every rank has a sampler, which is told the same on all of them and so says the same. Imports no torch.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ddppo.config.algorithm_settings import check_groups
from ddppo.config.settings import Config, section
from ddppo.errors import ConfigError, RunFolderError
from ddppo.plugins import added, imported
from ddppo.scaling import BatchShape
from ddppo.seeding import derived_seed
from ddppo.spaces import EnvSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TaskSample:
    """What the next episodes of a run begin with, by the index of the environment among all N.

    iteration: number of the iteration that they begin with, where every iteration begins some; else how many are done.
    options_of: of Gymnasium's reset; None where there are none.
    """

    iteration: int
    seed_of: Callable[[int], int]
    options_of: Callable[[int], dict[str, Any]] | None = None

    def of(self, env_indices: Iterable[int]) -> tuple[list[int], list[dict[str, Any]] | None]:
        """Return the seeds of these environments, and their options."""
        indices = list(env_indices)
        options = None if self.options_of is None else [self.options_of(i) for i in indices]
        return [self.seed_of(i) for i in indices], options


@dataclass(frozen=True, slots=True)
class EpisodeResults:
    """What came of the N episodes of an iteration, `[N]` float64, the same on all ranks.

    achieved: 1 or 0, NaN where an episode failed or its environment does not tell. was_played: 1 where it did not fail.
    """

    achieved: "torch.Tensor"
    was_played: "torch.Tensor"

    def rates(self, group_size: int) -> list[float | None]:
        """Return for each group the share of its episodes that achieved; None where that is known of none."""
        of_groups = self.achieved.view(-1, group_size).nanmean(dim=1).tolist()
        return [None if math.isnan(rate) else rate for rate in of_groups]


class RunAccess(Protocol):
    """What a sampler may ask of its run, as population-based training does. All ranks ask alike, between iterations."""

    def policy_snapshot(self) -> list[Any]:
        """Return copies of the parameters, and of Adam's steps and moments, as tensors."""
        ...

    def put_policy_(self, snapshot: Sequence[Any]) -> None:
        """Go on with the policy of a snapshot: parameters, and Adam's steps and moments."""
        ...

    def number_of_rank_0(self, number: int) -> int:
        """Return rank 0's number, where ranks may have computed different ones: machines round differently."""
        ...


class SamplerRecords:
    """What rank 0 keeps of a sampler in the run folder. This one keeps nothing."""

    def note(self) -> None:
        """Write what is to be known of the iteration just done. Raises StorageError, which ends the run."""

    def table(self) -> str:
        """Return lines for the terminal, shown every two minutes and at the end, "" for none; keep them as a file."""
        return ""

    def summary(self) -> dict[str, Any]:
        """Return parts of summary.json by name. Of a part, "said" holds sentences by label, which the run's end shows,
        and "go_on" settings with which a complete run goes on."""
        return {}


class TaskSampler:
    """Says what episodes begin with. This one gives every environment a seed of its own, and no options.

    every_iteration: whether environments begin anew in every iteration, so that nothing goes on between two of them.
    name: what an error calls it; "" where it learns nothing, so that ranks need not compare it.
    called_before: where checkpoints of before there were samplers hold what it has learned.
    """

    every_iteration: bool = False
    name: ClassVar[str] = ""
    called_before: ClassVar[str] = "curriculum"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def attach(self, run: RunAccess) -> None:
        """Keep the run. It still has the parameters that it begins with: a checkpoint is loaded after this."""

    def sample(self, iteration: int) -> TaskSample:
        """Return what episodes begin with; see TaskSample.iteration. The same for the same iteration."""
        return TaskSample(iteration, lambda i: derived_seed(self._seed, "env", i, iteration))

    def update(self, results: EpisodeResults | None, messages: Sequence[bytes]) -> None:
        """Learn from an iteration.

        results: of its episodes, where environments tell whether they achieved their tasks. messages: of each of the N
        environments, what it published in the iteration; [] where the task publishes nothing.
        """

    def conclude(self) -> None:
        """Choose what the run ends with, after its last iteration."""

    def eval_options(self) -> dict[str, Any] | None:
        """Return what episodes of an evaluation begin with, as a reset's options."""
        return None

    def state(self) -> dict[str, Any] | None:
        """Return what it has learned, for a checkpoint: tensors and plain values. None: nothing."""
        return None

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from what `state` returned. Raises RunFolderError where that was another sampler's."""
        if state is not None:
            raise RunFolderError(
                "the checkpoint holds what a curriculum or a search had learned, and the run has none now: go on with "
                "the tasks that the environment had, or begin a new run"
            )

    def digest(self, before: str = "") -> str:
        """Return a hash, in hexadecimal digits, of what it has learned and what came `before`; equal on all ranks."""
        return hashlib.sha256((before + json.dumps(self.state(), sort_keys=True)).encode()).hexdigest()

    def metrics(self) -> dict[str, float]:
        """Return numbers of the iteration just done, by names that the metrics of its plugin list."""
        return {}

    def open_records(self, run_dir: Path) -> SamplerRecords:
        """Return what rank 0 keeps of it; lines written after the checkpoint that the run goes on from are dropped."""
        return SamplerRecords()


class GroupSampler(TaskSampler):
    """Whole episodes in K groups of G: environment i plays in group i // G, and those of a group begin alike.

    The environment chooses its task by the group's seed. A rank may hold a part of a group.
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

    A plugin brings others: `sections` of settings, each of which says by `asks(config, spec)` whether it is that one,
    and by the same name `samplers`, functions of what this one is given. Raises ConfigError.
    """
    makers = added("samplers")
    asked = [name for name in makers if section(config, name).asks(config, spec)]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} each say what episodes begin with: use one of them")
    if asked:
        sampler: TaskSampler = imported(makers[asked[0]])(config, spec, num_envs)
        return sampler
    if collects_whole_episodes(config, spec):
        return GroupSampler(config.seed, num_envs, config.ppo.group_size)
    return TaskSampler(config.seed)


def state_in(checkpoint: Mapping[str, Any], sampler: TaskSampler) -> dict[str, Any] | None:
    """Return what a checkpoint holds of a sampler. Checkpoints of before there were samplers have it elsewhere."""
    state: dict[str, Any] | None = checkpoint.get(
        "sampler" if "sampler" in checkpoint else sampler.called_before
    )
    return state


def collects_whole_episodes(config: Config, spec: EnvSpec) -> bool:
    """Return whether an iteration is one whole episode of every environment, in groups that begin alike."""
    return config.ppo.algorithm == "grpo" or spec.is_text


def check_whole_episodes(config: Config, shape: BatchShape, spec: EnvSpec) -> None:
    """Raise ConfigError where the task, or what it asks for, does not go with how iterations are made."""
    name, group_size = config.env.id, config.ppo.group_size
    if not collects_whole_episodes(config, spec):
        if group_size != type(config.ppo)().group_size:
            raise ConfigError(
                f"ppo.group_size={group_size} has no effect with ppo.algorithm=ppo and {name}, which is no task of "
                "text: use ppo=grpo, or leave it out"
            )
        return
    check_groups(
        config, shape, "ppo.algorithm=grpo" if config.ppo.algorithm == "grpo" else f"{name}, of text"
    )
    if spec.journal is not None:
        raise ConfigError(
            f"ppo.algorithm=grpo with {name}: its environments tell one another what they found and go on from there, "
            "so that no group can begin alike: use ppo.algorithm=ppo"
        )
