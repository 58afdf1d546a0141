"""What `python -m ddppo.train` makes of Hydra's complaints, and what it asks of a sweep as Hydra begins it."""

import re
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ddppo.config import Config, conf_dir, in_words, near
from ddppo.config.help import unknown_setting
from ddppo.errors import ConfigError, EnvRaised, RunFolderError, StorageError, TrainingError
from ddppo.package import install_command
from ddppo.run.lock import held

# Options that packages of an extra bring, which Hydra cannot name.
_EXTRAS = {("hydra/sweeper", "optuna"): "tune", ("hydra/launcher", "joblib"): "tune"}
_OF_NO_RUN = ("multirun.yaml", ".lock", "sweep.jsonl")  # what a sweep leaves of which no run could begin
_CHAINED = (
    ", set env var HYDRA_FULL_ERROR=1 to see chained exception."  # Hydra's way to keep the cause to itself
)


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
    def began(cls, since: float) -> bool:
        """Return whether any run of the sweep has come to anything since then, seconds since the epoch."""
        from ddppo.run import sweep

        return cls.path is not None and bool(sweep.outcomes(cls.path, since))

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


def composition_message(error: HydraException | OmegaConfBaseException) -> str:
    """Return Hydra's complaint about a command line in one line, with near matches of a mistyped name."""
    text = str(error)
    if text.startswith("Error merging override"):
        cause = in_words(str(error.__cause__).splitlines()[0])
        return f"{text.removeprefix('Error merging override ')}: {cause}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if found := re.match(r"Could not override '([\w.]+)'", text):
        return unknown_setting(found[1], Config)
    if found := re.search(r"Could not (?:find|load|override) '([\w/]+/[\w-]+)'", text):
        return unknown_option(found[1], text)
    details = [line for line in lines if not line.startswith(("full_key", "reference_type", "object_type"))]
    key = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("full_key")), "")
    message = " ".join(details)
    if _CHAINED in message and isinstance(error.__cause__, Exception):
        message = f"{message.replace(_CHAINED, '')}: {one_line(error.__cause__)}"
    return f"{key + ': ' if key else ''}{message}"


def unknown_option(path: str, text: str) -> str:
    """Return what is wrong with e.g. hydra/launcher/nix or experiment/tune/nix, of which Hydra says `text`."""
    parts = path.split("/")
    depth = 2 if parts[0] == "hydra" else 1
    group, option = "/".join(parts[:depth]), "/".join(parts[depth:])
    if extra := _EXTRAS.get((group, option)):
        return f"{group}={option} needs a package that is not installed: {install_command(extra)}"
    folder = conf_dir() / group
    options = {p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml")}
    if parts[0] == "hydra":  # its own and those of plugins
        options |= set(re.findall(r"^\t(\w+)$", text, re.MULTILINE))
    return f"{group}={option}: must be one of {', '.join(sorted(options))}{near(option, sorted(options))}"


def one_line(error: Exception) -> str:
    """Return an error in one line, with the name of its class unless it is one of ours, which say all."""
    text = " ".join((error.said if isinstance(error, EnvRaised) else str(error)).split())
    return text if isinstance(error, (ConfigError, TrainingError)) else f"{type(error).__name__}: {text}"
