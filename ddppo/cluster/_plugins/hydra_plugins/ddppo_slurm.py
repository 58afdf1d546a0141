"""hydra/launcher=slurm: Hydra's launcher for the runs of a sweep as jobs of a SLURM cluster.

Each job's configuration is composed, checked and written to its run folder before the job is submitted. So editing a
YAML file while jobs wait in the queue changes none of them.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ddppo.cluster.resources import SlurmLauncherConfig
from ddppo.config.fields import check_fields
from ddppo.config.settings import Config
from ddppo.config.stored import from_omegaconf
from ddppo.errors import ConfigError
from ddppo.launch.sweep import QuietReturn
from ddppo.launch.sweep_runs import list_run


class SlurmLauncher(Launcher):
    """Submits the runs that are not complete yet, and waits for them unless wait=false."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings  # of the whole sweep; those of a job are composed with the job

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Return the result of each job; with wait=false, return when all are submitted. Ctrl-C cancels all jobs."""
        from ddppo.cluster.submit import launch

        setup_globals()
        sweep_dir = Path(self._config.hydra.sweep.dir).absolute()
        # Compose all jobs first. This sets HydraConfig, which is restored afterwards.
        before = HydraConfig.instance().cfg
        try:
            runs = [
                self._composed(overrides, i) for i, overrides in enumerate(job_overrides, initial_job_idx)
            ]
        finally:
            HydraConfig.instance().cfg = before
        for overrides, (run_dir, settings) in zip(job_overrides, runs, strict=True):
            if not isinstance(settings, ConfigError):
                list_run(sweep_dir, run_dir, overrides)
        results = launch(sweep_dir, _checked(self._settings), runs)
        return [_job_return(*pair) for pair in zip(job_overrides, results, strict=True)]

    def _composed(
        self, overrides: Sequence[str], number: int
    ) -> tuple[Path, tuple[Config, SlurmLauncherConfig] | ConfigError]:
        """Return the run folder of a job with its configuration and launcher settings, or with the error in them."""
        cfg = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        with open_dict(cfg):
            cfg.hydra.job.id = str(number)
            cfg.hydra.job.num = number
        HydraConfig.instance().set_config(cfg)  # for ${hydra:...}; makes cfg.hydra read-only
        run_dir = Path(cfg.hydra.sweep.dir).absolute() / cfg.hydra.sweep.subdir
        try:
            launcher = _checked(OmegaConf.to_container(cfg.hydra.launcher, resolve=True))
            with read_write(cfg), open_dict(cfg):
                del cfg["hydra"]
            return run_dir, (from_omegaconf(cfg), launcher)
        except ConfigError as e:
            return run_dir, e


def _checked(settings: Any) -> SlurmLauncherConfig:
    launcher = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SlurmLauncherConfig), settings))
    assert isinstance(launcher, SlurmLauncherConfig)
    check_fields(launcher, "hydra.launcher.")
    return launcher


def _job_return(overrides: Sequence[str], result: float | Exception | None) -> JobReturn:
    done = QuietReturn(overrides=list(overrides), working_dir=os.getcwd())
    done.status = JobStatus.FAILED if isinstance(result, Exception) else JobStatus.COMPLETED
    done.return_value = result
    return done
