"""The settings of a run: names, types, defaults, meanings with units, and the rule of each field.

`Config` is the root. Settings of models are in model_settings.py, of algorithms in algorithm_settings.py, of topologies
in ddppo/distributed/topologies/settings.py. The meanings are the text of --help.
"""

import functools
import os
import re
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Any, ClassVar

from omegaconf import MISSING

from ddppo import device
from ddppo.config.algorithm_settings import (
    AlgorithmChoice,
    AlgorithmSettings,
    PPOSettings,
    SurrogateSettings,
    TrainingSettings,
)
from ddppo.config.fields import setting
from ddppo.config.model_settings import MlpSettings, ModelSettings
from ddppo.errors import ConfigError
from ddppo.plugins import added, imported
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec

CALLER = "DDPPO_CALLER"  # environment variable: the socket of a program that called train(callbacks=...)
_ROBOT = re.compile(
    "(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|Inverted(Double)?Pendulum|Pusher|Reacher|Swimmer|Walker2d)-v5"
)


@dataclass(slots=True)
class DistSettings:
    """The settings of all topologies. A topology with more derives a dataclass (distributed/topologies/settings.py)."""

    # Ranks and their roles.
    world_size: int = setting(1, "number of ranks W", low=1, high=1_000_000)
    topology: str = setting(
        "ddp",
        "which ranks step environments, act and learn: ddp, ddp_preempt, sync_actors, async_actors, "
        "multi_learner, env_workers, central_inference, device, or an import path of "
        "your own, my_pkg.topologies:Ring (docs/topologies.md); each may have settings of its own",
    )
    # Sums over ranks: how gradients are summed, in which order, and by which library.
    grad_sync: str = setting(
        "auto",
        "sum of gradients: ddp (DistributedDataParallel: buckets, overlapped with backward), flat (one "
        "sum), auto (ddp with dist.collective=gloo on CPUs from 1 M parameters, else flat)",
        choices=("auto", "ddp", "flat"),
    )
    reduction: str = setting(
        "auto",
        "order of floating-point sums: ordered (the same bits at every W that divides dist.shards; CPUs only), fast "
        "(results at different W agree to rounding), auto (ordered where the step is in C++; docs/ordered.md)",
        choices=("auto", "ordered", "fast"),
    )
    shards: int | None = setting(
        None,
        "reduction=ordered: number of shards V of the environments; each is computed separately, and V "
        "alone decides the order of sums. Divides env.num_envs. null is 8; with auto 8, 4, 2 or 1",
        low=1,
    )
    bucket_cap_mb: float | None = setting(
        None, "grad_sync=ddp: bucket size in MB; null is torch's default", above=0
    )
    collective: str = setting(
        "auto",
        "how ranks exchange numbers: shm (shared memory inside a machine, Gloo between machines), gloo, nccl or xccl "
        "(torch.distributed; the last two between accelerators), auto (the accelerators' own if every rank has one, "
        "else shm)",
        choices=("auto", "shm", "gloo", "nccl", "xccl"),
    )
    share_device: bool = setting(
        False, "let several ranks of a machine compute on one accelerator, each with memory of its own there"
    )
    # Faults: parameters that differ, ranks that do not answer or are lost.
    check_every: int = setting(
        10, "iterations between comparisons of the ranks' parameters by hash; 0 is never", low=0
    )
    timeout_s: float = setting(
        600.0, "seconds that a rank waits for another before it gives up", low=0.1, high=2_000_000
    )
    on_lost: str = setting(
        "stop",
        "if a process is killed or does not answer for timeout_s, an environment raises, or a rank runs "
        "out of memory: stop (all ranks end), or restart (a process of environments, a session with a "
        "server and a killed actor of async_actors alone; for any other rank all ranks, from the last "
        "checkpoint). Any other exception stops",
        choices=("stop", "restart"),
    )
    max_restarts: int = setting(
        3,
        "on_lost=restart: how often ranks, the processes of one rank, or the session of one environment "
        "are started again",
        low=1,
    )
    min_workers: int | None = setting(
        None,
        "on_lost=restart: if ranks are lost, or cannot be started, twice without a checkpoint in between,"
        " go on with the most ranks below world_size that keep the batch, but at least this many; null:"
        " never fewer ranks",
        low=1,
    )
    # The cores of this machine.
    oversubscribe: str = setting(
        "warn",
        "more ranks on this machine than cores (or GPUs): warn and go on, or refuse",
        choices=("warn", "refuse"),
    )
    threads_per_rank: int | None = setting(
        None,
        "CPU threads of one rank. null: cores / W if a minibatch is large enough, else 1; always 1 with "
        "reduction=ordered, where another number gives other bits",
        low=1,
        high=1024,
    )

    @property
    def allowed_restarts(self) -> int:
        """How often a process or session of environments may be lost and started again."""
        return self.max_restarts if self.on_lost == "restart" else 0


