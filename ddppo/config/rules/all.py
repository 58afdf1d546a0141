"""All rules across settings, in the order in which a user hears of them."""

import math

from ddppo.config.fields import check_fields, own_methods
from ddppo.config.rules.dist.faults import check_nonfinite
from ddppo.config.rules.dist.ordered import check_ordered
from ddppo.config.rules.dist.restarts import check_lost
from ddppo.config.rules.dist.topologies import check_own_pace, check_topology
from ddppo.config.rules.env.stepping import check_backend, check_context, check_slow_ranks, check_workers
from ddppo.config.rules.own import check_own
from ddppo.config.rules.remembering import check_memory
from ddppo.config.rules.shapes import batch_shape, layout
from ddppo.config.rules.tracking import check_tracking
from ddppo.config.settings import Config, section, sections
from ddppo.config.variants import SECTIONS_BY_NAME
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape

_LARGEST_BATCH = 2**31


def validate(config: Config) -> BatchShape:
    """Check every rule that needs neither torch nor the environment, and return the sizes of an iteration.

    Raises ConfigError with the value, the rule and the remedy.
    """
    if config.env.backend == "async":
        raise ConfigError(
            "env.backend=async is now pool: fewer processes, which step several environments each"
        )
    check_fields(config)
    check_own(config)
    check_topology(config)
    check_own_pace(config)
    check_backend(config)
    check_tracking(config)
    check_ordered(config)
    check_lost(config)
    check_nonfinite(config, layout(config))
    _check_updates(config)
    shape = batch_shape(config)
    check_memory(config, shape)
    for each in [getattr(config, name) for name in SECTIONS_BY_NAME] + [
        section(config, name) for name in sections()
    ]:
        for check_run in own_methods(each, "check_run"):
            check_run(config, shape)
    check_slow_ranks(config)
    check_context(config)
    _check_sizes(config, shape)
    _check_target(config)
    return shape


def _check_updates(config: Config) -> None:
    dist, ppo = config.dist, config.ppo
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
    if dist.collective == "nccl" and config.device == "cpu":
        raise ConfigError("dist.collective=nccl needs GPUs, but device=cpu: use dist.collective=shm or gloo")
    if config.compile == "on" and dist.grad_sync == "ddp" and dist.world_size > 1:
        raise ConfigError(
            "compile=on with dist.grad_sync=ddp: DistributedDataParallel sums gradients inside backward, which is not "
            "compiled; use dist.grad_sync=flat, or compile=auto"
        )


def _check_sizes(config: Config, shape: BatchShape) -> None:
    if (config.env.backend == "native" or config.env.is_envpool) and shape.rollout_steps < 2:
        raise ConfigError(
            f"ppo.rollout_steps={shape.rollout_steps} per environment with env.backend=native, or of envpool/..., "
            "may hold nothing but autoreset pseudo-steps: use at least 2, or env.backend=sync"
        )
    check_workers(config, shape)
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


def _check_target(config: Config) -> None:
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
