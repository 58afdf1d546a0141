"""The task sampler of tasks of text that have a curriculum: it chooses the task of each group."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddppo.algorithms.task_sampler import EpisodeResults, GroupSampler, SamplerRecords, TaskSample
from ddppo.config.settings import Config, section
from ddppo.domains.text.curriculum.contract import Curriculum, UniformCurriculum
from ddppo.domains.text.curriculum.settings import TierSettings
from ddppo.domains.text.curriculum.tiers import TieredCurriculum
from ddppo.errors import ConfigError, RunFolderError, TrainingError, in_one_line, near
from ddppo.files import is_plain, write_text
from ddppo.options import filled
from ddppo.plugins import imported
from ddppo.seeding import stream
from ddppo.spaces import EnvSpec

_METHODS = ("choose", "record", "state", "restore", "metrics", "table")


def make_sampler(config: Config, spec: EnvSpec, num_envs: int) -> "CurriculumSampler":
    """Return the sampler that `curriculum.*` asks for. Raises ConfigError where the task can have none."""
    settings = section(config, "curriculum")
    name = settings.chosen(spec)
    _maker(name)
    if not spec.is_text:
        raise ConfigError(
            f"curriculum.name={name}: env.id={config.env.id} is no task of text, and only episodes of text are begun "
            "with options that name a task: leave it out"
        )
    if not spec.tasks:
        raise ConfigError(
            f"curriculum.name={name}: env.id={config.env.id} names no tasks: give the environment task_tiers, the tier "
            "of each task by its name, or leave it out"
        )
    curriculum = make_curriculum(name, spec.tasks, **settings.settings)
    said = f"curriculum.name={settings.name}: {config.env.id}"
    return CurriculumSampler(curriculum, config.seed, num_envs, config.ppo.group_size, said=said)


class CurriculumSampler(GroupSampler):
    """Groups of whole episodes, each of the task that a curriculum chooses for it.

    Groups of one task in an iteration are one try of it, at their mean rate. said: what an error begins with.
    """

    name = "the curriculum"

    def __init__(
        self, curriculum: Curriculum, seed: int, num_envs: int, group_size: int, *, said: str = "curriculum"
    ) -> None:
        super().__init__(seed, num_envs, group_size)
        self.curriculum = curriculum
        self._said = said
        self._iteration = 0
        self._tasks: list[str] = []  # of the groups of the iteration under way
        self._was_told = False  # of any episode, whether it achieved its task

    def sample(self, iteration: int) -> TaskSample:
        self._iteration, self._tasks = iteration, []
        rng = stream(self._seed, "curriculum", iteration)
        for _ in range(self.num_groups):
            self._tasks.append(self.curriculum.choose(rng, besides=tuple(self._tasks)))
        tasks, groups = self._tasks, super().sample(iteration)
        return TaskSample(iteration, groups.seed_of, lambda i: {"task": tasks[i // self.group_size]})

    def update(self, results: EpisodeResults | None, messages: Sequence[bytes]) -> None:
        assert results is not None, (
            "tasks of text say of every episode whether it achieved, or that nobody knows"
        )
        self._was_told |= not bool(results.achieved.isnan().all())
        if not self._was_told and bool(results.was_played.any()):
            raise TrainingError(
                f"{self._said} told of no episode of iteration {self._iteration} whether it achieved its task: set "
                'info["is_success"] in reset and step, or curriculum.name=null'
            )
        self.record(results.rates(self.group_size))

    def record(self, rates: Sequence[float | None]) -> None:
        """Note how the iteration went. rates: by group, the share of its episodes that achieved; None if all failed."""
        if len(rates) != len(self._tasks):
            raise TrainingError(f"{len(rates)} rates of {len(self._tasks)} groups")
        of_tasks: dict[str, list[float]] = {}
        for task, rate in zip(self._tasks, rates, strict=True):
            if rate is not None:
                of_tasks.setdefault(task, []).append(rate)
        if of_tasks:
            self.curriculum.record({task: sum(found) / len(found) for task, found in of_tasks.items()})
            self.state()  # what cannot be saved is told of now, and not when there is something to lose

    def state(self) -> dict[str, Any]:
        """Return what the curriculum has learned. Raises TrainingError where a checkpoint cannot hold it."""
        state = self.curriculum.state()
        if type(state) is not dict or not is_plain(state):
            raise TrainingError(
                f"{type(self.curriculum).__name__}.state() returned {str(state)[:80]}, which checkpoints do not hold: "
                "return a dict with names for keys, of None, bool, int, float, str, lists and such dicts; of NumPy's "
                "numbers float(x) and int(x)"
            )
        return state

    def load(self, state: dict[str, Any] | None) -> None:
        if state is None:
            raise RunFolderError(
                "the run has a curriculum now, and had none at its checkpoint: go on with the tasks that the "
                "environment had, or begin a new run"
            )
        try:
            self.curriculum.restore(state)
        except RunFolderError:
            raise
        except Exception as e:  # what a class of a user's own may raise
            raise RunFolderError(
                f"{type(self.curriculum).__name__} cannot go on from the checkpoint's state: {in_one_line(e)}"
            ) from e

    def metrics(self) -> dict[str, float]:
        return {f"curriculum/{name}": x for name, x in self.curriculum.metrics().items()}

    def open_records(self, run_dir: Path) -> SamplerRecords:
        return CurriculumRecords(self.curriculum, run_dir / "curriculum.txt")


class CurriculumRecords(SamplerRecords):
    """Keeps the table of tasks."""

    def __init__(self, curriculum: Curriculum, path: Path) -> None:
        self._curriculum = curriculum
        self._path = path

    def table(self) -> str:
        table = self._curriculum.table()
        write_text(self._path, table + "\n")
        return table


def _with_tiers(tasks: Mapping[str, str], **settings: Any) -> TieredCurriculum:
    try:
        rules = filled(TierSettings, settings)
    except ConfigError as e:
        raise e if str(e).startswith("curriculum.") else ConfigError(f"curriculum.settings: {e}") from e
    return TieredCurriculum(tasks, rules)


CURRICULA: dict[str, Callable[..., Curriculum]] = {"tiers": _with_tiers, "uniform": UniformCurriculum}


def make_curriculum(name: str, tasks: Mapping[str, str], **settings: Any) -> Curriculum:
    """Return the curriculum `name`, a key of CURRICULA or `my_pkg.curricula:Mine`, of tasks and the tier of each.

    Raises ConfigError.
    """
    make = _maker(name)
    try:
        curriculum = make(tasks, **settings)
    except ConfigError:
        raise
    except Exception as e:  # what a class of a user's own may raise
        raise ConfigError(f"curriculum.name={name} cannot be made: {in_one_line(e)}") from e
    lacking = [method for method in _METHODS if not callable(getattr(curriculum, method, None))]
    if lacking:
        raise ConfigError(
            f"curriculum.name={name} has no {lacking[0]}(): see ddppo.domains.text.curriculum.contract.Curriculum"
        )
    return curriculum


def _maker(name: str) -> Callable[..., Curriculum]:
    """Return what makes the curriculum of this name. Raises ConfigError."""
    if name in CURRICULA:
        return CURRICULA[name]
    if ":" not in name:
        known = ["auto", *CURRICULA]
        raise ConfigError(
            f"curriculum.name={name}: must be one of {', '.join(known)}{near(name, known)}, or null; "
            "one of your own goes by its import path, my_pkg.curricula:Mine"
        )
    try:
        make: Callable[..., Curriculum] = imported(name)
    except Exception as e:  # what a module of a user's own may raise
        raise ConfigError(f"curriculum.name={name} cannot be made: {in_one_line(e)}") from e
    return make