@dataclass(slots=True)
class ScalingConfig:
    rule: str = setting(
        "strong",
        "as W grows: strong keeps the global batch, weak keeps the batch of one rank",
        choices=("strong", "weak"),
    )
    learning_rate_rule: str = setting(
        "none", "rule=weak: how the learning rate grows with W", choices=("none", "linear", "sqrt")
    )


@dataclass(slots=True)
class EnvConfig:
    # The task, and how its environments are stepped.
    id: str = setting(
        MISSING,
        "Gymnasium id, e.g. CartPole-v1 or my_pkg.envs:MyEnv-v0; with backend=device the import path of a function or "
        "class, my_pkg.tasks:Hopper",
    )
    num_envs: int = setting(
        8, "environments N of all ranks (scaling=strong) or of one rank (scaling=weak)", low=1
    )
    backend: str = setting(
        "auto",
        "how environments are stepped: sync (in turn, in the rank), batched (all at once, in the rank: "
        "classic control and synthetic), pool (in a few processes, by shared memory), gym_vector (the "
        "task's own batch, with a random stream that depends on W, except for ALE/... and envpool/...), remote (behind"
        " an address, see env.urls), openenv (the same, of OpenEnv), device (as tensors that stay on the rank's "
        "device, see env.simulator), auto "
        "(batched where it can be; gym_vector for ALE/... and envpool/...; "
        "else sync or pool by measured step time; for text sync, or remote if a process can hold only "
        "one). sync, batched, pool and remote give the same numbers",
    )
    # backend=device.
    simulator: str = setting(
        "native",
        "backend=device: the form of the environments that env.id makes: native (ddppo.envs.tensor_env.TensorVecEnv), "
        "isaaclab (also mjlab), rsl_rl (also Genesis), maniskill, gymnax, brax (also MuJoCo Playground)",
        choices=("native", "isaaclab", "rsl_rl", "maniskill", "gymnax", "brax"),
    )
    simulator_options: dict[str, Any] = setting(
        meaning="options of the adapter that env.simulator names, such as {clip_actions: 1.0} (docs/simulators.md)",
        factory=dict,
    )
    # backend=remote.
    urls: list[str] = setting(
        meaning="backend=remote: addresses of servers (python -m ddppo.serve), e.g. [ws://127.0.0.1:8000]; "
        "backend=openenv: of any servers of OpenEnv. Environments are spread over them in turn. []: each rank starts a "
        "server of its own, which ends with the rank",
        factory=list,
    )
    token_file: str | None = setting(
        None,
        "file with the token for env.urls in its first line; backend=openenv: or with headers, Name: value",
    )
    batch_wait_ms: float | None = setting(
        None,
        "tasks of text: how long a batch of generation waits for further environments after the first "
        "answer; null waits for all, so that the run can be repeated to the bit",
        low=0,
        high=60_000,
    )
    # backend=pool, and batches of ale-py, EnvPool and MuJoCo's robots.
    num_workers: int | None = setting(
        None,
        "backend=pool: processes of a rank. null: the rank's cores, or more if environments wait instead "
        "of compute. For ALE/..., envpool/... and MuJoCo's robots in C++: threads of a rank; null is its cores",
        low=1,
    )
    # Episodes.
    max_episode_steps: int | None = setting(
        None, "truncate episodes here instead of at the task's limit", low=1
    )
    context: int | None = setting(
        None,
        "length of a context vector, which an episode gets in the options of reset and observes in every step; a "
        "search over orders uses it. null is none (docs/environments.md)",
        low=1,
        high=65_536,
    )
    kwargs: dict[str, Any] = setting(
        meaning="keyword arguments of the environment; a keyword that its preset names may be set as "
        "env.<keyword>",
        factory=dict,
    )
    wrappers: list[Any] = setting(
        meaning="wrappers around every environment, the first one innermost: import paths, or with arguments {path: "
        "gymnasium.wrappers:FrameStackObservation, stack_size: 4} (docs/environments.md)",
        factory=list,
    )
    max_turns: int | None = setting(
        None,
        "tasks of text: turns after which an episode is truncated; null is the task's own limit",
        low=1,
    )
    reward_weights: dict[str, float] = setting(
        meaning="tasks of text whose steps report the parts of their reward (info['reward_parts'], docs/text.md): the "
        "reward of a step is the sum of weight x part, as {progress: 1, hints: 0}, with a weight for each part. {}: "
        "the reward that the task returns",
        factory=dict,
    )
    # Studies of stragglers.
    slow_ranks: dict[int, float] = setting(
        meaning="slowness for studies: {rank: seconds slept at every vectorised step}", factory=dict
    )

    @property
    def is_ale(self) -> bool:
        """Whether ale-py's batch steps this task: an id ALE/..., unless env.backend is another one."""
        return self.id.startswith("ALE/") and self.backend in ("auto", "gym_vector")

    @property
    def is_envpool(self) -> bool:
        """Whether EnvPool steps this task: an id envpool/..., unless env.backend is another one."""
        return self.id.startswith("envpool/") and self.backend in ("auto", "gym_vector")

    @property
    def has_threads(self) -> bool:
        """Whether env.num_workers counts threads of a rank: of ale-py, of EnvPool, or of MuJoCo's robots in C++."""
        is_robot = _ROBOT.fullmatch(self.id) is not None and self.backend in ("auto", "batched")
        return is_robot or self.is_ale or self.is_envpool


