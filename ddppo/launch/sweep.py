"""A sweep of `-m`: train its runs one after another, and report at the end how each of them ended.

Hydra calls `train_in_sweep` once a run. It passes the folder of the sweep only to a callback, `SweepFolder`. A sweep
can be repeated: sweep_runs.py decides whether a run is complete, is resumed or begins.
"""

import json
import multiprocessing
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.config import rules, stored
from ddppo.errors import (
    AfterTrainingError,
    ConfigError,
    EnvRaised,
    RunFolderError,
    Stopped,
    StorageError,
    TrainingError,
)
from ddppo.launch.arguments import composition_message, one_line
from ddppo.launch.run import check, check_limits, fork_before_computing, remove_if_empty, run
from ddppo.processes.signals import asks_for_requeue, end_of_time, is_over
from ddppo.records.run_folder import RunFolder, held

if TYPE_CHECKING:
    from ddppo.launch.sweep_runs import FolderBefore


def train_in_sweep(cfg: DictConfig, run_dir: Path) -> float | None:
    """Train one run of a sweep, unless it is complete. Returns the number that a sweeper optimises.

    Notes in the sweep's journal how the run ended. If it failed, raises TrainingError after that: Hydra continues with
    the other runs. Raises Stopped if a signal asked for a stop: no other run may begin.
    """
    from ddppo.launch import sweep_runs

    if multiprocessing.get_start_method(allow_none=True) == "loky":
        # Joblib set its own start method, which the processes of environments would take over and do not know.
        multiprocessing.set_start_method(None, force=True)
    sweep_dir = Path(HydraConfig.get().sweep.dir)
    number = HydraConfig.get().job.num
    try:
        # 1. As for a single run: configuration, fork, checks. A complete run may need more than this machine has.
        sweep_runs.list_run(sweep_dir, run_dir, HydraConfig.get().overrides.task)
        name = f"{sweep_runs.described(sweep_dir, run_dir.name)} ({number})"
        config = stored.from_omegaconf(cfg)
        rules.validate(config)
        if not sweep_runs.is_complete(run_dir, config):
            check_limits(config)
            fork_before_computing(config)
            check(config)
        with held(run_dir):
            # 2. Skip the run, resume it or begin it, by the contents of its folder.
            entry = sweep_runs.enter(run_dir, config)
            print(f"-- {name}{': ' + entry.remark if entry.remark else ''}", flush=True)
            stop_signal, after = None, ""
            if not entry.completed:
                if is_over(end_of_time(config.run.max_minutes)):
                    raise Stopped(0)
                # 3. Train. A run with complete training counts as completed, even if a step after it failed.
                try:
                    stop_signal = run(RunFolder(run_dir).begin(config), run_dir)
                except AfterTrainingError:
                    after = RunFolder(run_dir).failed_after_training
                    print(f"-- {name}: complete, but {after}", file=sys.stderr, flush=True)
        # 4. Note the outcome, and return the objective.
        sweep_runs.note(
            sweep_dir, run_dir, "skipped" if entry.completed else "completed", entry.remark, after
        )
        if stop_signal is not None:
            raise Stopped(stop_signal)
        return sweep_runs.objective(json.loads((run_dir / "summary.json").read_text()), config.objective)
    except Stopped as e:
        requeue = cfg.run.requeue_exit_code if asks_for_requeue(e.number) else None
        raise Stopped(e.number, requeue=requeue) from None
    except Exception as e:
        remove_if_empty(run_dir)
        if not isinstance(e, (ConfigError, TrainingError)):
            traceback.print_exc()
        elif isinstance(e, EnvRaised):
            print(e.trace, file=sys.stderr)
        why = one_line(e)
        sweep_runs.note(sweep_dir, run_dir, "failed", why)
        print(
            f"-- {sweep_runs.described(sweep_dir, run_dir.name)} ({number}) failed: {why}",
            file=sys.stderr,
            flush=True,
        )
        raise TrainingError(why) from None  # the launcher's process may be unable to unpickle e's own class


class SweepEnd(NamedTuple):
    """How the runs of a sweep ended."""

    failed: list[str]  # the reason for each failed run
    is_unfinished: bool  # whether a step after training failed in another run


def report_sweep(error: Exception | None) -> SweepEnd:
    """Print how the runs of this sweep ended. `error` is the exception that ended the command, if any."""
    from ddppo.launch import sweep_runs

    assert SweepFolder.path is not None
    assert SweepFolder.before is not None
    outcomes = sweep_runs.outcomes(SweepFolder.path, SweepFolder.before)
    failed = [outcome.why for outcome in outcomes if outcome.outcome == "failed"]
    # An error of the sweeper itself gets its traceback, above the list of runs. Not so if every run failed: the sweeper
    # then only had no result to choose by.
    is_foreseen = error is None or isinstance(error, (ConfigError, TrainingError))
    if not is_foreseen and (len(failed) < len(outcomes) or not outcomes):
        traceback.print_exception(error)
    is_unfinished = any(outcome.after for outcome in outcomes)
    if outcomes:
        text = sweep_runs.in_words(outcomes, SweepFolder.path, SweepFolder.before)
        print(text, file=sys.stderr if failed or is_unfinished else sys.stdout)
    return SweepEnd(failed, is_unfinished)


