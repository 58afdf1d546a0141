"""learner: {{ ranks.learner }} of {{ world_size }}. It acts for all environments, and learns from all of them.

{{ made_by }}

An iteration, in this order (environments.py is the other side):

    T x   act             for all environments
          -> actions      {{ sizes.actions }}, broadcast to all ranks
          <- results      {{ sizes.results }} of each rank, gathered
    barrier
    learn                 from all of them; nothing travels
    report                gather, 24 bytes: steps, episodes, sum of returns
"""

import torch
from run_settings import CONFIG, ENVS, SEED, SHAPE, TOTAL_STEPS, T

from ddppo.algorithms.build import build_networks, make_algorithm
from ddppo.algorithms.grpo import EpisodeCollector, GrpoLearner
from ddppo.algorithms.learner import AlgorithmLearner
from ddppo.algorithms.task_sampler import make_sampler
from ddppo.collectives.group import Group
from ddppo.distributed.gradient_sync import FlatParameters, FlatSync
from ddppo.distributed.join import join, leave, threads_per_rank
from ddppo.distributed.topologies.step_messages import RankEnvs, StepMessages
from ddppo.envs.probing.probe import probe
from ddppo.envs.vec_env import EnvNames
from ddppo.models.recurrent import Core
from ddppo.ppo.collector import Collector
from ddppo.ppo.cpp.learner import CppGae, CppStep
from ddppo.ppo.cpp.network import CppNetwork
from ddppo.ppo.learner import Learner, Normalizers
from ddppo.ppo.normalization import ObsNormalizer, RewardNormalizer
from ddppo.seeding import action_noise

# 1. Join: torchrun has started {{ world_size }} processes of main.py, and this one is rank 0.
group, device = join(CONFIG)
everywhere = range(SHAPE.num_envs)  # the environments of all other ranks

# 2. The networks, here alone. {{ networks }}.
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

# 3. The environments of all other ranks as one batch, and the collector that acts in it. Every step of the batch is a
#    broadcast of the actions and a gather of the results.
messages = StepMessages(group, spec, ENVS, CONFIG.dtype, ends_early={{ whole_episodes }})
env = RankEnvs(messages, spec, EnvNames(everywhere, group.rank))
collector = {{ collector_class }}(
    env, model, {{ obs_normalizer }}, rollout_steps=T, first_env=0, device=device, dtype=dtype,
    sequence_length=CONFIG.training.sequence_length,
)  # fmt: skip
#: if algorithm
collector.use_algorithm(algorithm)
#: endif
sampler = make_sampler(CONFIG, spec, SHAPE.num_envs)  # seeds of episodes
#: if not whole_episodes
collector.reset(*sampler.sample(0).of(everywhere))  # <- results, once
#: endif

# 4. The learner. It is alone, so its gradients travel nowhere.
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
# Policy and gradients in C++, where this network is faster than in PyTorch.
network = CppNetwork(model, spec, parameters.vector)
collector.use_cpp(network)
learner.step = CppStep(network, CONFIG.training, learner.optimizer, alone)
learner.estimator = CppGae(CONFIG.training, "clip")
#: endif

# 5. The loop.
num_steps, k = 0, 0
while num_steps < TOTAL_STEPS:
    k, progress = k + 1, num_steps / TOTAL_STEPS
    #: if whole_episodes
    collector.reset(*sampler.sample(k).of(everywhere))  # <- results: each iteration begins new episodes
    #: endif
    #: if algorithm
    algorithm.progress = progress
    #: endif
    noise = action_noise(SEED, k, everywhere, T, model.num_noise, normal=spec.action.kind == "box")
    with model.unchanged():
        rollout, episodes = collector.collect(noise)  # T x (act, -> actions, <- results)
    #: if whole_episodes
    messages.send_end()  # -> all: all episodes are over
    #: endif
    group.barrier()
    learner.update(rollout, k, progress)
    report = [rollout.valid.sum().item(), len(episodes), sum(e.episode_return for e in episodes)]
    report = group.gather(torch.tensor(report, dtype=torch.float64)).sum(dim=0)  # all -> all, 24 bytes
    steps, number, returns = report.tolist()
    num_steps += int(steps)
    print(f"iteration {k}: {num_steps} steps, mean return {returns / max(number, 1):.2f} of {number:g} episodes")

# 6. The end.
print(f"params_hash {parameters.digest()}")
group.close()
leave(0)
