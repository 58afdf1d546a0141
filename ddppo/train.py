"""The door `python -m ddppo.train`: compose and check the configuration, write it down, start the ranks.

Hydra ends here. Ranks read the config.yaml that this writes into the run folder.
"""

import json
import multiprocessing
import os
import shlex
import signal
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo import config as configuration
from ddppo.arguments import forget_torchrun, prepared_arguments, under_torchrun
from ddppo.calling import make_callable
from ddppo.command_line import SweepFolder, composition_message, one_line
from ddppo.config import Config
from ddppo.errors import ConfigError, EnvRaised, Stopped, StorageError, TrainingError
from ddppo.package import versions
from ddppo.run.lock import held
from ddppo.signals import (
    asks_for_requeue,
    die_with_parent,
    end_of_time,
    is_over,
    note_beginning,
    stop_signals_kill,
    stop_signals_raise,
)
from ddppo.terminal import unbroken_streams


class Outcome:
    """What came of the command, for a program that asks for it (ddppo/api/child.py) and tells of an error itself."""

    is_asked_for: ClassVar[bool] = False
    run_dir: ClassVar[Path | None] = None
    error: ClassVar[BaseException | None] = None


@unbroken_streams()
@stop_signals_raise()
def main() -> None:
    """Run the command line; exit code 0, 1 (a run failed), 2 (a mistake in the command), 75 or 128 + a signal.

    75, or run.requeue_exit_code: a scheduler's signal or run.max_minutes ended it, and it can go on. 128 + a signal:
    what else stopped it, as 130 is Ctrl-C.
    """
    note_beginning()
    if under_torchrun():
        die_with_parent()
    # GNU OpenMP's threads spin 300,000 rounds before they sleep, and crawl where another process wants their core: on 2
    # cores with 4 busy processes 2 threads took over 50 times as long. 1,000 rounds keep what a second thread gives.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    SweepFolder.path = None
    try:
        _command()
    finally:
        SweepFolder.leave()


def _command() -> None:
    began = time.time()
    error: Exception | None = None
    try:
        if under_torchrun() and int(os.environ["RANK"]) > 0:
            _follow()
            return
        if not under_torchrun():
            forget_torchrun()
        if "--version" in sys.argv[1:]:
            print(versions())
            return
        # For summary.json, which rank 0 writes, in whatever process: as it was typed.
        os.environ["DDPPO_COMMAND"] = shlex.join(["python", "-m", "ddppo.train", *sys.argv[1:]])
        sys.argv[1:] = prepared_arguments(sys.argv[1:])
        configuration.register()
        # Hydra looks for launchers in packages of the name hydra_plugins only.
        sys.path.append(str(Path(__file__).parent / "_plugins"))
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises what went wrong, and we say it
        conf = str(configuration.conf_dir())
        hydra.main(version_base="1.3", config_path=conf, config_name="config")(_train)()
    except KeyboardInterrupt as e:
        Outcome.error = e
        print(_interrupted(e), file=sys.stderr)
        _leave(e.exit_code if isinstance(e, Stopped) else 128 + signal.SIGINT)
    except (ConfigError, TrainingError) as e:
        error = e
    except (HydraException, OmegaConfBaseException) as e:
        error = ConfigError(composition_message(e))
    except OSError as e:  # Hydra makes folders
        if e.filename is None:
            raise
        error = StorageError.of(e.filename, e)
    except Exception as e:
        if SweepFolder.path is None:
            raise
        error = e
    failed = _tell_sweep(began, error)
    if error is None and SweepFolder.path is not None and not SweepFolder.began(began):
        error = ConfigError("the values given with -m make no combination: there is no run in this sweep")
    Outcome.error = error
    is_ours = isinstance(error, (ConfigError, TrainingError)) and not Outcome.is_asked_for
    if error is not None and is_ours and one_line(error) not in failed:
        print(f"error: {error}", file=sys.stderr)
    if error is not None or failed:
        _leave(2 if isinstance(error, ConfigError) and not failed else 1)
    if under_torchrun():
        _leave(0)


def _leave(code: int) -> NoReturn:
    """Exit; as a rank under torchrun that met its peers (no mistake, code 2) without waiting for them."""
    if under_torchrun():
        _dismiss(code)
    if under_torchrun() and code != 2:
        from ddppo.distributed.launch import leave

        leave(code)
    sys.exit(code)


