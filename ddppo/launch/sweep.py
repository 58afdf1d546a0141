"""Runs of a sweep, one at a time, and how all of them ended."""

import json
import multiprocessing
import sys
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

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
from ddppo.launch.run import check, remove_if_empty, run
from ddppo.processes.signals import asks_for_requeue, end_of_time, is_over
from ddppo.records.run_folder import held


def train_in_sweep(cfg: DictConfig, run_dir: Path) -> float | None:
    """One job of a sweep. Raises what went wrong after noting it: Hydra goes on with the other jobs."""
    from ddppo.launch import jobs as sweep
    from ddppo.records.run_folder import RunFolder

    if multiprocessing.get_start_method(allow_none=True) == "loky":
        # Joblib's own, which the processes of environments would be told to use and do not know.
        multiprocessing.set_start_method(None, force=True)
    sweep_dir = Path(HydraConfig.get().sweep.dir)
    name = f"{run_dir.name} ({HydraConfig.get().job.num})"
    try:
        config = stored.from_omegaconf(cfg)
        rules.validate(config)
        if not sweep.is_complete(run_dir, config):  # what is complete may exceed this machine
            check(config)
        with held(run_dir):
            entry = sweep.enter(run_dir, config)
            print(f"-- {name}{': ' + entry.remark if entry.remark else ''}", flush=True)
            stop_signal, after = None, ""
            if not entry.completed:
                if is_over(end_of_time(config.run.max_minutes)):
                    raise Stopped(0)
                try:
                    stop_signal = run(RunFolder(run_dir).begin(config), run_dir)
                except AfterTrainingError:  # the run has its result, as far as there is one
                    after = RunFolder(run_dir).failed_after_training
                    print(f"-- {name}: complete, but {after}", file=sys.stderr, flush=True)
        sweep.note(sweep_dir, run_dir, "skipped" if entry.completed else "completed", entry.remark, after)
        if stop_signal is not None:  # too late for this run, but no other is to begin
            raise Stopped(stop_signal)
        return sweep.objective(json.loads((run_dir / "summary.json").read_text()), config.objective)
    except Stopped as e:
        raise Stopped(
            e.number, requeue=cfg.run.requeue_exit_code if asks_for_requeue(e.number) else None
        ) from None
    except Exception as e:
        remove_if_empty(run_dir)
        if not isinstance(e, (ConfigError, TrainingError)):
            traceback.print_exc()
        elif isinstance(e, EnvRaised):
            print(e.trace, file=sys.stderr)
        why = one_line(e)
        sweep.note(sweep_dir, run_dir, "failed", why)
        print(f"-- {name} failed: {why}", file=sys.stderr, flush=True)
        raise TrainingError(why) from None  # e may be of a class that the launcher's process cannot read


class Failures(NamedTuple):
    """Why runs of a sweep failed, and whether a step after training did in others."""

    failed: list[str]
    is_unfinished: bool


def tell_sweep(error: Exception | None) -> Failures:
    """Print how a sweep's runs ended and return what went wrong; nothing where no sweep was run."""
    if SweepFolder.path is None:
        return Failures([], False)
    from ddppo.launch import jobs as sweep

    outcomes = sweep.outcomes(SweepFolder.path, SweepFolder.before)
    failed = [outcome.why for outcome in outcomes if outcome.outcome == "failed"]
    # A fault of the sweeper's, unless it only had no run to choose from. Above the list, which it would bury.
    is_foreseen = error is None or isinstance(error, (ConfigError, TrainingError))
    if not is_foreseen and (len(failed) < len(outcomes) or not outcomes):
        traceback.print_exception(error)
    is_unfinished = any(outcome.after for outcome in outcomes)
    if outcomes:
        text = sweep.in_words(outcomes, SweepFolder.path, SweepFolder.before)
        print(text, file=sys.stderr if failed or is_unfinished else sys.stdout)
    return Failures(failed, is_unfinished)


