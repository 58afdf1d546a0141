"""One run, in the order in which it happens: configuration, fork, checks, run folder, ranks.

`train_one` is a run alone, begun or resumed in the folder that Hydra names. A sweep (sweep.py) takes the same steps for
each of its runs.
"""

import json
import signal
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ddppo import imports_are_done
from ddppo.config import rules, stored
from ddppo.config.settings import Config
from ddppo.errors import AfterTrainingError, ConfigError, RankLost, Stopped, TrainingError
from ddppo.launch.torchrun import launcher
from ddppo.package import command
from ddppo.plugins import imported
from ddppo.processes import limits
from ddppo.processes.signals import asks_for_requeue, end_of_time, is_over
from ddppo.records.run_folder import RunFolder, held, with_restarts
from ddppo.terminal import warn

_FILES = 16  # files that a process which starts ranks has open, besides one for each rank


def train_one(cfg: DictConfig, run_dir: Path) -> None:
    """Train as the configuration says, unless the run is complete. Raises ConfigError, TrainingError and Stopped."""
    folder = RunFolder(run_dir)
    try:
        # 1. The configuration: of a new run, or of the run that resume= names. None if that is complete.
        config = _composed(cfg, run_dir)
        if config is None:
            failed = folder.failed_after_training
            print(
                f"the run in {run_dir} is complete{', but ' + failed if failed else ': nothing is left to do'}"
            )
            return
        rules.validate(config)
        check_limits(config)
        # 2. Fork the server of the ranks while this process has computed nothing.
        fork_before_computing(config)
        # 3. Build environment and model once here, so that a mistake is one sentence and not one from each rank.
        check(config)
    except ConfigError:
        remove_if_empty(run_dir)
        raise
    if OmegaConf.select(HydraConfig.get().sweeper, "params"):
        experiment = HydraConfig.get().runtime.choices.get("experiment")
        warn(f"experiment={experiment} is a sweep, and this is one run of it: add -m")

    # 4. Write config.yaml, from which each rank reads its settings, and train.
    with held(run_dir, patience_s=_patience_s(config)):
        folder.begin(config)
        try:
            run(config, run_dir)
        except KeyboardInterrupt as e:
            raise _with_remedy(e, config, folder) from None


def _composed(cfg: DictConfig, run_dir: Path) -> Config | None:
    """Return the configuration of a single run; None if resume=auto finds the run complete."""
    config: Config | None
    if cfg.resume == "auto":
        from ddppo.launch import resuming

        config = resuming.begun_or_resumed(cfg, run_dir)
        if config is None:
            return None
    elif cfg.resume is not None:
        from ddppo.launch import resuming  # imports torch, and a new run's mistakes are answered without

        config = resuming.resumed(cfg, run_dir, list(HydraConfig.get().overrides.task))
    elif (run_dir / "config.yaml").exists():
        raise ConfigError(
            f"{run_dir} already holds a run, which would be overwritten: choose another hydra.run.dir, or resume it "
            f"by resume={run_dir}"
        )
    else:
        config = stored.from_omegaconf(cfg)
    if HydraConfig.get().runtime.choices.get("distributed") == "single" and config.dist.world_size > 1:
        raise ConfigError(
            f"dist.world_size={config.dist.world_size} with distributed=single, which is one rank: use distributed=ddp"
        )
    return config


def _patience_s(config: Config) -> float:
    """Return how long to wait for a run folder that another process still holds.

    After a fault torchrun starts its ranks again. Rank 0 of the start before may be on another host, where it notices
    only after dist.timeout_s that it lost the other ranks.
    """
    return config.dist.timeout_s + 5.0 if launcher() == "torchrun" else 0.0


def _with_remedy(interrupt: KeyboardInterrupt, config: Config, folder: RunFolder) -> Stopped:
    """Return an interrupt of a run with the command that resumes it, and the exit code that asks for a requeue."""
    number = interrupt.number if isinstance(interrupt, Stopped) else signal.SIGINT
    if folder.is_complete:
        return Stopped(number, f"the run in {folder.path} is complete")
    if not folder.has_checkpoint:
        return Stopped(number, "there is no checkpoint")
    remedy = f"go on with: {command('ddppo.train', f'resume={folder.path}')}"
    if folder.lacks_evaluation:
        remedy = f"all steps are done and saved, only the final evaluation is missing; {remedy}"
    requeue = config.run.requeue_exit_code if asks_for_requeue(number) else None
    return Stopped(number, remedy, requeue)