def _train(cfg: DictConfig) -> float | None:
    """One job: what Hydra calls. Returns what a sweeper optimises, by `objective`."""
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    with unbroken_streams():  # again: a sweep may call it in processes of its own
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return _train_in_sweep(cfg, run_dir)
        Outcome.run_dir = run_dir
        try:
            _train_alone(cfg, run_dir)
        except (ConfigError, TrainingError) as e:  # said here: Hydra would add its own words
            Outcome.error = e
            if not Outcome.is_asked_for:
                print(f"error: {e}", file=sys.stderr)
            _leave(2 if isinstance(e, ConfigError) else 1)
    return None


def _train_alone(cfg: DictConfig, run_dir: Path) -> None:
    from ddppo.run.folder import RunFolder

    try:
        config = _checked(cfg, run_dir)
    except ConfigError:
        _remove_if_empty(run_dir)
        raise
    if config is None:
        print(f"the run in {run_dir} is complete: nothing is left to do")
        return
    folder = RunFolder(run_dir)
    with held(run_dir, patience_s=_patience_s(config)):
        folder.begin(config)
        try:
            _run(config, run_dir)
        except KeyboardInterrupt as e:
            remedy = f"go on with: python -m ddppo.train resume={run_dir}"
            number = e.number if isinstance(e, Stopped) else signal.SIGINT
            if not folder.has_checkpoint:
                raise Stopped(number, "there is no checkpoint") from None
            requeue = config.run.requeue_exit_code if asks_for_requeue(number) else None
            raise Stopped(number, remedy, requeue) from None


def _patience_s(config: Config) -> float:
    """Return how long who held the folder may still be ending: under torchrun rank 0 of the start before this one.

    It may be on another host, and notices that it lost the others only after dist.timeout_s.
    """
    return config.dist.timeout_s + 5.0 if under_torchrun() else 0.0


def _train_in_sweep(cfg: DictConfig, run_dir: Path) -> float | None:
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
            _check(config)
        with held(run_dir):
            entry = sweep.enter(run_dir, config)
            print(f"-- {name}{': ' + entry.remark if entry.remark else ''}", flush=True)
            stop_signal = None
            if not entry.completed:
                if is_over(end_of_time(config.run.max_minutes)):
                    raise Stopped(0)
                stop_signal = _run(RunFolder(run_dir).begin(config), run_dir)
        sweep.note(sweep_dir, run_dir, "skipped" if entry.completed else "completed", entry.remark)
        if stop_signal is not None:  # too late for this run, but no other is to begin
            raise Stopped(stop_signal)
        return sweep.objective(json.loads((run_dir / "summary.json").read_text()), config.objective)
    except Stopped as e:
        raise Stopped(
            e.number, requeue=cfg.run.requeue_exit_code if asks_for_requeue(e.number) else None
        ) from None
    except Exception as e:
        _remove_if_empty(run_dir)
        if not isinstance(e, (ConfigError, TrainingError)):
            traceback.print_exc()
        elif isinstance(e, EnvRaised):
            print(e.trace, file=sys.stderr)
        why = one_line(e)
        sweep.note(sweep_dir, run_dir, "failed", why)
        print(f"-- {name} failed: {why}", file=sys.stderr, flush=True)
        raise TrainingError(why) from None  # e may be of a class that the launcher's process cannot read


def _checked(cfg: DictConfig, run_dir: Path) -> Config | None:
    """Return the configuration of a single run after every check that needs no second process.

    None of a run that resume=auto finds complete.
    """
    from ddppo.run import start

    config: Config | None
    if cfg.resume == "auto":
        config = start.begun_or_resumed(cfg, run_dir)
        if config is None:
            return None
    elif cfg.resume is not None:
        config = start.resumed(cfg, run_dir, list(HydraConfig.get().overrides.task))
    elif (run_dir / "config.yaml").exists():
        raise ConfigError(
            f"{run_dir} already holds a run, which would be overwritten: choose another hydra.run.dir, or go on "
            f"with it by resume={run_dir}"
        )
    else:
        config = configuration.from_omegaconf(cfg)
    configuration.validate(config)
    _check(config)
    if OmegaConf.select(HydraConfig.get().sweeper, "params"):
        experiment = HydraConfig.get().runtime.choices.get("experiment")
        print(
            f"warning: experiment={experiment} is a sweep, of which this is one run: add -m", file=sys.stderr
        )
    return config


def _check(config: Config) -> None:
    from ddppo.distributed import launcher
    from ddppo.run import start

    # The checks compute, and so does a job of a sweep before one with several ranks.
    in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    if (config.dist.world_size > 1 or in_sweep) and not under_torchrun():
        launcher.prepare(config.dist.world_size)
    if warning := start.check(config, local_world_size=start.local_world_size(config)):
        print(f"warning: {warning}", file=sys.stderr)
    if under_torchrun() and config.dist.on_lost == "restart":
        print(
            "warning: dist.on_lost=restart starts no rank again that torchrun started, only processes of environments",
            file=sys.stderr,
        )