# -- The folder of a sweep.


_NO_RUN = (
    "multirun.yaml",
    ".lock",
    "sweep.jsonl",
    "runs.csv",
)  # files in the folder of a sweep in which no run began


class QuietReturn(JobReturn):
    """Hydra's result of a job, without Hydra's own line about a failed one: train_in_sweep printed the reason."""

    @property
    def return_value(self) -> Any:
        if self.status == JobStatus.FAILED:
            raise self._return_value
        return self._return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value


class SweepFolder(Callback):
    """The folder of the sweep that this command runs, locked until the command ends.

    Hydra makes the instance (conf/config.yaml), and tells it the folder when the sweep begins. Hence the state is the
    class's, where train.py finds it. Hydra also makes folders before it calls us; those that stay empty are removed.
    """

    path: ClassVar[Path | None] = None  # None before a sweep begins, and for a single run
    before: ClassVar["FolderBefore | None"] = None  # the contents of the folder when the command began
    _made: ClassVar[list[Path]] = []  # folders that Hydra makes for this command, innermost first
    _lock: ClassVar[ExitStack] = ExitStack()

    @classmethod
    @contextmanager
    def during_command(cls) -> Iterator[None]:
        """Forget an earlier command's sweep; at the end unlock the folder, and remove it if no run began in it."""
        cls.path = None
        try:
            yield
        finally:
            cls._leave()

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        before = HydraConfig.instance().cfg
        try:
            HydraConfig.instance().set_config(config)  # the name of the run's folder refers to it
            SweepFolder._made = _missing(Path(config.hydra.run.dir))
        except OmegaConfBaseException:  # Hydra reports it in a moment
            pass
        finally:
            HydraConfig.instance().cfg = before

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        # Hydra only warns about an exception in a callback, and continues. So these end the process.
        try:
            folder = Path(config.hydra.sweep.dir)
            check_objective(config)
            self._enter(folder, is_queued=str(config.hydra.launcher._target_).endswith("SlurmLauncher"))
        except (ConfigError, OmegaConfBaseException) as e:
            print(f"error: {e if isinstance(e, ConfigError) else composition_message(e)}", file=sys.stderr)
            sys.exit(2)
        except StorageError as e:
            print(f"error: {e}", file=sys.stderr)
            sys.exit(1)
        from ddppo.launch.sweep_runs import FolderBefore

        SweepFolder.before = FolderBefore.of(folder)
        SweepFolder.path = folder

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        job_return.__class__ = QuietReturn

    @staticmethod
    def _enter(folder: Path, *, is_queued: bool) -> None:
        """Lock the folder. Not for SLURM: its jobs outlive a command, and a second command takes them over."""
        SweepFolder._made = _missing(folder)
        if is_queued:
            return
        try:
            SweepFolder._lock.enter_context(held(folder))
        except RunFolderError as e:
            raise RunFolderError(
                f"sweep={folder} is in use by another command: let that end first, or use another folder"
            ) from e

    @classmethod
    def began(cls) -> bool:
        """Return whether this command noted the outcome of any run."""
        from ddppo.launch import sweep_runs

        return (
            cls.path is not None
            and cls.before is not None
            and bool(sweep_runs.outcomes(cls.path, cls.before))
        )

    @classmethod
    def _leave(cls) -> None:
        cls._lock.close()
        if cls._made and cls._made[0].is_dir():
            files = list(cls._made[0].iterdir())
            if all(path.name in _NO_RUN for path in files):
                for path in files:
                    path.unlink()
        with suppress(OSError):  # the first folder that is not empty ends this
            for path in cls._made:
                if path.exists():
                    path.rmdir()
        cls._made = []


def _missing(folder: Path) -> list[Path]:
    """Return the folder and its parents as far as they do not exist, innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def check_objective(config: DictConfig) -> None:
    """Raise ConfigError if the sweeper would optimise nothing, or look for the worst."""
    direction = OmegaConf.select(config.hydra.sweeper, "direction")
    if direction is None:  # this sweeper does not optimise
        return
    given = getattr(direction, "name", direction)
    wanted = "minimize" if config.objective == "time_to_target" else "maximize"
    if given != wanted:
        raise ConfigError(
            f"hydra.sweeper.direction={given} would look for the worst: objective={config.objective} needs "
            f"hydra.sweeper.direction={wanted}"
        )
    if OmegaConf.select(config, "hydra.launcher.wait") is False:
        raise ConfigError(
            "hydra.launcher.wait=false leaves the sweeper without results to choose by: leave it out"
        )
    if config.objective == "eval_return" and not config.eval.final_episodes:
        raise ConfigError(
            "eval.final_episodes=0 leaves objective=eval_return without a value: set eval.final_episodes"
        )
