"""learner: {{ ranks.learner }} of {{ world_size }}. It learns from the rollouts of all actors, and replies to each.

{{ made_by }}

An iteration, in this order (actor.py is the other side). There are no collectives: every message goes from one rank to
one other, over a connection of their own.

    <- rollout            {{ sizes.rollout }} of each actor, in any order
    learn                 from all of them; nothing travels
    -> parameters         {{ sizes.parameters }} to each actor

Here all actors wait for the update, as with dist.max_lag=0. An actor that is answered as soon as its rollout is here
goes on with older parameters: that is one line moved, and then `header.version` says how old a rollout is.
"""

import torch
from run_settings import CONFIG, ENVS, SEED, SHAPE, TOTAL_STEPS, T

from ddppo.algorithms.build import build_networks, make_algorithm
from ddppo.algorithms.grpo import GrpoLearner
from ddppo.algorithms.learner import AlgorithmLearner
from ddppo.collectives.group import Group
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.distributed.join import join, leave, threads_per_rank
from ddppo.distributed.topologies.async_actors.connections import ActorConnections, ParameterReply, ReplyHeader
from ddppo.distributed.topologies.messages import RolloutMessage
from ddppo.envs.probing.probe import probe
from ddppo.models.recurrent import Core
from ddppo.ppo.cpp.learner import CppGae, CppStep
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.learner import Learner, Normalizers
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer

# 1. Join: torchrun has started {{ world_size }} processes of main.py, and this one is rank 0.
group, device = join(CONFIG)

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
#: if recurrence_in_cpp
for core in [module for module in model.modules() if isinstance(module, Core)]:
    core.learns_in_cpp = True
#: endif
#: if normalize_obs
obs_normalizer = ObsNormalizer(spec.obs, device, dtype)
#: endif

# 3. The learner. It is alone, so its gradients travel nowhere.
alone = Group()
normalizers = Normalizers({{ obs_normalizer }})
#: if normalize_rewards
num_envs = len(SHAPE.env_indices(group.rank))  # that this rank learns from
normalizers.rewards = RewardNormalizer(num_envs, CONFIG.training.gamma, device)
#: endif
sync = FlatSync(model, parameters, alone)
#: if algorithm
learner = AlgorithmLearner(algorithm, CONFIG.training, SHAPE, sync, alone, normalizers, SEED)
#: else
learner = {{ learner_class }}(CONFIG.training, SHAPE, model, sync, alone, normalizers, SEED)
#: endif
#: if cpp
# Gradients in C++, where this network is faster than in PyTorch.
network = CppNetwork(model, spec, parameters.vector)
learner.step = CppStep(network, CONFIG.training, learner.optimizer, alone)
learner.estimator = CppGae(CONFIG.training, "clip")
#: endif

# 4. The messages: a rollout is one flat vector of bytes, and so are the parameters.
rollouts = {{ rollout_message }}
reply = ParameterReply(parameters, {{ obs_normalizer }}, {{ synchronised }})
actors = ActorConnections(group, ENVS, CONFIG.dist, reply)
actors.wait_for_all()
for actor in actors:
    actors.send(actor, ReplyHeader(version=0, first=0))  # -> parameters, {{ sizes.parameters }}: begin with rollout 1

# 5. The loop.
num_steps, k = 0, 0
while num_steps < TOTAL_STEPS:
    k, progress = k + 1, num_steps / TOTAL_STEPS
    received, finished, steps = {}, [], 0
    while len(received) < len(ENVS):
        for actor in actors.ready():  # waits until rollouts arrive
            header, message, episodes = actors.receive(actor, torch.empty(0))  # <- actor, {{ sizes.rollout }}
            received[actor.rank] = message
            finished += episodes
            steps += header.num_steps
    in_order = [received[rank] for rank in ENVS]  # side by side by rank, whichever came first
    #: if algorithm
    algorithm.progress = progress
    #: endif
    learner.update(rollouts.unpack(in_order, device), k, progress)
    num_steps += steps
    mean = sum(e.episode_return for e in finished) / max(len(finished), 1)
    print(f"iteration {k}: {num_steps} steps, mean return {mean:.2f} of {len(finished)} episodes")
    if num_steps < TOTAL_STEPS:
        for actor in actors:
            actors.send(actor, ReplyHeader(version=k, first=-1, progress=num_steps / TOTAL_STEPS))  # -> parameters

# 6. The end, which actors read in place of a reply.
print(f"params_hash {parameters.digest()}")
actors.finish()
actors.close()
leave(0)
