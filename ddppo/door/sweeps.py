"""Runs of a sweep, one at a time, and how all of them ended."""

import json
import multiprocessing
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ddppo import config as configuration
from ddppo.door.complaints import one_line
from ddppo.door.ranks import check, remove_if_empty, run
from ddppo.door.sweep_folder import SweepFolder
from ddppo.errors import AfterTrainingError, ConfigError, EnvRaised, Stopped, TrainingError
from ddppo.processes.signals import asks_for_requeue, end_of_time, is_over
from ddppo.run.folder import held


def train_in_sweep(cfg: DictConfig, run_dir: Path) -> float | None:
    """One job of a sweep. Raises what went wrong after noting it: Hydra goes on with the other jobs."""
    from ddppo.run import sweep
    from ddppo.run.folder import RunFolder

    if multiprocessing.get_start_method(allow_none=True) == "loky":
        # Joblib's own, which the processes of environments would be told to use and do not know.
        multiprocessing.set_start_method(None, force=True)
    sweep_dir = Path(HydraConfig.get().sweep.dir)
    name = f"{run_dir.name} ({HydraConfig.get().job.num})"
    try:
        config = configuration.from_omegaconf(cfg)
        configuration.validate(config)
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
    from ddppo.run import sweep

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
