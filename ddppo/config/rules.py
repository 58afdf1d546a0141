"""The rules across settings, and the sizes of an iteration that follow from them."""

import math
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

from ddppo.config.algorithms import check_algorithm
from ddppo.config.encoding import check_encoders
from ddppo.config.faults import check_min_workers, check_nonfinite
from ddppo.config.fields import check_fields
from ddppo.config.heads import check_heads
from ddppo.config.ordered import check_ordered, num_shards
from ddppo.config.own import check_own
from ddppo.config.preempting import check_preempting
from ddppo.config.remembering import OF_MEMORY, check_memory
from ddppo.config.searching import check_search
from ddppo.config.served import check_served
from ddppo.config.settings import Config, DistConfig, ModelConfig
from ddppo.config.tracking import check_tracking
from ddppo.errors import ConfigError
from ddppo.scaling import BatchShape, check_division, strong, weak
from ddppo.topologies import TOPOLOGIES, Layout, Sizes, find

_LARGEST_BATCH = 2**31
_LARGEST_LAYER = 2**24
_OF_LAYERS = ("hidden_sizes", "activation", "shared_trunk", "log_std_init", "log_std", "squash", *OF_MEMORY)
_OF_IMAGES = ("image_layout", "pixel_max", "precision")
_OF_DICTS = ("image_encoder", "encoders", "vector_sizes", "image_features")
_OF_TOKENS = ("turn_tokens", "obs_tokens", "sampling_temperature", "top_p")
_OF_MODELS = {
    "mlp": (*_OF_LAYERS, "orthogonal"),
    "cnn": (*_OF_LAYERS, *_OF_IMAGES, "conv_layers"),
    "resnet": (*_OF_LAYERS, *_OF_IMAGES, "resnet_channels"),
    "dict": (*_OF_LAYERS, *_OF_IMAGES, *_OF_DICTS, "conv_layers", "resnet_channels"),
    "gnn": ("graph_conv", "graph_layers", "graph_width", "graph_prior", "temperature"),
    "token_policy": (
        *("token_width", "token_layers", "token_heads"),
        *_OF_TOKENS,
    ),
    "hf": ("hf_path", "lora_rank", *_OF_TOKENS),
}
_NEAR = 16  # other world sizes that a message may name


def batch_shape(config: Config) -> BatchShape:
    """Return the sizes of one iteration under the scaling rule. Raises ConfigError where there are none."""
    roles = layout(config)
    world_size, num_stepping, shares = config.dist.world_size, len(roles.stepping), roles.env_shares
    if shares and config.scaling.rule == "weak":
        raise ConfigError(
            f"scaling=weak with distributed={config.dist.topology}: scaling=weak gives every rank env.num_envs "
            "environments: use distributed=env_workers, or scaling=strong"
        )
    sizes = {
        "num_envs": config.env.num_envs,
        "rollout_steps": config.ppo.rollout_steps,
        "world_size": num_stepping,
        "num_minibatches": config.ppo.num_minibatches,
        "num_epochs": config.ppo.num_epochs,
    }
    if shares:
        shape = strong(**sizes | {"world_size": 1})
    elif config.scaling.rule == "weak":
        shape = weak(**sizes, learning_rate_rule=config.scaling.learning_rate_rule)
    else:
        if num_stepping != world_size:
            _check_shares(config, num_stepping)
        shape = strong(**sizes)
    shape = replace(
        shape,
        world_size=world_size,
        num_stepping=num_stepping,
        env_shares=shares,
        num_shards=num_shards(config),
    )
    return replace(shape, batch_envs=(config.ppo.rollouts_per_update or 0) * shape.local_num_envs)


def _check_shares(config: Config, num_stepping: int) -> None:
    """Check that those who step environments, some of all ranks, share them equally; the remedy counts all ranks."""
    world_size, num_envs = config.dist.world_size, config.env.num_envs
    if num_stepping > num_envs or num_envs % num_stepping == 0:
        said = f"{num_stepping}, the ranks that step environments of dist.world_size={world_size},"
        check_division(num_envs, config.ppo.rollout_steps, num_stepping, said)
        return
    possible = []
    for other in range(max(1, world_size - _NEAR), world_size + _NEAR):
        with suppress(ConfigError):
            dist = replace(config.dist, world_size=other)
            if num_envs % len(layout(replace(config, dist=dist)).stepping) == 0:
                possible.append(other)
    nearest = sorted(sorted(possible, key=lambda other: abs(other - world_size))[:4])
    ranks = f"use dist.world_size={' or '.join(map(str, nearest))}, or set" if nearest else "set"
    raise ConfigError(
        f"distributed={config.dist.topology} with dist.world_size={world_size}: {num_stepping} ranks step "
        f"environments, which does not divide env.num_envs={num_envs}: {ranks} env.num_envs to a multiple of "
        f"{num_stepping}"
    )