def _run(config: Config, run_dir: Path) -> int | None:
    """Train in the run folder, whose config.yaml says all.

    Raises TrainingError, and Stopped if a signal cut the run short; returns the number of one that came too late.
    """
    if under_torchrun():
        stop_signal = _lead(run_dir)
    elif config.dist.world_size == 1:
        from ddppo.run.worker import train_rank

        stop_signal = train_rank(run_dir)
    else:
        from ddppo.distributed.launcher import start_ranks
        from ddppo.run.folder import RunFolder
        from ddppo.run.restarts import with_restarts

        folder = RunFolder(run_dir)
        note = partial(folder.note_restart, goes_on_from=None)
        stop_signal = with_restarts(folder, config, lambda config: start_ranks(run_dir, config, note))
    if json.loads((run_dir / "summary.json").read_text())["status"] == "stopped":
        if stop_signal is None and is_over(end_of_time(config.run.max_minutes)):
            raise Stopped(0)
        raise Stopped(stop_signal or signal.SIGTERM)  # if it was none of ours, it was another rank's
    return stop_signal


def _interrupted(interrupt: KeyboardInterrupt) -> str:
    """Return what Ctrl-C or another signal leaves behind, in one sentence."""
    stopped = interrupt if isinstance(interrupt, Stopped) else Stopped(signal.SIGINT)
    if SweepFolder.path is not None:
        return f"{stopped.what}; the same command with sweep={SweepFolder.path} goes on with the sweep"
    return f"{stopped.what}{'; ' + stopped.remedy if stopped.remedy else ' before the run began'}"


def _tell_sweep(began: float, error: Exception | None) -> list[str]:
    """Print how a sweep's runs ended and return why some failed; [] where no sweep was run."""
    if SweepFolder.path is None:
        return []
    from ddppo.run import sweep

    outcomes = sweep.outcomes(SweepFolder.path, began)
    failed = [outcome.why for outcome in outcomes if outcome.outcome == "failed"]
    # A fault of the sweeper's, unless it only had no run to choose from. Above the list, which it would bury.
    is_foreseen = error is None or isinstance(error, (ConfigError, TrainingError))
    if not is_foreseen and (len(failed) < len(outcomes) or not outcomes):
        traceback.print_exception(error)
    if outcomes:
        text = sweep.in_words(outcomes, SweepFolder.path, began)
        print(text, file=sys.stderr if failed else sys.stdout)
    return failed


def _remove_if_empty(folder: Path) -> None:
    for path in (folder, folder.parent):  # both made by Hydra, before it called us
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


# -- under an outer torchrun: rank 0 composes, the others follow it -------------------------------------------------


_leads = False  # whether this process, as rank 0, has told the others of their run


def _lead(run_dir: Path) -> int | None:
    global _leads
    from ddppo.distributed.formation import lead
    from ddppo.distributed.launch import rendezvous_store
    from ddppo.run.worker import train_rank

    stop_signals_kill()  # until the loop can stop in good order: it may wait inside torch for the others
    store = lead(rendezvous_store(), int(os.environ["WORLD_SIZE"]), run_dir.resolve())
    _leads = True
    return train_rank(run_dir, store)


def _follow() -> None:
    from ddppo.distributed.formation import follow
    from ddppo.distributed.launch import rendezvous_store
    from ddppo.run.worker import run_rank

    stop_signals_kill()
    store, run_dir = follow(rendezvous_store(), int(os.environ["RANK"]))
    # Not 0, which torchrun takes for the run's end: it may have stopped the ranks to start them with another host's.
    run_rank(run_dir, lambda: store, if_cut_short=os.EX_TEMPFAIL)


def _dismiss(exit_code: int) -> None:
    """Tell ranks that would wait that rank 0 ends without a run. Where it fails those of its own host end anyway."""
    is_one_host = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    if _leads or os.environ["RANK"] != "0" or (exit_code != 0 and is_one_host):
        return
    from ddppo.distributed.formation import dismiss
    from ddppo.distributed.launch import rendezvous_store

    with suppress(Exception):  # what comes on top of a fault would hide it
        dismiss(rendezvous_store(), int(os.environ["WORLD_SIZE"]), exit_code)


make_callable(__name__)
if __name__ == "__main__":
    main()
