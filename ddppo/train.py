"""The command `python -m ddppo.train`: compose and check the configuration, then start the ranks.

Read in this order: `main` and `command` here, `train_one` in launch/run.py, `train_rank` in loop/rank.py. Hydra stands
between the first two: it composes the configuration and calls `job` once, or in a sweep once a run. Ranks do not know
Hydra: they read the config.yaml in the run folder.
"""

import os
import shlex
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ddppo import Command
from ddppo.config import presets, variants
from ddppo.errors import AFTER_TRAINING, ConfigError, Stopped, StorageError, TrainingError
from ddppo.launch.torchrun import check_launcher, forget_torchrun, launcher
from ddppo.package import see_current_folder, versions
from ddppo.processes import limits
from ddppo.processes.signals import die_with_parent, ends_without_waiting, note_beginning, stop_signals_raise
from ddppo.terminal import unbroken_streams


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. Its exit codes are listed at `main`."""

    exit_code: int = 0
    message: str = ""  # one sentence for stderr; "" if nothing is left to say
    run_dir: Path | None = None  # folder of a single run; None for a sweep, and before the folder is known
    error: BaseException | None = None  # the reason for an exit code above 0, if it is an exception


@ends_without_waiting("ddppo.train")
@unbroken_streams()
@stop_signals_raise()
def main() -> None:
    """Run the command line and exit.

    Exit codes:
        0: the run, or every run of the sweep, is complete.
        1: a run failed.
        2: the command has a mistake; nothing was started.
        5: training is complete, but a step after it failed, such as the final evaluation.
        75, or run.requeue_exit_code: a scheduler's signal or run.max_minutes ended the run, and it can be resumed.
        128 + number of a signal: another signal ended it, e.g. 130 for Ctrl-C.
    """
    result = command(may_be_rank=True)
    if result.message:
        print(result.message, file=sys.stderr)
    if launcher():
        _leave_others(result.exit_code)
    if result.exit_code:
        sys.exit(result.exit_code)


def command(*, may_be_rank: bool = False) -> CommandResult:
    """Run the command line in sys.argv, where Hydra reads it, and return how it ended.

    Only faults that need their traceback are raised. may_be_rank: whether copies of this process, which mpirun or srun
    started, are ranks of one run: not those of a program that calls this function.
    """
    _prepare_process()
    try:
        # 1. Without Hydra: this process's place, help, and most mistakes.
        if (result := _answered_at_once(may_be_rank=may_be_rank)) is not None:
            return result
        # 2. With Hydra.
        return _composed_and_trained()
    except KeyboardInterrupt as e:
        exit_code = e.exit_code if isinstance(e, Stopped) else 128 + signal.SIGINT
        return CommandResult(exit_code, _interrupted(e), None, e)
    except Exception as e:
        if (error := _foreseen(e)) is None:
            raise
        return CommandResult(error.exit_code, f"error: {error}", None, error)


def _answered_at_once(*, may_be_rank: bool) -> CommandResult | None:
    """Answer a command that starts nothing, without an import of Hydra; None for a command that needs Hydra."""
    # 1. Which process is this? Ranks above 0 of torchrun or mpirun never return from here.
    check_launcher(joins=may_be_rank)
    if launcher():
        die_with_parent()
        if os.environ["RANK"] != "0":
            from ddppo.launch.rank import follow

            follow(sys.argv[1:])
    else:
        forget_torchrun()
    if "--version" in sys.argv[1:]:
        print(versions())
        return CommandResult()

    # 2. Refuse process limits that break libraries in the middle of a run.
    if low := limits.too_low():
        raise ConfigError(low)
    limits.check_threads()

    # 3. Help, and mistakes that one setting shows by itself.
    if {"-h", "--help"} & set(sys.argv[1:]):
        words = [word for word in sys.argv[1:] if word[0] != "-" and "=" not in word]
        print(presets.shown_help(words[0] if words else None))
        return CommandResult()
    presets.refuse_plain_mistakes(sys.argv[1:])
    return None


def _composed_and_trained() -> CommandResult:
    """Let Hydra compose the configuration, train the run or the sweep, and return how the command ended."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from ddppo.config import compose
    from ddppo.launch.arguments import prepared_arguments
    from ddppo.launch.run import fork_before_user_import, train_one
    from ddppo.launch.sweep import SweepFolder, train_in_sweep

    run_dir: Path | None = None

    def job(cfg: DictConfig) -> float | None:
        """Train one run, as Hydra composed it. Returns the number that a sweeper optimises; None for a single run."""
        nonlocal run_dir
        folder = Path(HydraConfig.get().runtime.output_dir)
        with unbroken_streams():  # again: the jobs of a sweep may run in processes of their own
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                from ddppo.envs.guard import watched

                # The next run begins in this process: a task may leave nothing changed in it.
                with watched("the job"):
                    return train_in_sweep(cfg, folder)
            run_dir = folder
            train_one(cfg, folder)
        return None

    with SweepFolder.during_command():
        error: Exception | None = None
        try:
            # 1. Translate the command line into Hydra's grammar, and register our settings and presets.
            # For summary.json.
            os.environ["DDPPO_COMMAND"] = shlex.join(["python", "-m", "ddppo.train", *sys.argv[1:]])
            sys.argv[1:] = prepared_arguments(sys.argv[1:])
            compose.register()
            if not launcher():
                variants.call_before_user_import(fork_before_user_import)

            # 2. Hydra composes the configuration and calls `job`. With this variable it raises errors unchanged.
            os.environ["HYDRA_FULL_ERROR"] = "1"
            conf = str(presets.conf_dir())
            hydra.main(version_base="1.3", config_path=conf, config_name="config")(job)()
        except KeyboardInterrupt as e:
            exit_code = e.exit_code if isinstance(e, Stopped) else 128 + signal.SIGINT
            return CommandResult(exit_code, _interrupted(e), run_dir, e)
        except Exception as e:
            error = _foreseen(e)
            if error is None and SweepFolder.path is not None:
                error = e  # report_sweep prints its traceback above the list of runs
            elif error is None and launcher():
                traceback.print_exc()
                return CommandResult(1, run_dir=run_dir, error=e)
            elif error is None:
                raise
        if SweepFolder.path is not None:
            return _sweep_result(error)
        if isinstance(error, ConfigError | TrainingError):
            return CommandResult(error.exit_code, f"error: {error}", run_dir, error)
        return CommandResult(run_dir=run_dir)


