"""What one run and a run of a sweep have in common: the checks that need no second process, and the ranks."""

import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from ddppo.config import Config
from ddppo.door.torchrun import lead, under_torchrun
from ddppo.errors import AfterTrainingError, ConfigError, RankLost, Stopped, TrainingError
from ddppo.processes import limits
from ddppo.processes.signals import end_of_time, is_over
from ddppo.terminal import warn

if TYPE_CHECKING:
    from ddppo.run.folder import RunFolder

_FILES = 16  # that a process which starts ranks has open, besides one for each of them


def check(config: Config) -> None:
    """Check what takes more than the configuration; warnings are printed. Raises ConfigError."""
    from ddppo.distributed import launcher, network
    from ddppo.run.starting import checks

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
    from ddppo.run.folder import RunFolder

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
        from ddppo.run.worker import train_rank

        return train_rank(folder.path)
    from ddppo.distributed.launcher import start_ranks
    from ddppo.run.restarts import with_restarts

    note = partial(folder.note_restart, goes_on_from=None)
    return with_restarts(folder, config, lambda config: start_ranks(folder.path, config, note))


def remove_if_empty(folder: Path) -> None:
    """Take a run's folder away, and the one around it, where nothing has come to be in them."""
    for path in (folder, folder.parent):  # both made by Hydra, before it called us
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
