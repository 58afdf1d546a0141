"""What a rank is made of: environments, model, collector, learner. Built once, before the first iteration."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ddppo import config as configuration
from ddppo.algorithms.task_sampler import make_sampler
from ddppo.collectives import Group
from ddppo.config import Config
from ddppo.distributed.launch import cores_per_rank, threads_per_rank
from ddppo.distributed.parameters import FlatParameters
from ddppo.distributed.programs.kit import Kit, Program, Replica
from ddppo.envs import probe, settled
from ddppo.errors import ConfigError
from ddppo.models import build_model, images_in
from ddppo.plugins import imported
from ddppo.ppo.learning.learner import Learner
from ddppo.ppo.learning.step import adam_state
from ddppo.ppo.native.network import why_not_cpp
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.run.checkpoints import initial
from ddppo.run.measuring.machines import gather_machines
from ddppo.topologies import Layout, Topology, find
from ddppo.tracebacks import in_one_line


@dataclass(frozen=True, slots=True)
class Parts(Replica):
    """The parts of one rank. players: ranks that play evaluations, all that hold the parameters and go in step.

    derived: what summary.json tells of the parts.
    """

    program: Program
    players: tuple[int, ...]
    derived: dict[str, Any]

    @property
    def learner(self) -> Learner:
        return self.program.learner

    def policy_snapshot(self) -> list[torch.Tensor]:
        """Return copies of the parameters, and of Adam's steps and moments: what a task sampler may swap."""
        return [x.clone() for x in self._policy()]

    def put_policy_(self, snapshot: Sequence[torch.Tensor]) -> None:
        """Go on with a snapshot's parameters, and Adam's steps and moments."""
        for x, kept in zip(self._policy(), snapshot, strict=True):
            x.copy_(kept)

    def _policy(self) -> list[torch.Tensor]:
        vector = self.parameters.vector
        return [vector.detach(), *adam_state(self.learner.optimizer, vector)]

    def number_of_rank_0(self, number: int) -> int:
        """Return rank 0's number; all ranks call it."""
        return int(self.group.gather(torch.tensor([number]))[0].item())

    def state(self) -> dict[str, Any]:
        """Return what they have learned, for a checkpoint."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.learner.optimizer.state_dict(),
            "learning_rate": self.learner.learning_rate,
            "nonfinite": self.learner.tolerance.state(),
        }
        if self.obs_normalizer is not None:
            state["obs_moments"] = self.obs_normalizer.state
        if self.learner.reward_normalizer is not None:
            state["return_moments"] = self.learner.reward_normalizer.state
        if self.learner.reference is not None:
            state["reference"] = self.learner.reference.vector
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.model.load_state_dict(state["model"])
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.learner.learning_rate = state["learning_rate"]
        self.learner.tolerance.load(state.get("nonfinite", [0, 0, 0]))
        if self.obs_normalizer is not None:
            self.obs_normalizer.load(state["obs_moments"])
        if self.learner.reward_normalizer is not None:
            self.learner.reward_normalizer.state = state["return_moments"]
        if self.learner.reference is not None:
            self.learner.reference.vector.copy_(state["reference"])


def program_of(topology: Topology) -> Callable[[Kit], Program]:
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


def build(config: Config, group: Group, device: torch.device) -> Parts:
    """Build this rank's parts; all ranks leave with rank 0's parameters, and with the threads that suit the model."""
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
    replica = Replica(config, group, device, shape, roles, spec, model, parameters, obs_normalizer, sampler)
    kit = Kit(**{**_fields(replica), "config": replace(config, env=env_config)}, cores=cores)
    program = program_of(topology)(kit)
    if begun_with is not None:
        initial.take_rewards_(begun_with, program.learner.reward_normalizer)
    work = model.num_products() * shape.minibatch_size // len(roles.learning)
    if why_not_cpp(config, model, device, program.sync.name) is None:
        work = 0  # one thread in C++ is faster than several in torch
    torch.set_num_threads(threads_per_rank(config, local_world_size, work))
    derived = _derived(kit, program, local_world_size)
    parts = Parts(**_fields(replica), program=program, players=players_of(roles, topology), derived=derived)
    sampler.attach(parts)
    return parts


def _fields(replica: Replica) -> dict[str, Any]:
    return {field.name: getattr(replica, field.name) for field in fields(Replica)}


def _derived(kit: Kit, program: Program, local_world_size: int) -> dict[str, Any]:
    """Return what summary.json tells of the parts; all ranks call it."""
    group, device = kit.group, kit.device
    machines = gather_machines(group, with_gpu=device.type == "cuda")
    derived = {
        "num_parameters": kit.parameters.gradient.numel(),
        "num_products": kit.model.num_products(),  # of weights, for one observation
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads_per_rank": torch.get_num_threads(),
        "env_backend": kit.config.env.backend,
        "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", -(-group.world_size // local_world_size))),
        "num_hosts": len(machines),
        "machines": machines,
        "roles": [kit.layout.role(rank).name for rank in range(group.world_size)],
        "collective": group.name,
        "grad_sync": program.sync.name if program.learners.world_size > 1 else "none",
    }
    if images := images_in(kit.model):
        derived["images"] = images
    if program.collector is not None and program.collector.whole_episodes:
        derived["whole_episodes"] = True
    return derived
