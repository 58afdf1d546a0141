"""The replay buffers of all learners in a checkpoint, for algorithms that have one (ddppo/algorithms/replay.py).

The learners gather their rows at rank 0. A resumed run deals them anew by environment, so that it may have another
number of learners. A checkpoint without them (checkpoint.replay=false) is small, and resumed from approximately.
"""

import io
from collections.abc import Mapping
from typing import Any

import torch

from ddppo.config.replay_settings import ReplaySettings
from ddppo.config.settings import Config
from ddppo.distributed.topologies.base import RankContext
from ddppo.loop.env_states import gather_at_root

_LEFT_OUT = "checkpoint.replay=false left it out"


def gathered(context: RankContext) -> dict[str, Any]:
    """Return the section "replay" of a checkpoint on rank 0; {} on other ranks, or if the algorithm has no replay.

    All ranks that learn call it together. Its tensors are copies, which nobody changes.
    """
    algorithm, group = context.algorithm, context.topology.learners
    if algorithm.replay is None or context.group.rank not in context.layout.learning:
        return {}
    if not context.config.checkpoint.replay:
        return {"replay": {"missing": _LEFT_OUT}}
    own = algorithm.replay.state()
    if group.world_size == 1:
        return {"replay": own}
    content = io.BytesIO()
    torch.save(own, content)
    parts = gather_at_root(group, [content.getvalue()])
    if not parts:
        return {}
    states = [torch.load(io.BytesIO(part), weights_only=True) for (part,) in parts]
    return {"replay": algorithm.replay.merged(states)}


def restore(context: RankContext, state: Mapping[str, Any]) -> str | None:
    """Fill this rank's replay buffer from a checkpoint. Returns why it begins empty, or None."""
    # A rank that only acts never uses the rows, and must not hold them.
    if context.algorithm.replay is None or context.group.rank not in context.layout.learning:
        return None
    if (why := missing(state)) is not None:
        context.algorithm.replay.load({})
        return why
    context.algorithm.replay.load(state["replay"])
    return None


def missing(state: Mapping[str, Any]) -> str | None:
    """Return why a checkpoint does not hold the replay buffers; None if it does, or if there are none."""
    why: str | None = (state.get("replay") or {}).get("missing")
    return why


def warning(config: Config) -> str | None:
    """Return the warning at the start of a run with replay that could not be resumed exactly; None if it could."""
    if config.checkpoint.replay or not isinstance(config.training, ReplaySettings):
        return None
    if config.resume_state == "approximate":
        return None
    return (
        "checkpoints will not hold the replay buffer, because checkpoint.replay=false: this run can be resumed with an "
        "empty one only, which resume_state=approximate allows"
    )
