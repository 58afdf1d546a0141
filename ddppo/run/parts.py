"""What a rank is made of: environments, model, collector, learner. Built once, before the first iteration."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ddppo import config as configuration
from ddppo.algorithms.task_sampler import make_sampler
from ddppo.collectives import Group
from ddppo.config import Config
from ddppo.distributed.launch import cores_per_rank, threads_per_rank
from ddppo.distributed.parameters import FlatParameters
from ddppo.distributed.programs.kit import Program, RankContext
from ddppo.envs import probe, settled
from ddppo.errors import ConfigError
from ddppo.models import build_model, images_in
from ddppo.plugins import imported
from ddppo.ppo.native.network import why_not_cpp
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.run.checkpoints import initial
from ddppo.run.measuring.machines import gather_machines
from ddppo.topologies import Layout, Topology, find
from ddppo.tracebacks import in_one_line


def program_of(topology: Topology) -> Callable[[RankContext], Program]:
    """Return what a rank of the topology runs. Raises ConfigError where there is no such program."""
    said = f"dist.topology={topology.name}: its program {topology.program}"
    try:
        program = imported(topology.program)
    except Exception as e:  # what a module of one's own may raise
        raise ConfigError(f"{said} cannot be imported: {in_one_line(e)}") from e
    if not callable(program) or (isinstance(program, type) and not issubclass(program, Program)):
        raise ConfigError(f"{said} is no subclass of ddppo.distributed.programs.kit.Program: make it one")
    return program


def players_of(roles: Layout, topology: Topology) -> tuple[int, ...]:
    """Return the ranks that play evaluations: all that hold the parameters and go in step."""
    play = [role for role in roles.roles if role.learns or (role.acts and not topology.own_pace)]
    return tuple(sorted(rank for role in play for rank in role.ranks))


def build(config: Config, group: Group, device: torch.device) -> RankContext:
    """Build what a rank holds; all ranks leave with rank 0's parameters, and with the threads that suit the model."""
    shape, roles = configuration.validate(config), configuration.layout(config)
    dtype = getattr(torch, config.dtype)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    spec, cores = probe(config.env), cores_per_rank(local_world_size)
    topology = find(config.dist.topology)
    if topology.env_backend is not None:
        env_config = replace(config.env, backend=topology.env_backend)
    else:
        own = shape.env_indices(roles.stepping.index(group.rank)) if group.rank in roles.stepping else ()
        env_config = settled(config.env, spec, len(own) or shape.local_num_envs, cores)
    model = build_model(spec, config.model, config.seed, dtype).to(device)
    obs_normalizer = ObsNormalizer(spec.obs, device, dtype) if config.ppo.normalize_obs else None
    begun_with = None
    if config.init_from is not None and config.resume is None:
        begun_with = initial.load(config.init_from)
        initial.take_(begun_with, model, obs_normalizer)
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
    program = program_of(topology)(context)
    if begun_with is not None:
        initial.take_rewards_(begun_with, program.learner.reward_normalizer)
    work = model.num_products() * shape.minibatch_size // len(roles.learning)
    if why_not_cpp(config, model, device, program.sync.name) is None:
        work = 0  # one thread in C++ is faster than several in torch
    torch.set_num_threads(threads_per_rank(config, local_world_size, work))
    derived = _derived(context, program, local_world_size)
    context = replace(context, program=program, players=players_of(roles, topology), derived=derived)
    sampler.attach(context)
    return context


def _derived(context: RankContext, program: Program, local_world_size: int) -> dict[str, Any]:
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
        "grad_sync": program.sync.name if program.learners.world_size > 1 else "none",
    }
    if images := images_in(context.model):
        derived["images"] = images
    if program.collector is not None and program.collector.whole_episodes:
        derived["whole_episodes"] = True
    return derived
