"""Tasks of our own and of plugins, registered here and imported when one of them is made."""

import gymnasium as gym

from ddppo.plugins import added

gym.register(
    "ddppo/Synthetic-v0",
    entry_point="ddppo.envs.tasks.synthetic:SyntheticEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/TMaze-v0",
    entry_point="ddppo.envs.tasks.tmaze:TMazeEnv",
    order_enforce=False,
    disable_env_checker=True,
)

gym.register(
    "ddppo/MaskedCartPole-v0",
    entry_point="ddppo.envs.tasks.masked_cartpole:MaskedCartPoleEnv",
    max_episode_steps=500,
)

for task_id, keywords in added("tasks").items():
    gym.register(task_id, **keywords)