# -- The folder of a sweep, which Hydra tells of as it begins one, and what is asked of the sweep then.


_OF_NO_RUN = ("multirun.yaml", ".lock", "sweep.jsonl")  # what a sweep leaves of which no run could begin


class QuietReturn(JobReturn):
    """What became of a job, without Hydra's own line about one that failed: we have said why already."""

    @property
    def return_value(self) -> Any:
        if self.status == JobStatus.FAILED:
            raise self._return_value
        return self._return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value


class SweepFolder(Callback):
    """Knows the folder of a sweep, which Hydra tells only while one begins (None before), and holds it to its end.

    Of the folders that Hydra makes for a sweep or a run before it calls us, it removes those that stayed empty.
    """

    path: ClassVar[Path | None] = None
    before: ClassVar[Any] = None  # what the folder held then, a run.sweep.Before
    _made: ClassVar[list[Path]] = []  # with the parents that were not there, innermost first
    _hold: ClassVar[ExitStack] = ExitStack()

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        before = HydraConfig.instance().cfg
        try:
            HydraConfig.instance().set_config(config)  # what the name of the folder asks
            SweepFolder._made = _missing(Path(config.hydra.run.dir))
        except OmegaConfBaseException:  # of which Hydra complains in a moment
            pass
        finally:
            HydraConfig.instance().cfg = before

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            folder = Path(config.hydra.sweep.dir)
            check_objective(config)
            self._enter(folder, is_queued=str(config.hydra.launcher._target_).endswith("SlurmLauncher"))
        except (ConfigError, OmegaConfBaseException) as e:  # which Hydra would only warn of, and go on
            print(f"error: {e if isinstance(e, ConfigError) else composition_message(e)}", file=sys.stderr)
            sys.exit(2)
        except StorageError as e:
            print(f"error: {e}", file=sys.stderr)
            sys.exit(1)
        from ddppo.launch.jobs import Before

        SweepFolder.before = Before.of(folder)
        SweepFolder.path = folder

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        job_return.__class__ = QuietReturn

    @staticmethod
    def _enter(folder: Path, *, is_queued: bool) -> None:
        SweepFolder._made = _missing(folder)
        if is_queued:  # SLURM's jobs outlive commands, and a second one takes up those of the first
            return
        try:
            SweepFolder._hold.enter_context(held(folder))
        except RunFolderError as e:
            raise RunFolderError(
                f"sweep={folder} is in use by another command: let that end first, or use another folder"
            ) from e

    @classmethod
    def began(cls) -> bool:
        """Return whether any run of the sweep has come to anything since the command began."""
        from ddppo.launch import jobs as sweep

        return cls.path is not None and bool(sweep.outcomes(cls.path, cls.before))

    @classmethod
    def leave(cls) -> None:
        """Give the folder free; where this command made it and no run began in it, take it away again."""
        cls._hold.close()
        if cls._made and cls._made[0].is_dir():
            held_in = list(cls._made[0].iterdir())
            if any(path.name not in _OF_NO_RUN for path in held_in):
                held_in = []
            for path in held_in:
                path.unlink()
        with suppress(OSError):  # the first that something is in
            for path in cls._made:
                if path.exists():
                    path.rmdir()
        cls._made = []


def _missing(folder: Path) -> list[Path]:
    """Return the folder and its parents as far as they are not there, innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def check_objective(config: DictConfig) -> None:
    """Raise ConfigError where the sweeper would optimise nothing, or look for the worst."""
    direction = OmegaConf.select(config.hydra.sweeper, "direction")
    if direction is None:  # it does not optimise
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
            "hydra.launcher.wait=false leaves the sweeper without results to choose by: let it wait"
        )
    if config.objective == "eval_return" and not config.eval.final_episodes:
        raise ConfigError(
            "eval.final_episodes=0 leaves objective=eval_return without a value: set eval.final_episodes"
        )
