"""A run alone, begun or resumed in the folder that Hydra names."""

import signal
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from ddppo import config as configuration
from ddppo.config import Config
from ddppo.door.ranks import check, remove_if_empty, run
from ddppo.door.torchrun import under_torchrun
from ddppo.errors import ConfigError, Stopped
from ddppo.package import command
from ddppo.processes.signals import asks_for_requeue
from ddppo.run.folder import held


def train_alone(cfg: DictConfig, run_dir: Path) -> None:
    """Train as the configuration says, unless the run is complete. Raises ConfigError, TrainingError and Stopped."""
    from ddppo.run.folder import RunFolder

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
    from ddppo.run.starting import resuming

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
        config = configuration.from_omegaconf(cfg)
    if HydraConfig.get().runtime.choices.get("distributed") == "single" and config.dist.world_size > 1:
        raise ConfigError(
            f"dist.world_size={config.dist.world_size} with distributed=single, which is one rank: use distributed=ddp"
        )
    configuration.validate(config)
    check(config)
    if OmegaConf.select(HydraConfig.get().sweeper, "params"):
        experiment = HydraConfig.get().runtime.choices.get("experiment")
        print(
            f"warning: experiment={experiment} is a sweep, of which this is one run: add -m", file=sys.stderr
        )
    return config
