"""environments: {{ ranks.environments }} of {{ world_size }}. It steps environments by the actions that arrive.

{{ made_by }}

An iteration, in this order (learner.py is the other side):

    T x   <- actions      {{ sizes.actions }}, broadcast from rank 0: those of all environments
          step            its own environments
          -> results      {{ sizes.results }}, gathered at rank 0
    barrier
    report                gather, 24 bytes: steps, episodes, sum of returns
"""

import torch
from run_settings import CONFIG, ENVS, SHAPE, TOTAL_STEPS, T

from ddppo.algorithms.task_sampler import make_sampler
from ddppo.distributed.join import cores_per_rank, join, leave
from ddppo.distributed.topologies.step_messages import StepMessages
from ddppo.envs.make import make_vec_env
from ddppo.envs.probing.probe import probe

# 1. Join: torchrun has started {{ world_size }} processes of main.py.
group, device = join(CONFIG)
mine = ENVS[group.rank]  # of the environments

# 2. Environments, and the messages of a step.
spec = probe(CONFIG.env)
env = make_vec_env(CONFIG.env, mine, group.rank, cores_per_rank({{ world_size }}))
messages = StepMessages(group, spec, ENVS, CONFIG.dtype, ends_early={{ whole_episodes }})
sampler = make_sampler(CONFIG, spec, SHAPE.num_envs)  # seeds of episodes, the same on all ranks
#: if not whole_episodes
messages.send_reset(*env.reset(*sampler.sample(0).of(mine)))  # -> results, once
#: endif

# 3. The loop.
num_steps, k = 0, 0
while num_steps < TOTAL_STEPS:
    k += 1
    #: if whole_episodes
    messages.send_reset(*env.reset(*sampler.sample(k).of(mine)))  # -> results: each iteration begins new episodes
    #: endif
    for actions in messages.actions_of(T):  # <- learner, {{ sizes.actions }}
        step = env.step(actions[mine.start : mine.stop])
        messages.send_step(step)  # -> learner, {{ sizes.results }}
    group.barrier()
    report = group.gather(torch.zeros(3, dtype=torch.float64)).sum(dim=0)  # all -> all, 24 bytes
    num_steps += int(report[0])

# 4. The end.
env.close()
group.close()
leave(0)
