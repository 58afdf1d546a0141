"""The rules of dist.reduction=ordered: what V may be, which W follow, and what it cannot be combined with."""

from ddppo.config.settings import Config
from ddppo.errors import ConfigError

_DEFAULT_SHARDS = 8


def num_shards(config: Config) -> int:
    """Return V, in how many shards the batch is computed; 0 under dist.reduction=fast. Raises ConfigError."""
    dist, num_envs = config.dist, config.env.num_envs
    if dist.reduction == "fast":
        if dist.shards is not None:
            raise ConfigError(
                f"dist.shards={dist.shards} has no effect with dist.reduction=fast: set dist.reduction=ordered, or "
                "leave it out"
            )
        return 0
    shards = _DEFAULT_SHARDS if dist.shards is None else dist.shards
    said = f"dist.reduction=ordered with dist.shards={shards}"
    if num_envs % shards:
        raise ConfigError(
            f"{said}: every shard has as many of env.num_envs={num_envs} environments: set dist.shards to "
            f"{_either(num_envs)}, or env.num_envs to a multiple of {shards}"
        )
    if shards % dist.world_size:
        raise ConfigError(
            f"dist.world_size={dist.world_size} does not divide the {shards} shards of dist.reduction=ordered, of "
            f"which every rank computes as many: use dist.world_size={_either(shards)}, or another dist.shards"
        )
    return shards


def check_ordered(config: Config) -> None:
    """Raise ConfigError for settings under which results would depend on W to the bit."""
    dist, ppo = config.dist, config.ppo
    if dist.reduction == "fast":
        return
    said = "with dist.reduction=ordered"
    if dist.topology != "ddp":
        raise ConfigError(
            f"distributed={dist.topology} {said}: only equal workers own shards: use distributed=ddp, or "
            "dist.reduction=fast"
        )
    if config.scaling.rule == "weak":
        raise ConfigError(
            f"scaling=weak {said}: the batch would grow with W: use scaling=strong, or dist.reduction=fast"
        )
    if dist.grad_sync != "auto":
        raise ConfigError(
            f"dist.grad_sync={dist.grad_sync} {said}, which sums gradients of shards in an order of its own: leave it "
            "out"
        )
    if config.device == "cuda" or dist.collective == "nccl":
        what = "device=cuda" if config.device == "cuda" else "dist.collective=nccl"
        raise ConfigError(f"{what} {said}, which is shown for CPUs alone: use device=cpu")
    if ppo.algorithm != "ppo":
        raise ConfigError(
            f"ppo.algorithm={ppo.algorithm} {said}: whole episodes are not computed in shards: use dist.reduction=fast"
        )
    if ppo.normalize_advantages == "local":
        raise ConfigError(
            f"ppo.normalize_advantages=local {said}: moments of one rank depend on W: use "
            "ppo.normalize_advantages=global"
        )
    if config.env.backend == "native" and not (config.env.is_ale or config.env.is_envpool):
        raise ConfigError(
            f"env.backend=native {said}: its environments share one random stream, so they depend on how many a rank "
            "steps: use env.backend=auto"
        )


def _either(n: int) -> str:
    """Return the divisors of n, the smallest and the largest ones where there are many."""
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    if len(divisors) > 8:
        divisors = [*divisors[:6], *divisors[-2:]]
    *others, last = map(str, divisors)
    return f"{', '.join(others)} or {last}" if others else last
