"""The door `python -m ddppo.train`: compose and check the configuration, write it down, start the ranks.

Hydra ends here. Ranks read the config.yaml that this writes into the run folder.
"""

import os
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import ClassVar, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ddppo.config import compose, variants
from ddppo.errors import AFTER_TRAINING, ConfigError, Stopped, StorageError, TrainingError
from ddppo.launch.arguments import composition_message, one_line, prepared_arguments
from ddppo.launch.run import train_alone
from ddppo.launch.sweep import SweepFolder, tell_sweep, train_in_sweep
from ddppo.launch.torchrun import check_launcher, dismiss, follow, forget_torchrun, under_torchrun
from ddppo.package import see_current_folder, versions
from ddppo.processes import limits
from ddppo.processes.signals import die_with_parent, ends_without_waiting, note_beginning, stop_signals_raise
from ddppo.terminal import unbroken_streams


class CommandResult:
    """What came of the command, for a program that asks for it (ddppo/api/child.py) and tells of an error itself."""

    is_asked_for: ClassVar[bool] = False
    run_dir: ClassVar[Path | None] = None
    error: ClassVar[BaseException | None] = None


@ends_without_waiting("ddppo.train")
@unbroken_streams()
@stop_signals_raise()
def main() -> None:
    """Run the command line; exit code 0, 1 (a run failed), 2 (a mistake in the command), 5, 75 or 128 + a signal.

    5: training is complete, and a step after it failed, as the final evaluation.
    75, or run.requeue_exit_code: a scheduler's signal or run.max_minutes ended it, and it can go on. 128 + a signal:
    what else stopped it, as 130 is Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as ddppo/__init__.py left it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    see_current_folder()
    note_beginning()
    limits.allow_open_files()
    if under_torchrun():
        die_with_parent()
    # GNU OpenMP's threads spin 300,000 rounds before they sleep, and crawl where another process wants their core: on 2
    # cores with 4 busy processes 2 threads took over 50 times as long. 1,000 rounds keep what a second thread gives.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Torch's C++ warns of every address that it tries, with its stack; what ends anything is an error, and ours to say.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    SweepFolder.path = None
    try:
        _command()
    finally:
        SweepFolder.leave()


def _command() -> None:
    error: Exception | None = None
    try:
        check_launcher()
        if under_torchrun() and os.environ["RANK"] != "0":
            follow(sys.argv[1:])
        if not under_torchrun():
            forget_torchrun()
        if "--version" in sys.argv[1:]:
            print(versions())
            return
        if low := limits.too_low():
            raise ConfigError(low)
        limits.check_threads()
        # For summary.json, which rank 0 writes, in whatever process: as it was typed.
        os.environ["DDPPO_COMMAND"] = shlex.join(["python", "-m", "ddppo.train", *sys.argv[1:]])
        sys.argv[1:] = prepared_arguments(sys.argv[1:])
        compose.register()
        if not under_torchrun():
            setattr(variants, "before_import", _fork_server)  # noqa: B010 (mypy lets no function be assigned)
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises what went wrong, and we say it
        conf = str(compose.conf_dir())
        hydra.main(version_base="1.3", config_path=conf, config_name="config")(_train)()
    except KeyboardInterrupt as e:
        CommandResult.error = e
        print(_interrupted(e), file=sys.stderr)
        _leave(e.exit_code if isinstance(e, Stopped) else 128 + signal.SIGINT)
    except (ConfigError, TrainingError) as e:
        error = e
    except (HydraException, OmegaConfBaseException) as e:
        error = ConfigError(composition_message(e))
    except OSError as e:  # Hydra makes folders
        if e.filename is not None:
            error = StorageError.of(e.filename, e)
        elif words := limits.met(e):
            error = TrainingError(words)
        else:
            raise
    except Exception as e:
        if words := limits.met(e):
            error = TrainingError(words)
        elif SweepFolder.path is not None:
            error = e
        elif under_torchrun():
            traceback.print_exc()
            _leave(1)
        else:
            raise
    told = tell_sweep(error)
    failed = told.failed
    if error is None and SweepFolder.path is not None and not SweepFolder.began():
        error = ConfigError("the values given with -m make no combination: there is no run in this sweep")
    CommandResult.error = error
    is_ours = isinstance(error, (ConfigError, TrainingError)) and not CommandResult.is_asked_for
    if error is not None and is_ours and one_line(error) not in failed:
        print(f"error: {error}", file=sys.stderr)
    if error is not None or failed:
        _leave(2 if isinstance(error, ConfigError) and not failed else 1)
    if told.is_unfinished:
        _leave(AFTER_TRAINING)
    if under_torchrun():
        _leave(0)


def _fork_server() -> None:
    from ddppo.launch import local_ranks as launcher

    launcher.prepare(1)


def _leave(code: int) -> NoReturn:
    """Exit; as a rank under torchrun that may have met its peers without waiting for them."""
    if under_torchrun():
        dismiss(code)
    if under_torchrun() and "torch" in sys.modules:
        from ddppo.distributed.join import leave

        leave(code)
    sys.exit(code)


def _train(cfg: DictConfig) -> float | None:
    """One job: what Hydra calls. Returns what a sweeper optimises, by `objective`."""
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    with unbroken_streams():  # again: a sweep may call it in processes of its own
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            from ddppo.envs.guard import watched

            with watched("the job"):  # the next begins in the same process, as this one did
                return train_in_sweep(cfg, run_dir)
        CommandResult.run_dir = run_dir
        try:
            train_alone(cfg, run_dir)
        except (ConfigError, TrainingError) as e:  # said here: Hydra would add its own words
            CommandResult.error = e
            if not CommandResult.is_asked_for:
                print(f"error: {e}", file=sys.stderr)
            _leave(e.exit_code)
    return None


def _interrupted(interrupt: KeyboardInterrupt) -> str:
    """Return what Ctrl-C or another signal leaves behind, in one sentence."""
    stopped = interrupt if isinstance(interrupt, Stopped) else Stopped(signal.SIGINT)
    if SweepFolder.path is not None:
        return f"{stopped.what}; the same command with sweep={SweepFolder.path} goes on with the sweep"
    return f"{stopped.what}{'; ' + stopped.remedy if stopped.remedy else ' before the run began'}"


if __name__ == "__main__":
    main()
