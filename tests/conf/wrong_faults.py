"""What cannot be asked of a run in which something goes wrong: command lines with what is said of them."""

LINES = {
    "eval.on_error=ignore": "must be one of warn, stop",
    "eval.on_error=stop eval.every_steps=0": "has no effect without evaluations during training: set eval.every_steps",
    "on_nonfinite=skip": "must be one of stop, skip_batch, restore",
    "on_nonfinite=restart": "must be one of stop, skip_batch, restore",
    "on_nonfinite_max=3": "has no effect with on_nonfinite=stop: use on_nonfinite=skip_batch or restore",
    "on_nonfinite=skip_batch on_nonfinite_max=0": "must be at least 1",
    "on_nonfinite=skip_batch on_nonfinite_factor=0.1": "has no effect with on_nonfinite=skip_batch: use on_nonfinite=r",
    "on_nonfinite=restore on_nonfinite_factor=1": "must be at most 0.99",
    "on_nonfinite=restore on_nonfinite_factor=0": "must be greater than 0",
    "on_nonfinite=restore distributed=sync_actors dist.world_size=3": "where some ranks do not learn",
    "on_nonfinite=restore distributed=async_actors dist.world_size=3": "where some ranks do not learn",
    "on_nonfinite=restore checkpoint.every_steps=0": "set checkpoint.every_steps, or use on_nonfinite=skip_batch",
    "run.max_minutes=0": "must be greater than 0",
    "run.max_minutes=nan": "must be a finite number",
    "run.max_minutes=1h": "run.max_minutes",
    "run.requeue_exit_code=256": "must be at most 255",
    "dist.min_workers=1 dist.world_size=2": "has no effect with dist.on_lost=stop",
    "dist.min_workers=3 dist.world_size=2 dist.on_lost=restart": "exceeds dist.world_size=2: use at most that",
    "dist.min_workers=0 dist.world_size=2 dist.on_lost=restart": "must be at least 1",
    "dist.min_workers=1 dist.world_size=2 dist.on_lost=restart scaling=weak": "use scaling=strong, or leave it out",
}
