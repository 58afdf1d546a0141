"""All settings of a run: those of ddppo, and sections that plugins bring."""

import functools
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, ClassVar

from ddppo.config.fields import setting
from ddppo.config.settings.dist import DistSettings, ScalingConfig
from ddppo.config.settings.env import EnvConfig
from ddppo.config.settings.model import MlpSettings, ModelSettings
from ddppo.config.settings.ppo import AlgorithmSettings, PPOSettings
from ddppo.config.settings.run import CheckpointConfig, EvalConfig, LogConfig, RunConfig
from ddppo.errors import ConfigError
from ddppo.plugins import added, imported
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec


@dataclass(slots=True)
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelSettings = field(default_factory=MlpSettings)
    ppo: AlgorithmSettings = field(default_factory=PPOSettings)
    dist: DistSettings = field(default_factory=DistSettings)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    run: RunConfig = field(default_factory=RunConfig)
    seed: int = setting(0, "root of every random stream", low=0, high=2**63 - 1)
    device: str = setting(
        "auto", "auto takes a GPU if there is one, else the CPU", choices=("auto", "cpu", "cuda")
    )
    dtype: str = setting("float32", "floating-point type of the model", choices=("float32", "float64"))
    compile: str = setting(
        "auto",
        "machine code for the learner's step. auto: ddppo's C++ for model=mlp on CPUs; torch's compiler "
        "for other models in runs of 100,000 steps or more, before the first iteration. on: "
        "compiled, any model. torch: as on, always by torch's compiler. off: "
        "no compiler",
        choices=("auto", "on", "torch", "off"),
    )
    on_nonfinite: str = setting(
        "stop",
        "if a loss, a gradient or a parameter is not finite: stop (all ranks end), skip_batch (all ranks "
        "undo the iteration's batch), restore (all ranks go back to the last checkpoint, with smaller "
        "steps)",
        choices=("stop", "skip_batch", "restore"),
    )
    on_nonfinite_max: int = setting(
        10,
        "all ranks end after this many skipped batches in a row (skip_batch) or restores in all (restore)",
        low=1,
    )
    on_nonfinite_factor: float = setting(
        0.5, "restore: factor on the step sizes at each restore", above=0, high=0.99
    )
    target_return: float | None = setting(
        None,
        "evaluation return for time-to-target and steps-to-target, which are taken when it is first reached",
    )
    resume: str | None = setting(
        None,
        "run folder to go on from. auto: go on with the same run in hydra.run.dir, or begin it there",
    )
    resume_state: str = setting(
        "exact",
        "resume= from a checkpoint without the states of environments: exact refuses, approximate goes on"
        " with new episodes",
        choices=("exact", "approximate"),
    )
    other_spaces: bool = setting(
        False,
        "resume= though the task's observations or actions are not what the checkpoint was trained on "
        "(docs/checkpoints.md)",
    )
    init_from: str | None = setting(
        None,
        "run folder (its last checkpoint) or checkpoint file: a new run begins with its parameters and "
        "normalisers, where they fit",
    )
    sweep: str | None = setting(
        None,
        "folder of the runs of -m; the same command with the same folder skips complete runs and repeats "
        "the others",
    )
    objective: str = setting(
        "eval_return",
        "number that a sweeper such as gp_ucb is given: mean return of the final evaluation, or seconds "
        "to target_return",
        choices=("eval_return", "time_to_target"),
    )


SECTIONS = {
    "env": EnvConfig,
    "model": ModelSettings,
    "ppo": AlgorithmSettings,
    "distributed": DistSettings,
    "scaling": ScalingConfig,
}


class SamplerSettings:
    """Settings of a task sampler that a plugin brings, `<section>.<field>=`. Subclass it as a dataclass.

    may_change: the fields that a run which goes on may change.
    """

    may_change: ClassVar[tuple[str, ...]] = ()

    def check_run(self, config: Config, shape: BatchShape) -> None:
        """Raise ConfigError where these settings do not go with the others; before the task is made."""

    def check_memory(self, said: str) -> None:
        """Raise ConfigError where they do not go with a policy that remembers; `said` is what brings the memory."""

    def asks(self, config: Config, spec: EnvSpec) -> bool:
        """Return whether a run on this task is sampled as these settings say. Raises ConfigError where it cannot be."""
        return False


@functools.cache
def sections() -> dict[str, type[SamplerSettings]]:
    """Return the sections that plugins bring, by name. Raises ConfigError for one that ddppo has."""
    found = {name: imported(path) for name, path in added("sections").items()}
    for name in found.keys() & {item.name for item in fields(Config)}:
        raise ConfigError(f"a plugin brings a section of settings {name}, which ddppo has: rename it")
    return found


@functools.cache
def config_class() -> type[Config]:
    """Return Config with the sections of plugins behind its own."""
    more = [(name, kind, field(default_factory=kind)) for name, kind in sections().items()]
    return make_dataclass(
        _WITH_SECTIONS, more, bases=(Config,), slots=True, namespace={"__module__": __name__}
    )


_WITH_SECTIONS = "ConfigWithSections"


def __getattr__(name: str) -> Any:
    """Let pickle find that class, which Hydra's launchers send to other processes."""
    if name == _WITH_SECTIONS:
        return config_class()
    raise AttributeError(f"module {__name__} has no attribute {name}")


def section(config: Config, name: str) -> Any:
    """Return a plugin's section of a configuration, its defaults where that was made without."""
    found = getattr(config, name, None)
    return sections()[name]() if found is None else found