def layout(config: Config) -> Layout:
    """Return who does what; bytes are not known before the task is. Raises ConfigError for a W that cannot be."""
    dist, ppo = config.dist, config.ppo
    sizes = Sizes(
        config.env.num_envs,
        ppo.rollout_steps,
        ppo.num_epochs * ppo.num_minibatches,
        *(0, 0, 0, 0, 0),
        num_learners=dist.num_learners,
        env_shares=tuple(dist.env_shares),
    )
    return find(dist.topology).of(dist.world_size, sizes)


def validate(config: Config) -> BatchShape:
    """Check every rule that needs neither torch nor the environment, and return the sizes of an iteration.

    Raises ConfigError with the value, the rule and the remedy.
    """
    if config.env.backend == "async":
        raise ConfigError(
            "env.backend=async is now pool: fewer processes, which step several environments each"
        )
    check_fields(config)
    if not config.model.hidden_sizes and config.model.name != "dict":
        raise ConfigError("model.hidden_sizes=[]: needs at least one layer, e.g. model.hidden_sizes=[64,64]")
    if any(size < 1 for size in config.model.hidden_sizes):
        raise ConfigError(
            f"model.hidden_sizes={config.model.hidden_sizes}: every layer needs at least 1 unit"
        )
    if max(config.model.hidden_sizes, default=0) > _LARGEST_LAYER:
        raise ConfigError(
            f"model.hidden_sizes={config.model.hidden_sizes}: a layer may have at most {_LARGEST_LAYER} units"
        )
    _check_model(config)
    check_heads(config)
    check_own(config)
    dist, ppo = config.dist, config.ppo
    if dist.max_world_size is not None and dist.world_size > dist.max_world_size:
        raise ConfigError(
            f"dist.world_size={dist.world_size} exceeds {dist.max_world_size}, all that distributed=single allows: "
            "use distributed=ddp"
        )
    _check_topology(config)
    _check_own_pace(config)
    check_served(config)
    check_tracking(config)
    check_preempting(config)
    check_ordered(config)
    _check_restarts(config)
    check_nonfinite(config, layout(config))
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
    shape = batch_shape(config)
    check_algorithm(config, shape)
    check_search(config, shape)
    check_memory(config, shape)
    _check_slow_ranks(config)
    _check_context(config)
    if config.env.backend == "native" and shape.rollout_steps < 2:
        raise ConfigError(
            f"ppo.rollout_steps={shape.rollout_steps} per environment with env.backend=native may hold nothing but "
            "autoreset pseudo-steps: use at least 2, or env.backend=sync"
        )
    _check_observers(config, shape)
    _check_workers(config, shape)
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


def _check_topology(config: Config) -> None:
    dist, topology = config.dist, find(config.dist.topology)
    backend = topology.env_backend
    if backend is not None and (config.env.backend not in ("auto", backend) or config.env.is_ale):
        what = f"env.id={config.env.id}" if config.env.is_ale else f"env.backend={config.env.backend}"
        raise ConfigError(
            f"{what} with distributed={dist.topology}, whose environments are stepped by env.backend={backend}: "
            "leave one of them out"
        )
    users: dict[str, list[str]] = {}
    for known in TOPOLOGIES.values():
        for key in known.settings:
            users.setdefault(key, []).append(known.name)
    for key in sorted(users.keys() - set(topology.settings)):
        value = attrgetter(key)(config)
        if value != attrgetter(key)(Config()):
            raise ConfigError(
                f"{key}={value} has no effect with distributed={dist.topology}: use distributed="
                f"{' or '.join(users[key])}, or leave it out"
            )
    roles = layout(config)
    only_step = [role for role in roles.roles if role.ranks and not (role.acts or role.learns)]
    if dist.collective == "nccl" and only_step:
        raise ConfigError(
            f"dist.collective=nccl with distributed={dist.topology}, whose ranks of the role {only_step[0].name} only "
            "step environments and have no GPU: use dist.collective=shm or gloo"
        )
    if dist.grad_sync == "ddp" and dist.world_size > 1 and len(roles.learning) == 1:
        raise ConfigError(
            f"dist.grad_sync=ddp has no effect with distributed={dist.topology}, where one rank learns and no "
            "gradients travel: leave it out"
        )


def _check_context(config: Config) -> None:
    env = config.env
    if env.context is not None and (env.backend in ("native", "remote") or env.is_ale):
        what = f"env.id={env.id}" if env.is_ale else f"env.backend={env.backend}"
        raise ConfigError(
            f"env.context={env.context} with {what}, which begins episodes without a reset's options: use "
            "env.backend=sync or pool"
        )


def _check_slow_ranks(config: Config) -> None:
    """Check that those which are slowed step environments, in the rank."""
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
            f"env.slow_ranks has no effect with distributed={dist.topology}, whose observers step at their own pace: "
            "use a task that takes its time, as env=synthetic env.kwargs.step_time_s=0.01, or leave it out"
        )


