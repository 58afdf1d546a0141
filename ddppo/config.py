"""Names, types, defaults, units and rules of every setting. Imports no torch, so that `--help` is quick.

`Config` is the resolved configuration of one run. YAML files in conf/ hold presets of its sections; Hydra composes
them against these dataclasses, `from_omegaconf` converts the result, and `validate` checks it before any process
starts. Nothing changes it afterwards.
"""

import difflib
import hashlib
import math
import re
import secrets
import string
import time
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ddppo.errors import ConfigError
from ddppo.help import help_text, setting_names
from ddppo.scaling.batch import BatchShape, strong, weak


def setting(
    default: Any = NO_DEFAULT,
    meaning: str = "",
    *,
    factory: Any = NO_DEFAULT,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
) -> Any:
    """Return a dataclass field with its meaning and its single-field rule (low <= x, above < x, x <= high)."""
    metadata = {"meaning": meaning, "choices": choices, "low": low, "above": above, "high": high}
    if factory is not NO_DEFAULT:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(slots=True)
class EnvConfig:
    id: str = setting(MISSING, "Gymnasium id, e.g. CartPole-v1 or my_pkg.envs:MyEnv-v0")
    num_envs: int = setting(
        8, "environments N of all ranks (scaling=strong) or of one rank (scaling=weak)", low=1
    )
    backend: str = setting(
        "auto",
        "who steps them: sync (in the rank), async (one process each, shared memory), native (the task's own "
        "batched implementation; its random stream depends on W), auto (sync or async by measured step time)",
        choices=("auto", "sync", "async", "native"),
    )
    max_episode_steps: int | None = setting(
        None, "truncate episodes here instead of at the task's limit", low=1
    )
    kwargs: dict[str, Any] = setting(meaning="keyword arguments of the environment", factory=dict)
    slow_ranks: dict[int, float] = setting(
        meaning="injected slowness for studies: {rank: seconds slept at every vectorised step}", factory=dict
    )


@dataclass(slots=True)
class ModelConfig:
    name: str = setting(
        "mlp", "a key of ddppo.models.MODELS, or an import path such as my_pkg.models:MyModel"
    )
    hidden_sizes: list[int] = setting(meaning="units of each hidden layer", factory=lambda: [64, 64])
    activation: str = setting(
        "tanh", "nonlinearity between layers", choices=("tanh", "relu", "elu", "silu", "gelu", "leaky_relu")
    )
    shared_trunk: bool = setting(False, "policy and value function share the hidden layers")
    log_std_init: float = setting(0.0, "initial log standard deviation of Gaussian actions")


