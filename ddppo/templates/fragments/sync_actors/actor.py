"""actor: {{ ranks.actor }} of {{ world_size }}. It acts with {{ "the parameters of its learner" if several else "the learner's parameters, in its own environments" }}.

{{ made_by }}

An iteration, in this order (learner.py is the other side):

    T x (act, step)   in the actor's own environments; nothing travels
    barrier           the slowest rollout ends this wait
    -> rollout        {{ messages.rollout }}
    <- parameters     {{ messages.parameters }}
    report            gather, 24 bytes: steps, episodes, sum of returns
"""

import torch
from run_settings import CONFIG, ENVS, SEED, SHAPE, TOTAL_STEPS, T

from ddppo.algorithms.build import build_networks, make_algorithm
from ddppo.algorithms.grpo import EpisodeCollector
from ddppo.algorithms.task_sampler import make_sampler
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.distributed.join import cores_per_rank, join, leave, threads_per_rank
from ddppo.distributed.topologies.messages import ParameterMessage, RolloutGather, RolloutMessage
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.models.recurrent import Core
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.seeding import action_noise

# 1. Join: torchrun has started {{ world_size }} processes of main.py.
group, device = join(CONFIG)
mine = ENVS[group.rank]  # of the environments
#: if several
# Groups, which all ranks make in the same order: all learners, and each learner with its actors.
group.subgroup({{ learning }})
made = [group.subgroup(ranks) for ranks in {{ teams }}]
(team,) = [one for one in made if one is not None]  # this rank's
#: endif

# 2. The networks. {{ networks }}.
spec, dtype = probe(CONFIG.env), getattr(torch, CONFIG.dtype)
model = build_networks(CONFIG, spec).to(device)
parameters = FlatParameters(model)  # one vector
group.broadcast_(parameters.vector.data)  # rank 0 -> all, {{ parameter_bytes }}, once
#: if threads
torch.set_num_threads(threads_per_rank(CONFIG, {{ world_size }}, {{ work }}))
#: endif
#: if algorithm
algorithm = make_algorithm(CONFIG, spec, model)
#: endif
#: if recurrence_in_cpp
for core in [module for module in model.modules() if isinstance(module, Core)]:
    core.learns_in_cpp = True
#: endif
#: if normalize_obs
obs_normalizer = ObsNormalizer(spec.obs, device, dtype)
#: endif

# 3. Environments, and the collector that acts in them.
env = make_vec_env(CONFIG.env, mine, group.rank, cores_per_rank({{ world_size }}))
collector = {{ collector_class }}(
    env, model, {{ obs_normalizer }}, rollout_steps=T, first_env=mine.start, device=device, dtype=dtype,
    sequence_length=CONFIG.training.sequence_length,
)  # fmt: skip
#: if algorithm
collector.use_algorithm(algorithm)
#: endif
#: if cpp
# The policy in C++, where this network is faster than in PyTorch.
collector.use_cpp(CppNetwork(model, spec, parameters.vector))
#: endif
sampler = make_sampler(CONFIG, spec, SHAPE.num_envs)  # seeds of episodes
#: if not whole_episodes
collector.reset(*sampler.sample(0).of(mine))
#: endif

# 4. The messages: one flat vector each.
rollouts = RolloutGather({{ "team" if several else "group" }}, {{ rollout_message }}, sizes_vary={{ sizes_vary }})
wire = ParameterMessage(parameters, {{ obs_normalizer }}, {{ synchronised }})

# 5. The loop.
num_steps, k = 0, 0
while num_steps < TOTAL_STEPS:
    k += 1
    #: if whole_episodes
    collector.reset(*sampler.sample(k).of(mine))  # each iteration begins new episodes
    #: endif
    #: if algorithm
    algorithm.progress = num_steps / TOTAL_STEPS
    #: endif
    noise = action_noise(SEED, k, mine, T, model.num_noise, normal=spec.action.kind == "box")
    with model.unchanged():
        rollout, episodes = collector.collect(noise)  # T x (act, step)
    group.barrier()
    rollouts.gather(rollout, device)  # -> learner, {{ sizes.rollout }}
    wire.broadcast({{ "team" if several else "group" }})  # <- learner, {{ sizes.parameters }}
    report = [rollout.valid.sum().item(), len(episodes), sum(e.episode_return for e in episodes)]
    report = group.gather(torch.tensor(report, dtype=torch.float64)).sum(dim=0)  # all -> all, 24 bytes
    num_steps += int(report[0])

# 6. The end.
env.close()
group.close()
leave(0)