def _foreseen(error: Exception) -> ConfigError | TrainingError | None:
    """Return an error as one that ends the command in a sentence and an exit code; None if it needs its traceback."""
    if isinstance(error, ConfigError | TrainingError):
        return error
    from hydra.errors import HydraException

    from ddppo.launch.arguments import composition_message

    match error:
        case HydraException() | OmegaConfBaseException():  # of the command line or a preset
            return ConfigError(composition_message(error))
        case OSError() if error.filename is not None:  # a folder that Hydra cannot make
            return StorageError.of(error.filename, error)
        case _ if sentence := limits.met(error):  # memory, threads, open files
            return TrainingError(sentence)
    return None


def _interrupted(interrupt: KeyboardInterrupt) -> str:
    """Return the sentence about Ctrl-C or another signal: what stopped, and how to go on."""
    stopped = interrupt if isinstance(interrupt, Stopped) else Stopped(signal.SIGINT)
    sweep = sys.modules.get("ddppo.launch.sweep")  # not imported yet: there is no sweep
    if sweep is not None and sweep.SweepFolder.path is not None:
        folder = sweep.SweepFolder.path
        return f"{stopped.what}; the same command with sweep={folder} continues the sweep"
    return f"{stopped.what}{'; ' + stopped.remedy if stopped.remedy else ' before the run began'}"


def _sweep_result(error: Exception | None) -> CommandResult:
    """List the runs of the sweep, and return its result: any failed run makes it 1, a mistake without any run 2."""
    from ddppo.launch.arguments import one_line
    from ddppo.launch.sweep import SweepFolder, report_sweep

    ended = report_sweep(error)
    if error is None and not SweepFolder.began():
        error = ConfigError("the values given with -m make no combination: there is no run in this sweep")
    # The error of a failed run is in the list already.
    is_new = isinstance(error, ConfigError | TrainingError) and one_line(error) not in ended.failed
    message = f"error: {error}" if is_new else ""
    if error is not None or ended.failed:
        exit_code = 2 if isinstance(error, ConfigError) and not ended.failed else 1
        return CommandResult(exit_code, message, error=error)
    return CommandResult(AFTER_TRAINING if ended.is_unfinished else 0)


def _prepare_process() -> None:
    """Set what every process of the command inherits: signals, import path, limits, libraries' variables."""
    # ddppo/__init__.py set it while modules were imported.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    see_current_folder()
    note_beginning()
    limits.allow_open_files()
    # GNU OpenMP's threads spin 300,000 rounds before they sleep. If another process wants their core, they crawl: on 2
    # cores with 4 busy processes 2 threads took over 50 times as long. 1,000 rounds keep the gain of a second thread.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # Torch's C++ warns about every address that it tries, with a stack. Errors that end a run are raised in any case.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _leave_others(exit_code: int) -> None:
    """Exit as rank 0 that a launcher started. Ranks that wait for a run folder get the exit code, and end too."""
    from ddppo.launch.rank import dismiss

    dismiss(exit_code)
    if "torch" in sys.modules:  # the ranks may have met: do not wait for them in a destructor
        from ddppo.distributed.join import leave

        leave(exit_code)
    sys.exit(exit_code)


sys.modules[__name__].__class__ = Command  # ddppo.train(...) is a call of ddppo.api

if __name__ == "__main__":
    main()
