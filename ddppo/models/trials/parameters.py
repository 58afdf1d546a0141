"""The parameters of a model under test."""

from collections.abc import Mapping

from torch import nn

from ddppo.errors import ConfigError
from ddppo.models.build import part_of
from ddppo.models.trials.trial import Trial, listed


def check_parameters(trial: Trial) -> None:
    """Check that there are some that learn, each with a shape, all of one type on one device. Raises ConfigError."""
    parameters = dict(trial.model.named_parameters())
    lazy = [name for name, p in parameters.items() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise trial.fails(
            "__init__",
            f"leaves {listed(lazy)} without a shape: give lazy layers the size of their input",
        )
    if not any(p.requires_grad for p in parameters.values()):
        what = "none requires a gradient" if parameters else "it has none"
        raise trial.fails("__init__", f"makes no parameter that can learn: {what}")
    kinds: dict[str, list[str]] = {}
    for name, p in parameters.items():
        kinds.setdefault(f"{p.dtype} on {p.device}".removeprefix("torch."), []).append(name)
    if len(kinds) > 1:
        found = "; ".join(f"{kind}: {listed(names)}" for kind, names in kinds.items())
        raise trial.fails(
            "__init__",
            f"makes parameters of several types or devices ({found}): keep what does not learn in "
            "register_buffer, and leave devices to the setting device",
        )


def check_parts(trial: Trial, learning_rates: Mapping[str, float]) -> None:
    """Check that every part with a step size of its own is a part of the model. Raises ConfigError."""
    names = [name for name, _ in trial.model.named_parameters()]
    for part in learning_rates:
        if not any(part_of(name, [part]) for name in names):
            parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise ConfigError(
                f"ppo.learning_rates={{{part}: {learning_rates[part]}}}: no parameter of {trial.kind} (model.name="
                f"{trial.name}) has a name that begins so: use {parts}, or a part of these behind a dot"
            )
