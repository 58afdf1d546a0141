"""From a policy's last hidden layer to action parameters, where actions are a box: who owns the log standard deviation,
and whether actions are squashed into the bounds.
"""

import torch
from torch import nn

from ddppo.config import ModelConfig
from ddppo.config.rules.model.heads import LOG_STD_RANGE
from ddppo.errors import ConfigError
from ddppo.models.distributions import num_action_params
from ddppo.spaces import ActionSpec


def check_heads(action: ActionSpec, config: ModelConfig, *, brings_own_policy: bool = False) -> None:
    """Raise ConfigError where model.squash or model.log_std make no sense for these actions, or for this model."""
    asked = {"squash": (config.squash, "none"), "log_std": (config.log_std, "parameter")}
    for name, (value, default) in asked.items():
        if value != default and action.kind != "box":
            raise ConfigError(
                f"model.{name}={value} has no effect on actions that are {action.kind}, which have no standard "
                f"deviation: leave it out, or act in a Box"
            )
    if config.squash == "none":
        return
    if brings_own_policy:
        raise ConfigError(
            f"model.squash={config.squash} has no effect with model.name={config.name}, which brings a distribution of "
            "its own: leave it out"
        )
    if not action.low:
        raise ConfigError(
            f"model.squash={config.squash} needs actions with a finite low < high in every dimension, which this "
            "task's Box has not: leave it out, or give the task bounds by gymnasium.wrappers.RescaleAction or a Box of "
            "its own"
        )


def policy_outputs(action: ActionSpec, config: ModelConfig) -> int:
    """Return how many numbers the policy's last layer gives: all P, or the means alone."""
    num_params = num_action_params(action)
    return num_params // 2 if action.kind == "box" and config.log_std == "parameter" else num_params


def begin_log_std_(policy_head: nn.Linear, action: ActionSpec, config: ModelConfig) -> nn.Parameter | None:
    """Begin with model.log_std_init: return the parameter `[d]` that holds it, or set the biases of the head.

    None where actions are no box, or the head gives it.
    """
    if action.kind != "box":
        return None
    if config.log_std == "parameter":
        return nn.Parameter(torch.full((action.sizes[0],), config.log_std_init))
    nn.init.constant_(policy_head.bias[action.sizes[0] :], config.log_std_init)
    return None


def policy_params(out: torch.Tensor, log_std: nn.Parameter | None, *, is_box: bool) -> torch.Tensor:
    """Return action parameters `[..., P]` of what the policy's last layer gave.

    A log standard deviation that depends on the observation is cut to LOG_STD_RANGE (Haarnoja et al. 2018,
    arXiv:1801.01290, and their code).
    """
    if not is_box:
        return out
    if log_std is not None:
        return torch.cat([out, log_std.expand_as(out)], dim=-1)
    mean, of_state = out.chunk(2, dim=-1)
    return torch.cat([mean, of_state.clamp(*LOG_STD_RANGE)], dim=-1)