@dataclass(slots=True)
class EvalConfig:
    every_steps: int = setting(
        0, "environment steps between evaluations during training; 0: only at the end", low=0
    )
    episodes: int = setting(
        20,
        "episodes of an evaluation during training; for text the next multiple of the number of tasks, if"
        " the environment lists them",
        low=1,
    )
    final_episodes: int = setting(100, "episodes of the evaluation at the end; 0 is none", low=0)
    env: dict[str, Any] = setting(
        meaning="settings of env for evaluations alone: eval.env.kwargs.<keyword> is added to env.kwargs; "
        "eval.env.max_episode_steps, wrappers and id replace those of env (docs/environments.md)",
        factory=dict,
    )
    seed: int | None = setting(
        None, "seed of the episodes of evaluations; null: the run's seed", low=0, high=2**63 - 1
    )
    on_error: str = setting(
        "warn",
        "an evaluation during training that fails, e.g. because the task raises: warn (training continues without "
        "its scores) or stop (the run ends). After training everything is on disk, and only the exit code differs "
        "(docs/faults.md)",
        choices=("warn", "stop"),
    )


@dataclass(slots=True)
class CheckpointConfig:
    every_steps: int = setting(50_000, "environment steps between checkpoints; 0: only at the end", low=0)
    every_minutes: float = setting(
        0.0, "minutes of training between checkpoints, by rank 0's clock; 0 is never", low=0, high=1_000_000
    )
    environments: bool = setting(
        True,
        "store the state of every environment in its episode, so that a resumed run equals one without "
        "interruption; megabytes per circuit. false: environments begin new episodes, with the messages that the "
        "run folder holds",
    )
    replay: bool = setting(
        True,
        "algorithms with a replay buffer: store it, so that a resumed run equals one without interruption. false: a "
        "resumed run begins with an empty one, and learns again once it holds algorithm.learning_starts rows",
    )
    keep: int = setting(2, "number of newest checkpoints to keep, besides the best", low=1)