def _check_restarts(config: Config) -> None:
    dist, env = config.dist, config.env
    check_min_workers(config)
    if dist.on_lost == "stop":
        if dist.max_restarts != (default := DistConfig().max_restarts):
            raise ConfigError(
                f"dist.max_restarts={dist.max_restarts} has no effect with dist.on_lost=stop: set "
                f"dist.on_lost=restart, or leave it at {default}"
            )
        return
    if (find(dist.topology).env_backend or env.backend) not in ("pool", "remote", "auto"):
        check_restarts(config)


def check_restarts(config: Config) -> None:
    """Raise ConfigError where nothing could be started again, for environments are stepped in the rank."""
    dist, env = config.dist, config.env
    if dist.on_lost == "restart" and dist.world_size == 1 and dist.min_workers is None:
        raise ConfigError(
            f"dist.on_lost=restart has no effect with dist.world_size=1 and env.backend={env.backend}: the only rank "
            "is the process that you start, which cannot start itself again; use env.backend=pool or remote, or more "
            "ranks, or leave it out"
        )


def _check_own_pace(config: Config) -> None:
    """Check what makes no sense where ranks go at their own pace."""
    dist = config.dist
    if not find(dist.topology).own_pace:
        return
    if dist.collective != "auto":
        raise ConfigError(
            f"dist.collective={dist.collective} has no effect with distributed={dist.topology}, whose ranks meet in "
            "no collective: leave it out"
        )


def _check_observers(config: Config, shape: BatchShape) -> None:
    observers, num_workers, num_envs = config.dist.observers, config.env.num_workers, shape.local_num_envs
    if observers is None:
        return
    if num_workers not in (None, observers):
        raise ConfigError(
            f"dist.observers={observers} and env.num_workers={num_workers} say the same of "
            f"distributed={config.dist.topology} by two numbers: leave one of them out"
        )
    if num_envs % observers:
        divisors = [n for n in range(1, num_envs + 1) if num_envs % n == 0]
        near = sorted(sorted(divisors, key=lambda n: abs(n - observers))[:4])
        raise ConfigError(
            f"dist.observers={observers} does not divide the {num_envs} environments of an agent: use "
            f"{' or '.join(map(str, near))}, or set env.num_envs to a multiple of {observers * shape.world_size}"
        )


def _check_workers(config: Config, shape: BatchShape) -> None:
    num_workers = config.env.num_workers
    if num_workers is None:
        return
    topology = find(config.dist.topology)
    if topology.env_backend not in (None, "pool"):
        raise ConfigError(
            f"env.num_workers={num_workers} has no effect with distributed={config.dist.topology}, whose environments "
            f"are stepped by env.backend={topology.env_backend}: leave the number out"
        )
    if (topology.env_backend or config.env.backend) != "pool" and not config.env.is_ale:
        raise ConfigError(
            f"env.num_workers={num_workers} has no effect with env.backend={config.env.backend}: set "
            "env.backend=pool, or leave the number out"
        )
    fewest = min(shape.env_shares, default=shape.local_num_envs)
    if num_workers > fewest:
        raise ConfigError(
            f"env.num_workers={num_workers} exceeds the {fewest} environments of a rank: use at most {fewest}"
        )


def _check_model(config: Config) -> None:
    model, defaults = config.model, ModelConfig()
    ours = _OF_MODELS.get(model.name)  # None of a user's own, which may read any setting
    for name in dict.fromkeys(name for names in _OF_MODELS.values() for name in names):
        if ours and name not in ours and (value := getattr(model, name)) != getattr(defaults, name):
            users = " or ".join(f"model={kind}" for kind, names in _OF_MODELS.items() if name in names)
            raise ConfigError(
                f"model.{name}={value} has no effect with model.name={model.name}: use {users}, or leave it out"
            )
    if model.graph_conv == "attention" and model.graph_width % 4:
        raise ConfigError(
            f"model.graph_width={model.graph_width} with model.graph_conv=attention: its 4 heads share the units "
            f"alike: use a multiple of 4, such as {-(-model.graph_width // 4) * 4}"
        )
    if model.token_width % (2 * model.token_heads):
        raise ConfigError(
            f"model.token_width={model.token_width} with model.token_heads={model.token_heads}: each head needs the "
            f"same even number of units: use a multiple of {2 * model.token_heads}"
        )
    if model.name == "hf" and model.hf_path is None:
        raise ConfigError(
            "model.name=hf needs model.hf_path, a folder with a causal language model or the name of one"
        )
    if model.name in ("token_policy", "hf") and config.ppo.normalize_obs:
        raise ConfigError(
            f"ppo.normalize_obs=true with model.name={model.name}: tokens are names, not numbers: use "
            "ppo.normalize_obs=false"
        )
    if model.name == "gnn" and config.ppo.normalize_obs:
        raise ConfigError(
            "ppo.normalize_obs=true with model.name=gnn: what it observes are numbers of gates and rules, which "
            "name things: use ppo.normalize_obs=false"
        )
    check_encoders(config)
