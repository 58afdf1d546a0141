"""A run alone, begun or resumed in the folder that Hydra names."""

import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ddppo.config import rules, stored
from ddppo.config.settings import Config
from ddppo.errors import AfterTrainingError, ConfigError, RankLost, Stopped, TrainingError
from ddppo.launch.torchrun import lead, under_torchrun
from ddppo.package import command
from ddppo.processes import limits
from ddppo.processes.signals import asks_for_requeue, end_of_time, is_over
from ddppo.records.run_folder import held
from ddppo.terminal import warn


def train_alone(cfg: DictConfig, run_dir: Path) -> None:
    """Train as the configuration says, unless the run is complete. Raises ConfigError, TrainingError and Stopped."""
    from ddppo.records.run_folder import RunFolder

    try:
        config = _checked(cfg, run_dir)
    except ConfigError:
        remove_if_empty(run_dir)
        raise
    if config is None:
        failed = RunFolder(run_dir).failed_after_training
        print(f"the run in {run_dir} is complete{', but ' + failed if failed else ': nothing is left to do'}")
        return
    folder = RunFolder(run_dir)
    with held(run_dir, patience_s=_patience_s(config)):
        folder.begin(config)
        try:
            run(config, run_dir)
        except KeyboardInterrupt as e:
            remedy = f"go on with: {command('ddppo.train', f'resume={run_dir}')}"
            number = e.number if isinstance(e, Stopped) else signal.SIGINT
            if folder.is_complete:
                raise Stopped(number, f"the run in {run_dir} is complete") from None
            if folder.lacks_evaluation:
                remedy = f"all steps are done and saved, only the final evaluation is missing; {remedy}"
            if not folder.has_checkpoint:
                raise Stopped(number, "there is no checkpoint") from None
            requeue = config.run.requeue_exit_code if asks_for_requeue(number) else None
            raise Stopped(number, remedy, requeue) from None


def _patience_s(config: Config) -> float:
    """Return how long who held the folder may still be ending: under torchrun rank 0 of the start before this one.

    It may be on another host, and notices that it lost the others only after dist.timeout_s.
    """
    return config.dist.timeout_s + 5.0 if under_torchrun() else 0.0


def _checked(cfg: DictConfig, run_dir: Path) -> Config | None:
    """Return the configuration of a single run after every check that needs no second process.

    None of a run that resume=auto finds complete.
    """
    from ddppo.launch import resuming

    config: Config | None
    if cfg.resume == "auto":
        config = resuming.begun_or_resumed(cfg, run_dir)
        if config is None:
            return None
    elif cfg.resume is not None:
        config = resuming.resumed(cfg, run_dir, list(HydraConfig.get().overrides.task))
    elif (run_dir / "config.yaml").exists():
        raise ConfigError(
            f"{run_dir} already holds a run, which would be overwritten: choose another hydra.run.dir, or go on "
            f"with it by resume={run_dir}"
        )
    else:
        config = stored.from_omegaconf(cfg)
    if HydraConfig.get().runtime.choices.get("distributed") == "single" and config.dist.world_size > 1:
        raise ConfigError(
            f"dist.world_size={config.dist.world_size} with distributed=single, which is one rank: use distributed=ddp"
        )
    rules.validate(config)
    check(config)
    if OmegaConf.select(HydraConfig.get().sweeper, "params"):
        experiment = HydraConfig.get().runtime.choices.get("experiment")
        print(
            f"warning: experiment={experiment} is a sweep, of which this is one run: add -m", file=sys.stderr
        )
    return config


# -- What one run and a run of a sweep have in common: the checks that need no second process, and the ranks.


if TYPE_CHECKING:
    from ddppo.records.run_folder import RunFolder

_FILES = 16  # that a process which starts ranks has open, besides one for each of them


def check(config: Config) -> None:
    """Check what takes more than the configuration; warnings are printed. Raises ConfigError."""
    from ddppo.distributed import network
    from ddppo.launch import checks
    from ddppo.launch import local_ranks as launcher

    if config.dist.world_size > 1 and (low := limits.too_low(_FILES + config.dist.world_size)):
        raise ConfigError(low)
    if little := limits.little_memory(checks.local_world_size(config)):
        warn(little)
    # The checks compute, and so does a job of a sweep before one with several ranks.
    in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    if (config.dist.world_size > 1 or in_sweep) and not under_torchrun():
        launcher.prepare(config.dist.world_size)
        if config.dist.world_size > 1:
            network.loopback_address()
    if warning := checks.check(config, local_world_size=checks.local_world_size(config)):
        print(f"warning: {warning}", file=sys.stderr)
    if under_torchrun() and config.dist.on_lost == "restart":
        print(
            "warning: dist.on_lost=restart starts no rank again that torchrun started, only processes of environments",
            file=sys.stderr,
        )


def run(config: Config, run_dir: Path) -> int | None:
    """Train in the run folder, whose config.yaml says all.

    Raises TrainingError, AfterTrainingError where only a step after training failed, and Stopped if a signal cut the
    run short; returns the number of one that came too late.
    """
    from ddppo.records.run_folder import RunFolder

    folder = RunFolder(run_dir)
    try:
        stop_signal = _run(config, folder)
    except TrainingError as e:
        if (
            failed := folder.failed_after_training
        ):  # rank 0 wrote the summary, and ended as it lost another rank
            raise AfterTrainingError(f"the run in {run_dir} is complete, but {failed}") from e
        if isinstance(e, RankLost) and folder.is_trained(config.ppo.total_steps):  # rank 0 itself was lost
            raise TrainingError(f"{e}, which evaluates: all steps are done and saved") from e
        raise
    if failed := folder.failed_after_training:
        raise AfterTrainingError(f"the run in {run_dir} is complete, but {failed}")
    if json.loads((run_dir / "summary.json").read_text())["status"] == "stopped":
        if stop_signal is None and is_over(end_of_time(config.run.max_minutes)):
            raise Stopped(0)
        raise Stopped(stop_signal or signal.SIGTERM)  # if it was none of ours, it was another rank's
    return stop_signal


def _run(config: Config, folder: "RunFolder") -> int | None:
    if under_torchrun():
        return lead(folder.path, config.dist.timeout_s)
    if config.dist.world_size == 1:
        from ddppo.loop.rank import train_rank

        return train_rank(folder.path)
    from ddppo.launch.local_ranks import start_ranks
    from ddppo.records.run_folder import with_restarts

    note = partial(folder.note_restart, goes_on_from=None)
    return with_restarts(folder, config, lambda config: start_ranks(folder.path, config, note))


def remove_if_empty(folder: Path) -> None:
    """Take a run's folder away, and the one around it, where nothing has come to be in them."""
    for path in (folder, folder.parent):  # both made by Hydra, before it called us
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