@dataclass(slots=True)
class RunConfig:
    max_minutes: float | None = setting(
        None,
        "minutes since the start of the command after which all ranks finish the iteration, save and end,"
        " so that the command can be repeated; null is no limit",
        above=0,
        high=10_000_000,
    )
    stop_at_target: bool = setting(
        False,
        "complete the run as soon as the mean return of an evaluation reaches target_return: the final evaluation "
        "follows; the remaining steps are not trained",
    )
    patience: int | None = setting(
        None,
        "complete the run after so many evaluations in a row without a new best mean return; a resumed run counts on. "
        "null never does",
        low=1,
    )
    callbacks: list[Any] = setting(
        meaning="code of your own that is called while the run trains, and may stop it, save it or set a coefficient: "
        "import paths of functions and classes, or with arguments {path: my_pkg.early:Early, patience: 3} "
        "(docs/callbacks.md)",
        factory=list,
    )
    requeue_exit_code: int = setting(
        75,
        "exit code after SIGTERM, SIGUSR1, SIGUSR2 or run.max_minutes if there is a checkpoint to "
        "resume from; it means: repeat the command (docs/faults.md)",
        low=0,
        high=255,
    )

    @property
    def has_callbacks(self) -> bool:
        """Whether rank 0 calls callbacks: those of `callbacks`, or of a program that called ddppo.api.train."""
        return bool(self.callbacks) or CALLER in os.environ


@dataclass(slots=True)
class LogConfig:
    # Where numbers go.
    tensorboard: bool = setting(True, "write TensorBoard event files")
    trackers: list[str] = setting(
        meaning="services that also receive the numbers, as files in the run folder: wandb, mlflow",
        factory=list,
    )
    metrics: list[str] = setting(
        meaning="import paths of metrics of your own, functions of each rank's rollout, reduced over ranks by "
        "count: [my_pkg.metrics:pushed_left] (docs/guide/metric.md)",
        factory=list,
    )
    rollouts: str = setting(
        "sampled",
        "tasks of text: which rollouts are recorded in rollouts/ of the run folder, for python -m ddppo.rollouts: "
        "none, sampled (of each iteration one group, the best and the worst; of evaluations all), all "
        "(docs/rollouts.md)",
        choices=("none", "sampled", "all"),
    )
    progress: str = setting(
        "auto",
        "display: rich (live), plain (one line every few seconds), none, auto (by terminal)",
        choices=("auto", "rich", "plain", "none"),
    )
    # How they are averaged, and profiles.
    episode_window: int = setting(100, "number of episodes in the mean of rollout/return_mean", low=1)
    warmup_iterations: int = setting(
        2, "iterations left out of the means and percentiles in summary.json", low=0
    )
    profile_iterations: int = setting(
        0,
        "iterations of rank 0 to trace and then to profile, after warm-up, into profile/ of the run "
        "folder; 0 is none",
        low=0,
        high=1000,
    )


@dataclass(slots=True)
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelSettings = field(default_factory=MlpSettings)
    algorithm: AlgorithmChoice = field(default_factory=AlgorithmChoice)
    ppo: SurrogateSettings = field(default_factory=PPOSettings)  # of no effect with another algorithm
    dist: DistSettings = field(default_factory=DistSettings)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    run: RunConfig = field(default_factory=RunConfig)
    # Numbers and devices.
    seed: int = setting(0, "root of every random stream", low=0, high=2**63 - 1)
    device: str = setting("auto", device.MEANING)
    dtype: str = setting("float32", "floating-point type of the model", choices=("float32", "float64"))
    matmul_precision: str = setting(
        "highest",
        "accelerators: how float32 matrices are multiplied: highest (float32), high or tf32 (TF32, or 3 x bfloat16), "
        "medium or bf16 (bfloat16), where the device has these (docs/devices.md)",
        choices=("highest", "high", "medium", "tf32", "bf16"),
    )
    deterministic: bool = setting(
        False,
        "let torch use only kernels that give the same bits in every run; slower on accelerators",
    )
    compile: str = setting(
        "auto",
        "machine code for the learner's step. auto: ddppo's C++ for model=mlp on CPUs; torch's compiler "
        "for other models in runs of 100,000 steps or more, before the first iteration. on: "
        "compiled, any model. torch: like on, always by torch's compiler. off: "
        "no compiler",
        choices=("auto", "on", "torch", "off"),
    )
    # NaN and infinity.
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
    # The beginning and the goal of a run.
    target_return: float | None = setting(
        None,
        "evaluation return for time-to-target and steps-to-target, which are taken when it is first reached",
    )
    resume: str | None = setting(
        None,
        "run folder to resume. auto: resume the same run in hydra.run.dir, or begin it there",
    )
    resume_state: str = setting(
        "exact",
        "resume= from a checkpoint without the states of environments: exact refuses, approximate begins"
        " new episodes",
        choices=("exact", "approximate"),
    )
    other_spaces: bool = setting(
        False,
        "resume= though the task has other observations or actions than the checkpoint was trained on "
        "(docs/checkpoints.md)",
    )
    init_from: str | None = setting(
        None,
        "run folder (its last checkpoint) or checkpoint file: a new run begins with its parameters and "
        "normalisers, where they fit",
    )
    # Sweeps (-m).
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

    def check(self) -> None:
        device.check_name(self.device)

    @property
    def training(self) -> TrainingSettings:
        """The settings of the algorithm that trains. All code that is not PPO's own reads them here."""
        return self.algorithm if isinstance(self.algorithm, AlgorithmSettings) else self.ppo


