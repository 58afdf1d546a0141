"""Builds everything that a rank owns, once, before its first iteration: environments, model, collector and learner.

`build` does it in six steps and returns a `RankContext`. Below it: `TrainState`, which counts iterations and steps; the
number by which ranks compare their parameters (`fingerprint`); and init_from, by which a new run begins with the
parameters of another one.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ddppo.algorithms.build import build_networks, make_algorithm
from ddppo.algorithms.task_sampler import make_sampler
from ddppo.collectives.group import Group
from ddppo.config import rank_rules, rules
from ddppo.config.settings import Config
from ddppo.device import name_of
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.distributed.join import cores_per_rank, threads_per_rank
from ddppo.distributed.topologies.base import RankContext, Topology
from ddppo.distributed.topologies.contract import Layout, TopologySpec
from ddppo.distributed.topologies.known import find
from ddppo.envs.make import choose_backend
from ddppo.envs.meaning import differences
from ddppo.envs.probing.probe import probe
from ddppo.errors import ConfigError, RunFolderError, TrainingError, in_one_line
from ddppo.models.actor_critic import ActorCritic
from ddppo.models.cnn import images_in
from ddppo.plugins import imported
from ddppo.ppo.cpp.network import why_not_cpp
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.records import checkpoint
from ddppo.records.provenance import gather_machines
from ddppo.spaces import EnvSpec, leaves


def build(config: Config, group: Group, device: torch.device) -> RankContext:
    """Build what this rank owns. All ranks call it together, and all leave it with the parameters of rank 0."""
    # 1. The share of this rank: its role in the topology, and the environments that it steps.
    shape, layout = rules.validate(config), rank_rules.layout(config)
    dtype = getattr(torch, config.dtype)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    topology_spec = find(config.dist.topology)

    # 2. The task: probing it gives its spaces. A topology may prescribe the backend; else env.backend=auto is settled
    #    here, by the number of environments and of cores.
    spec, cores = probe(config.env), cores_per_rank(local_world_size)
    if topology_spec.env_backend is not None and config.env.backend != "device":
        env_config = replace(config.env, backend=topology_spec.env_backend)
    else:
        steps_envs = group.rank in layout.stepping
        num_envs = len(shape.env_indices(layout.stepping.index(group.rank))) if steps_envs else 0
        env_config = choose_backend(config.env, spec, num_envs or shape.local_num_envs, cores)

    # 3. The model. Its initialisation follows from the seed, but machines may round it differently: rank 0's is taken.
    model = build_networks(config, spec).to(device)
    obs_normalizer = ObsNormalizer(spec.obs, device, dtype) if config.training.normalize_obs else None
    initial = None
    if config.init_from is not None and config.resume is None:
        initial = load_initial(config.init_from)
        take_initial_(initial, model, obs_normalizer)
    parameters = FlatParameters(model)
    group.broadcast_(parameters.vector.data)
    if config.dist.reduction == "auto" and config.dist.topology == "ddp":
        shape = replace(shape, num_shards=_num_shards(config, model, group))

    # 4. The topology, which makes environments, collector and learner by the methods of the context.
    sampler = make_sampler(config, spec, shape.num_envs)
    context = RankContext(
        config,
        group,
        device,
        shape,
        layout,
        spec,
        env_config,
        cores,
        model,
        parameters,
        obs_normalizer,
        sampler,
        make_algorithm(config, spec, model),
    )
    topology = topology_of(topology_spec)(context)
    if initial is not None:
        take_initial_rewards_(initial, topology.learner.reward_normalizer)

    # 5. Threads of torch, by the multiplications of one minibatch. One thread in C++ is faster than several in torch.
    num_products = model.num_products() * shape.minibatch_size // len(layout.learning)
    if why_not_cpp(config, model, device, topology.sync.name) is None:
        num_products = 0
    torch.set_num_threads(threads_per_rank(config, local_world_size, num_products))

    # 6. Add the values that depend on all of the above.
    context = replace(
        context,
        topology=topology,
        eval_ranks=eval_ranks_of(layout, topology_spec),
        derived=_derived(context, topology, local_world_size),
    )
    sampler.attach(context)
    return context


def _num_shards(config: Config, model: ActorCritic, group: Group) -> int:
    """Return V of dist.reduction=auto; 0 if sums are not ordered. All ranks call it, and all get the same number.

    Raises TrainingError if the machines of the ranks disagree.
    """
    # Sums are ordered with a network of the user's own if C++ has its layers on every rank.
    by_settings, with_layers = (rank_rules.num_shards(config, has_layers=has) for has in (False, True))
    has_layers = (
        with_layers > by_settings and why_not_cpp(config, model, torch.device("cpu"), "ordered") is None
    )
    gathered = group.gather(torch.tensor([by_settings, has_layers], dtype=torch.float64)).tolist()
    of_ranks, have_layers = zip(*gathered, strict=True)
    if (other := next((rank for rank, x in enumerate(of_ranks) if x != of_ranks[0]), None)) is not None:
        raise TrainingError(
            f"dist.reduction=auto: ranks 0 and {other} are on machines of which one has an accelerator that "
            f"device={config.device} takes: set device=cpu, or dist.reduction=fast"
        )
    return with_layers if all(have_layers) else by_settings


def topology_of(spec: TopologySpec) -> Callable[[RankContext], Topology]:
    """Return the class that implements a topology. Raises ConfigError if it cannot be imported."""
    subject = f"dist.topology={spec.name}: its implementation {spec.implementation}"
    try:
        topology_class = imported(spec.implementation)
    except Exception as e:  # a user's module may raise anything
        raise ConfigError(f"{subject} cannot be imported: {in_one_line(e)}") from e
    if not callable(topology_class) or (
        isinstance(topology_class, type) and not issubclass(topology_class, Topology)
    ):
        raise ConfigError(
            f"{subject} is no subclass of ddppo.distributed.topologies.base.Topology: make it one"
        )
    return topology_class


def eval_ranks_of(layout: Layout, spec: TopologySpec) -> tuple[int, ...]:
    """Return the ranks that run evaluation episodes.

    These are the ranks that learn, and those that act in step with them: they hold the current parameters.
    """
    roles = [role for role in layout.roles if role.learns or (role.acts and not spec.own_pace)]
    return tuple(sorted(rank for role in roles for rank in role.ranks))


def _derived(context: RankContext, topology: Topology, local_world_size: int) -> dict[str, Any]:
    """Return the section "derived" of summary.json. All ranks call it, because the machines are gathered.

    choose_compute adds "step" and "recurrence" to it.
    """
    group, device = context.group, context.device
    name = name_of(device)
    machines = gather_machines(group, None if device.type == "cpu" else name)
    derived = {
        "num_parameters": context.parameters.gradient.numel(),
        "num_products": context.model.num_products(),  # multiplications by a weight, for one observation
        "device": name,
        "threads_per_rank": torch.get_num_threads(),
        "env_backend": context.env_config.backend,  # never auto
        # torchrun sets GROUP_WORLD_SIZE, the number of its agents, one for each node.
        "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", -(-group.world_size // local_world_size))),
        "num_hosts": len(machines),
        "machines": machines,  # of each: hostname, processor, GPU, cores and ranks
        "roles": [context.layout.role(rank).name for rank in range(group.world_size)],  # by rank
        "collective": group.name,  # the implementation of collectives
        "grad_sync": topology.sync.name if topology.learners.world_size > 1 else "none",
        "sums": _sums(context.config, context.shape.num_shards),
    }
    if context.env_config.backend == "device":
        # By which value a truncated episode is bootstrapped.
        is_exact = topology.env.has_final_obs  # type: ignore[union-attr]
        derived["final_observations"] = "exact" if is_exact else "lost"
    if images := images_in(context.model):
        derived["images"] = images  # the images that the model takes, in words
    if context.has_whole_episodes:
        derived["whole_episodes"] = True  # a rollout is one episode of each environment
    return derived


def _sums(config: Config, num_shards: int) -> str:
    """Return whether results depend on W, and why."""
    if num_shards:
        *others, last = (str(w) for w in range(1, num_shards + 1) if num_shards % w == 0)
        return f"ordered: the same bits at W = {', '.join(others)}{' and ' * bool(others)}{last}"
    why = rank_rules.why_fast(config) if config.dist.reduction == "auto" else None
    return "fast: results at other W agree to rounding" + (f" ({why})" if why else "")


# -- How far a run is.


@dataclass(slots=True)
class TrainState:
    """The counters of a run. A checkpoint holds them, and a resumed run goes on counting."""

    iteration: int = 0  # iterations done; equal on all ranks
    env_steps: int = 0  # steps of all environments so far; equal on all ranks
    wall_s: float = 0.0  # seconds that this rank spent in iterations
    compiled_from: int | None = (
        None  # the first iteration in C++ or compiled by torch; None while all are eager
    )
    ended: dict[str, Any] = field(
        default_factory=dict
    )  # why it is complete early (records/run_folder.py); else {}


# -- Comparing ranks. Every rank holds a copy of the parameters, and all copies must be equal.


def compared_content(context: RankContext) -> str:
    """Return a name for the values that `fingerprint` covers, for error messages."""
    return f"parameters or {context.sampler.name}" if context.sampler.name else "parameters"


def fingerprint(context: RankContext) -> float:
    """Return 48 bits of a hash of the parameters, and of the task sampler if it learns; NaN on a rank without them.

    48 bits are exact in float64, so that the number travels with the other numbers of an iteration's report.
    """
    if context.group.rank not in context.eval_ranks:
        return math.nan
    algorithm, eval_ranks = context.algorithm, context.eval_ranks
    if algorithm.learner_class is not None:  # PPO and GRPO: all ranks act and learn with all parameters
        digest = context.parameters.digest()
    elif set(eval_ranks) <= set(context.layout.learning):
        digest = context.parameters.digest(also=algorithm.kept.values())
    else:  # actors have no more than acting needs
        digest = context.parameters.digest(algorithm.synchronised)
    if context.sampler.name:
        digest = context.sampler.digest(digest)
    return int(digest[:12], 16)


# -- init_from: a new run begins with parameters and normalisers of another run, as far as they fit.
#
# The launcher calls `warning_of_initial` once, before any rank starts. Every rank then loads the same checkpoint in
# `build`. A parameter fits if the new model has one of that name and shape; all others keep their initialisation.


_MAX_LISTED = 6  # parameters that a message names


def warning_of_initial(config: Config, spec: EnvSpec) -> str | None:
    """Return a warning that lists what of the checkpoint does not fit; None if all of it does, or there is none.

    Raises RunFolderError if there is no such checkpoint, and ConfigError if no parameter fits.
    """
    if config.init_from is None or config.resume is not None:
        return None
    state = load_initial(config.init_from)
    model = build_networks(config, spec)
    own, other = model.state_dict(), state["model"]
    fits = _fitting(model, state)

    # Parameters of another shape, those that the checkpoint lacks, and those that only the checkpoint has.
    misfits = [
        f"{name} {_shape(other[name])}, here {_shape(own[name])}"
        for name in own.keys() & other.keys() - fits.keys()
    ]
    misfits += [f"{name}, which it lacks" for name in own.keys() - other.keys()]
    misfits += [f"{name}, which has no place here" for name in other.keys() - own.keys()]
    if not fits:
        raise ConfigError(
            f"init_from={config.init_from}: no parameter fits the model of this run: {_listed(misfits)}: give the "
            "settings of env and model that it was trained with, or leave init_from out"
        )
    # Then normalisers, and differences in meaning between the two tasks.
    misfits = [*([_listed(misfits)] if misfits else []), *_misfits_of_normalizers(config, spec, state)]
    misfits += differences(state.get("spaces"), spec.spaces)
    if not misfits:
        return None
    taken = f"{len(fits)} of {len(own)} parameters are taken"
    return f"init_from={config.init_from}: {taken}; what does not fit: {'; '.join(misfits)}"


def load_initial(init_from: str) -> dict[str, Any]:
    """Return the state in a checkpoint file, or in the last whole checkpoint of a run folder. Raises RunFolderError."""
    path = Path(init_from)
    if path.is_dir() and not (path / "checkpoints").is_dir():
        raise RunFolderError(f"init_from={init_from}: not a run folder, it has no checkpoints")
    if not path.exists():
        raise RunFolderError(f"init_from={init_from}: there is no such run folder or checkpoint")
    return checkpoint.load(checkpoint.chosen("last", path) if path.is_dir() else path)


def take_initial_(state: dict[str, Any], model: torch.nn.Module, normalizer: ObsNormalizer | None) -> None:
    """Load the parameters of a checkpoint's state that fit, and the moments of observations if their shape is equal."""
    model.load_state_dict(_fitting(model, state), strict=False)
    moments = state.get("obs_moments")
    if normalizer is not None and moments is not None and moments.shape == normalizer.state.shape:
        normalizer.load(moments)


