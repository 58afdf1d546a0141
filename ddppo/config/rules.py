"""The rules that relate several settings. `validate` calls them all, in the order in which a user meets them.

The rule of a single field is at the field (fields.setting). Rules of one variant are the methods `check` and
`check_run` of its dataclass. Rules about ranks are in rank_rules.py. Rules that need the environment or torch are in
launch/checks.py.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ddppo.algorithms.known import algorithm_setting
from ddppo.config.fields import check_fields, near, own_methods
from ddppo.config.rank_rules import (
    batch_shape,
    check_lost,
    check_nonfinite,
    check_ordered,
    check_own_pace,
    check_topology,
    layout,
)
from ddppo.config.replay_settings import ReplaySettings
from ddppo.config.settings import Config, eval_env, section, sections
from ddppo.config.variants import RENAMED_BACKENDS, SECTIONS_WITH_VARIANTS, algorithm_at
from ddppo.device import BACKENDS
from ddppo.distributed.topologies.known import find
from ddppo.errors import ConfigError
from ddppo.plugins import added, imported
from ddppo.scaling import BatchShape

_LARGEST_BATCH = 2**31


def validate(config: Config) -> BatchShape:
    """Check every rule that needs neither torch nor the environment, and return the sizes of an iteration.

    Raises ConfigError with the value, the rule and the remedy.
    """
    # 1. Each field by its own rule, then the topology and the layout of ranks, on which the rest depends.
    if config.env.backend == "async":
        raise ConfigError(
            "env.backend=async is now pool: fewer processes, which step several environments each"
        )
    if config.env.backend in RENAMED_BACKENDS:
        new = RENAMED_BACKENDS[config.env.backend]
        raise ConfigError(f"env.backend={config.env.backend} is called env.backend={new} now")
    check_fields(config)
    check_own(config)
    check_topology(config)
    check_own_pace(config)
    # 2. Sections one by one.
    check_backend(config)
    check_tracking(config)
    check_ordered(config)
    check_lost(config)
    check_nonfinite(config, layout(config))
    _check_updates(config)
    check_algorithm(config)
    # 3. Rules that need the sizes of an iteration, those of variants and plugins included.
    shape = batch_shape(config)
    check_memory(config, shape)
    own = [getattr(config, name) for name in SECTIONS_WITH_VARIANTS if name != "ppo" or _is_ppo(config)]
    for each in own + [section(config, name) for name in sections()]:
        for check_run in own_methods(each, "check_run"):
            check_run(config, shape)
    check_slow_ranks(config)
    check_context(config)
    _check_wrappers(config)
    _check_eval_env(config)
    _check_sizes(config, shape)
    _check_target(config)
    return shape


def _check_updates(config: Config) -> None:
    """Check settings of gradients, step sizes and compilation against one another."""
    dist, ppo = config.dist, config.ppo
    # Settings that only one value of another one uses.
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
    for name, rate in ppo.learning_rates.items():
        if not isinstance(rate, float) or not 0 < rate < math.inf:
            raise ConfigError(
                f"ppo.learning_rates={{{name}: {rate}}}: must be a finite number greater than 0; a part of a part is "
                "named with a dot, ppo.learning_rates={value_head.bias: 1e-3}"
            )
    if config.scaling.rule == "strong" and config.scaling.learning_rate_rule != "none":
        raise ConfigError(
            f"scaling.learning_rate_rule={config.scaling.learning_rate_rule} has no effect with scaling=strong, "
            "where the batch does not grow: use scaling=weak"
        )
    # Pairs that exclude one another.
    if dist.collective in BACKENDS.values() and config.device == "cpu":
        raise ConfigError(
            f"dist.collective={dist.collective} needs GPUs, but device=cpu: use dist.collective=shm or gloo"
        )
    if dist.share_device and (config.device == "cpu" or dist.world_size == 1):
        why = "device=cpu" if config.device == "cpu" else "dist.world_size=1"
        raise ConfigError(f"dist.share_device=true has no effect with {why}: leave it out")
    if config.compile == "on" and dist.grad_sync == "ddp" and dist.world_size > 1:
        raise ConfigError(
            "compile=on with dist.grad_sync=ddp: DistributedDataParallel sums gradients inside backward, which is not "
            "compiled; use dist.grad_sync=flat, or compile=auto"
        )


def _is_ppo(config: Config) -> bool:
    """Return whether the section ppo has an effect: PPO or GRPO trains."""
    return config.training is config.ppo


def check_algorithm(config: Config) -> None:
    """Refuse settings that the algorithm that trains has no use for. Raises ConfigError."""
    if not config.checkpoint.replay and not isinstance(config.training, ReplaySettings):
        raise ConfigError(
            f"checkpoint.replay=false has no effect with {algorithm_setting(config)}, which has no replay buffer: "
            "leave it out"
        )
    if _is_ppo(config):
        return
    dist, algorithm = config.dist, algorithm_setting(config)
    if config.compile in ("on", "torch"):
        raise ConfigError(
            f"compile={config.compile} with {algorithm}: only PPO's step is compiled: use compile=auto"
        )
    if dist.topology == "device":
        raise ConfigError(
            f"distributed=device with {algorithm}: its C++ computes PPO alone: use distributed=ddp"
        )
    if dist.grad_sync == "ddp":
        raise ConfigError(
            f"dist.grad_sync=ddp with {algorithm}: DistributedDataParallel sums the gradient of PPO's one loss: use "
            "dist.grad_sync=auto"
        )
    correction = next((item for item in fields(dist) if item.name == "correction"), None)
    if correction is not None and getattr(dist, correction.name) != correction.default:
        raise ConfigError(
            f"dist.correction={getattr(dist, correction.name)} with {algorithm}: it corrects the advantages of PPO: "
            "leave it out"
        )


def _check_sizes(config: Config, shape: BatchShape) -> None:
    """Check that the batch of an iteration can be collected, held in memory, and split into minibatches."""
    name = config.training.section
    if (config.env.backend == "gym_vector" or config.env.is_envpool) and shape.rollout_steps < 2:
        raise ConfigError(
            f"{name}.rollout_steps={shape.rollout_steps} per environment with env.backend=gym_vector, or of "
            "envpool/..., may hold nothing but autoreset pseudo-steps: use at least 2, or env.backend=sync"
        )
    check_workers(config, shape)
    if shape.batch_size > _LARGEST_BATCH:
        raise ConfigError(
            f"env.num_envs and {name}.rollout_steps make {shape.num_envs} envs * {shape.rollout_steps} steps = "
            f"{shape.batch_size} samples an iteration, which no memory holds: use less than {_LARGEST_BATCH}"
        )
    if shape.num_minibatches > shape.batch_size:
        raise ConfigError(
            f"{name}.num_minibatches={shape.num_minibatches} exceeds the batch of {shape.num_envs} envs * "
            f"{shape.rollout_steps} steps = {shape.batch_size} samples: use fewer minibatches or more steps"
        )


def _check_target(config: Config) -> None:
    """Check that evaluations take place, if a setting needs their scores."""
    if config.objective == "time_to_target" and config.target_return is None:
        raise ConfigError("objective=time_to_target needs target_return, the evaluation return to be reached")
    if config.eval.on_error == "stop" and not config.eval.every_steps:
        raise ConfigError(
            "eval.on_error=stop has no effect without evaluations during training: set eval.every_steps"
        )
    if config.target_return is not None and not (config.eval.every_steps or config.eval.final_episodes):
        raise ConfigError(
            f"target_return={config.target_return} is never compared: no evaluation is configured; "
            "set eval.every_steps or eval.final_episodes"
        )
    _check_stops(config)


def _check_stops(config: Config) -> None:
    """Check that evaluations take place from which a run may end early, and the form of run.callbacks."""
    run, every = config.run, config.eval.every_steps
    if run.stop_at_target and config.target_return is None:
        raise ConfigError("run.stop_at_target=true needs target_return, the evaluation return to be reached")
    for key, is_set in (("stop_at_target", run.stop_at_target), ("patience", run.patience is not None)):
        if is_set and not every:
            raise ConfigError(
                f"run.{key}={str(getattr(run, key)).lower()} is never compared without evaluations during training: "
                "set eval.every_steps"
            )
    _check_paths("run.callbacks", run.callbacks, "my_pkg.early:Early", "patience: 3")


def check_memory(config: Config, shape: BatchShape) -> None:
    """Raise ConfigError if model.memory cannot be trained, or ppo.sequence_length is set without any memory."""
    memory, length = getattr(config.model, "memory", "none"), config.training.sequence_length
    name = config.training.section
    if memory != "none":
        check_remembering(config, shape, f"model.memory={memory}")
    # Whether a user's own model remembers is known once it is built (launch/checks.py).
    elif length is not None and ":" not in config.model.name:
        raise ConfigError(
            f"{name}.sequence_length={length} has no effect with model.memory=none: use model=lstm or gru, or "
            "leave it out"
        )


def check_remembering(config: Config, shape: BatchShape, setting: str) -> None:
    """Raise ConfigError if a model with memory cannot be trained. setting: the text that brings the memory."""
    find(config.dist.topology).check_work("memory", setting)
    if not _takes_memory(config):
        remedy = "use ppo.algorithm=ppo" if _is_ppo(config) else "it takes no memory: use a model without"
        raise ConfigError(f"{algorithm_setting(config)} with {setting}: {remedy}")
    for name in sections():
        section(config, name).check_memory(setting)
    # Sequences divide a rollout, and a minibatch consists of whole sequences.
    length, steps, name = config.training.sequence_length, shape.rollout_steps, config.training.section
    if length is not None and steps % length:
        divisors = [n for n in range(1, steps + 1) if steps % n == 0]
        near = [*[n for n in divisors if n < length][-1:], *[n for n in divisors if n > length][:1]]
        raise ConfigError(
            f"{name}.sequence_length={length} does not divide the {steps} steps of a rollout: use "
            f"{' or '.join(map(str, near))}, or another {name}.rollout_steps"
        )
    if length is not None and config.dist.topology == "ddp_preempt":
        raise ConfigError(
            f"{name}.sequence_length={length} with distributed=ddp_preempt, where rollouts end after any number of "
            "steps: leave it out, so that each is one sequence"
        )
    num_sequences = (shape.batch_envs or shape.num_envs) * (steps // length if length else 1)
    if shape.num_minibatches > num_sequences:
        raise ConfigError(
            f"{name}.num_minibatches={shape.num_minibatches} with {setting}: a minibatch consists of whole sequences, "
            f"and there are {num_sequences}: use {name}.num_minibatches={num_sequences} or less, a smaller "
            f"{name}.sequence_length, or more env.num_envs"
        )


def _takes_memory(config: Config) -> bool:
    if _is_ppo(config):
        return config.ppo.algorithm == "ppo"
    return bool(getattr(algorithm_at(config.algorithm.name), "takes_memory", False))


_BACKENDS = ("auto", "batched", "sync", "pool", "gym_vector", "device")  # and those of plugins


def check_backend(config: Config) -> None:
    """Check that env.backend exists, and call the rules of the plugin that brings it."""
    env, plugged = config.env, added("backends")
    if env.backend not in (*_BACKENDS, *plugged):
        known = (*_BACKENDS, *plugged)
        raise ConfigError(
            f"env.backend={env.backend}: must be one of {', '.join(known)}{near(env.backend, known)}"
        )
    for key, default in (("simulator", "native"), ("simulator_options", {})):
        if env.backend != "device" and (value := getattr(env, key)) != default:
            raise ConfigError(
                f"env.{key}={value} has no effect with env.backend={env.backend}: set env.backend=device, whose "
                "environments are tensors, or leave it out"
            )
    # A plugin checks its own settings. The core's backends have no use for those of remote.
    if env.backend in plugged:
        if (check := plugged[env.backend].check) is not None:
            imported(check)(config)
        return
    for key in ("urls", "token_file"):
        if value := getattr(env, key):
            raise ConfigError(
                f"env.{key}={value} has no effect with env.backend={env.backend}: set env.backend=remote "
                "(env=remote takes any task that is served), or leave it out"
            )
    if env.backend == "device":
        _check_device_envs(config)


def _check_device_envs(config: Config) -> None:
    """Check that observations need not leave the device on which the environments live (env.backend=device)."""
    env, dist, subject = config.env, config.dist, "with env.backend=device"
    if not find(dist.topology).takes_device_envs:
        raise ConfigError(
            f"distributed={dist.topology} {subject}: a rank acts in its own environments and learns from them, so that "
            "nothing leaves its device: use distributed=ddp"
        )
    if dist.reduction == "ordered":
        raise ConfigError(
            f"dist.reduction=ordered {subject}: it computes on the CPU, shard by shard: use dist.reduction=fast"
        )
    if env.slow_ranks:
        raise ConfigError(
            f"env.slow_ranks={env.slow_ranks} {subject}: slow ranks sleep on the host: leave it out"
        )
    if env.simulator == "native" and env.simulator_options:
        raise ConfigError(
            f"env.simulator_options={env.simulator_options} has no effect with env.simulator=native, which needs no "
            "adapter: use env.kwargs"
        )


def check_context(config: Config) -> None:
    """Check that environments are reset with options, through which env.context arrives."""
    env = config.env
    if env.context is not None and (
        env.backend not in ("auto", "batched", "sync", "pool") or env.is_ale or env.is_envpool
    ):
        what = f"env.id={env.id}" if env.is_ale or env.is_envpool else f"env.backend={env.backend}"
        raise ConfigError(
            f"env.context={env.context} with {what}, which resets environments without options: use "
            "env.backend=sync or pool"
        )


def _check_paths(key: str, given: Sequence[Any], example: str, argument: str) -> None:
    """Check that each entry of a list is an import path, or one with arguments. Imports nothing."""
    for each in given:
        path = each.get("path") if isinstance(each, dict) else each
        module, _, attribute = path.partition(":") if isinstance(path, str) else ("", "", "")
        if not (module and attribute):
            raise ConfigError(
                f"{key}=[{each}]: must be an import path like {example}, or one with arguments, "
                f"{{path: {example}, {argument}}}"
            )


def _check_wrappers(config: Config) -> None:
    """Check the form of env.wrappers, and that environments are made one by one, so that they can be wrapped."""
    env = config.env
    _check_paths("env.wrappers", env.wrappers, "my_pkg.wrappers:Noisy", "scale: 0.1")
    if env.wrappers and (env.backend not in ("auto", "sync", "pool") or env.is_ale or env.is_envpool):
        what = f"env.id={env.id}" if env.is_ale or env.is_envpool else f"env.backend={env.backend}"
        raise ConfigError(
            f"env.wrappers with {what}, which makes environments in a batch or elsewhere: use env.backend=sync or "
            "pool, or register a task that is wrapped already"
        )


_OF_EVAL_ENV: dict[str, tuple[type, str]] = {
    "id": (str, "a Gymnasium id"),
    "kwargs": (dict, "keyword arguments, {gravity: -8}"),
    "max_episode_steps": (int, "a whole number of at least 1"),
    "wrappers": (list, "a list of import paths"),
}


def _check_eval_env(config: Config) -> None:
    """Check eval.env: its names, their types, and that evaluations make environments of their own."""
    env, given = config.env, config.eval.env
    if not given:
        return
    for name, value in given.items():
        if name not in _OF_EVAL_ENV:
            raise ConfigError(
                f"eval.env.{name}={value}: evaluations may differ in {', '.join(_OF_EVAL_ENV)}"
                f"{near(name, list(_OF_EVAL_ENV))}; a keyword of the task is eval.env.kwargs.{name}={value}"
            )
        kind, what = _OF_EVAL_ENV[name]
        if type(value) is not kind or (isinstance(value, int) and value < 1):
            raise ConfigError(f"eval.env.{name}={value}: must be {what}")
    if env.urls or env.backend not in ("auto", "sync", "pool", "batched", "gym_vector"):
        what = f"env.backend={env.backend}" if not env.urls else f"env.urls=[{','.join(env.urls)}]"
        raise ConfigError(
            f"eval.env={given} with {what}: evaluations have the environments that it makes; leave eval.env out, or "
            "use env.backend=sync, pool or batched"
        )
    _check_wrappers(
        replace(config, env=replace(eval_env(config), backend="sync"))
    )  # evaluations step one by one


def check_slow_ranks(config: Config) -> None:
    """Check that the ranks of env.slow_ranks exist, and step environments in their own process."""
    dist, stepping = config.dist, layout(config).stepping
    for rank, seconds in config.env.slow_ranks.items():
        if not 0 <= rank < dist.world_size:
            raise ConfigError(
                f"env.slow_ranks names rank {rank}, but dist.world_size={dist.world_size} has ranks 0 to "
                f"{dist.world_size - 1}"
            )
        if rank not in stepping:
            raise ConfigError(
                f"env.slow_ranks names rank {rank}, which steps no environments under distributed={dist.topology}: "
                f"name one of {', '.join(map(str, stepping))}"
            )
        if seconds < 0:
            raise ConfigError(f"env.slow_ranks={{{rank}: {seconds}}}: seconds must be at least 0")
    if config.env.slow_ranks and find(dist.topology).env_backend == "pool":
        raise ConfigError(
            f"env.slow_ranks has no effect with distributed={dist.topology}, where observers step at their own pace: "
            "use a task that takes its time, as env=synthetic env.kwargs.step_time_s=0.01, or leave it out"
        )


def check_workers(config: Config, shape: BatchShape) -> None:
    """Check env.num_workers, the processes or threads of a rank, against the backend and the environments of a rank."""
    num_workers = config.env.num_workers
    if num_workers is None:
        return
    topology = find(config.dist.topology)
    if topology.env_backend not in (None, "pool"):
        raise ConfigError(
            f"env.num_workers={num_workers} has no effect with distributed={config.dist.topology}, which steps "
            f"environments by env.backend={topology.env_backend}: leave the number out"
        )
    if (topology.env_backend or config.env.backend) != "pool" and not config.env.has_threads:
        raise ConfigError(
            f"env.num_workers={num_workers} has no effect with env.backend={config.env.backend}: set "
            "env.backend=pool, or leave the number out"
        )
    # A worker without an environment would be idle.
    fewest = shape.fewest_envs
    if num_workers > fewest:
        raise ConfigError(
            f"env.num_workers={num_workers} exceeds the {fewest} environments of a rank: use at most {fewest}"
        )


_NAME = re.compile(r"[A-Za-z]\w*")
_EXAMPLE = "ppo.losses={still: {term: my_pkg.losses:still, coef: 0.01}}"


def check_own(config: Config) -> None:
    """Raise ConfigError if ppo.losses or log.metrics are malformed."""
    _check_metrics(config)
    for name, of_term in config.ppo.losses.items():
        _check_term(name, of_term)
    if config.ppo.losses and config.compile == "torch":
        raise ConfigError(
            "compile=torch with ppo.losses: torch does not compile terms of your own: use compile=auto, which computes "
            "all else in C++"
        )


def _check_metrics(config: Config) -> None:
    """Check that log.metrics are import paths, each named once."""
    paths = config.log.metrics
    for path in paths:
        module, _, attribute = path.partition(":")
        if not (module and attribute):
            raise ConfigError(f"log.metrics=[{path}]: must be an import path like my_pkg.metrics:pushed_left")
        if paths.count(path) > 1:
            raise ConfigError(f"log.metrics names {path} twice: leave one out")


def _check_term(name: Any, of_term: Any) -> None:
    """Check one entry of ppo.losses: its name, the import path of its function, and its coefficient."""
    setting = f"ppo.losses={{{name}: {of_term}}}"
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigError(f"{setting}: a term's name is of letters, digits and _, as {_EXAMPLE} has it")
    if not isinstance(of_term, dict) or of_term.keys() != {"term", "coef"}:
        raise ConfigError(
            f"{setting}: needs the import path of a function and its coefficient, as {_EXAMPLE}"
        )
    path, coef = of_term["term"], of_term["coef"]
    module, _, attribute = str(path).partition(":")
    if not (module and attribute):
        raise ConfigError(f"ppo.losses.{name}.term={path}: must be an import path like my_pkg.losses:still")
    if isinstance(coef, bool) or not isinstance(coef, (int, float)) or not math.isfinite(coef):
        raise ConfigError(f"ppo.losses.{name}.coef={coef}: must be a finite number")


TRACKERS = ("wandb", "mlflow")  # each an extra of the same name


def check_tracking(config: Config) -> None:
    """Raise ConfigError for a tracker that does not exist, or is named twice."""
    names = config.log.trackers
    setting = f"log.trackers=[{','.join(map(str, names))}]"
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(
                f"{setting}: {name} is none of {', '.join(TRACKERS)}{near(str(name), TRACKERS)}; TensorBoard is "
                "log.tensorboard"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"{setting} names one twice: leave out the second")