# Groups of presets and the dataclass of their section, in the order of --help. Presets of `distributed` fill `dist`.
SECTIONS = {
    "env": EnvConfig,
    "model": ModelSettings,
    "algorithm": AlgorithmChoice,
    "ppo": SurrogateSettings,
    "distributed": DistSettings,
    "scaling": ScalingConfig,
}


class SamplerSettings:
    """Settings of a task sampler that a plugin brings, `<section>.<field>=`. Subclass it as a dataclass."""

    may_change: ClassVar[tuple[str, ...]] = ()  # the fields that a resumed run may change
    takes_shards: ClassVar[bool] = True  # whether dist.reduction=ordered is possible, too

    def check_run(self, config: Config, shape: BatchShape) -> None:
        """Raise ConfigError if these settings contradict others. The task is not made yet."""

    def check_memory(self, setting: str) -> None:
        """Raise ConfigError if the sampler excludes a policy with memory. setting: the text that brings the memory."""

    def asks(self, config: Config, spec: EnvSpec) -> bool:
        """Return whether these settings ask for the sampler on this task. Raises ConfigError if it cannot sample it."""
        return False


@functools.cache
def sections() -> dict[str, type[SamplerSettings]]:
    """Return the sections of settings that plugins bring, by name. Raises ConfigError for a name of ddppo's own."""
    found = {name: imported(path) for name, path in added("sections").items()}
    for name in found.keys() & {item.name for item in fields(Config)}:
        raise ConfigError(f"a plugin brings a section of settings {name}, which ddppo has: rename it")
    return found


def eval_env(config: Config) -> EnvConfig:
    """Return the settings of evaluations' environments: those of training, with eval.env in their place."""
    kwargs = {**config.env.kwargs, **config.eval.env.get("kwargs", {})}
    return replace(config.env, **{**config.eval.env, "kwargs": kwargs}) if config.eval.env else config.env


def eval_seed(config: Config) -> int:
    """Return the seed of the episodes of evaluations."""
    return config.seed if config.eval.seed is None else config.eval.seed


@functools.cache
def config_class() -> type[Config]:
    """Return a dataclass derived from Config, with the sections of plugins behind its own."""
    more = [(name, kind, field(default_factory=kind)) for name, kind in sections().items()]
    return make_dataclass(
        _WITH_SECTIONS, more, bases=(Config,), slots=True, namespace={"__module__": __name__}
    )


_WITH_SECTIONS = "ConfigWithSections"


def __getattr__(name: str) -> Any:
    """Let pickle find the class that config_class makes: Hydra's launchers send its instances to other processes."""
    if name == _WITH_SECTIONS:
        return config_class()
    raise AttributeError(f"module {__name__} has no attribute {name}")


def section(config: Config, name: str) -> Any:
    """Return a plugin's section of a configuration; its defaults if the configuration has none."""
    found = getattr(config, name, None)
    return sections()[name]() if found is None else found
