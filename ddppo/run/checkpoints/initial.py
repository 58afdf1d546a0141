"""What a new run begins with of another's: parameters and normalisers, as far as they fit (init_from)."""

from pathlib import Path
from typing import Any

import torch

from ddppo.config import Config
from ddppo.envs.meaning import differences
from ddppo.errors import ConfigError, RunFolderError
from ddppo.models import build_model
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.run import checkpoint
from ddppo.spaces import EnvSpec, leaves

_NAMED = 6  # parameters that a message names


def told(config: Config, spec: EnvSpec) -> str | None:
    """Return what does not fit of what a run is to begin with; None where all does, or it begins with nothing.

    Raises ConfigError where there is no such checkpoint, or nothing of it fits.
    """
    if config.init_from is None or config.resume is not None:
        return None
    state = load(config.init_from)
    model = build_model(spec, config.model, config.seed, getattr(torch, config.dtype))
    own, theirs = model.state_dict(), state["model"]
    fits = _fitting(model, state)
    said = [
        f"{name} {_sizes(theirs[name])}, here {_sizes(own[name])}"
        for name in own.keys() & theirs.keys() - fits.keys()
    ]
    said += [f"{name}, which it lacks" for name in own.keys() - theirs.keys()]
    said += [f"{name}, which has no place here" for name in theirs.keys() - own.keys()]
    if not fits:
        raise ConfigError(
            f"init_from={config.init_from}: no parameter fits the model of this run: {_listed(said)}: give the "
            "settings of env and model that it was trained with, or leave init_from out"
        )
    said = [*([_listed(said)] if said else []), *_of_normalizers(config, spec, state)]
    said += differences(state.get("spaces"), spec.spaces)
    if not said:
        return None
    taken = f"{len(fits)} of {len(own)} parameters are taken"
    return f"init_from={config.init_from}: {taken}; what does not fit: {'; '.join(said)}"


def load(init_from: str) -> dict[str, Any]:
    """Return the state of a checkpoint, or of the last whole one of a run folder. Raises RunFolderError."""
    path = Path(init_from)
    if path.is_dir() and not (path / "checkpoints").is_dir():
        raise RunFolderError(f"init_from={init_from}: not a run folder, it has no checkpoints")
    if not path.exists():
        raise RunFolderError(f"init_from={init_from}: there is no such run folder or checkpoint")
    return checkpoint.load(checkpoint.chosen("last", path) if path.is_dir() else path)


def take_(state: dict[str, Any], model: torch.nn.Module, normalizer: ObsNormalizer | None) -> None:
    """Give a model and its normaliser of observations what fits of a checkpoint's state."""
    model.load_state_dict(_fitting(model, state), strict=False)
    moments = state.get("obs_moments")
    if normalizer is not None and moments is not None and moments.shape == normalizer.state.shape:
        normalizer.load(moments)


def take_rewards_(state: dict[str, Any], normalizer: RewardNormalizer | None) -> None:
    """Give a normaliser of rewards the checkpoint's moments, if it has any."""
    moments = state.get("return_moments")
    if normalizer is not None and moments is not None:
        normalizer.state = moments


def _fitting(model: torch.nn.Module, state: dict[str, Any]) -> dict[str, torch.Tensor]:
    own = model.state_dict()
    return {name: x for name, x in state["model"].items() if name in own and own[name].shape == x.shape}


def _of_normalizers(config: Config, spec: EnvSpec, state: dict[str, Any]) -> list[str]:
    num_floats = sum(leaf.size for leaf in leaves(spec.obs) if leaf.is_float)
    said = []
    for key, setting, num in (
        ("obs_moments", "normalize_obs", num_floats),
        ("return_moments", "normalize_rewards", None),
    ):
        moments, is_wanted = state.get(key), getattr(config.ppo, setting)
        if moments is not None and not is_wanted:
            said.append(f"{key}, which ppo.{setting}=false has no use for")
        elif moments is None and is_wanted:
            said.append(f"{key}, which it lacks for ppo.{setting}=true")
        elif moments is not None and num is not None and moments.shape[1] != num:
            said.append(f"{key} of {moments.shape[1]} numbers, here {num}")
    return said


def _sizes(x: torch.Tensor) -> str:
    return f"[{', '.join(map(str, x.shape))}]"


def _listed(said: list[str]) -> str:
    more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return "; ".join(sorted(said)[:_NAMED]) + more