@dataclass(slots=True)
class PPOConfig:
    total_steps: int = setting(100_000, "environment steps of all ranks until the run ends", low=1)
    rollout_steps: int = setting(128, "steps T per environment and iteration", low=1)
    num_epochs: int = setting(4, "passes K over the batch per iteration", low=1, high=1_000_000)
    num_minibatches: int = setting(4, "minibatches M per epoch, over all ranks", low=1)
    gamma: float = setting(0.99, "discount per step", low=0, high=1)
    gae_lambda: float = setting(0.95, "lambda of GAE", low=0, high=1)
    clip_coef: float = setting(0.2, "epsilon of the clipped surrogate", above=0)
    clip_value_coef: float | None = setting(None, "clip range of the value loss; null does not clip", above=0)
    value_coef: float = setting(0.5, "weight of the value loss", low=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus", low=0)
    learning_rate: float = setting(3e-4, "Adam step size at the start", above=0)
    lr_schedule: str = setting(
        "linear",
        "linear (to 0 at total_steps), none, adaptive (by approx_kl around adaptive_kl)",
        choices=("linear", "none", "adaptive"),
    )
    adaptive_kl: float | None = setting(
        None, "approx_kl in nats that lr_schedule=adaptive aims at (0.01 if null)", above=0
    )
    adam_eps: float = setting(1e-5, "epsilon of Adam", above=0)
    max_grad_norm: float = setting(
        0.5, "gradients are scaled down to this norm, over all parameters", above=0
    )
    target_kl: float | None = setting(
        None, "stop the epochs of an iteration once approx_kl exceeds this", above=0
    )
    normalize_advantages: str = setting(
        "global",
        "by moments over all ranks (global), over one rank's samples (local: depends on W), or not (none)",
        choices=("global", "local", "none"),
    )
    normalize_obs: bool = setting(False, "scale observations by running moments over all ranks")
    normalize_rewards: bool = setting(False, "scale rewards by the running deviation of discounted returns")


@dataclass(slots=True)
class DistConfig:
    world_size: int = setting(1, "ranks W", low=1)
    max_world_size: int | None = setting(None, "largest world_size this option allows", low=1)
    grad_sync: str = setting(
        "auto",
        "ddp (DistributedDataParallel: buckets, overlapped), flat (one all-reduce), auto (flat on a GPU "
        "or below 1 M parameters, else ddp)",
        choices=("auto", "ddp", "flat"),
    )
    bucket_cap_mb: float | None = setting(
        None, "bucket size of grad_sync=ddp in MB (torch's default if null)", above=0
    )
    backend: str = setting("auto", "NCCL on GPUs, Gloo on CPUs, or by name", choices=("auto", "gloo", "nccl"))
    check_every: int = setting(
        10, "iterations between comparisons of the parameters' hash; 0 is never", low=0
    )
    timeout_s: float = setting(
        600.0, "seconds a rank waits for another before it gives up", above=0, high=10_000_000
    )
    oversubscribe: str = setting(
        "warn",
        "more ranks on this machine than it has cores (or GPUs): warn and go on, or refuse",
        choices=("warn", "refuse"),
    )
    threads_per_rank: int | None = setting(
        None,
        "CPU threads of one rank; null takes cores / W where a minibatch is work enough, else 1",
        low=1,
        high=1024,
    )


@dataclass(slots=True)
class ScalingConfig:
    rule: str = setting(
        "strong", "strong keeps the global batch, weak keeps one rank's", choices=("strong", "weak")
    )
    learning_rate_rule: str = setting(
        "none", "learning rate against W under rule=weak", choices=("none", "linear", "sqrt")
    )


@dataclass(slots=True)
class EvalConfig:
    every_steps: int = setting(
        0, "environment steps between evaluations during training; 0 is only the last", low=0
    )
    episodes: int = setting(20, "episodes of an evaluation during training", low=1)
    final_episodes: int = setting(100, "episodes of the evaluation at the end; 0 is none", low=0)


@dataclass(slots=True)
class CheckpointConfig:
    every_steps: int = setting(50_000, "environment steps between checkpoints; 0 is only at the end", low=0)
    keep: int = setting(2, "how many of the newest checkpoints stay, besides the best", low=1)


@dataclass(slots=True)
class LogConfig:
    tensorboard: bool = setting(True, "write TensorBoard event files")
    progress: str = setting(
        "auto",
        "live display (rich), one line every few seconds (plain), nothing (none), by terminal (auto)",
        choices=("auto", "rich", "plain", "none"),
    )
    episode_window: int = setting(100, "episodes in the mean of rollout/return_mean", low=1)
    warmup_iterations: int = setting(
        2, "iterations left out of the means and percentiles in summary.json", low=0
    )


@dataclass(slots=True)
class SlurmLauncherConfig:
    """Settings of hydra/launcher=slurm; resolved for each job, so that a value may follow ${dist.world_size}."""

    _target_: str = setting("hydra_plugins.ddppo_slurm.SlurmLauncher", "")
    ranks_per_node: int = setting(
        8, "ranks on one node at most; nodes = W / ranks_per_node, rounded up", low=1
    )
    cpus_per_rank: int = setting(1, "CPUs of one rank", low=1)
    gpus_per_rank: int = setting(0, "GPUs of one rank", low=0)
    mem_gb_per_rank: float | None = setting(
        None, "memory of one rank in GB; the partition's default if null", above=0
    )
    timeout_min: int = setting(
        60, "time limit in minutes; a run that needs longer saves, requeues and goes on", low=1
    )
    signal_s: int = setting(
        120, "seconds before the time limit at which all ranks save and the job requeues", low=1
    )
    max_num_timeout: int = setting(50, "how often a job may requeue because of its time limit", low=0)
    partition: str | None = setting(None, "sbatch --partition")
    account: str | None = setting(None, "sbatch --account")
    qos: str | None = setting(None, "sbatch --qos")
    constraint: str | None = setting(None, "sbatch --constraint")
    exclusive: bool = setting(False, "nodes are shared with no other job, as a measurement needs")
    setup: list[str] = setting(meaning="shell lines before the run, e.g. ['module load cuda']", factory=list)
    additional_parameters: dict[str, Any] = setting(meaning="any other options of sbatch", factory=dict)
    array_parallelism: int = setting(256, "jobs of one array that run at once", low=1)
    one_at_a_time: bool = setting(
        False, "jobs of the sweep run one after another, so that measurements do not disturb each other"
    )
    interface: str | None = setting(
        None, "network interface of Gloo and NCCL, e.g. ib0; their own choice if null"
    )
    local_cluster: bool = setting(False, "use the fake-node cluster that `make slurm-up` started")
    wait: bool = setting(True, "stay until all jobs have ended; false returns, `ddppo.jobs` looks later")
    poll_s: float = setting(3.0, "seconds between two looks at the queue", above=0)


@dataclass(slots=True)
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    dist: DistConfig = field(default_factory=DistConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    seed: int = setting(0, "root of every random stream", low=0)
    device: str = setting("auto", "auto takes a GPU if there is one", choices=("auto", "cpu", "cuda"))
    dtype: str = setting("float32", "floating-point type of the model", choices=("float32", "float64"))
    target_return: float | None = setting(
        None, "evaluation return whose first reaching gives time-to-target and steps-to-target"
    )
    resume: str | None = setting(None, "a run folder to go on from")
    sweep: str | None = setting(
        None,
        "folder of the runs of -m; the same command with the same folder skips the complete and redoes the others",
    )
    objective: str = setting(
        "eval_return",
        "what a sweeper such as Optuna is told: the final evaluation's mean return, or seconds to target_return",
        choices=("eval_return", "time_to_target"),
    )


SECTIONS = {
    "env": EnvConfig,
    "model": ModelConfig,
    "ppo": PPOConfig,
    "distributed": DistConfig,
    "scaling": ScalingConfig,
}

_LARGEST_BATCH = 2**31
_LARGEST_LAYER = 2**24
_WANTED = {  # what OmegaConf calls the types of settings
    "Integer": "a whole number, e.g. 1000 or 1e3",
    "Float": "a number",
    "Boolean": "true or false",
    "Bool": "true or false",
}
SCHEMAS = ("schema", "slurm_schema")  # entries of Hydra's that presets stand on, and no options of a group


def register() -> None:
    """Put the schemas into Hydra's ConfigStore: `schema` for the root, `<group>/schema` for each group."""
    store = ConfigStore.instance()
    # What Hydra shows of a store, in completion and in messages; it finds entries by their names all the same.
    setattr(store, "list", partial(_shown_options, store))  # noqa: B010 (mypy lets no method be assigned)
    store.store(name="schema", node=Config)
    for group, section in SECTIONS.items():
        store.store(group=group, name="schema", node=section)
    store.store(group="hydra/launcher", name="slurm_schema", node=SlurmLauncherConfig)
    text = help_text(conf_dir(), Config, list(SECTIONS), SlurmLauncherConfig)
    help_node = {"app_name": "ddppo", "header": "", "footer": "", "template": text}
    store.store(group="hydra/help", name="ddppo", node=help_node)
    OmegaConf.register_new_resolver("folder_name", folder_name, replace=True)
    # Drawn here, once: one command means one name wherever it is asked for, in a launcher's processes too.
    OmegaConf.register_new_resolver("stamp", partial(stamp, now=time.localtime(), key=_key()), replace=True)


def _shown_options(store: ConfigStore, path: str) -> list[str]:
    return [name for name in ConfigStore.list(store, path) if name.removesuffix(".yaml") not in SCHEMAS]


def stamp(pattern: str, *, now: time.struct_time, key: str) -> str:
    """Return the time `now` by a pattern of strftime, and the `key` that tells apart what begins in one second."""
    return f"{time.strftime(pattern, now)}_{key}"


def _key() -> str:
    """Return 6 random characters. Of 2,000 drawn in one second two are the same once in a thousand times."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(6))


def folder_name(overrides: str) -> str:
    """Return the name of a run's folder in a sweep, made of its overrides: stable, no slash, at most 200 characters.

    A hash tells apart those that would be one after characters were replaced or left out.
    """
    plain = re.sub(r"(^|_)\++", r"\1", overrides)  # ++ adds a setting, and is no part of its name
    name = re.sub(r"[^\w.+@-]", "-", plain, flags=re.ASCII) or "run"
    digest = hashlib.sha256(overrides.encode()).hexdigest()[:10]
    if len(name) > 200:
        return f"{name[:94]}-{digest}-{name[-94:]}"
    return name if name == plain or not plain else f"{name}-{digest[:6]}"


def conf_dir() -> Path:
    """Return the folder of the YAML presets: inside an installed package first, else in the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def from_omegaconf(cfg: DictConfig) -> Config:
    """Convert a composed config to `Config`. Raises ConfigError where a value has the wrong type or is missing."""
    try:
        if missing := sorted(OmegaConf.missing_keys(cfg)):
            example = " (e.g. env.id=CartPole-v1)" if "env.id" in missing else ""
            raise ConfigError(f"{', '.join(missing)} must be given{example}")
        plain = OmegaConf.to_container(cfg, resolve=True)
        merged = OmegaConf.merge(OmegaConf.structured(Config), _all_escaped(plain))
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as e:
        raise ConfigError(_omegaconf_message(e)) from e
    assert isinstance(config, Config)
    return config


def load(path: Path) -> Config:
    """Read the resolved config.yaml of a run folder. Raises ConfigError with the path where it is not whole or ours."""
    try:
        loaded = OmegaConf.load(path)
    except FileNotFoundError as e:
        raise ConfigError(f"{path} does not exist: {path.parent} is not a run folder of ddppo") from e
    except Exception as e:  # yaml raises many kinds
        raise ConfigError(f"{path} is not readable YAML: {' '.join(str(e).split())}") from e
    if not isinstance(loaded, DictConfig) or not loaded:
        held = "nothing" if not loaded else "a list"
        raise ConfigError(f"{path} is not the configuration of a run: it holds {held}")
    try:
        return from_omegaconf(loaded)
    except ConfigError as e:
        raise ConfigError(f"{path} is not the configuration of a run: {e}") from e


def to_yaml(config: Config) -> str:
    return OmegaConf.to_yaml(to_omegaconf(config))


def to_omegaconf(config: Config) -> DictConfig:
    """Return what `from_omegaconf` makes this configuration of; ${ in its texts is no interpolation."""
    merged = OmegaConf.merge(OmegaConf.structured(Config), _all_escaped(asdict(config)))
    assert isinstance(merged, DictConfig)
    return merged


def escaped(text: str) -> str:
    """Return what OmegaConf resolves to `text`, in which ${ is two characters and not an interpolation."""
    return re.sub(r"(\\*)\$\{", lambda found: f"{2 * found[1]}\\${{", text)


def _all_escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {key: _all_escaped(inner) for key, inner in value.items()}
    return [_all_escaped(inner) for inner in value] if isinstance(value, list) else value


def _omegaconf_message(error: OmegaConfBaseException) -> str:
    key = getattr(error, "full_key", None) or "configuration"
    if isinstance(error, ConfigKeyError):
        return f"there is no setting {key}{near(key, setting_names(Config))}; --help lists all"
    return f"{key}: {in_words(str(error).splitlines()[0])}"


def in_words(complaint: str) -> str:
    """Return OmegaConf's complaint about a value in words of ours, or as it is where it is about something else."""
    found = re.match(r"Value '(.*)' of type '\w+' could not be converted to (\w+)$", complaint, re.DOTALL)
    if found and (wanted := _WANTED.get(found[2])):
        return f"{found[1]} is not {wanted}"
    found = re.match(r"Value '(.*)' is not a valid (\w+) \(type \w+\)$", complaint, re.DOTALL)
    if found and (wanted := _WANTED.get(found[2].capitalize())):
        return f"{found[1]} is not {wanted}"
    return complaint


def near(word: str, words: "list[str] | tuple[str, ...]") -> str:
    """Return ' (did you mean a or b?)' for the near matches of `word`, or nothing."""
    matches = difflib.get_close_matches(word, words, n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""


def check_fields(section: Any, prefix: str = "") -> None:
    """Check every single-field rule of a (nested) dataclass. Raises ConfigError with key, value and rule."""
    for item in fields(section):
        value = getattr(section, item.name)
        key = prefix + item.name
        if is_dataclass(value):
            check_fields(value, {"dist": "dist."}.get(item.name, f"{item.name}."))
            continue
        rule = item.metadata
        if value is None or not rule:
            continue
        if rule["choices"] and value not in rule["choices"]:
            raise ConfigError(
                f"{key}={value}: must be one of {', '.join(rule['choices'])}{near(str(value), rule['choices'])}"
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if not math.isfinite(value):
            raise ConfigError(f"{key}={value}: must be a finite number")
        for name, broken, words in (
            ("low", lambda v, b: not v >= b, "at least"),
            ("above", lambda v, b: not v > b, "greater than"),
            ("high", lambda v, b: not v <= b, "at most"),
        ):
            bound = rule[name]
            if bound is not None and broken(value, bound):
                raise ConfigError(f"{key}={value}: must be {words} {bound}")


def batch_shape(config: Config) -> BatchShape:
    """Return the sizes of one iteration under the scaling rule. Raises ConfigError where there are none."""
    sizes = {
        "num_envs": config.env.num_envs,
        "rollout_steps": config.ppo.rollout_steps,
        "world_size": config.dist.world_size,
        "num_minibatches": config.ppo.num_minibatches,
        "num_epochs": config.ppo.num_epochs,
    }
    if config.scaling.rule == "strong":
        return strong(**sizes)
    return weak(**sizes, learning_rate_rule=config.scaling.learning_rate_rule)


def validate(config: Config) -> BatchShape:
    """Check every rule that needs neither torch nor the environment, and return the sizes of an iteration.

    Raises ConfigError with the value, the rule and the remedy.
    """
    check_fields(config)
    if not config.model.hidden_sizes:
        raise ConfigError("model.hidden_sizes=[]: needs at least one layer, e.g. model.hidden_sizes=[64,64]")
    if any(size < 1 for size in config.model.hidden_sizes):
        raise ConfigError(
            f"model.hidden_sizes={config.model.hidden_sizes}: every layer needs at least 1 unit"
        )
    if max(config.model.hidden_sizes) > _LARGEST_LAYER:
        raise ConfigError(
            f"model.hidden_sizes={config.model.hidden_sizes}: a layer may have at most {_LARGEST_LAYER} units"
        )
    dist, ppo = config.dist, config.ppo
    if dist.max_world_size is not None and dist.world_size > dist.max_world_size:
        raise ConfigError(
            f"dist.world_size={dist.world_size} exceeds {dist.max_world_size}, all that distributed=single allows: "
            "use distributed=ddp"
        )
    if dist.bucket_cap_mb is not None and dist.grad_sync != "ddp":
        raise ConfigError(
            f"dist.bucket_cap_mb={dist.bucket_cap_mb} has no effect with dist.grad_sync={dist.grad_sync}: "
            "set dist.grad_sync=ddp, or leave the bucket size out"
        )
    if ppo.adaptive_kl is not None and ppo.lr_schedule != "adaptive":
        raise ConfigError(
            f"ppo.adaptive_kl={ppo.adaptive_kl} has no effect with ppo.lr_schedule={ppo.lr_schedule}: "
            "set ppo.lr_schedule=adaptive, or use ppo.target_kl to stop epochs early"
        )
    if config.scaling.rule == "strong" and config.scaling.learning_rate_rule != "none":
        raise ConfigError(
            f"scaling.learning_rate_rule={config.scaling.learning_rate_rule} has no effect with scaling=strong, "
            "where the batch does not grow: use scaling=weak"
        )
    if dist.backend == "nccl" and config.device == "cpu":
        raise ConfigError("dist.backend=nccl needs GPUs, but device=cpu: use dist.backend=gloo")
    shape = batch_shape(config)
    for rank, seconds in config.env.slow_ranks.items():
        if not 0 <= rank < dist.world_size:
            raise ConfigError(
                f"env.slow_ranks names rank {rank}, but dist.world_size={dist.world_size} has ranks 0 to "
                f"{dist.world_size - 1}"
            )
        if seconds < 0:
            raise ConfigError(f"env.slow_ranks={{{rank}: {seconds}}}: seconds must be at least 0")
    if config.env.backend == "native" and shape.rollout_steps < 2:
        raise ConfigError(
            f"ppo.rollout_steps={shape.rollout_steps} per environment with env.backend=native may hold nothing but "
            "autoreset pseudo-steps: use at least 2, or env.backend=sync"
        )
    if shape.batch_size > _LARGEST_BATCH:
        raise ConfigError(
            f"env.num_envs and ppo.rollout_steps make {shape.num_envs} envs * {shape.rollout_steps} steps = "
            f"{shape.batch_size} samples an iteration, which no memory holds: use less than {_LARGEST_BATCH}"
        )
    if shape.num_minibatches > shape.batch_size:
        raise ConfigError(
            f"ppo.num_minibatches={shape.num_minibatches} exceeds the batch of {shape.num_envs} envs * "
            f"{shape.rollout_steps} steps = {shape.batch_size} samples: use fewer minibatches or more steps"
        )
    if config.objective == "time_to_target" and config.target_return is None:
        raise ConfigError("objective=time_to_target needs target_return, the evaluation return to be reached")
    if config.target_return is not None and not (config.eval.every_steps or config.eval.final_episodes):
        raise ConfigError(
            f"target_return={config.target_return} is never compared: no evaluation is configured; "
            "set eval.every_steps or eval.final_episodes"
        )
    return shape
