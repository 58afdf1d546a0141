#: set team, learners, actors = ("team", "learners", "each own actor") if several else ("group", "alone", "every actor")
"""learner: {{ ranks.learner }} of {{ world_size }}. {{ "Each learns from the rollouts of its own actors, gradients summed." if several else "It learns from the rollouts of all actors." }}

{{ made_by }}

An iteration, in this order (actor.py is the other side):

    barrier           the slowest rollout ends this wait
    <- rollouts       {{ messages.rollout }}
    #: if several
    learn             gather of statistics over learners, such as the moments of advantages
                      {{ messages.gradients }} over learners
    #: else
    learn             from all of them; nothing travels
    #: endif
    -> parameters     {{ messages.parameters }}
    report            gather, 24 bytes: steps, episodes, sum of returns
"""

import torch
from run_settings import CONFIG, SEED, SHAPE, TOTAL_STEPS, T

from ddppo.algorithms.build import build_networks, make_algorithm
from ddppo.algorithms.grpo import GrpoLearner
from ddppo.algorithms.learner import AlgorithmLearner
from ddppo.collectives.group import Group
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.distributed.join import join, leave, threads_per_rank
from ddppo.distributed.topologies.messages import ParameterMessage, RolloutGather, RolloutMessage
from ddppo.envs.probing.probe import probe
from ddppo.models.recurrent import Core
from ddppo.ppo.cpp.learner import CppGae, CppStep
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.learner import Learner, Normalizers
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer

# 1. Join: torchrun has started {{ world_size }} processes of main.py{{ "" if several else ", and this one is rank 0" }}.
group, device = join(CONFIG)
#: if several
# Groups, which all ranks make in the same order: all learners, and each learner with its actors.
learners = group.subgroup({{ learning }})
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

#: if several
# 3. The learner. Its gradients are summed over all learners.
#: else
# 3. The learner. It is alone, so its gradients travel nowhere.
alone = Group()
#: endif
normalizers = Normalizers({{ obs_normalizer }})
#: if normalize_rewards
num_envs = len(SHAPE.env_indices({{ learners }}.rank))  # that this rank learns from
normalizers.rewards = RewardNormalizer(num_envs, CONFIG.training.gamma, device)
#: endif
sync = FlatSync(model, parameters, {{ learners }})
#: if algorithm
learner = AlgorithmLearner(algorithm, CONFIG.training, SHAPE, sync, {{ learners }}, normalizers, SEED)
#: else
learner = {{ learner_class }}(CONFIG.training, SHAPE, model, sync, {{ learners }}, normalizers, SEED)
#: endif
#: if cpp
# Gradients in C++, where this network is faster than in PyTorch.
network = CppNetwork(model, spec, parameters.vector)
learner.step = CppStep(network, CONFIG.training, learner.optimizer, {{ learners }})
learner.estimator = CppGae(CONFIG.training, "clip")
#: endif

# 4. The messages: one flat vector each.
rollouts = RolloutGather({{ team }}, {{ rollout_message }}, sizes_vary={{ sizes_vary }})
wire = ParameterMessage(parameters, {{ obs_normalizer }}, {{ synchronised }})

# 5. The loop.
num_steps, k = 0, 0
while num_steps < TOTAL_STEPS:
    k, progress = k + 1, num_steps / TOTAL_STEPS
    #: if algorithm
    algorithm.progress = progress
    #: endif
    group.barrier()
    rollout = rollouts.gather(None, device)  # <- {{ actors }}, {{ sizes.rollout }}
    learner.update(rollout, k, progress)  # {{ messages.gradients if several else "from all of them; nothing travels" }}
    wire.broadcast({{ team }})  # -> {{ actors }}, {{ sizes.parameters }}
    report = group.gather(torch.zeros(3, dtype=torch.float64)).sum(dim=0)  # all -> all, 24 bytes
    steps, number, returns = report.tolist()
    num_steps += int(steps)
    #: if several
    if group.rank == 0:
        print(f"iteration {k}: {num_steps} steps, mean return {returns / max(number, 1):.2f} of {number:g} episodes")
    #: else
    print(f"iteration {k}: {num_steps} steps, mean return {returns / max(number, 1):.2f} of {number:g} episodes")
    #: endif

# 6. The end.
#: if several
if group.rank == 0:
    print(f"params_hash {parameters.digest()}")
#: else
print(f"params_hash {parameters.digest()}")
#: endif
group.close()
leave(0)
