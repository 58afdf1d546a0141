"""actor: {{ ranks.actor }} of {{ world_size }}. It acts with the parameters of the learner's last reply.

{{ made_by }}

A rollout, in this order (learner.py is the other side). There are no collectives: every message goes from one rank to
one other, over a connection of their own.

    <- parameters         {{ sizes.parameters }}, or the end of the run
    T x (act, step)       in the actor's own environments; nothing travels
    -> rollout            {{ sizes.rollout }}, and the episodes that ended in it
"""

import torch
from run_settings import CONFIG, ENVS, SEED, SHAPE, T

from ddppo.algorithms.build import build_networks, make_algorithm
from ddppo.algorithms.grpo import EpisodeCollector
from ddppo.algorithms.task_sampler import make_sampler
from ddppo.distributed.gradient_sync import FlatParameters
from ddppo.distributed.join import cores_per_rank, join, leave, threads_per_rank
from ddppo.distributed.topologies.async_actors.connections import (
    END,
    REPLY_HEADER,
    ParameterReply,
    ReplyHeader,
    RolloutHeader,
    connect,
    send_rollout,
)
from ddppo.distributed.topologies.messages import RolloutMessage
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.normalization import ObsNormalizer
from ddppo.seeding import action_noise

# 1. Join: torchrun has started {{ world_size }} processes of main.py.
group, device = join(CONFIG)
mine = ENVS[group.rank]  # of the environments

# 2. The networks. {{ networks }}.
spec, dtype = probe(CONFIG.env), getattr(torch, CONFIG.dtype)
model = build_networks(CONFIG, spec).to(device)
parameters = FlatParameters(model)  # one vector
#: if threads
torch.set_num_threads(threads_per_rank(CONFIG, {{ world_size }}, {{ work }}))
#: endif
#: if algorithm
algorithm = make_algorithm(CONFIG, spec, model)
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

# 4. The messages: a rollout is one flat vector of bytes.
rollouts = {{ rollout_message }}
reply = ParameterReply(parameters, {{ obs_normalizer }}, {{ synchronised }})
learner = connect(group.store, group.rank, CONFIG.dist.timeout_s)

# 5. The loop.
k = 0
while (header := ReplyHeader(*learner.unpack(REPLY_HEADER))) != END:
    reply.receive(learner)  # <- learner, {{ sizes.parameters }}
    k += 1
    #: if whole_episodes
    collector.reset(*sampler.sample(k).of(mine))  # each rollout begins new episodes
    #: endif
    #: if algorithm
    algorithm.progress = header.progress
    #: endif
    noise = action_noise(SEED, k, mine, T, model.num_noise, normal=spec.action.kind == "box")
    with model.unchanged():
        rollout, episodes = collector.collect(noise)  # T x (act, step)
    about = RolloutHeader(number=k, version=header.version, num_steps=int(rollout.valid.sum()))
    send_rollout(learner, about, rollouts.pack(rollout), episodes)  # -> learner, {{ sizes.rollout }}

# 6. The end.
learner.close()
env.close()
leave(0)
