"""What cannot be asked of a run that is to be the same bits at any W: command lines with what is said of them."""

LINES = {
    "dist.reduction=odered": "did you mean ordered?",
    "dist.shards=4": "has no effect with dist.reduction=fast: set dist.reduction=ordered",
    "dist.reduction=ordered dist.shards=0": "must be at least 1",
    "dist.reduction=ordered dist.shards=3": "set dist.shards to 1, 2, 4 or 8, or env.num_envs to a multiple of 3",
    "dist.reduction=ordered env.num_envs=4": "dist.shards=8: every shard has as many of env.num_envs=4 environments",
    "dist.reduction=ordered env.num_envs=24 dist.world_size=3": "use dist.world_size=1, 2, 4 or 8, or",
    "dist.reduction=ordered dist.world_size=8 dist.shards=4": "use dist.world_size=1, 2 or 4, or another dist.shards",
    "dist.reduction=ordered env.num_envs=5040 dist.shards=720 dist.world_size=7": "1, 2, 3, 4, 5, 6, 360 or 720",
    "dist.reduction=ordered distributed=sync_actors dist.world_size=2": "only equal workers own shards",
    "dist.reduction=ordered distributed=device": "only equal workers own shards",
    "dist.reduction=ordered distributed=async_actors dist.world_size=2": "only equal workers own shards",
    "dist.reduction=ordered scaling=weak": "the batch would grow with W: use scaling=strong",
    "dist.reduction=ordered dist.grad_sync=ddp": "sums gradients of shards in an order of its own: leave it out",
    "dist.reduction=ordered dist.grad_sync=flat": "sums gradients of shards in an order of its own: leave it out",
    "dist.reduction=ordered device=cuda": "which is shown for CPUs alone: use device=cpu",
    "dist.reduction=ordered dist.collective=nccl": "which is shown for CPUs alone",
    "dist.reduction=ordered ppo.algorithm=grpo": "whole episodes are not computed in shards: use dist.reduction=fast",
    "dist.reduction=ordered ppo.normalize_advantages=local": "moments of one rank depend on W",
    "dist.reduction=ordered env.backend=native": "its environments share one random stream",
    "dist.reduction=ordered env=cage2": "dist.shards to 1, 2, 4, 5, 10, 20, 50 or 100",
}