def take_initial_rewards_(state: dict[str, Any], normalizer: RewardNormalizer | None) -> None:
    """Load the moments of returns, if the checkpoint's state holds any and this run normalises rewards."""
    moments = state.get("return_moments")
    if normalizer is not None and moments is not None:
        normalizer.state = moments


def _fitting(model: torch.nn.Module, state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the parameters of a checkpoint's state that have the name and shape of one of the model."""
    own = model.state_dict()
    return {name: x for name, x in state["model"].items() if name in own and own[name].shape == x.shape}


def _misfits_of_normalizers(config: Config, spec: EnvSpec, state: dict[str, Any]) -> list[str]:
    """Return phrases for moments that only one of the two runs has, or that are of another size."""
    num_floats = sum(leaf.size for leaf in leaves(spec.obs) if leaf.is_float)
    misfits = []
    for key, setting, size in (
        ("obs_moments", "normalize_obs", num_floats),
        ("return_moments", "normalize_rewards", None),
    ):
        moments, is_wanted = state.get(key), getattr(config.training, setting)
        if moments is not None and not is_wanted:
            misfits.append(f"{key}, which {config.training.section}.{setting}=false has no use for")
        elif moments is None and is_wanted:
            misfits.append(f"{key}, which it lacks for {config.training.section}.{setting}=true")
        elif moments is not None and size is not None and moments.shape[1] != size:
            misfits.append(f"{key} of {moments.shape[1]} numbers, here {size}")
    return misfits


def _shape(x: torch.Tensor) -> str:
    return f"[{', '.join(map(str, x.shape))}]"


def _listed(misfits: list[str]) -> str:
    more = f"; and {len(misfits) - _MAX_LISTED} more" if len(misfits) > _MAX_LISTED else ""
    return "; ".join(sorted(misfits)[:_MAX_LISTED]) + more
