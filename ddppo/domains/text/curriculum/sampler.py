"""The task sampler of a run with a curriculum, and the functions that make it from `curriculum.*`."""

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
    """Return the sampler that `curriculum.*` names. Raises ConfigError if the task cannot have a curriculum."""
    # A curriculum needs a task of text that names tasks with tiers.
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
    context = f"curriculum.name={settings.name}: {config.env.id}"
    return CurriculumSampler(curriculum, config.seed, num_envs, config.training.group_size, context=context)


class CurriculumSampler(GroupSampler):
    """Groups of whole episodes. A curriculum chooses the task of each group.

    If several groups of an iteration have the same task, they count as one try at their mean rate.
    """

    name = "the curriculum"

    def __init__(
        self,
        curriculum: Curriculum,
        seed: int,
        num_envs: int,
        group_size: int,
        *,
        context: str = "curriculum",  # setting and task, at the beginning of an error message
    ) -> None:
        super().__init__(seed, num_envs, group_size)
        self.curriculum = curriculum
        self._context = context
        self._iteration = 0
        self._tasks: list[str] = []  # the task of each group of the current iteration
        self._has_seen_success = False  # an environment has reported info["is_success"], True or False

    def sample(self, iteration: int) -> TaskSample:
        self._iteration, self._tasks = iteration, []
        # A random stream of the iteration: ranks draw the same tasks, and a resumed run draws those it would have.
        rng = stream(self._seed, "curriculum", iteration)
        for _ in range(self.num_groups):
            self._tasks.append(self.curriculum.choose(rng, besides=tuple(self._tasks)))
        tasks, groups = self._tasks, super().sample(iteration)
        return TaskSample(iteration, groups.seed_of, lambda i: {"task": tasks[i // self.group_size]})

    def update(self, results: EpisodeResults | None, messages: Sequence[bytes]) -> None:
        assert results is not None, "episodes of text always have results"
        self._has_seen_success |= not bool(results.achieved.isnan().all())
        if not self._has_seen_success and bool(results.was_played.any()):
            raise TrainingError(
                f'{self._context} reported info["is_success"] in no episode of iteration {self._iteration}: set it in '
                "reset and step, or use curriculum.name=null"
            )
        self.record(results.rates(self.group_size))

    def record(self, rates: Sequence[float | None]) -> None:
        """Record an iteration.

        Args:
            rates: for each group, the share of its episodes that achieved the task; None if it is not known.
        """
        if len(rates) != len(self._tasks):
            raise TrainingError(f"{len(rates)} rates of {len(self._tasks)} groups")
        # Several groups of one task are one try at their mean rate.
        of_tasks: dict[str, list[float]] = {}
        for task, rate in zip(self._tasks, rates, strict=True):
            if rate is not None:
                of_tasks.setdefault(task, []).append(rate)
        if of_tasks:
            self.curriculum.record({task: sum(found) / len(found) for task, found in of_tasks.items()})
            self.state()  # raises now if the state cannot be stored, and not hours later at a checkpoint

    def state(self) -> dict[str, Any]:
        """Return the state of the curriculum. Raises TrainingError if a checkpoint cannot hold it."""
        state = self.curriculum.state()
        if type(state) is not dict or not is_plain(state):
            raise TrainingError(
                f"{type(self.curriculum).__name__}.state() returned {str(state)[:80]}, which checkpoints do not hold: "
                "return a dict with str keys and values of None, bool, int, float, str, lists and such dicts; convert "
                "NumPy's numbers by float(x) or int(x)"
            )
        return state

    def load(self, state: dict[str, Any] | None) -> None:
        if state is None:
            raise RunFolderError(
                "the run has a curriculum now, and had none at its checkpoint: resume with the tasks that the "
                "environment had, or begin a new run"
            )
        try:
            self.curriculum.restore(state)
        except RunFolderError:
            raise
        except Exception as e:  # a user's class may raise anything
            raise RunFolderError(
                f"{type(self.curriculum).__name__} cannot go on from the checkpoint's state: {in_one_line(e)}"
            ) from e

    def metrics(self) -> dict[str, float]:
        return {f"curriculum/{name}": x for name, x in self.curriculum.metrics().items()}

    def open_records(self, run_dir: Path) -> SamplerRecords:
        return CurriculumRecords(self.curriculum, run_dir / "curriculum.txt")


class CurriculumRecords(SamplerRecords):
    """Writes the table of tasks to curriculum.txt in the run folder."""

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
    """Return the curriculum `name`. Raises ConfigError.

    Args:
        name: a key of CURRICULA, or an import path such as `my_pkg.curricula:Mine`.
        tasks: the tier of each task.
        settings: keyword arguments of the curriculum.
    """
    make = _maker(name)
    try:
        curriculum = make(tasks, **settings)
    except ConfigError:
        raise
    except Exception as e:  # a user's class may raise anything
        raise ConfigError(f"curriculum.name={name} cannot be made: {in_one_line(e)}") from e
    # A user's class is checked now, and not when a missing method is first called.
    missing = [method for method in _METHODS if not callable(getattr(curriculum, method, None))]
    if missing:
        raise ConfigError(
            f"curriculum.name={name} has no {missing[0]}(): see ddppo.domains.text.curriculum.contract.Curriculum"
        )
    return curriculum


def _maker(name: str) -> Callable[..., Curriculum]:
    """Return the class or function that makes the curriculum of this name. Raises ConfigError."""
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
    except Exception as e:  # a user's module may raise anything
        raise ConfigError(f"curriculum.name={name} cannot be made: {in_one_line(e)}") from e
    return make
