"""Whether the rows of recurrent layers are learned from in C++: where every rank can."""

import torch

from ddppo import native
from ddppo.models.recurrent import Core
from ddppo.run.parts import Parts


def begin_recurrence(parts: Parts) -> None:
    """Have recurrent layers of the model, if it has any, learn in C++ if all ranks can; all call it.

    It knows one thread, as the learner's step in C++ does, and is asked for by the same settings.
    """
    cores = [module for module in parts.model.modules() if isinstance(module, Core)]
    if not cores:
        return
    config = parts.config
    can = (
        config.compile in ("auto", "on")
        and config.dist.threads_per_rank in (None, 1)
        and parts.learner.parameters.device.type == "cpu"
        and native.why_not() is None
    )
    all_can = bool(parts.group.gather(torch.tensor([can], dtype=torch.float64)).all())
    for core in cores:
        core.learns_in_cpp = all_can
    parts.derived["recurrence"] = "C++" if all_can else "torch"
