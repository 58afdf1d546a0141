"""From the output of a policy's last layer to the parameters of its distribution.

For a box, model.distribution chooses between Gaussian and Beta distributions. Of a Gaussian, model.log_std decides
whether the log standard deviation is a parameter or an output of the layer, and model.squash whether tanh maps actions
into the bounds. Shapes are those of distributions.py.
"""

import torch
from torch import nn

from ddppo.config.model_settings import LOG_STD_RANGE, LayerSettings, ModelSettings
from ddppo.errors import ConfigError
from ddppo.models.distributions import num_action_params
from ddppo.spaces import ActionSpec


def check_heads(action: ActionSpec, config: ModelSettings, *, brings_own_policy: bool = False) -> None:
    """Raise ConfigError if a setting of the distribution has no effect on these actions or this model."""
    if not isinstance(config, LayerSettings):  # other settings have no such keys
        return
    asked = {
        "distribution": (config.distribution, "gaussian"),
        "squash": (config.squash, "none"),
        "log_std": (config.log_std, "parameter"),
    }
    # A setting without effect is an error.
    for name, (value, default) in asked.items():
        if value != default and action.kind != "box":
            raise ConfigError(
                f"model.{name}={value} has no effect on actions that are {action.kind}, which have no standard "
                f"deviation: leave it out, or act in a Box"
            )
    bounded_by = [
        f"model.{name}={value}" for name, (value, default) in list(asked.items())[:2] if value != default
    ]
    if not bounded_by:
        return
    if brings_own_policy:
        raise ConfigError(
            f"{bounded_by[0]} has no effect with model.name={config.name}, which brings a distribution of its own: "
            "leave it out"
        )
    if not action.low:
        raise ConfigError(
            f"{bounded_by[0]} needs actions with a finite low < high in every dimension, and this task's Box lacks "
            "them: leave it out, or give the task bounds by gymnasium.wrappers.RescaleAction or a Box of its own"
        )


def policy_outputs(action: ActionSpec, config: LayerSettings) -> int:
    """Return the number of outputs of the policy's last layer: all P, or only the means of a Gaussian."""
    num_params = num_action_params(action)
    puts_out_all = action.kind != "box" or config.distribution == "beta" or config.log_std == "state"
    return num_params if puts_out_all else num_params // 2


def begin_log_std_(policy_head: nn.Linear, action: ActionSpec, config: LayerSettings) -> nn.Parameter | None:
    """Initialise the log standard deviation with model.log_std_init.

    Returns the parameter `[d]` that holds it. If the policy's head outputs it, sets the head's biases and returns None;
    likewise None if actions are no box, or not Gaussian.
    """
    if action.kind != "box" or config.distribution != "gaussian":
        return None
    if config.log_std == "parameter":
        return nn.Parameter(torch.full((action.sizes[0],), config.log_std_init))
    nn.init.constant_(policy_head.bias[action.sizes[0] :], config.log_std_init)
    return None


def policy_params(out: torch.Tensor, log_std: nn.Parameter | None, *, is_gaussian: bool) -> torch.Tensor:
    """Return action parameters `[..., P]` from the output of the policy's last layer.

    A log standard deviation that depends on the observation is clamped to LOG_STD_RANGE (Haarnoja et al. 2018,
    arXiv:1801.01290, and their code).
    """
    if not is_gaussian:
        return out
    if log_std is not None:
        return torch.cat([out, log_std.expand_as(out)], dim=-1)
    # model.log_std=state: the second half of the outputs.
    mean, of_state = out.chunk(2, dim=-1)
    return torch.cat([mean, of_state.clamp(*LOG_STD_RANGE)], dim=-1)
