"""All settings of a run."""

from dataclasses import dataclass, field

from ddppo.config.fields import setting
from ddppo.config.settings.choosing import CurriculumConfig, SearchConfig
from ddppo.config.settings.dist import DistConfig, ScalingConfig
from ddppo.config.settings.env import EnvConfig
from ddppo.config.settings.model import ModelConfig
from ddppo.config.settings.ppo import PPOConfig
from ddppo.config.settings.run import CheckpointConfig, EvalConfig, LogConfig, RunConfig


@dataclass(slots=True)
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    dist: DistConfig = field(default_factory=DistConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    run: RunConfig = field(default_factory=RunConfig)
    seed: int = setting(0, "root of every random stream", low=0, high=2**63 - 1)
    device: str = setting("auto", "auto takes a GPU if there is one", choices=("auto", "cpu", "cuda"))
    dtype: str = setting("float32", "floating-point type of the model", choices=("float32", "float64"))
    compile: str = setting(
        "auto",
        "the learner's step in machine code: auto (ddppo's own for model=mlp on CPUs, for others torch's compiler, "
        "in the background if the run is long or at once if an earlier one did), on (any model before the first "
        "iteration), torch (as on, always by torch's compiler), off",
        choices=("auto", "on", "torch", "off"),
    )
    on_nonfinite: str = setting(
        "stop",
        "where a loss, a gradient or what was learned is not finite: stop (all ranks end), skip_batch (all take back "
        "what the iteration's batch taught them), or restore (all go back to the last checkpoint, with smaller steps)",
        choices=("stop", "skip_batch", "restore"),
    )
    on_nonfinite_max: int = setting(
        10, "of skip_batch, batches skipped in a row, of restore, ways back, after which all ranks end", low=1
    )
    on_nonfinite_factor: float = setting(
        0.5, "of restore, what step sizes are multiplied by with every way back", above=0, high=0.99
    )
    target_return: float | None = setting(
        None, "evaluation return whose first reaching gives time-to-target and steps-to-target"
    )
    resume: str | None = setting(
        None,
        "a run folder to go on from; auto: begin in hydra.run.dir, or go on with the same run there, whichever applies",
    )
    resume_state: str = setting(
        "exact",
        "resume= where a checkpoint does not hold what environments are in the midst of: refuse (exact), or go on with "
        "new episodes (approximate)",
        choices=("exact", "approximate"),
    )
    init_from: str | None = setting(
        None,
        "a run folder (its last checkpoint) or a checkpoint whose parameters and normalisers, as far as they fit, a "
        "new run begins with",
    )
    sweep: str | None = setting(
        None,
        "folder of the runs of -m; the same command with the same folder skips the complete and redoes the others",
    )
    objective: str = setting(
        "eval_return",
        "what a sweeper such as gp_ucb is told: the final evaluation's mean return, or seconds to target_return",
        choices=("eval_return", "time_to_target"),
    )


SECTIONS = {
    "env": EnvConfig,
    "model": ModelConfig,
    "ppo": PPOConfig,
    "distributed": DistConfig,
    "scaling": ScalingConfig,
}
