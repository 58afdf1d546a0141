"""What a rank is made of: environments, model, collector, learner. Built once, before the first iteration."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ddppo.algorithms.task_sampler import make_sampler
from ddppo.collectives.group import Group
from ddppo.config import rank_rules, rules
from ddppo.config.settings import Config
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.distributed.join import cores_per_rank, threads_per_rank
from ddppo.distributed.topologies.base import RankContext, Topology
from ddppo.distributed.topologies.contract import Layout, TopologySpec
from ddppo.distributed.topologies.known import find
from ddppo.envs.make import choose_backend
from ddppo.envs.meaning import differences
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError, RunFolderError, in_one_line
from ddppo.models.build import build_model
from ddppo.models.cnn import images_in
from ddppo.plugins import imported
from ddppo.ppo.cpp.network import why_not_cpp
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.records import checkpoint
from ddppo.records.provenance import gather_machines
from ddppo.spaces import EnvSpec, leaves


def topology_of(declared: TopologySpec) -> Callable[[RankContext], Topology]:
    """Return the class that a rank of this topology runs. Raises ConfigError where there is none."""
    said = f"dist.topology={declared.name}: its implementation {declared.implementation}"
    try:
        topology_class = imported(declared.implementation)
    except Exception as e:  # what a module of one's own may raise
        raise ConfigError(f"{said} cannot be imported: {in_one_line(e)}") from e
    if not callable(topology_class) or (
        isinstance(topology_class, type) and not issubclass(topology_class, Topology)
    ):
        raise ConfigError(f"{said} is no subclass of ddppo.distributed.topologies.base.Topology: make it one")
    return topology_class


def eval_ranks_of(roles: Layout, declared: TopologySpec) -> tuple[int, ...]:
    """Return the ranks that play evaluations: all that hold the parameters and go in step."""
    play = [role for role in roles.roles if role.learns or (role.acts and not declared.own_pace)]
    return tuple(sorted(rank for role in play for rank in role.ranks))


def build(config: Config, group: Group, device: torch.device) -> RankContext:
    """Build what a rank holds; all ranks leave with rank 0's parameters, and with the threads that suit the model."""
    shape, roles = rules.validate(config), rank_rules.layout(config)
    dtype = getattr(torch, config.dtype)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    spec, cores = probe(config.env), cores_per_rank(local_world_size)
    declared = find(config.dist.topology)
    if declared.env_backend is not None:
        env_config = replace(config.env, backend=declared.env_backend)
    else:
        own = shape.env_indices(roles.stepping.index(group.rank)) if group.rank in roles.stepping else ()
        env_config = choose_backend(config.env, spec, len(own) or shape.local_num_envs, cores)
    model = build_model(spec, config.model, config.seed, dtype).to(device)
    obs_normalizer = ObsNormalizer(spec.obs, device, dtype) if config.ppo.normalize_obs else None
    begun_with = None
    if config.init_from is not None and config.resume is None:
        begun_with = load_initial(config.init_from)
        take_initial_(begun_with, model, obs_normalizer)
    parameters = FlatParameters(model)
    group.broadcast_(parameters.vector.data)  # machines may differ in how they round the initialisation
    sampler = make_sampler(config, spec, shape.num_envs)
    context = RankContext(
        config,
        group,
        device,
        shape,
        roles,
        spec,
        env_config,
        cores,
        model,
        parameters,
        obs_normalizer,
        sampler,
    )
    topology = topology_of(declared)(context)
    if begun_with is not None:
        take_initial_rewards_(begun_with, topology.learner.reward_normalizer)
    work = model.num_products() * shape.minibatch_size // len(roles.learning)
    if why_not_cpp(config, model, device, topology.sync.name) is None:
        work = 0  # one thread in C++ is faster than several in torch
    torch.set_num_threads(threads_per_rank(config, local_world_size, work))
    derived = _derived(context, topology, local_world_size)
    context = replace(context, topology=topology, eval_ranks=eval_ranks_of(roles, declared), derived=derived)
    sampler.attach(context)
    return context


def _derived(context: RankContext, topology: Topology, local_world_size: int) -> dict[str, Any]:
    """Return what summary.json tells of the parts; all ranks call it."""
    group, device = context.group, context.device
    machines = gather_machines(group, with_gpu=device.type == "cuda")
    derived = {
        "num_parameters": context.parameters.gradient.numel(),
        "num_products": context.model.num_products(),  # of weights, for one observation
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads_per_rank": torch.get_num_threads(),
        "env_backend": context.env_config.backend,
        "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", -(-group.world_size // local_world_size))),
        "num_hosts": len(machines),
        "machines": machines,
        "roles": [context.layout.role(rank).name for rank in range(group.world_size)],
        "collective": group.name,
        "grad_sync": topology.sync.name if topology.learners.world_size > 1 else "none",
    }
    if images := images_in(context.model):
        derived["images"] = images
    if topology.collector is not None and topology.collector.whole_episodes:
        derived["whole_episodes"] = True
    return derived


# -- How far a run is.


@dataclass(slots=True)
class TrainState:
    """Iterations and env_steps done, the same on all ranks, and wall_s, this rank's seconds in them; a resumed run
    counts on.

    compiled_from: the first iteration whose steps were in machine code, None where they are eager.
    """

    iteration: int = 0
    env_steps: int = 0
    wall_s: float = 0.0
    compiled_from: int | None = None


# -- What every rank holds a copy of: all copies are to be the same, and ranks compare them by a number.


def compared_content(context: RankContext) -> str:
    """Return what `fingerprint` compares, for error messages."""
    return f"parameters or {context.sampler.name}" if context.sampler.name else "parameters"


def fingerprint(context: RankContext) -> float:
    """Return 48 bits of the hash of the parameters, and of the task sampler if it learns, exact in float64.

    NaN on a rank that does not hold them.
    """
    if context.group.rank not in context.eval_ranks:
        return math.nan
    digest = context.parameters.digest()
    if context.sampler.name:
        digest = context.sampler.digest(digest)
    return int(digest[:12], 16)


# -- What a new run begins with of another's: parameters and normalisers, as far as they fit (init_from).


_NAMED = 6  # parameters that a message names


def warning_of_initial(config: Config, spec: EnvSpec) -> str | None:
    """Return what does not fit of what a run is to begin with; None where all does, or it begins with nothing.

    Raises ConfigError where there is no such checkpoint, or nothing of it fits.
    """
    if config.init_from is None or config.resume is not None:
        return None
    state = load_initial(config.init_from)
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


def load_initial(init_from: str) -> dict[str, Any]:
    """Return the state of a checkpoint, or of the last whole one of a run folder. Raises RunFolderError."""
    path = Path(init_from)
    if path.is_dir() and not (path / "checkpoints").is_dir():
        raise RunFolderError(f"init_from={init_from}: not a run folder, it has no checkpoints")
    if not path.exists():
        raise RunFolderError(f"init_from={init_from}: there is no such run folder or checkpoint")
    return checkpoint.load(checkpoint.chosen("last", path) if path.is_dir() else path)


def take_initial_(state: dict[str, Any], model: torch.nn.Module, normalizer: ObsNormalizer | None) -> None:
    """Give a model and its normaliser of observations what fits of a checkpoint's state."""
    model.load_state_dict(_fitting(model, state), strict=False)
    moments = state.get("obs_moments")
    if normalizer is not None and moments is not None and moments.shape == normalizer.state.shape:
        normalizer.load(moments)


def take_initial_rewards_(state: dict[str, Any], normalizer: RewardNormalizer | None) -> None:
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