# -- The steps that a single run and a run of a sweep share.


def check_limits(config: Config) -> None:
    """Raise ConfigError if this process may not open the files that so many ranks need."""
    world_size = config.dist.world_size
    if world_size > 1 and (low := limits.too_low(_FILES + world_size)):
        raise ConfigError(low)


def fork_before_computing(config: Config) -> None:
    """Fork the server from which this run's ranks are forked, while this process has one thread.

    A fork copies only the thread that forks. A lock that another thread holds at that moment, as OpenMP's and BLAS's
    threads may, stays locked in the copy forever. The checks that follow compute, and so start such threads. A sweep
    forks the server at W = 1 too: a later run of it may have several ranks. torchrun and mpirun start ranks themselves.
    """
    stored.keep(config)  # for this process's rank, or those of the server
    if launcher() or (config.dist.world_size == 1 and HydraConfig.get().mode != RunMode.MULTIRUN):
        return
    import ddppo.launch.checks  # noqa: F401  # before the fork, so that the server need not import it again
    from ddppo.launch import local_ranks

    local_ranks.fork_server(config)


def fork_before_user_import() -> None:
    """Fork the server of the ranks before a module of the user's is imported here; see fork_before_computing.

    Ranks import the module themselves, each with its own RANK: they inherit nothing that it computed or opened here.
    """
    from ddppo.launch import local_ranks

    local_ranks.fork_server()


def check(config: Config) -> None:
    """Check everything that needs no second process: task, model, machine. Prints warnings. Raises ConfigError."""
    from ddppo.distributed import network
    from ddppo.launch import checks

    imports_are_done()
    num_ranks_here = checks.local_world_size(config)
    if little := limits.little_memory(num_ranks_here):
        warn(little)
    if config.dist.world_size > 1 and not launcher():
        network.loopback_address()
    if warning := checks.check(config, local_world_size=num_ranks_here):
        warn(warning)
    if launcher() and config.dist.on_lost == "restart":
        ends = "" if launcher() == "torchrun" else f": {launcher()} ends the run when it loses one"
        warn(
            f"dist.on_lost=restart restarts no rank that {launcher()} started, only processes of environments{ends}"
        )


def run(config: Config, run_dir: Path) -> int | None:
    """Train in a run folder that holds the config.yaml of `config`.

    Returns the number of a signal that came too late to stop the run, else None. Raises TrainingError,
    AfterTrainingError if only a step after training failed, and Stopped if a signal or run.max_minutes ended the run.
    """
    folder = RunFolder(run_dir)
    if config.env.backend == "device" and config.dist.world_size > 1:
        imported("ddppo.envs.backends.device:hand_on_probed")(config.env, run_dir)
    try:
        # Under a launcher and at W = 1 this process is rank 0. Else it forks all ranks, and watches them.
        if launcher():
            from ddppo.launch.rank import lead

            stop_signal = lead(run_dir, config.dist.timeout_s)
        elif config.dist.world_size == 1:
            from ddppo.loop.rank import train_rank

            stop_signal = train_rank(run_dir)
        else:
            from ddppo.launch.local_ranks import start_ranks

            note = partial(folder.note_restart, goes_on_from=None)
            stop_signal = with_restarts(folder, config, lambda config: start_ranks(run_dir, config, note))
    except TrainingError as e:
        # A rank may be lost after rank 0 wrote the summary, or while rank 0 evaluates: all steps are done then.
        if failed := folder.failed_after_training:
            raise AfterTrainingError(f"the run in {run_dir} is complete, but {failed}") from e
        if isinstance(e, RankLost) and folder.is_trained(config.training.total_steps):
            raise TrainingError(f"{e}, which evaluates: all steps are done and saved") from e
        raise
    if failed := folder.failed_after_training:
        raise AfterTrainingError(f"the run in {run_dir} is complete, but {failed}")
    if json.loads((run_dir / "summary.json").read_text())["status"] == "stopped":
        if stop_signal is None and is_over(end_of_time(config.run.max_minutes)):
            raise Stopped(0)
        raise Stopped(
            stop_signal or signal.SIGTERM
        )  # without a number here, another rank received the signal
    return stop_signal


def remove_if_empty(folder: Path) -> None:
    """Remove a run's folder, and the one around it, if they are empty: Hydra makes both before it calls us."""
    for path in (folder, folder.parent):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
