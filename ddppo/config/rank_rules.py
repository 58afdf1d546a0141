"""The rules about ranks: their roles and shares, the sizes of an iteration, ordered sums, NaN, and lost ranks.

`layout` and `batch_shape` are read everywhere: which rank steps, acts and learns, and how large a rollout is.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

from ddppo.algorithms.known import algorithm_name, algorithm_setting
from ddppo.config.settings import Config, DistSettings, section, sections
from ddppo.device import BACKENDS, accelerators, takes_accelerator
from ddppo.distributed.topologies.contract import Layout, Sizes
from ddppo.distributed.topologies.known import find
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape, check_division, strong, weak


def batch_shape(config: Config) -> BatchShape:
    """Return the sizes of one iteration under the scaling rule. Raises ConfigError if they do not divide."""
    # 1. Only ranks that step environments share them: N environments over num_stepping of W ranks.
    roles = layout(config)
    world_size, num_stepping, shares = config.dist.world_size, len(roles.stepping), roles.env_shares
    if shares and config.scaling.rule == "weak":
        raise ConfigError(
            f"scaling=weak with distributed={config.dist.topology}: scaling=weak gives every rank env.num_envs "
            "environments: leave dist.env_shares out, or use scaling=strong"
        )
    sizes: dict[str, Any] = {
        "num_envs": config.env.num_envs,
        "rollout_steps": config.training.rollout_steps,
        "world_size": num_stepping,
        "num_minibatches": config.training.num_minibatches,
        "num_epochs": config.training.num_epochs,
    }
    # 2. The rule: strong keeps the global batch, weak that of one rank. Given shares are computed as one rank's.
    if shares:
        shape = strong(**sizes | {"world_size": 1})
    elif config.scaling.rule == "weak":
        shape = weak(**sizes, learning_rate_rule=config.scaling.learning_rate_rule)
    else:
        if num_stepping != world_size:
            subject = f"{num_stepping}, the ranks that step environments of dist.world_size={world_size},"
            section = config.training.section
            check_division(config.env.num_envs, config.training.rollout_steps, num_stepping, subject, section)
        shape = strong(**sizes, section=config.training.section)
    # 3. All ranks again, with the sizes that only some topologies have.
    shape = replace(
        shape,
        world_size=world_size,
        num_stepping=num_stepping,
        env_shares=shares,
        num_shards=num_shards(config),
    )
    # K rollouts hold K times the mean share of the environments.
    return replace(
        shape, batch_envs=(config.training.rollouts_per_update or 0) * shape.num_envs // num_stepping
    )


def layout(config: Config) -> Layout:
    """Return the role of each rank: which steps, acts and learns. Raises ConfigError for an impossible W.

    The bytes of messages, which a layout also lists, are left at 0: they depend on the task.
    """
    dist, training = config.dist, config.training
    sizes = Sizes(
        config.env.num_envs,
        training.rollout_steps,
        training.num_epochs * training.num_minibatches,
        *(0, 0, 0, 0, 0),
        num_learners=getattr(dist, "num_learners", None),
        env_shares=tuple(getattr(dist, "env_shares", ())),
    )
    return find(dist.topology).of(dist.world_size, sizes)


def check_topology(config: Config) -> None:
    """Check settings that contradict the topology, or have no effect with it."""
    dist, topology = config.dist, find(config.dist.topology)
    # The topology may bring its own way to step environments.
    backend = topology.env_backend
    if config.env.backend == "device" and topology.takes_device_envs:
        backend = None
    if backend is not None and (config.env.backend not in ("auto", backend) or config.env.is_ale):
        what = f"env.id={config.env.id}" if config.env.is_ale else f"env.backend={config.env.backend}"
        raise ConfigError(
            f"{what} with distributed={dist.topology}, which steps environments by env.backend={backend}: "
            "leave one of them out"
        )
    training = config.training
    if training.rollouts_per_update is not None and not topology.own_pace:
        raise ConfigError(
            f"{training.section}.rollouts_per_update={training.rollouts_per_update} has no effect with "
            f"distributed={dist.topology}, which learns from all rollouts: use distributed=async_actors, or leave it "
            "out"
        )
    roles = layout(config)
    # A rank that only steps environments has no GPU, and a single learner sums no gradients.
    only_step = [role for role in roles.roles if role.ranks and not (role.acts or role.learns)]
    if dist.collective in BACKENDS.values() and only_step:
        raise ConfigError(
            f"dist.collective={dist.collective} with distributed={dist.topology}: ranks of the role "
            f"{only_step[0].name} only step environments and have no GPU: use dist.collective=shm or gloo"
        )
    if dist.grad_sync == "ddp" and dist.world_size > 1 and len(roles.learning) == 1:
        raise ConfigError(
            f"dist.grad_sync=ddp has no effect with distributed={dist.topology}, where one rank learns and no "
            "gradients travel: leave it out"
        )


def check_own_pace(config: Config) -> None:
    """Check settings of collectives: ranks at their own pace take part in none."""
    dist = config.dist
    if not find(dist.topology).own_pace:
        return
    if dist.collective != "auto":
        raise ConfigError(
            f"dist.collective={dist.collective} has no effect with distributed={dist.topology}, which has no "
            "collectives: leave it out"
        )


_DEFAULT_SHARDS = 8
# The most weights of a layer in C++. Beyond, the weights, their packed copy and the gradient no longer fit into the
# cache of a core, and torch is faster (experiments/growth).
MOST_WEIGHTS = 2**19


def num_shards(config: Config, *, has_layers: bool = False) -> int:
    """Return V, the number of shards in which the batch is computed; 0 if sums are not ordered. Raises ConfigError.

    `has_layers` is that of `why_fast`.
    """
    dist, num_envs = config.dist, config.env.num_envs
    if not is_ordered(config, has_layers=has_layers):
        if dist.shards is not None:
            raise ConfigError(
                f"dist.shards={dist.shards} has no effect with dist.reduction=fast: set dist.reduction=ordered, or "
                "leave it out"
            )
        return 0
    # Equal shards of the environments, and equally many shards for each rank.
    shards = _usual_shards(config) if dist.shards is None else dist.shards
    setting = f"dist.reduction=ordered with dist.shards={shards}"
    if num_envs % shards:
        raise ConfigError(
            f"{setting}: shards are equal parts of env.num_envs={num_envs} environments: set dist.shards to "
            f"{_either(num_envs)}, or env.num_envs to a multiple of {shards}"
        )
    if shards % dist.world_size:
        raise ConfigError(
            f"dist.world_size={dist.world_size} does not divide the {shards} shards of dist.reduction=ordered, and "
            f"every rank computes as many: use dist.world_size={_either(shards)}, or another dist.shards"
        )
    return shards


def _usual_shards(config: Config) -> int:
    if config.dist.reduction == "ordered":
        return _DEFAULT_SHARDS
    return math.gcd(config.env.num_envs, _DEFAULT_SHARDS)


def is_ordered(config: Config, *, has_layers: bool = False) -> bool:
    """Return whether sums have an order that does not depend on W: dist.reduction=ordered, or auto if it is cheap."""
    return config.dist.reduction == "ordered" or (
        config.dist.reduction == "auto" and why_fast(config, has_layers=has_layers) is None
    )


def why_fast(config: Config, *, has_layers: bool = False) -> str | None:
    """Return why dist.reduction=auto adds up in no fixed order, as part of a sentence; None if it does.

    Sums are ordered where a step in C++ is possible, because it computes all shards in one pass. The answer depends on
    the settings, and on whether this machine has an accelerator that device=auto takes. Settings do not tell whether
    C++ has the layers of a model of the user's own: `has_layers` does, once that model is built (loop/build.py).
    """
    dist = config.dist
    model: Any = config.model
    if dist.shards is not None:  # asks for it
        return None
    if (objection := _objection(config)) is not None:
        return objection.partition(" with dist.reduction")[0]
    for name, kind in sections().items():
        if not kind.takes_shards and (sampler := section(config, name).name) is not None:
            return f"{name}.name={sampler}"
    if config.compile not in ("auto", "on"):
        return f"compile={config.compile}"
    if ":" in model.name:
        if not has_layers:
            return f"model.name={model.name} is computed in PyTorch"
    elif model.name != "mlp":
        return f"model.name={model.name} is computed in PyTorch"
    elif model.memory != "none":
        return f"model.memory={model.memory} is computed in PyTorch"
    elif max(map(math.prod, itertools.pairwise(model.hidden_sizes)), default=0) > MOST_WEIGHTS:
        return f"model.hidden_sizes={list(model.hidden_sizes)} is faster in PyTorch"
    if config.ppo.losses or config.ppo.learning_rates:
        return "ppo.losses" if config.ppo.losses else "ppo.learning_rates"
    if dist.threads_per_rank not in (None, 1):
        return f"dist.threads_per_rank={dist.threads_per_rank}"
    if config.env.backend == "device" or (config.device != "cpu" and accelerators()[1]):
        return "it computes on an accelerator"
    if (shards := _usual_shards(config)) % dist.world_size:
        parts = f"{shards} parts of env.num_envs={config.env.num_envs}"
        return f"dist.world_size={dist.world_size} does not divide the {parts}"
    return None


def check_ordered(config: Config) -> None:
    """Raise ConfigError for settings with which the bits of results would depend on W."""
    is_asked_for = config.dist.reduction == "ordered" or config.dist.shards is not None
    if is_asked_for and config.dist.reduction != "fast" and (objection := _objection(config)) is not None:
        raise ConfigError(objection)


def _objection(config: Config) -> str | None:
    """Return the setting that makes a sum, or a random stream, depend on how environments are divided among ranks."""
    dist, ppo = config.dist, config.ppo
    ordered = "with dist.reduction=ordered"
    if dist.topology != "ddp":
        return (
            f"distributed={dist.topology} {ordered}: only equal workers own shards: use distributed=ddp, or "
            "dist.reduction=fast"
        )
    if config.scaling.rule == "weak":
        return (
            f"scaling=weak {ordered}: the batch would grow with W: use scaling=strong, or dist.reduction=fast"
        )
    if dist.grad_sync != "auto":
        return (
            f"dist.grad_sync={dist.grad_sync} {ordered}, which sums gradients of shards in its own order: leave "
            "it out"
        )
    if takes_accelerator(config.device) or dist.collective in BACKENDS.values():
        is_device = takes_accelerator(config.device)
        what = f"device={config.device}" if is_device else f"dist.collective={dist.collective}"
        return f"{what} {ordered}, which works on CPUs only: use device=cpu"
    if (name := algorithm_name(config)) != "ppo":
        why = (
            "whole episodes are not computed in shards"
            if name == "grpo"
            else "only PPO is computed in shards"
        )
        return f"{algorithm_setting(config)} {ordered}: {why}: use dist.reduction=fast"
    if ppo.normalize_advantages == "local":
        return (
            f"ppo.normalize_advantages=local {ordered}: moments of one rank depend on W: use "
            "ppo.normalize_advantages=global"
        )
    if config.env.backend == "gym_vector" and not (config.env.is_ale or config.env.is_envpool):
        return (
            f"env.backend=gym_vector {ordered}: its environments share one random stream, so they depend on how many "
            "a rank steps: use env.backend=auto"
        )
    return None


def _either(n: int) -> str:
    """Return the divisors of n in words; the smallest and the largest ones if there are many."""
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    if len(divisors) > 8:
        divisors = [*divisors[:6], *divisors[-2:]]
    *others, last = map(str, divisors)
    return f"{', '.join(others)} or {last}" if others else last


def check_nonfinite(config: Config, roles: Layout) -> None:
    """Check the settings of on_nonfinite against the layout. Raises ConfigError."""
    # Settings that on_nonfinite does not use must be at their defaults.
    mode, defaults = config.on_nonfinite, Config()
    users = {"on_nonfinite_max": ("skip_batch", "restore"), "on_nonfinite_factor": ("restore",)}
    for name, modes in users.items():
        value = getattr(config, name)
        if mode not in modes and value != getattr(defaults, name):
            raise ConfigError(
                f"{name}={value} has no effect with on_nonfinite={mode}: use on_nonfinite={' or '.join(modes)}, or "
                "leave it out"
            )
    # Going back needs ranks that all learn, and a checkpoint.
    if mode != "restore":
        return
    if len(roles.learning) < config.dist.world_size:
        raise ConfigError(
            f"on_nonfinite=restore with distributed={config.dist.topology}, where some ranks do not learn and would "
            "not go back: use on_nonfinite=skip_batch, or distributed=ddp"
        )
    if not (config.checkpoint.every_steps or config.checkpoint.every_minutes):
        raise ConfigError(
            "on_nonfinite=restore with checkpoint.every_steps=0, which saves at the end only: set "
            "checkpoint.every_steps, or use on_nonfinite=skip_batch"
        )


def check_min_workers(config: Config) -> None:
    """Check dist.min_workers. Raises ConfigError."""
    dist = config.dist
    if dist.min_workers is None:
        return
    setting = f"dist.min_workers={dist.min_workers}"
    if dist.on_lost == "stop":
        raise ConfigError(
            f"{setting} has no effect with dist.on_lost=stop, which ends all ranks: set dist.on_lost=restart, or "
            "leave it out"
        )
    if dist.min_workers > dist.world_size:
        raise ConfigError(f"{setting} exceeds dist.world_size={dist.world_size}: use at most that")
    if config.scaling.rule == "weak":
        raise ConfigError(
            f"{setting} with scaling=weak: on fewer ranks the batch would be smaller, and the run another one: use "
            "scaling=strong, or leave it out"
        )


def check_lost(config: Config) -> None:
    """Check the settings of dist.on_lost. Raises ConfigError."""
    dist, env = config.dist, config.env
    check_min_workers(config)
    if dist.on_lost == "stop":
        if dist.max_restarts != (default := DistSettings().max_restarts):
            raise ConfigError(
                f"dist.max_restarts={dist.max_restarts} has no effect with dist.on_lost=stop: set "
                f"dist.on_lost=restart, or leave it at {default}"
            )
        return
    # Environments in a process of their own, or behind a server, can be started again even at W = 1.
    if (find(dist.topology).env_backend or env.backend) in ("batched", "sync", "gym_vector", "device"):
        check_restarts(config)


def check_restarts(config: Config) -> None:
    """Raise ConfigError if the only process is this one, which cannot start itself again."""
    dist, env = config.dist, config.env
    if dist.on_lost == "restart" and dist.world_size == 1 and dist.min_workers is None:
        raise ConfigError(
            f"dist.on_lost=restart has no effect with dist.world_size=1 and env.backend={env.backend}: the only rank "
            "is the process that you start, which cannot start itself again; use env.backend=pool or remote, or more "
            "ranks, or leave it out"
        )
