"""worker: {{ ranks.worker }} of {{ world_size }}. Each acts in its own environments and learns from its own rollout.

{{ made_by }}

An iteration, in this order on every rank:

    T x (act, step)   in the rank's own environments; nothing travels
    barrier           the slowest rollout ends this wait
    learn             gather of statistics over ranks, such as the moments of advantages
                      {{ messages.gradients }}
    report            gather, 24 bytes: steps, episodes, sum of returns
"""

import torch
from run_settings import CONFIG, ENVS, SEED, SHAPE, TOTAL_STEPS, T

from ddppo.algorithms.build import build_networks, make_algorithm
from ddppo.algorithms.grpo import EpisodeCollector, GrpoLearner
from ddppo.algorithms.learner import AlgorithmLearner
from ddppo.algorithms.task_sampler import make_sampler
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.distributed.join import cores_per_rank, join, leave, threads_per_rank
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe
from ddppo.models.recurrent import Core
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.learner import CppGae, CppStep
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.learner import Learner, Normalizers
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.seeding import action_noise

# 1. Join: torchrun has started {{ world_size }} processes of this program.
group, device = join(CONFIG)
mine = ENVS[group.rank]  # of the environments

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
sampler = make_sampler(CONFIG, spec, SHAPE.num_envs)  # seeds of episodes
#: if not whole_episodes
collector.reset(*sampler.sample(0).of(mine))
#: endif

# 4. The learner. Its gradients are summed over all ranks.
normalizers = Normalizers({{ obs_normalizer }})
#: if normalize_rewards
num_envs = len(SHAPE.env_indices(group.rank))  # that this rank learns from
normalizers.rewards = RewardNormalizer(num_envs, CONFIG.training.gamma, device)
#: endif
sync = FlatSync(model, parameters, group)
#: if algorithm
learner = AlgorithmLearner(algorithm, CONFIG.training, SHAPE, sync, group, normalizers, SEED)
#: else
learner = {{ learner_class }}(CONFIG.training, SHAPE, model, sync, group, normalizers, SEED)
#: endif
#: if cpp
# Policy and gradients in C++, where this network is faster than in PyTorch.
network = CppNetwork(model, spec, parameters.vector)
collector.use_cpp(network)
learner.step = CppStep(network, CONFIG.training, learner.optimizer, group)
learner.estimator = CppGae(CONFIG.training, "clip")
#: endif

# 5. The loop.
num_steps, k = 0, 0
while num_steps < TOTAL_STEPS:
    k, progress = k + 1, num_steps / TOTAL_STEPS
    #: if whole_episodes
    collector.reset(*sampler.sample(k).of(mine))  # each iteration begins new episodes
    #: endif
    #: if algorithm
    algorithm.progress = progress
    #: endif
    noise = action_noise(SEED, k, mine, T, model.num_noise, normal=spec.action.kind == "box")
    with model.unchanged():
        rollout, episodes = collector.collect(noise)  # T x (act, step)
    group.barrier()
    learner.update(rollout, k, progress)  # {{ messages.gradients }}
    report = [rollout.valid.sum().item(), len(episodes), sum(e.episode_return for e in episodes)]
    report = group.gather(torch.tensor(report, dtype=torch.float64)).sum(dim=0)  # all -> all, 24 bytes
    steps, number, returns = report.tolist()
    num_steps += int(steps)
    if group.rank == 0:
        print(f"iteration {k}: {num_steps} steps, mean return {returns / max(number, 1):.2f} of {number:g} episodes")

# 6. The end.
if group.rank == 0:
    print(f"params_hash {parameters.digest()}")
env.close()
group.close()
leave(0)
