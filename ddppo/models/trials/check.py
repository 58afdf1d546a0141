"""A model of a user's own, tried before any process starts: its size, its outputs, its gradients, its layers."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import torch

from ddppo.config import ModelSettings
from ddppo.errors import ConfigError
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.build import build_model, model_class
from ddppo.models.recurrent import Recurrent
from ddppo.models.trials.memory import MemoryTrial
from ddppo.models.trials.parameters import check_parameters, check_parts
from ddppo.models.trials.trial import Trial, listed
from ddppo.plugins import imported
from ddppo.spaces import EnvSpec

_COPIES = 4  # a rank holds parameters, gradient and Adam's two moments


def check_model(
    spec: EnvSpec,
    config: ModelSettings,
    dtype: torch.dtype,
    *,
    num_envs: int,
    ranks_here: int | None = None,
    overlaps_from: int | None = None,
    learning_rates: Mapping[str, float] = MappingProxyType({}),
) -> str | None:
    """Build the model that `config` names and try it on batches of 1, num_envs and more observations.

    num_envs: E of one rank. ranks_here: how many ranks this machine is to hold; None if it holds none.
    overlaps_from: the number of parameters from which DistributedDataParallel reduces gradients; None for never.
    learning_rates: ppo.learning_rates, whose names are to be those of parts of the model.
    Returns a warning where layers make results depend on chance or on how the batch is split. Raises ConfigError, in
    one sentence with the class, the method, what is wanted and what came.
    """
    _check_memory(spec, config, dtype, ranks_here)
    model = build_model(spec, config, 0, dtype)
    _check_state(model, config)
    trial_of: type[Trial] = MemoryTrial if model.state_size else Trial
    if model.trial_class is not None:
        trial_of = imported(model.trial_class)
    trial = trial_of(model, spec, config)
    check_parameters(trial)
    check_parts(trial, learning_rates)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for size in (num_envs, 2 * num_envs + 1):  # of acting, and of learning
            trial.check_outputs(size)
        if trial.brings_own_policy:
            trial.check_policy(num_envs)
        warnings = trial.warnings(max(num_envs, 2))
        trial.check_one_row(warnings, is_acted_on=num_envs == 1)
        unused = trial.unused_parameters(num_envs)
    count = sum(p.numel() for p in model.parameters())
    if unused and overlaps_from is not None and count >= overlaps_from:
        raise ConfigError(
            f"model.name={config.name}: {trial.kind}.{trial.learns_by} does not use {listed(unused)}, and "
            "dist.grad_sync=ddp waits for the gradient of every parameter: use dist.grad_sync=flat, or remove what is "
            "not used"
        )
    return "; ".join(warnings) or None


def _check_state(model: ActorCritic, config: ModelSettings) -> None:
    """Raise ConfigError where memory is meant, and the model has none."""
    if model.state_size:
        return
    if isinstance(model, Recurrent):
        raise ConfigError(
            f"model.name={config.name}: {type(model).__name__} sets no state_size, so that nothing would be "
            "remembered: set it in __init__ to how many numbers a state has"
        )
    if (memory := getattr(config, "memory", "none")) != "none":
        raise ConfigError(
            f"model.memory={memory} has no effect on a model of your own, as model.name={config.name}: derive "
            "it from ddppo.models.Recurrent (docs/guide/memory.md), or leave model.memory out"
        )


def _check_memory(spec: EnvSpec, config: ModelSettings, dtype: torch.dtype, ranks_here: int | None) -> None:
    """Compare the size of the model, found without allocating it, with the memory of this machine."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            skeleton = model_class(config)(spec, config)
        count = sum(x.numel() for x in (*skeleton.parameters(), *skeleton.buffers()))
    except ConfigError:
        raise
    except Exception:  # cannot be built without data, or at all, which building it in earnest tells
        return
    copies = 1 if ranks_here is None else _COPIES * ranks_here
    needed, has = count * dtype.itemsize * copies, _memory_bytes()
    if has is not None and needed > has:
        purpose = "to build"
        if ranks_here is not None:
            purpose = f"with gradients and Adam's moments in {ranks_here} rank{'s' * (ranks_here > 1)}"
        layers = getattr(config, "hidden_sizes", None)
        sizes = "" if layers is None else f" with model.hidden_sizes={list(layers)}"
        raise ConfigError(
            f"model.name={config.name}{sizes}: "
            f"{type(skeleton).__name__} has {count:,} parameters and buffers, which need {needed / 2**30:,.1f} GiB "
            f"{purpose}, but this machine has {has / 2**30:,.1f} GiB: use smaller layers, or fewer ranks on a machine"
        )


def _memory_bytes() -> int | None:
    """Return the memory that this machine or its container has; None where neither says."""
    found = []
    with suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(limit).read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return min(found, default=None)
