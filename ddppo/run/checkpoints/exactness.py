"""Whether a resumed run is the one that was not interrupted, and what is said where it is not."""

from typing import Any

from ddppo.algorithms.task_sampler import make_sampler
from ddppo.config import Config
from ddppo.envs.backends.classic_cpp import why_not_batched
from ddppo.envs.probing.trial import why_inexact
from ddppo.run.checkpoints.environments import how_saved
from ddppo.spaces import EnvSpec
from ddppo.topologies import find


def is_between_episodes(config: Config, spec: EnvSpec) -> bool:
    """Return whether environments are in the midst of nothing between iterations, for whole episodes are played."""
    return make_sampler(config, spec, config.env.num_envs).every_iteration


def why_left_out(config: Config) -> str | None:
    """Return why checkpoints of a run do not hold what environments are in the midst of; None if they do."""
    if find(config.dist.topology).own_pace:
        return f"with distributed={config.dist.topology} actors go at their own pace, and who comes when is chance"
    return None if config.checkpoint.environments else "checkpoint.environments=false leaves them out"


def warning(config: Config, spec: EnvSpec) -> str | None:
    """Return what a run is to say at its start, where it could not be resumed exactly."""
    if config.resume_state == "approximate" or is_between_episodes(config, spec):
        return None
    why = why_left_out(config) or why_inexact(config.env)
    if why is None:
        return None
    return (
        f"checkpoints will not hold what environments are in the midst of, for {why}: this run can be resumed with new "
        "episodes only, which resume_state=approximate allows"
    )


def missing(config: Config, spec: EnvSpec, state: dict[str, Any]) -> str | None:
    """Return why a run cannot go on from a checkpoint's state exactly; None if it can."""
    if is_between_episodes(config, spec):
        return None
    # What a checkpoint holds is gone on from, unless the run says that it may be left aside.
    may_leave_aside = find(config.dist.topology).own_pace or config.resume_state == "approximate"
    if may_leave_aside and (why := why_left_out(config)):
        return why
    held = state.get("environments") or {"missing": "it is of a run that played whole episodes"}
    if "missing" in held:
        return str(held["missing"])
    was, now = _kind(how_saved(held)), _kind_now(config)
    if was != now:
        return (
            f"{config.env.id} was stepped {was} and is stepped {now} now, each with states of its own: keep "
            "env.backend and dist.topology"
        )
    return None


_KINDS = {"batched": "as one batch", "games": "by ale-py's batch"}


def _kind(how: str) -> str:
    return _KINDS.get(how, "one by one")


def _kind_now(config: Config) -> str:
    backend = find(config.dist.topology).env_backend or config.env.backend
    if config.env.is_ale and backend in ("auto", "native"):
        return _KINDS["games"]
    is_batch = backend in ("auto", "batched") and why_not_batched(config.env) is None
    return _kind("batched" if is_batch else "")
