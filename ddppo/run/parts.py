"""What a rank is made of: environments, model, collector, learner. Built once, before the first iteration."""

import os
from dataclasses import dataclass
from typing import Any

import torch

from ddppo import config as configuration
from ddppo.collectives import Group
from ddppo.config import Config
from ddppo.distributed.gradient_sync import make_gradient_sync
from ddppo.distributed.launch import cores_per_rank, threads_per_rank
from ddppo.distributed.parameters import FlatParameters
from ddppo.envs import make_vec_env, probe, settled
from ddppo.envs.vec_env import VecEnv
from ddppo.models import ActorCritic, build_model
from ddppo.ppo.collector import Collector
from ddppo.ppo.learner import Learner
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.run.compilation import can_be_native
from ddppo.run.machines import gather_machines
from ddppo.scaling import BatchShape
from ddppo.spaces import EnvSpec


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one rank. derived: what summary.json tells of them."""

    shape: BatchShape
    env_indices: range
    spec: EnvSpec
    env: VecEnv
    model: ActorCritic
    parameters: FlatParameters
    obs_normalizer: ObsNormalizer | None
    reward_normalizer: RewardNormalizer | None
    collector: Collector
    learner: Learner
    sync_name: str
    derived: dict[str, Any]


def build(config: Config, group: Group, device: torch.device) -> Parts:
    """Build this rank's parts; all ranks leave with rank 0's parameters, and with the threads that suit the model."""
    shape = configuration.validate(config)
    env_indices = shape.env_indices(group.rank)
    ppo, dtype = config.ppo, getattr(torch, config.dtype)
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    spec, cores = probe(config.env), cores_per_rank(local_world_size)
    env_config = settled(config.env, spec, shape.local_num_envs, cores)
    env = make_vec_env(env_config, env_indices, group.rank, cores, config.dist.timeout_s)
    model = build_model(spec, config.model, config.seed, dtype).to(device)
    parameters = FlatParameters(model)
    group.broadcast_(parameters.vector.data)  # machines may differ in how they round the initialisation
    obs_normalizer = ObsNormalizer(spec.obs, device, dtype) if ppo.normalize_obs else None
    reward_normalizer = (
        RewardNormalizer(shape.local_num_envs, ppo.gamma, device) if ppo.normalize_rewards else None
    )
    collector = Collector(
        env,
        model,
        obs_normalizer,
        rollout_steps=shape.rollout_steps,
        first_env=env_indices.start,
        device=device,
        dtype=dtype,
    )
    sync = make_gradient_sync(
        config.dist.grad_sync, model, parameters, group, bucket_cap_mb=config.dist.bucket_cap_mb
    )
    work = model.num_products() * shape.minibatch_size // shape.world_size
    if can_be_native(config, model, device, sync.name):
        work = 0  # one thread in C++ is faster than several in torch
    torch.set_num_threads(threads_per_rank(config, local_world_size, work))
    learner = Learner(
        ppo,
        shape,
        spec.action,
        parameters.vector,
        forward=sync.forward,
        backward_=sync.backward_,
        gather=group.gather,
        rank=group.rank,
        seed=config.seed,
        obs_normalizer=obs_normalizer,
        reward_normalizer=reward_normalizer,
    )
    machines = gather_machines(group, with_gpu=device.type == "cuda")
    derived = {
        "num_parameters": parameters.gradient.numel(),
        "num_products": model.num_products(),  # of weights, for one observation
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads_per_rank": torch.get_num_threads(),
        "env_backend": env_config.backend,
        "num_nodes": -(-group.world_size // local_world_size),
        "num_hosts": len(machines),
        "machines": machines,
        "collective": group.name,
        "grad_sync": sync.name if group.world_size > 1 else "none",
    }
    return Parts(
        shape=shape,
        env_indices=env_indices,
        spec=spec,
        env=env,
        model=model,
        parameters=parameters,
        obs_normalizer=obs_normalizer,
        reward_normalizer=reward_normalizer,
        collector=collector,
        learner=learner,
        sync_name=sync.name,
        derived=derived,
    )
